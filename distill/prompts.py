"""Prompts and texts of one's own: a file, or a folder of prompts that a verify worker kept (--collect-prompts).

A text file has a prompt, or a text, a line. A file of JSON lines has, as prompts or as a corpus,

    {"prompt": "..."}                                   a user's message; with "kind" if that is to be recorded
    {"text": "..."}                                     a corpus only: every token but the first is learnt
    {"prompt": "...", "reply": "..."}                   a corpus only: the reply is learnt
    {"prompt_token_ids": [..], "output_token_ids": [..], "temperature": 0.7}      what a verify worker writes
"""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distill.chat import Chat
from distill.teacher import GivenText
from draftwire.errors import InvalidArgument

#: Fields of a line and what they hold; a line has all fields of one of these.
_Shape = dict[str, type]
_MESSAGE: _Shape = {"prompt": str}
_TEXT: _Shape = {"text": str}
_CONVERSATION: _Shape = {"prompt": str, "reply": str}
_ARCHIVED: _Shape = {"prompt_token_ids": list, "output_token_ids": list}


def read_prompts(path: Path, chat: Chat) -> list[tuple[str, list[int]]]:
    """(kind, ids) of every line. Raises InvalidArgument, naming the line."""
    prompts = []
    for where, line in _lines("--prompts", path, _MESSAGE, _ARCHIVED):
        ids = line.get("prompt_token_ids")
        checked = chat.check(line["prompt"], where) if ids is None else chat.check_ids(ids, where)
        prompts.append((str(line.get("kind", "file")), checked))
    return prompts


def read_corpus(path: Path, chat: Chat) -> list[GivenText]:
    """The texts of every line; one above the chat's limit is cut, or becomes several. Raises InvalidArgument."""
    shapes = (_TEXT, _CONVERSATION, _ARCHIVED)
    texts = [text for where, line in _lines("--corpus", path, *shapes) for text in _texts(line, chat, where)]
    if not texts:
        raise InvalidArgument("--corpus", f"{path} holds no text of two tokens or more")
    return texts


def _texts(line: dict[str, Any], chat: Chat, where: str) -> Iterator[GivenText]:
    kind, temperature = str(line.get("kind", "corpus")), math.nan
    if "text" in line:
        ids = chat.plain(line["text"])
        for start in range(0, len(ids), chat.limit):
            if len(piece := ids[start : start + chat.limit]) > 1:
                yield GivenText(piece, kind, 1, temperature)
        return
    if "reply" in line:
        prompt, reply = chat.check(line["prompt"], where), chat.reply(line["reply"])
    else:
        prompt, reply = chat.check_ids(line["prompt_token_ids"], where), line["output_token_ids"]
        chat.check_vocabulary(reply, where)
        if isinstance(line.get("temperature"), int | float):
            temperature = float(line["temperature"])
    if reply := reply[: chat.limit - len(prompt)]:
        yield GivenText(prompt + reply, kind, len(prompt), temperature)


def fingerprint(path: Path | None) -> str | None:
    """SHA-256, hex, of the files at a path: what names them in the settings of a run. Raises InvalidArgument."""
    if path is None:
        return None
    digest = hashlib.sha256()
    for file in _files("the file", path):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _files(option: str, path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if files := sorted(path.glob("prompts-*.jsonl")):
        return files
    raise InvalidArgument(option, f"the folder {path} holds no file prompts-*.jsonl")


def _lines(option: str, path: Path, *shapes: _Shape) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, line) of each line that is not blank; a line of a text file is the first shape's field."""
    empty = True
    for file in _files(option, path):
        try:
            lines = file.read_text(encoding="utf-8").split("\n")  # a line may well hold other line separators
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(option, f"{file} cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            if line.strip():
                empty = False
                where = f"{option} {file}, line {number}"
                given = file.suffix in (".jsonl", ".json")
                yield where, _parse(line, where, shapes) if given else {next(iter(shapes[0])): line.removesuffix("\r")}
    if empty:
        raise InvalidArgument(option, f"{path} is empty")


def _parse(line: str, where: str, shapes: tuple[_Shape, ...]) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(where, f"is not JSON: {error}") from None
    for shape in shapes:
        if isinstance(value, dict) and all(_holds(value.get(name), kind) for name, kind in shape.items()):
            return value
    wanted = "; or ".join(" and ".join(f'"{name}"' for name in shape) for shape in shapes)
    raise InvalidArgument(where, f"must be an object with {wanted} (text, or lists of token ids)")


def _holds(value: object, kind: type) -> bool:
    return isinstance(value, kind) and (kind is str or all(type(item) is int for item in value))  # type: ignore[attr-defined]
