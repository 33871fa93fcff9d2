"""Tokenising is shared by all callers: how large a prompt may be, whose turn it is, what a cancelled call leaves."""

import asyncio
import gc
import threading
import weakref
from contextlib import aclosing
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from support.fake_verify import MODEL
from support.timing import PATIENCE

from draftwire.errors import InvalidArgument
from draftwire.fake_model import FakeModel
from draftwire.v1 import gateway_service_pb2 as pb
from gateway.answers import Answers
from gateway.config import GatewayConfig
from gateway.convert import MAX_CHAT_MESSAGES, request_from_proto
from gateway.metrics import GatewayMetrics
from gateway.prompt_size import MESSAGE_BYTES, check_prompt
from gateway.requests import AnswerRequest, ChatMessage, ChatPrompt, IdsPrompt, Prompt, TextPrompt
from gateway.tokenizer import FakeTokenizer, HubTokenizer


def chat(*messages: tuple[str, str]) -> ChatPrompt:
    """A conversation of (role, content)."""
    return ChatPrompt(tuple(ChatMessage(role, content) for role, content in messages))


@pytest.mark.parametrize(
    ("prompt", "size"),
    [
        (TextPrompt("é" * 10), 20),
        (chat(("user", "é")), MESSAGE_BYTES + 4 + 2),
        (chat(*[("u", "")] * 7), 7 * (MESSAGE_BYTES + 1)),
        (chat(("é" * 32, "")), MESSAGE_BYTES + 64),
    ],
)
def test_what_counts(prompt: Prompt, size: int) -> None:
    """Bytes of text; of a conversation role, content and a fixed sum for each message. The limit itself is allowed."""
    check_prompt(prompt, size)
    with pytest.raises(InvalidArgument, match=rf"at most {size - 1} bytes \(--max-prompt-bytes\).* got {size}$"):
        check_prompt(prompt, size - 1)


def test_the_number_of_messages_is_looked_at_first() -> None:
    """Too many are refused before anything is done for each: the bad role of the first one is not found."""
    messages = [pb.ChatMessage(role="user")] * MAX_CHAT_MESSAGES
    full = pb.GatewayServiceGenerateRequest(chat=pb.ChatMessages(messages=messages))
    assert request_from_proto(full).prompt == chat(*[("user", "")] * MAX_CHAT_MESSAGES)
    full.chat.messages[0].role = ""
    full.chat.messages.add()
    with pytest.raises(InvalidArgument, match=rf"^chat.messages: must hold 1 to {MAX_CHAT_MESSAGES} .* got 4097$"):
        request_from_proto(full)


class Tripling:
    """Stands for a tokenizer of transformers whose chat template says everything thrice."""

    chat_template = "thrice"

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, text, **_options):
        """An id for each character."""
        self.encoded.append(text)
        return SimpleNamespace(input_ids=list(map(ord, text)))

    def apply_chat_template(self, turns, **_options):
        """Contents alone."""
        return "".join(turn["content"] * 3 for turn in turns)


def test_a_rendered_conversation_that_is_too_long_is_not_encoded() -> None:
    """The template makes 12 bytes of 4, and 11 are allowed."""
    tokenizer = object.__new__(HubTokenizer)
    tokenizer._tokenizer = inner = Tripling()
    with pytest.raises(InvalidArgument, match=r"^chat: .*at most 11 bytes \(--max-prompt-bytes\).* got 12$"):
        tokenizer.encode_chat([ChatMessage("user", "éé")], 11)
    assert inner.encoded == []
    assert len(tokenizer.encode_chat([ChatMessage("user", "éé")], 12)) == 6
    assert len(FakeTokenizer(FakeModel()).encode_chat([ChatMessage("user", "é")], 20)) == 20
    with pytest.raises(InvalidArgument, match=r"^chat: .* got 20$"):
        FakeTokenizer(FakeModel()).encode_chat([ChatMessage("user", "é")], 19)


