"""The work of `draftwire distill collect`: shard after shard until there are tokens enough.

What is in a shard depends on the settings and its number alone, so a killed run that is started again loses the shard
it was at and ends with the same data set as a run that was left alone.
"""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from distill.chat import Chat
from distill.collect_options import Collect
from distill.data import Example, Shard
from distill.halves import half
from distill.hardware import resolve_dtype
from distill.manifest import Manifest
from distill.prompts import fingerprint, read_corpus, read_prompts
from distill.target import Target, load_target
from distill.teacher import GivenText, Request, Teacher
from distill.templates import template_prompts
from distill.writer import DataWriter
from draftwire.errors import InvalidArgument

#: Longest message that the target makes up for a user, tokens; draws for it use a salt of their own.
_USER_TOKENS, _USER_SALT = 96, 1

#: A prompt of a template has at least so many tokens' room beside the chat template.
_LEAST_ROOM = 32

#: A shard's examples by its number, told how many tokens are done; an empty list if there is no more to do.
ShardSource = Callable[[int, Callable[[int], None]], list[Example]]


def collect(options: Collect, console: Console | None = None) -> Manifest:
    """Collect what the options say, or what is missing of it. Raises DraftwireError; the text names the option."""
    console = console or Console(stderr=True)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    dtype = resolve_dtype(options.dtype, options.device)
    console.log(f"loading {options.target} in {dtype}")
    target = load_target(options.target, dtype, options.device)
    teacher = Teacher(
        target.model,
        vocab_size=target.vocab_size,
        eos_token_ids=target.eos_token_ids,
        top_k=options.top_k,
        temperatures=options.temperatures,
        seed=options.seed,
        batch_size=options.batch_size,
    )
    source = _source(options, target, teacher, console.log)
    manifest = Manifest(
        target=options.target,
        vocab_fingerprint=target.vocab_fingerprint,
        target_fingerprint=teacher.fingerprint,
        vocab_size=target.vocab_size,
        top_k=options.top_k,
        temperatures=tuple(options.temperatures),
        settings=_settings(options, dtype),
    )
    writer = DataWriter(options.output, manifest, int(options.max_disk_gib * 2**30))
    _fill(writer, source, options.tokens, console)
    return writer.manifest


def _fill(writer: DataWriter, source: ShardSource, goal: int, console: Console) -> None:
    begun, new = time.monotonic(), 0

    def told(count: int) -> None:
        nonlocal new
        new += count
        progress.update(task, advance=count, rate=new / (time.monotonic() - begun))

    counts = TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens")
    rate = TextColumn("{task.fields[rate]:,.0f} tokens/s")
    with Progress(counts, BarColumn(), rate, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=goal, completed=writer.manifest.supervised, rate=0.0)
        while (done := writer.manifest.supervised) < goal:
            examples = source(len(writer.manifest.shards), told)
            if not examples:
                console.log(f"the file has no more: {done:,} tokens")
                return
            writer.append(Shard.of(examples))
            shard = writer.manifest.shards[-1]
            console.log(
                f"{shard.file}: {shard.sequences:,} sequences, {shard.supervised:,} tokens; "
                f"{done + shard.supervised:,} in all, {new / (time.monotonic() - begun):,.0f} tokens/s"
            )


def _source(options: Collect, target: Target, teacher: Teacher, log: Callable[[str], None]) -> ShardSource:
    if options.corpus:
        texts = read_corpus(options.corpus, _chat(target, target.max_model_len, f"what {options.target} takes"))
        return Corpus(teacher, texts, options.shard_sequences)
    chat = _chat(target, options.max_prompt_tokens, "--max-prompt-tokens")
    longest = options.max_prompt_tokens + options.max_new_tokens
    if longest > target.max_model_len:
        raise InvalidArgument(
            "--max-new-tokens",
            f"with --max-prompt-tokens it makes {longest} tokens; {options.target} takes {target.max_model_len}",
        )
    if options.prompts:
        return FilePrompts(teacher, options, read_prompts(options.prompts, chat))
    if len(chat.encode("")) + _LEAST_ROOM > options.max_prompt_tokens:
        raise InvalidArgument("--max-prompt-tokens", f"{options.max_prompt_tokens} leaves no room for a prompt")
    return OwnPrompts(teacher, options, chat, log)


