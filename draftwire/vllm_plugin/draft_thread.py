"""The draft clients' event loop, on a thread of its own beside the thread of vLLM's engine."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import grpc

from draftwire.session import Hello, VerifierStep
from verify_service.draft_clients import DraftClients
from verify_service.events import Event

logger = logging.getLogger(__name__)

#: How long the streams may take to end.
STOP_SECONDS = 5.0


class DraftThread:
    """Keeps the draft workers connected from `start` to `stop`.

    Args:
        addresses: host:port of each.
        hello: introduces this vLLM.
        take: gets every event, on this thread; must be quick.
        credentials: for TLS; None = plain.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hello: Hello,
        take: Callable[[Event], None],
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._hello = hello
        self._take = take
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._clients: DraftClients | None = None
        self._thread = threading.Thread(target=self._run, name="draft-clients", daemon=True)

    def start(self) -> None:
        """Start connecting; returns at once."""
        self._thread.start()
        self._started.wait()

    def send(self, steps: Mapping[int, VerifierStep]) -> None:
        """Queue what there is to say to each connection, by worker id; from any thread."""
        clients = self._clients  # the other thread may end them meanwhile
        if clients:
            clients.send(steps)

    def stop(self) -> None:
        """End every stream."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            loop.call_soon_threadsafe(stop.set)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:  # drafts are gone, answers are not
            logger.exception("the draft clients failed; vLLM decodes without drafts from now on")
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        clients = DraftClients(self._addresses, self._hello, self._take, self._credentials)
        clients.start()
        self._clients = clients
        self._started.set()
        try:
            await self._stop.wait()
        finally:
            self._clients = None
            self._loop = None
            await clients.stop()
