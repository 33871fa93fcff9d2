"""Prompts to answers, for every front door: admit, tokenise, check, run on a verify worker, turn tokens into text.

gRPC calls it today; another protocol needs its own conversions and this.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace

from draftwire.errors import InvalidArgument, NotFound, ResourceExhausted
from draftwire.types import MAX_PROPOSAL_TOKENS, Committed, FinishReason, GenerateRequest, ModelInfo
from draftwire.validate import validate_request
from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics, RequestTimer
from gateway.pool import Pool
from gateway.prompt_size import check_prompt
from gateway.requests import AnswerRequest, ChatPrompt, Delta, Done, IdsPrompt, Prompt, TextPrompt
from gateway.sessions import Session
from gateway.text import AnswerText
from gateway.tokenizer import Tokenizer

#: The name of a prompt's field as the caller knows it.
_FIELDS: dict[type[Prompt], str] = {TextPrompt: "text", ChatPrompt: "chat", IdsPrompt: "token_ids"}


class Answers:
    """Answers prompts with the workers of a pool.

    Args:
        tokenizer: of the pool's model.
    """

    def __init__(self, config: GatewayConfig, tokenizer: Tokenizer, pool: Pool, metrics: GatewayMetrics) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._pool = pool
        self._metrics = metrics
        self._running = 0
        # One thread: tokenizers are not made for several. Calls wait for it here, at most max_concurrent_requests, and
        # not in its queue: that would keep the prompts of calls that were cancelled.
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._turn = asyncio.Lock()

    @property
    def model(self) -> ModelInfo:
        """The model as callers know it; raises Unavailable before the first verify worker was reached."""
        model = self._pool.model
        return replace(model, name=self._config.served_model_name or model.name)

    async def answer(
        self, request: AnswerRequest, timer: RequestTimer, deadline: float | None
    ) -> AsyncGenerator[Delta | Done, None]:
        """Deltas, then Done. Closing the generator cancels the call on the verify worker.

        Args:
            deadline: the caller's, on the event loop's clock, seconds; None = none.

        Raises InvalidArgument, NotFound, ResourceExhausted, Unavailable, DeadlineExceeded.
        """
        with self._slot():
            model = self.model
            session, text = await self._begin(request, model, deadline)
            try:
                async with aclosing(session.run(self._pool)) as events:
                    async for event in events:
                        if isinstance(event, Committed):
                            piece = text.push(event.token_ids)
                            timer.tokens(piece.used)
                            last = Delta(piece.text, event.token_ids[: piece.used])
                            if piece.stop is None:
                                yield last
                                continue
                            finished = session.finish(FinishReason.STOP, unused=len(event.token_ids) - piece.used)
                        else:
                            piece = text.finish()
                            last = Delta(piece.text, ())
                            finished = event if piece.stop is None else session.finish(FinishReason.STOP)
                        break  # and so cancel the worker's call, before anything else is said
            finally:
                self._metrics.failures.inc(session.failures)
            if last.text or last.token_ids:
                yield last
            timer.done(finished.reason.value, finished.usage)
            yield Done(finished, piece.stop, session.request_id, model.name)

    async def _begin(
        self, request: AnswerRequest, model: ModelInfo, deadline: float | None
    ) -> tuple[Session, AnswerText]:
        """Check the request and tokenise its prompt."""
        if request.model not in ("", model.name):
            raise NotFound(f"model {request.model!r} is not served here; {model.name!r} is")
        check_prompt(request.prompt, self._config.max_prompt_bytes)
        prompt = await self._tokenise(request.prompt)
        wanted = _generate_request(request, tuple(prompt), model)
        end_ids = frozenset((*(() if request.ignore_eos else model.eos_token_ids), *request.stop_token_ids))
        hidden = frozenset() if request.include_special_tokens else self._tokenizer.special_ids | end_ids
        session = Session(wanted, end_ids, deadline, self._config.failover_wait)
        return session, AnswerText(self._tokenizer.decode, hidden, request.stop)

    async def _tokenise(self, prompt: Prompt) -> Sequence[int]:
        """One text at a time. A call that is cancelled while it waits costs nothing, one that began is finished.

        Ids wait for nobody.
        """
        if isinstance(prompt, IdsPrompt):
            return prompt.token_ids
        await self._turn.acquire()
        encoding = asyncio.get_running_loop().run_in_executor(self._encoder, self._encode, prompt)
        encoding.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(encoding)

    def _encode(self, prompt: TextPrompt | ChatPrompt) -> Sequence[int]:
        """On the encoder's thread."""
        match prompt:
            case TextPrompt(text):
                return self._tokenizer.encode(text)
            case ChatPrompt(messages):
                return self._tokenizer.encode_chat(messages, self._config.max_prompt_bytes)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        most = self._config.max_concurrent_requests
        if self._running >= most:
            raise ResourceExhausted(f"{most} requests are being answered already (--max-concurrent-requests)")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def _generate_request(request: AnswerRequest, prompt: tuple[int, ...], model: ModelInfo) -> GenerateRequest:
    """What the verify worker is asked; raises InvalidArgument, naming the caller's field."""
    room = model.max_model_len - len(prompt)
    wanted = GenerateRequest(
        request_id=request.request_id or f"gateway-{secrets.token_hex(8)}",
        prompt_token_ids=prompt,
        max_tokens=room if request.max_tokens is None else request.max_tokens,
        sampling=request.sampling,
        seed=request.seed,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        num_speculative_tokens=request.num_speculative_tokens,
    )
    try:
        # How many proposals a worker tests at most is its own to check.
        validate_request(wanted, model, MAX_PROPOSAL_TOKENS)
    except InvalidArgument as error:
        field = _FIELDS[type(request.prompt)] if error.field == "prompt_token_ids" else error.field
        raise InvalidArgument(field, error.problem) from None
    return wanted
