"""`draftwire up`: the whole system on this machine, until Ctrl-C."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field
from rich.console import Console

from draftwire.cli.processes import ServiceProcess
from draftwire.cli.stack import GATEWAY_PORT, Stack, StackOptions, stack, until_one_ends
from draftwire.errors import DraftwireError


class Up(BaseModel):
    """Start one draft worker, one verify worker and the gateway as separate processes on this machine."""

    target: str = Field("embedded-target", description="local folder, hub id or embedded-target")
    draft: str = Field("embedded-draft", description="local folder, hub id or embedded-draft; same vocabulary")
    drafter: Literal["model", "ngram", "hybrid"] = Field("hybrid", description="what guesses")
    num_speculative_tokens: int = Field(5, ge=0, le=32, description="K: most proposals tested in one step")
    dtype: Literal["auto", "bfloat16", "float32"] = Field("auto", description="arithmetic of the weights")
    batch_invariant: bool = Field(False, description="keep a row's logits bit-identical whatever shares its batch")
    max_model_len: int = Field(2048, ge=2, description="longest prompt + output, tokens")
    max_num_seqs: int = Field(16, ge=1, le=1024, description="sessions at once")
    port: int = Field(
        GATEWAY_PORT,
        ge=0,
        le=65535,
        description="gateway's gRPC port, 0 = any free one; unless it is the default, so are all others",
    )
    log_dir: Path = Field(Path("draftwire-logs"), description="folder of the services' logs")

    def cli_cmd(self) -> None:
        """Run until Ctrl-C or SIGTERM; exit code 1 where a service could not start or ended by itself."""
        try:
            sys.exit(asyncio.run(self._run()))
        except DraftwireError as error:
            print(f"draftwire up: {error}", file=sys.stderr)
            sys.exit(1)

    async def _run(self) -> int:
        this = asyncio.current_task()
        assert this is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, this.cancel)
        options = StackOptions(**self.model_dump(exclude={"log_dir"}), logs=self.log_dir)
        console = Console(stderr=True)
        status = console.status("starting")
        try:
            with status:
                async with stack(options, status.update) as running:
                    status.stop()
                    _print_endpoints(running, self.log_dir)
                    return _complain(await until_one_ends(running))
        except asyncio.CancelledError:  # Ctrl-C; the services have drained on the way here
            return 0


def _print_endpoints(running: Stack, logs: Path) -> None:
    for service in reversed(running.services):
        print(f"{service.name:14} grpc {service.address:22} metrics http://127.0.0.1:{service.metrics_port}/metrics")
    print(f"logs in {logs}/")
    print(f'try: draftwire generate "The capital of France is" --max-tokens 32 --gateway {running.gateway.address}')
    print("Ctrl-C drains and stops everything", flush=True)


def _complain(service: ServiceProcess) -> int:
    message = f"{service.name} ended (exit code {service.returncode}): {service.last_words()}"
    print(f"draftwire up: {message}", file=sys.stderr)
    return 1
