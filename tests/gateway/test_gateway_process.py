"""The gateway as a process: flags, the line with its ports, metrics over HTTP, and a clean end on SIGTERM."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.fake_verify import FakeVerify, serve_fake
from support.gateway import MODEL, request
from support.timing import PATIENCE

from draftwire.rpc.client import connect
from draftwire.v1.gateway_service_pb2_grpc import GatewayServiceStub
from gateway.config import GatewayConfig
from gateway.server import serve

SCRIPT = list(b"from another process")


async def start(*flags: str, **settings: str) -> asyncio.subprocess.Process:
    """`python -m gateway` on the fake model and free ports, with these variables besides the environment's."""
    fixed = ("--model", "fake:vocab_size=512", "--port", "0", "--metrics-port", "0")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *fixed, *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **settings},
    )


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """(host:port, set once somebody said something) of a server that never answers."""
    asked = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            asked.set()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        yield "{}:{}".format(*server.sockets[0].getsockname()), asked


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
async def test_told_to_stop_while_a_hub_does_not_answer():
    """SIGTERM ends the process with exit code 0 and no word of being ready; the hub is not waited for."""
    async with silent_server() as (hub, asked):
        settings = {
            "HF_ENDPOINT": f"http://{hub}",
            "HF_HUB_ETAG_TIMEOUT": "3600",
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }
        process = await start("--verify", "localhost:1", "--model", "no/such-model", **settings)
        try:
            ended = asyncio.create_task(process.communicate())
            await asyncio.wait_for(asked.wait(), PATIENCE)
            process.send_signal(signal.SIGTERM)
            out, log = await asyncio.wait_for(asyncio.shield(ended), PATIENCE)
        finally:
            if process.returncode is None:
                process.kill()
                await ended
    assert (process.returncode, out) == (0, b""), log.decode()
    assert "Traceback" not in log.decode()


async def test_told_to_stop_while_a_worker_does_not_answer(monkeypatch, capsys):
    """A gateway that waits for its first look at a verify worker stops at once, and never says that it is ready."""
    monkeypatch.setattr("gateway.pool.PROBE_TIMEOUT", 3600.0)
    stop = asyncio.Event()
    async with silent_server() as (worker, probed):
        config = GatewayConfig(model=MODEL, verify=(worker,), port=0, metrics_port=0)
        serving = asyncio.create_task(serve(config, stop))
        await asyncio.wait_for(probed.wait(), PATIENCE)
        stop.set()
        assert await asyncio.wait_for(serving, PATIENCE) == 0
    assert capsys.readouterr().out == ""


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
