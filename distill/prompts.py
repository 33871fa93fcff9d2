"""Where prompts come from: a file, or the target itself mixed with templates.

Prompts of one's own: files with a prompt a line, or JSON lines {"prompt": ..., "kind": ...}. Without a file, a share of
the prompts is what the target itself takes for a user's message, sampled after the header that its chat template writes
before one; the others are templates. A corpus is read likewise: a text a line, or {"text": ...}, or
{"prompt": ..., "reply": ...}, of which only the reply is to be learnt.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distill.teacher import Text
from draftwire.errors import InvalidArgument

#: Stands for a user's message where a template is cut open.
_MARK = "d1b2c3"


class Chat:
    """How a tokenizer writes conversations; a model without a chat template continues the bare text.

    Args:
        tokenizer: of the target.
        max_prompt_tokens: longest prompt.
    """

    def __init__(self, tokenizer: Any, max_prompt_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._limit = max_prompt_tokens

    def encode(self, text: str) -> list[int]:
        """Ids of a conversation up to where the reply begins."""
        return self._ids(self._written(text) if self._tokenizer.chat_template else text)

    def check(self, text: str, where: str) -> list[int]:
        """The same, for a prompt that somebody gave. Raises InvalidArgument, naming `where`, if it is empty or long."""
        ids = self.encode(text)
        if not text.strip() or not ids:
            raise InvalidArgument(where, "the prompt is empty")
        if len(ids) > self._limit:
            raise InvalidArgument(where, f"the prompt has {len(ids)} tokens; --max-prompt-tokens is {self._limit}")
        return ids

    def before_user(self) -> list[int]:
        """Ids after which the target writes what a user says. Raises InvalidArgument without a chat template."""
        if not self._tokenizer.chat_template:
            raise InvalidArgument("--self-prompts", "the target has no chat template; use 0, or --prompts")
        return self._ids(self._written(_MARK).partition(_MARK)[0])

    def user_text(self, token_ids: list[int]) -> str:
        """What a user said; empty if the end token is missing."""
        if token_ids[-1] != self._tokenizer.eos_token_id:
            return ""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text.strip()

    def text(self, line: dict[str, Any], kind: str, where: str) -> list[Text]:
        """A line of a corpus; a text above the limit becomes several. Raises InvalidArgument."""
        if "reply" in line:
            prompt = self.check(line["prompt"], where)
            reply = [*self._ids(line["reply"]), self._tokenizer.eos_token_id]
            return [Text(prompt + reply[: self._limit], kind, len(prompt))]
        ids = self._tokenizer(line["text"], verbose=False).input_ids
        pieces = (ids[start : start + self._limit] for start in range(0, len(ids), self._limit))
        return [Text(piece, kind, 1) for piece in pieces if len(piece) > 1]

    def _written(self, message: str) -> str:
        turns = [{"role": "user", "content": message}]
        text: str = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids


def read_prompts(file: Path, chat: Chat) -> list[tuple[str, list[int]]]:
    """(kind, ids) of every line of a file of prompts. Raises InvalidArgument, naming the line."""
    return [
        (str(line.get("kind", "file")), chat.check(line["prompt"], where))
        for where, line in _lines("--prompts", file, ({"prompt"},))
    ]


def read_corpus(file: Path, chat: Chat) -> list[Text]:
    """The texts of a file. Raises InvalidArgument, naming the line."""
    texts = [
        text
        for where, line in _lines("--corpus", file, ({"text"}, {"prompt", "reply"}))
        for text in chat.text(line, str(line.get("kind", "corpus")), where)
    ]
    if not texts:
        raise InvalidArgument("--corpus", f"{file} holds no text of two tokens or more")
    return texts


def file_fingerprint(file: Path | None) -> str | None:
    """SHA-256 of a file, hex, which names it in the settings of a run."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file else None


def _lines(option: str, file: Path, wanted: tuple[set[str], ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, line) of each line that is not blank; a line of a text file has the first wanted field."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(option, f"{file} cannot be read: {error}") from None
    if not any(line.strip() for line in lines):
        raise InvalidArgument(option, f"{file} is empty")
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{option} {file}, line {number}"
            yield where, _parse(line, where, wanted) if file.suffix in (".jsonl", ".json") else {min(wanted[0]): line}


def _parse(line: str, where: str, wanted: tuple[set[str], ...]) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(where, f"is not JSON: {error}") from None
    for fields in wanted:
        if isinstance(value, dict) and all(isinstance(value.get(field), str) for field in fields):
            return value
    names = " or ".join(" and ".join(f'"{field}"' for field in sorted(fields)) for fields in wanted)
    raise InvalidArgument(where, f"must be an object with {names}, as text")