class Encoder(FakeTokenizer):
    """Waits for `gate` at every prompt. It finds none short enough, so that no call here needs a verify worker.

    Attributes:
        asked: what it was given, text or the limit of a conversation.
        busy: set once it was given something.
    """

    def __init__(self) -> None:
        super().__init__(FakeModel(vocab_size=512))
        self.asked: list[str | int] = []
        self.busy = threading.Event()
        self.gate = threading.Event()

    def encode(self, text):
        """On the gateway's thread for it."""
        self.asked.append(str(text))
        self.busy.set()
        assert self.gate.wait(PATIENCE)
        return [1] * MODEL.max_model_len

    def encode_chat(self, messages, max_bytes=0):
        """As above."""
        self.asked.append(max_bytes)
        return [1] * MODEL.max_model_len


class Calls:
    """Calls to one gateway that has no workers."""

    def __init__(self, encoder: Encoder, **flags) -> None:
        config = GatewayConfig(verify=("nobody:1",), **flags)
        self._metrics = GatewayMetrics(CollectorRegistry())
        self._answers = Answers(config, encoder, SimpleNamespace(model=MODEL), self._metrics)

    def begin(self, prompt: Prompt) -> asyncio.Task[None]:
        """A call under way; it ends with InvalidArgument, for its prompt is too long for the model."""
        return asyncio.create_task(self._call(prompt))

    async def _call(self, prompt: Prompt) -> None:
        with self._metrics.request(None) as timer:
            async with aclosing(self._answers.answer(AnswerRequest(prompt), timer, None)) as events:
                async for _ in events:
                    raise AssertionError("there is nobody to answer")


async def test_the_limit_reaches_the_chat_template() -> None:
    """--max-prompt-bytes is what the tokenizer is told."""
    encoder = Encoder()
    await asyncio.wait([Calls(encoder, max_prompt_bytes=777).begin(chat(("user", "x")))])
    assert encoder.asked == [777]


async def test_ids_wait_for_no_text() -> None:
    """While a text is encoded, a call that brings ids is looked at (they are too many for the model)."""
    encoder = Encoder()
    calls = Calls(encoder)
    first = calls.begin(TextPrompt("first"))
    await asyncio.to_thread(encoder.busy.wait, PATIENCE)
    ids = calls.begin(IdsPrompt((1,) * MODEL.max_model_len))
    await asyncio.wait([ids], timeout=PATIENCE)
    assert "max_model_len" in str(ids.exception())
    assert not first.done()
    encoder.gate.set()
    await asyncio.wait([first], timeout=PATIENCE)


class Text(str):
    """A text that can be watched while it lives."""


async def test_cancelled_calls_leave_nothing() -> None:
    """While one prompt is encoded, calls come and are cancelled: none is encoded, and their prompts are gone at once.

    So are those that come after the first call itself is cancelled, which does not end its encoding. Then it goes on,
    one at a time, in the order of coming.
    """
    encoder = Encoder()
    calls = Calls(encoder)
    first = calls.begin(TextPrompt("first"))
    await asyncio.to_thread(encoder.busy.wait, PATIENCE)
    second = calls.begin(TextPrompt("second"))
    watched = []
    for round_ in range(6):
        if round_ == 3:
            first.cancel()
            await asyncio.wait([first])
        text = Text(f"cancelled {round_}")
        watched.append(weakref.ref(text))
        call = calls.begin(TextPrompt(text))
        del text
        await asyncio.sleep(0)  # so that it begins
        call.cancel()
        await asyncio.wait([call])
        del call
    gc.collect()
    assert [text() for text in watched] == [None] * 6
    assert encoder.asked == ["first"]
    third = calls.begin(TextPrompt("third"))
    encoder.gate.set()
    await asyncio.wait([second, third], timeout=PATIENCE)
    assert encoder.asked == ["first", "second", "third"]
    assert all("max_model_len" in str(call.exception()) for call in (second, third))
