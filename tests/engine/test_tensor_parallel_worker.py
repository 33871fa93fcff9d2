"""A verify worker whose target runs over two processes: how all of them end, whoever is told or killed."""

import asyncio
import signal
from contextlib import asynccontextmanager

import grpc
import psutil
import pytest
import tiny_models
from support.processes import gone
from support.timing import PATIENCE

from draftwire.cli.processes import ServiceProcess
from draftwire.engine import parallel
from draftwire.errors import Unavailable
from draftwire.rpc.client import connect
from draftwire.rpc.convert_verify import event_from_proto, generate_request_to_proto
from draftwire.rpc.status import error_of
from draftwire.types import Committed, Finished, GenerateRequest, SamplingParams
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceStub

pytestmark = pytest.mark.e2e

#: Tokens of an answer that is not over before a follower that is killed at the first is gone.
LONG = 4000

#: After which the worker notices by itself that a follower is gone. Seconds.
SILENCE = parallel.TIMEOUT_SECONDS

FLAGS = {"tensor_parallel_size": 2, "port": 0, "metrics_port": 0, "threads": 1, "max_num_seqs": 4, "shutdown_grace": 30}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = tiny_models.make("LlamaForCausalLM", max_position_embeddings=LONG + 100)
    return tiny_models.save(tmp_path_factory.mktemp("models") / "tiny-llama", model)


@asynccontextmanager
async def worker(folder, tmp_path):
    """(the service's process, its follower's process, a stub)."""
    service = ServiceProcess("verify worker", "verify_service", {"target": folder, **FLAGS}, tmp_path / "verify.log")
    await service.start()
    (follower,) = psutil.Process(service.pid).children()
    try:
        async with connect(service.address) as channel:
            yield service, follower, VerifyServiceStub(channel)
    finally:
        await service.kill()
        await gone(follower)


async def answer(stub, on_token, count=120):
    """So many greedy tokens; `on_token()` is awaited after the first."""
    request = GenerateRequest(
        "test", (5, 6, 7), max_tokens=count, sampling=SamplingParams(temperature=0.0), ignore_eos=True
    )
    tokens = []
    async for proto in stub.Generate(generate_request_to_proto(request), timeout=PATIENCE):
        match event_from_proto(proto):
            case Committed(token_ids=token_ids):
                if not tokens:
                    await on_token()
                tokens += token_ids
            case Finished():
                return tokens
    raise AssertionError("no end")


async def test_sigterm(folder, tmp_path):
    """SIGTERM, to the follower as well: the running answer is finished, both end, the exit code is 0."""
    async with worker(folder, tmp_path) as (service, follower, stub):

        async def terminate():
            follower.terminate()
            service.signal(signal.SIGTERM)

        assert len(await answer(stub, terminate)) == 120
        assert await service.wait() == 0
        assert not follower.is_running(), "the worker waits for its followers"
        assert "ERROR" not in (tmp_path / "verify.log").read_text()


async def test_killed_follower(folder, tmp_path):
    """kill -9 of the follower: the running call gets UNAVAILABLE that names the rank, as does the log; exit code 1."""
    async with worker(folder, tmp_path) as (service, follower, stub):

        async def kill():
            follower.kill()

        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await answer(stub, kill, LONG)
        error = error_of(failed.value)
        assert isinstance(error, Unavailable)
        named = f"rank 1 of 2 (process {follower.pid}) was killed by SIGKILL"
        assert named in str(error)
        assert await service.wait() == 1
        assert named in (tmp_path / "verify.log").read_text()


async def test_killed_while_idle(folder, tmp_path):
    """The same while no call runs: the worker ends at once, not at the next call."""
    async with worker(folder, tmp_path) as (service, follower, _):
        follower.kill()
        async with asyncio.timeout(SILENCE / 2):
            assert await service.wait() == 1


async def test_killed_worker(folder, tmp_path):
    """kill -9 of the worker itself: its follower does not outlive it."""
    async with worker(folder, tmp_path) as (service, follower, _):
        await service.kill()
        await gone(follower)
