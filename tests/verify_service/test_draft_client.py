"""What the stream to a draft worker logs, without gRPC: the test says how each try ends."""

import asyncio
import logging

import grpc
import pytest

from draftwire.errors import Unavailable
from draftwire.session import PROTOCOL_VERSION, Hello
from draftwire.types import ModelInfo
from verify_service import draft_client
from verify_service.draft_client import DraftClient
from verify_service.draft_pool import DraftWorker

HELLO = Hello(PROTOCOL_VERSION, "test", ModelInfo("m", "f", 100, 1000), max_sessions=4)


class HungUp:
    """A call whose other end goes at once."""

    async def read(self):
        return grpc.aio.EOF

    async def code(self):
        return grpc.StatusCode.UNAVAILABLE

    async def details(self):
        return "gone"


class ScriptedClient(DraftClient):
    """Its worker is "away", or there and "lost" at once; after the last try it is cancelled."""

    def __init__(self, *tries: str) -> None:
        super().__init__("host:1", HELLO, lambda _: None)
        self._tries = list(tries)

    async def _converse(self) -> None:
        if not self._tries:
            raise asyncio.CancelledError
        if self._tries.pop(0) == "away":
            raise Unavailable("cannot be reached")
        await self._exchange(HungUp(), DraftWorker(1, self.address, "draft", 1000, 4))


async def test_an_absence_is_told_once_and_every_loss(monkeypatch, caplog):
    """A worker that was there meanwhile is lost anew, though the reason has the same words."""
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(draft_client, name, 0.0)
    caplog.set_level(logging.DEBUG, draft_client.__name__)
    with pytest.raises(asyncio.CancelledError):
        await ScriptedClient("lost", "lost", "away", "away", "lost", "away").run()
    assert [record.levelname for record in caplog.records] == [
        "WARNING",
        "WARNING",
        "WARNING",
        "DEBUG",
        "WARNING",
        "WARNING",
    ]
