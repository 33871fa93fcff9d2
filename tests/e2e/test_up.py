"""`draftwire up` and `draftwire generate` as a person uses them, on the fake models."""

import asyncio
import contextlib
import json
import signal
import socket
import sys

import psutil
import pytest
from support.processes import gone
from support.timing import PATIENCE

from draftwire.ports import free_port

pytestmark = pytest.mark.e2e

DRAFTWIRE = (sys.executable, "-m", "draftwire.cli.main")
FAKES = ("--target", "fake:eos=75", "--draft", "fake:")


async def start(*words):
    """A draftwire command as a process."""
    return await asyncio.create_subprocess_exec(
        *DRAFTWIRE, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def finish(process):
    """(exit code, stdout, stderr)."""
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def endpoints(up):
    """{service: address} once `draftwire up` has printed them all."""
    found = {}
    async with asyncio.timeout(PATIENCE):
        while line := (await up.stdout.readline()).decode():
            if " grpc " in line:
                name, _, rest = line.partition(" grpc ")
                found[name.strip()] = rest.split()[0]
                assert "metrics http://127.0.0.1:" in line
            if line.startswith("Ctrl-C"):
                return found
    raise AssertionError((await up.stderr.read()).decode())


async def test_up_generate_and_ctrl_c(tmp_path):
    """Up prints every endpoint; generate streams and ends with JSON; Ctrl-C drains and exits with 0."""
    up = await start("up", *FAKES, "--port", "0", "--log-dir", str(tmp_path))
    found = await endpoints(up)
    assert set(found) == {"gateway", "verify worker", "draft worker"}
    ask = ("generate", "A", "--gateway", found["gateway"], "--temperature", "0", "--json")
    code, out, err = await finish(await start(*ask, "--max-tokens", "20"))
    assert code == 0, err
    text, last = out.splitlines()
    report = json.loads(last)
    assert text == report["text"] == "BCDEFGHIJ"  # "A" is 65 and counts up; 75 = "K" ends the answer
    assert report["token_ids"] == list(range(66, 76))
    assert report["finish_reason"] == "stop"
    assert report["usage"]["completion_tokens"] == 10
    assert report["speculation"]["committed_tokens"] == 10
    code, out, _ = await finish(await start(*ask, "--max-tokens", "3", "--no-speculation"))
    assert json.loads(out.splitlines()[-1])["speculation"]["tested_tokens"] == 0
    code, _, err = await finish(await start(*ask, "--max-tokens", "99999"))
    assert code == 1
    assert "max_tokens" in err
    up.send_signal(signal.SIGINT)
    code, _, err = await finish(up)
    assert code == 0, err


async def test_up_names_a_taken_port(tmp_path):
    """Where the gateway's port is taken, up stops everything and says so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = await start("up", *FAKES, "--port", str(taken.getsockname()[1]), "--log-dir", str(tmp_path))
        code, _, err = await finish(up)
    assert code == 1
    assert "gateway did not start" in err
    assert "--port" in err


async def test_up_names_a_missing_model(tmp_path):
    """A model that is nowhere: which service, and what was looked for."""
    up = await start("up", "--target", "/nowhere/at-all", "--draft", "fake:", "--port", "0", "--log-dir", str(tmp_path))
    code, _, err = await finish(up)
    assert code == 1
    assert "/nowhere/at-all" in err


async def test_generate_without_a_gateway():
    """Nobody listens: one line, exit code 1."""
    code, _, err = await finish(await start("generate", "A", "--gateway", "127.0.0.1:9"))
    assert code == 1
    assert "127.0.0.1:9" in err


async def test_generate_with_a_bad_address():
    """The flag is named."""
    code, _, err = await finish(await start("generate", "A", "--gateway", "nowhere"))
    assert code == 1
    assert err.startswith("draftwire generate: --gateway: must be host:port")


async def test_up_ends_when_a_service_dies(tmp_path):
    """A service is killed after the start: up says which, stops the others, and exits with 1; logs are this run's."""
    (tmp_path / "gateway.log").write_text("of an earlier run\n")
    up = await start("up", *FAKES, "--port", "0", "--log-dir", str(tmp_path))
    await endpoints(up)
    children = psutil.Process(up.pid).children(recursive=True)
    next(child for child in children if "verify_service" in child.cmdline()).kill()
    code, _, err = await finish(up)
    assert code == 1
    assert "verify worker ended (exit code -9)" in err
    await gone(*children)
    assert "earlier run" not in (tmp_path / "gateway.log").read_text()
    assert "earlier run" in (tmp_path / "gateway.log.1").read_text()


async def test_second_ctrl_c_leaves_nothing_behind(tmp_path):
    """Ctrl-C twice: no service outlives `draftwire up`."""
    up = await start("up", *FAKES, "--port", "0", "--log-dir", str(tmp_path))
    await endpoints(up)
    children = psutil.Process(up.pid).children(recursive=True)
    assert len(children) == 3
    up.send_signal(signal.SIGINT)
    await asyncio.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):  # it may be done
        up.send_signal(signal.SIGINT)
    await finish(up)
    await gone(*children)


async def test_no_service_outlives_a_killed_up(tmp_path):
    """kill -9 of `draftwire up` in mid answer: the services finish it, drain and end, all three."""
    slow = ("--target", "fake:step_seconds=0.02", "--draft", "fake:")
    up = await start("up", *slow, "--port", "0", "--log-dir", str(tmp_path))
    gateway = (await endpoints(up))["gateway"]
    children = psutil.Process(up.pid).children(recursive=True)
    assert len(children) == 3
    words = ("--temperature", "0", "--max-tokens", "100", "--no-speculation", "--json")
    ask = await start("generate", "A", "--gateway", gateway, *words)
    await ask.stdout.read(1)
    up.kill()
    await up.wait()
    code, out, err = await finish(ask)
    try:
        await gone(*children)
    finally:
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["usage"]["completion_tokens"] == 100
    for name in ("gateway", "verify", "draft"):
        assert "draining" in (tmp_path / f"{name}.log").read_text()


async def test_up_says_why_nothing_would_speculate(tmp_path):
    """The draft has another vocabulary, so the verify worker refuses it."""
    models = ("--target", "fake:vocab_size=512", "--draft", "fake:vocab_size=300", "--drafter", "model")
    up = await start("up", *models, "--port", "0", "--log-dir", str(tmp_path))
    code, _, err = await finish(up)
    assert code == 1
    assert "draft worker 127.0.0.1:" in err
    assert "refused: " in err
    assert "vocab_fingerprint" in err


async def test_more_sessions_than_a_step_has_tokens(tmp_path):
    up = await start("up", *FAKES, "--max-num-seqs", "600", "--port", "0", "--log-dir", str(tmp_path))
    await endpoints(up)
    up.send_signal(signal.SIGTERM)
    assert (await finish(up))[0] == 0


async def test_two_at_once(tmp_path):
    """Given a port, only the gateway's gRPC is on it; everything else finds a place of its own."""
    ups = []
    for name in ("first", "second"):
        port = free_port()
        ups.append(await start("up", *FAKES, "--port", str(port), "--log-dir", str(tmp_path / name)))
        assert (await endpoints(ups[-1]))["gateway"] == f"127.0.0.1:{port}"
    for up in ups:
        up.send_signal(signal.SIGTERM)
        assert (await finish(up))[0] == 0
