"""All draft workers of one verify side: a client for each, and the way of what the engine says to the right one."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import grpc

from draftwire.session import Hello, VerifierStep
from verify_service.draft_client import DraftClient
from verify_service.events import Event


class DraftClients:
    """Made, started and stopped on the event loop; `send` may be called on any thread.

    Args:
        addresses: host:port of each draft worker.
        hello: introduces this verify side; its model is the target.
        post: hands an event to the engine's thread; raises ResourceExhausted if its inbox is full.
        credentials: for TLS; None = plain.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hello: Hello,
        post: Callable[[Event], None],
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clients = [DraftClient(address, hello, post, credentials) for address in addresses]
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        """How many there are, connected or not."""
        return len(self._clients)

    def start(self) -> None:
        """Connect, and keep connected until `stop`."""
        self._tasks = [asyncio.create_task(client.run()) for client in self._clients]

    async def stop(self) -> None:
        """End every stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def send(self, steps: Mapping[int, VerifierStep]) -> None:
        """Queue what there is to say to each connection, by worker id; what is gone gets nothing."""
        self._loop.call_soon_threadsafe(self._route, steps)

    def _route(self, steps: Mapping[int, VerifierStep]) -> None:
        for client in self._clients:
            step = steps.get(client.worker_id) if client.worker_id is not None else None
            if step:
                client.send(step)