def _chat(target: Target, limit: int, limit_of: str) -> Chat:
    return Chat(
        target.tokenizer,
        eos_token_ids=target.eos_token_ids,
        vocab_size=target.vocab_size,
        limit=limit,
        limit_of=limit_of,
    )


@dataclass(frozen=True)
class Corpus:
    """Given texts, judged."""

    teacher: Teacher
    texts: list[GivenText]
    shard_sequences: int

    def __call__(self, shard: int, told: Callable[[int], None]) -> list[Example]:
        """The shard's share of the texts."""
        first = shard * self.shard_sequences
        return self.teacher.score(self.texts[first : first + self.shard_sequences], told)


@dataclass(frozen=True)
class FilePrompts:
    """Replies to the prompts of a file, each once: (kind, ids)."""

    teacher: Teacher
    options: Collect
    prompts: list[tuple[str, list[int]]]

    def __call__(self, shard: int, told: Callable[[int], None]) -> list[Example]:
        """Replies to the shard's share of the prompts."""
        first = shard * self.options.shard_sequences
        share = self.prompts[first : first + self.options.shard_sequences]
        return self.teacher.sample(_requests(share, shard, self.options), self.options.max_new_tokens, told)


@dataclass(frozen=True)
class OwnPrompts:
    """Replies to messages that the target makes up, and to templates."""

    teacher: Teacher
    options: Collect
    chat: Chat
    log: Callable[[str], None]

    def __call__(self, shard: int, told: Callable[[int], None]) -> list[Example]:
        """Replies to prompts that are new in every shard."""
        count = self.options.shard_sequences
        made_up = self._made_up(shard, round(count * self.options.self_prompts))
        prompts = chain((("self", text) for text in made_up), template_prompts(self.options.seed, shard))
        encoded = ((kind, self.chat.encode(text)) for kind, text in prompts)
        fitting = islice((p for p in encoded if len(p[1]) <= self.options.max_prompt_tokens), count)
        return self.teacher.sample(_requests(list(fitting), shard, self.options), self.options.max_new_tokens, told)

    def _made_up(self, shard: int, count: int) -> list[str]:
        """What the target takes for a user's messages: those that it ended and that are not for the other seeds."""
        if not count:
            return []
        header, first = self.chat.before_user(), shard * self.options.shard_sequences
        requests = [Request(header, "", 1.0, 2 * first + i) for i in range(2 * count)]  # half are for other seeds
        written = self.teacher.sample(requests, _USER_TOKENS, salt=_USER_SALT)
        texts = [self.chat.user_text(example.token_ids[len(header) :].tolist()) for example in written]
        owns = half(self.options.seed, shard).owns
        if not any(texts):
            self.log("--self-prompts: the target ended none of its messages; templates take their place")
        return [text for text in texts if text and owns(text)][:count]


def _requests(prompts: list[tuple[str, list[int]]], shard: int, options: Collect) -> list[Request]:
    """The prompts of a shard with the temperatures of their replies."""
    rng = Random(f"{options.seed}/{shard}/temperatures")
    temperatures = [float(temperature) for temperature in options.samplings]
    drawn = rng.choices(temperatures, list(options.samplings.values()), k=len(prompts))
    first = shard * options.shard_sequences
    return [
        Request(ids, kind, temperature, first + i)
        for i, ((kind, ids), temperature) in enumerate(zip(prompts, drawn, strict=True))
    ]


def _settings(options: Collect, dtype: str) -> dict[str, Any]:
    """What decides the content of a shard, and so must be the same when a run goes on."""
    names = (
        "seed",
        "self_prompts",
        "max_new_tokens",
        "max_prompt_tokens",
        "samplings",
        "batch_size",
        "shard_sequences",
    )
    return {
        **{name: getattr(options, name) for name in names},
        "dtype": dtype,
        "device": torch.device(options.device).type,
        "prompts": fingerprint(options.prompts),
        "corpus": fingerprint(options.corpus),
        "python": ".".join(platform.python_version_tuple()[:2]),  # templates quote its library
    }
