"""The tokenizer of the served model: prompts to ids, ids to text, and the vocabulary's fingerprint. No torch.

transformers would load torch where it is installed; `without_torch` keeps it out of the gateway's process.
"""

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from draftwire.errors import InvalidArgument, ModelError
from draftwire.fake_model import PREFIX as FAKE_PREFIX
from draftwire.fake_model import FakeModel
from draftwire.models import resolve
from draftwire.rpc.limits import MAX_MESSAGE_BYTES
from draftwire.vocab import vocab_fingerprint
from gateway.prompt_size import check_rendered
from gateway.requests import ChatMessage


class Tokenizer(Protocol):
    """What the gateway needs of a tokenizer; the two that encode may run on another thread than `decode`."""

    fingerprint: str
    special_ids: frozenset[int]

    def encode(self, text: str) -> Sequence[int]:
        """Ids of a text, with the special tokens that the model wants around it."""

    def encode_chat(self, messages: Sequence[ChatMessage], max_bytes: int = MAX_MESSAGE_BYTES) -> Sequence[int]:
        """Ids of a conversation, up to where the assistant's answer begins.

        Args:
            max_bytes: most that the chat template may make of it, in UTF-8.

        Raises InvalidArgument("chat") where the model's chat template refuses it, or makes more of it.
        """

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a run of ids, special tokens included; nothing is cleaned up."""


class HubTokenizer:
    """A tokenizer that transformers loads from a local folder or the hub.

    Raises ModelError where there is none.
    """

    def __init__(self, source: str) -> None:
        from transformers import AutoTokenizer  # noqa: PLC0415 (seconds, and not needed for a fake model)

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError, ImportError) as error:
            raise ModelError(f"--model {source}: the tokenizer cannot be loaded: {error}") from error
        added = self._tokenizer.added_tokens_decoder.items()
        marked = (token_id for token_id, token in added if token.special)
        self.special_ids = frozenset((*self._tokenizer.all_special_ids, *marked))
        self.fingerprint = vocab_fingerprint(self._tokenizer)

    def encode(self, text: str) -> Sequence[int]:
        """As in Tokenizer."""
        ids: list[int] = self._tokenizer(text, verbose=False).input_ids
        return ids

    def encode_chat(self, messages: Sequence[ChatMessage], max_bytes: int = MAX_MESSAGE_BYTES) -> Sequence[int]:
        """As in Tokenizer."""
        if not self._tokenizer.chat_template:
            raise InvalidArgument("chat", "the model has no chat template; send text or token_ids")
        from jinja2 import TemplateError  # noqa: PLC0415 (only models with a chat template need it)

        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        except (TemplateError, TypeError, ValueError, KeyError, IndexError) as error:
            raise InvalidArgument("chat", f"the model's chat template refuses it: {error}") from error
        check_rendered(text, max_bytes)
        # The template writes the special tokens itself.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """As in Tokenizer."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


class FakeTokenizer:
    """The vocabulary of a "fake:..." model: an id below 256 is that byte, any other one is the text "<id>"."""

    def __init__(self, model: FakeModel) -> None:
        self.fingerprint = model.vocab_fingerprint
        self.special_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> Sequence[int]:
        """The bytes of the text in UTF-8."""
        return list(text.encode())

    def encode_chat(self, messages: Sequence[ChatMessage], max_bytes: int = MAX_MESSAGE_BYTES) -> Sequence[int]:
        """A line "role: content" for each message, then "assistant: "."""
        text = "".join(f"{m.role}: {m.content}\n" for m in messages) + "assistant: "
        check_rendered(text, max_bytes)
        return self.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """As in Tokenizer."""
        return b"".join(bytes((i,)) if i < 256 else f"<{i}>".encode() for i in token_ids).decode(errors="replace")


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model: local folder, hub id, embedded-target or fake:...; raises ModelError."""
    if name.startswith(FAKE_PREFIX):
        return FakeTokenizer(FakeModel.parse(name))
    return HubTokenizer(str(resolve(name)))


def without_torch() -> None:
    """Make torch impossible to import in this process; to be called before anything imports transformers."""
    sys.modules["torch"] = None  # type: ignore[assignment]
