"""Keeps a sample of prompts and their answers, as token ids, so that a draft can be trained on what is asked.

Off unless --collect-prompts names a folder. Nothing waits for it: an answer is handed over once its caller has all of
it, or wants no more of it, as the gateway does at a stop string. A thread of its own gathers some and writes them as a
file (prompt_files), and where disk or thread are too slow answers are dropped and counted. What a crash loses is what
was gathered last. Nothing of a prompt is ever logged.

A line for each answer: {"prompt_token_ids": [..], "output_token_ids": [..], "temperature": 0.7}, where the temperature
is null if more than the temperature shaped the answer: top-k, top-p or min-p.
"""

import contextlib
import hashlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from draftwire.types import Committed, Finished, GenerateRequest, Started
from verify_service.prompt_files import PromptFiles

logger = logging.getLogger(__name__)

#: A file is written before it would have more bytes than this, or when its first answer is so old, seconds.
FILE_BYTES, FILE_SECONDS = 4 << 20, 600.0
#: Answers that may wait for the thread.
MAX_WAITING = 256
#: How long `close` waits for the last file, seconds.
CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class Record:
    """An answer while it is made.

    Args:
        keep: takes it once it is complete.
    """

    request: GenerateRequest
    keep: Callable[["Record"], None]
    output: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.output += self.request.committed_token_ids  # of an answer that goes on after a failover

    def saw(self, event: Started | Committed | Finished) -> None:
        """The caller got this event."""
        if isinstance(event, Committed):
            self.output += event.token_ids
        elif isinstance(event, Finished):
            self.over()

    def over(self) -> None:
        """The answer has all that it will have: it finished, or its caller wants no more of it."""
        if self.output:
            self.keep(self)

    def line(self) -> bytes:
        """JSON and a line break."""
        sampling = self.request.sampling
        pure = not sampling.temperature or (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.0)
        content = {
            "prompt_token_ids": self.request.prompt_token_ids,
            "output_token_ids": self.output,
            "temperature": sampling.temperature if pure else None,
        }
        return json.dumps(content, separators=(",", ":")).encode() + b"\n"


class PromptArchive:
    """The sample of one verify worker; starts its thread.

    Args:
        files: where it goes.
        file_bytes: most in one file.
        fraction: share of the answers that is kept, above 0 to 1. The request's id decides, on every worker alike.
        count: told "written" or "dropped", and of how many answers; on any thread.
        seconds: longest that an answer is gathered before it is written.
    """

    def __init__(
        self,
        files: PromptFiles,
        *,
        file_bytes: int,
        fraction: float,
        count: Callable[[str, int], None],
        seconds: float = FILE_SECONDS,
    ) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._mark = fraction * 2**64
        self._count = count
        self._seconds = seconds
        self._waiting: queue.Queue[Record | None] = queue.Queue(MAX_WAITING)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="prompt-archive", daemon=True)
        self._thread.start()

    def begin(self, request: GenerateRequest) -> Record | None:
        """What is to see the answer's events; None if the answer is not of the sample."""
        digest = hashlib.blake2b(request.request_id.encode(), digest_size=8).digest()
        return Record(request, self._keep) if int.from_bytes(digest, "big") < self._mark else None

    def close(self) -> None:
        """Write what was gathered and end the thread; blocks for CLOSE_SECONDS at most."""
        self._closing = True
        with contextlib.suppress(queue.Full):  # then the thread is awake
            self._waiting.put_nowait(None)
        self._thread.join(CLOSE_SECONDS)

    def _keep(self, record: Record) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._count("dropped", 1)

    def _run(self) -> None:
        """The thread: gather, write, until closed."""
        lines: list[bytes] = []
        size, due = 0, 0.0
        while True:
            record = self._next(due if lines else None)
            line = record.line() if record else b""
            if len(line) > self._file_bytes:
                self._count("dropped", 1)
                continue
            if lines and (not line or size + len(line) > self._file_bytes):
                self._write(lines)
                lines, size = [], 0
            if line:
                due = due if lines else time.monotonic() + self._seconds
                lines.append(line)
                size += len(line)
            elif self._closing:
                return

    def _next(self, due: float | None) -> Record | None:
        """The next answer; None where the worker closes or it is time to write."""
        try:
            if self._closing:
                return self._waiting.get_nowait()
            return self._waiting.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        except queue.Empty:
            return None

    def _write(self, lines: list[bytes]) -> None:
        try:
            self._files.write(b"".join(lines))
            self._count("written", len(lines))
        except OSError as error:
            logger.warning("%d collected prompts could not be written: %s", len(lines), error.strerror)
            self._count("dropped", len(lines))
