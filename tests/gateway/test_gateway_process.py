"""The gateway as a process: flags, the line with its ports, metrics over HTTP, and a clean end on SIGTERM."""

import asyncio
import json
import signal
import sys

import pytest
from support.fake_verify import FakeVerify, serve_fake
from support.gateway import request

from draftwire.rpc.client import connect
from draftwire.v1.gateway_service_pb2_grpc import GatewayServiceStub

SCRIPT = list(b"from another process")


async def start(*flags: str) -> asyncio.subprocess.Process:
    """`python -m gateway` on the fake model and free ports."""
    fixed = ("--model", "fake:vocab_size=512", "--port", "0", "--metrics-port", "0")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *fixed, *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def get(port: int, path: str) -> str:
    """The body of a plain HTTP answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    body = (await reader.read()).decode()
    writer.close()
    return body


@pytest.mark.e2e
async def test_a_gateway_process():
    """It answers, counts, and drains on SIGTERM with exit code 0 while a call is running: the call ends well."""
    fake = FakeVerify(SCRIPT, hold_at=9, hold_only="last")
    async with serve_fake(fake) as worker:
        process = await start("--verify", worker.address)
        assert process.stdout is not None
        assert process.stderr is not None
        log = asyncio.create_task(process.stderr.read())  # a full pipe would block it
        ready = json.loads(await process.stdout.readline())
        port, metrics_port = ready["port"], ready["metrics_port"]
        async with connect(f"127.0.0.1:{port}") as channel:
            stub = GatewayServiceStub(channel)
            answer = await stub.Generate(request())  # it said that it is ready
            assert answer.text == "from another process"
            assert answer.done.model == "fake"
            assert 'draftwire_gateway_requests_total{outcome="length"} 1.0' in await get(metrics_port, "/metrics")
            call = asyncio.ensure_future(stub.Generate(request(request_id="last")))
            await fake.holding.wait()
            process.send_signal(signal.SIGTERM)
            fake.gate.set()
            assert (await call).text == "from another process"
        assert await process.wait() == 0
        assert "Traceback" not in (await log).decode()


@pytest.mark.e2e
async def test_a_taken_port():
    """A port that somebody has ends the process with a line that says so."""
    async with serve_fake(FakeVerify(SCRIPT)) as worker:
        process = await start("--verify", worker.address, "--port", worker.address.rpartition(":")[2])
        _, log = await process.communicate()
    assert process.returncode == 1
    assert "error: --port" in log.decode()
    assert "Traceback" not in log.decode()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "--verify"),
        (("--verify", "nowhere"), "--verify"),
        (("--verify", "localhost:1", "--max-concurrent-requests", "0"), "--max-concurrent-requests"),
        (("--verify", "localhost:1", "--model", "/no/such/folder"), "/no/such/folder"),
    ],
)
async def test_bad_flags(flags, expected):
    """The process ends at once with a line that names the flag or the model."""
    process = await start(*flags)
    _, log = await process.communicate()
    assert process.returncode in {1, 2}
    last = log.decode().strip().splitlines()[-1]
    assert "error" in last
    assert expected in last
