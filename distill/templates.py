"""Prompts of many kinds, put together at random: what back-end services and people ask of a chat model.

The same seed gives the same prompts. An odd seed and an even one never share a prompt, nor a function that is quoted,
so that one can be held out from what the other was used for. The kinds are those of `draftwire bench`, and some more.
"""

from collections.abc import Callable, Iterator
from random import Random

from distill import open_tasks, text_tasks, words
from distill.halves import Half, half

#: Kind -> what makes a prompt of it. Each is as likely as the others, and a seed's prompts depend on their order.
KINDS: dict[str, Callable[[Half], str]] = {
    "copy": text_tasks.copy,
    "code": text_tasks.code,
    "chat": open_tasks.chat,
    "explain": open_tasks.explain,
    "list": open_tasks.listing,
    "summary": text_tasks.summary,
    "extract": text_tasks.extract,
    "rewrite": text_tasks.rewrite,
    "story": open_tasks.story,
    "write": open_tasks.write,
    "maths": open_tasks.maths,
    "classify": text_tasks.classify,
}


def template_prompts(seed: int, stream: int) -> Iterator[tuple[str, str]]:
    """Endlessly (kind, prompt), each kind as likely as the others. A seed has independent streams."""
    rng = half(seed, stream)
    while True:
        kind = rng.choice(tuple(KINDS))
        text = KINDS[kind](rng)
        if rng.owns(text):
            yield kind, _vary(rng, text)


def _vary(rng: Random, text: str) -> str:
    """Now and then a word before or after a prompt of one line, as people write."""
    if "\n" in text:
        return text
    if rng.random() < 0.2:
        text = (
            rng.choice(("Hello. ", "Hi! ", "Good morning. ", "A question. " if text.endswith("?") else "Please: "))
            + text
        )
    if rng.random() < 0.2:
        background = f"I am a {rng.choice(words.JOBS)} and my name is {rng.choice(words.NAMES)}."
        text += " " + rng.choice(
            (background, "Keep it short.", "Be detailed.", "Thank you!", "Use simple words.", "Be funny.")
        )
    return text
