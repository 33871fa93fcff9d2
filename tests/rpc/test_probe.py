"""The health check of the containers: exit codes, and what it prints."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from draftwire.rpc import probe


@pytest.fixture
def service():
    """(A health service, where it listens)."""
    servicer = health.HealthServicer()
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize(("status", "code"), [("SERVING", 0), ("NOT_SERVING", 1)])
def test_what_the_service_says(service, capsys, status, code):
    servicer, address = service
    servicer.set("", health_pb2.HealthCheckResponse.ServingStatus.Value(status))
    assert probe.main([address]) == code
    assert capsys.readouterr().out == f"{status}\n"


def test_nobody_there(capsys, monkeypatch):
    """Refused at once, or silent until the time is up."""
    monkeypatch.setattr(probe, "TIMEOUT", 0.5)
    assert probe.main(["127.0.0.1:1"]) == 1
    assert capsys.readouterr().out.startswith(("UNAVAILABLE: ", "DEADLINE_EXCEEDED: "))


def test_without_an_address(capsys):
    assert probe.main([]) == 2
    assert "HOST:PORT" in capsys.readouterr().err
