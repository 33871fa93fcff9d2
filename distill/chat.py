"""How a target's tokenizer writes a conversation, and what of it is a prompt."""

from collections.abc import Sequence
from typing import Any

from draftwire.errors import InvalidArgument

#: Stands for a user's message where a template is cut open.
_MARK = "d1b2c3"


class Chat:
    """Prompts as ids; a model without a chat template continues the bare text.

    Args:
        tokenizer: of the target.
        eos_token_ids: that end a message; the first of them is written after a given reply.
        vocab_size: V; ids are below it.
        limit: most tokens of a prompt.
        limit_of: whose limit it is, for messages.
    """

    def __init__(
        self, tokenizer: Any, *, eos_token_ids: Sequence[int], vocab_size: int, limit: int, limit_of: str
    ) -> None:
        self._tokenizer = tokenizer
        self._eos = tuple(eos_token_ids)
        self._vocab_size = vocab_size
        self.limit, self._limit_of = limit, limit_of

    def encode(self, text: str) -> list[int]:
        """Ids of a conversation up to where the reply begins."""
        return self._ids(self._written(text) if self._tokenizer.chat_template else text)

    def check(self, text: str, where: str) -> list[int]:
        """The same, for a prompt that somebody gave. Raises InvalidArgument, naming `where`, if it is empty or long."""
        return self.check_ids(self.encode(text) if text.strip() else [], where)

    def check_ids(self, token_ids: list[int], where: str) -> list[int]:
        """A prompt given as ids. Raises InvalidArgument as `check`, also for an id that the target does not have."""
        if not token_ids:
            raise InvalidArgument(where, "the prompt is empty")
        if len(token_ids) > self.limit:
            raise InvalidArgument(where, f"the prompt has {len(token_ids)} tokens; {self._limit_of} is {self.limit}")
        self.check_vocabulary(token_ids, where)
        return token_ids

    def check_vocabulary(self, token_ids: list[int], where: str) -> None:
        """Raise InvalidArgument for an id that the target does not have."""
        if not all(0 <= token < self._vocab_size for token in token_ids):
            raise InvalidArgument(where, f"a token id is outside 0..{self._vocab_size - 1}, the target's vocabulary")

    def reply(self, text: str) -> list[int]:
        """Ids of a reply with its end, where the target has one."""
        return [*self._ids(text), *self._eos[:1]]

    def plain(self, text: str) -> list[int]:
        """Ids of a text that is no conversation, with the special tokens that the model wants around it."""
        ids: list[int] = self._tokenizer(text, verbose=False).input_ids
        return ids

    def before_user(self) -> list[int]:
        """Ids after which the target writes what a user says. Raises InvalidArgument without a chat template."""
        if not self._tokenizer.chat_template:
            raise InvalidArgument("--self-prompts", "the target has no chat template; use 0, or --prompts")
        return self._ids(self._written(_MARK).partition(_MARK)[0])

    def user_text(self, token_ids: list[int]) -> str:
        """What a user said; empty if the end token is missing."""
        if token_ids[-1] not in self._eos:
            return ""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text.strip()

    def _written(self, message: str) -> str:
        turns = [{"role": "user", "content": message}]
        text: str = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids
