"""The work of `draftwire distill evaluate`: load, judge, foretell, print."""

import json

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.workloads import PROMPTS
from distill.card import prepare_card, read_curve, write_card
from distill.data import DistillationData
from distill.evaluate import Evaluation, assign, check_pair, evaluate
from distill.evaluate_options import Evaluate
from distill.fingerprint import target_fingerprint
from distill.forecast import Times
from distill.measure import measure
from distill.pretrained import load_causal
from distill.tables import Report, summary, tables
from distill.texts import TargetText, bench_prompts, stored_texts, write_texts
from draftwire.cli.stack import StackOptions
from draftwire.engine.base import Engine
from draftwire.engine.load import load_engine
from draftwire.errors import Incompatible
from draftwire.fake_model import PREFIX

#: Prompts answered while the services measure their steps; prompts that the target answers at once; tokens at once.
MEASURED_PROMPTS, AT_ONCE, BATCH_TOKENS = 5, len(PROMPTS), 512


def run(options: Evaluate) -> None:
    """Raises DraftwireError; the text names the option."""
    console = Console(stderr=True)
    if options.card:
        prepare_card(options.card)
    curve = read_curve(options.run) if options.run else None
    data = DistillationData(*options.data) if options.data else None
    times = _times(options, console)
    evaluation = _evaluate(options, data, console)
    console.log(f"{evaluation.positions / evaluation.seconds:.0f} positions/s")
    report = Report(evaluation, options.drafter, options.num_speculative_tokens, times)
    shown = Console(stderr=options.json_output)
    for table in tables(report):
        shown.print(table.rich())
    if options.json_output:
        print(json.dumps(summary(report)))
    if options.card:
        write_card(options.card, report, curve)


def _times(options: Evaluate, console: Console) -> Times | None:
    """Measured, given, or none."""
    if options.measure:
        console.log("measuring step times: the services answer a few prompts")
        stack = StackOptions(
            target=options.target,
            draft=options.draft,
            drafter=options.drafter,
            dtype=options.dtype,
            device=options.device,
            num_speculative_tokens=options.num_speculative_tokens,
        )
        found = measure(stack, bench_prompts(options.target)[:MEASURED_PROMPTS], options.temperature[0])
    elif options.target_ms is None or options.target_token_ms is None or options.draft_ms is None:
        return None
    else:
        found = Times.given(options.target_ms / 1000, options.target_token_ms / 1000, options.draft_ms / 1000)
    return found.further_apart(options.round_trip_ms / 1000)


def _evaluate(options: Evaluate, data: DistillationData | None, console: Console) -> Evaluation:
    console.log("loading the models")
    if data and not options.target.startswith(PREFIX):
        _check_author(options, data)
    target = _load(options, options.target, AT_ONCE if data is None else 1)
    draft = None if options.drafter == "ngram" else _load(options, options.draft, 1)
    if draft:
        check_pair(target, draft)
    if data is None:
        texts = _written(options, target, console)
    elif data.manifest.vocab_fingerprint != target.info.vocab_fingerprint:
        raise Incompatible(f"--data: made for a vocabulary other than that of {target.info.name}")
    else:
        texts = list(stored_texts(data, options.max_model_len, options.max_texts))
    for temperature in set(options.temperature) - {text.temperature for text in texts}:
        console.log(f"no text was written at temperature {temperature:g}: all are judged at it")
    with Progress(MofNCompleteColumn(), TextColumn("positions,"), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("judging", total=sum(len(text.token_ids) - text.begin for text in texts))
        return evaluate(
            assign(texts, options.temperature), target, draft, lambda positions: progress.advance(task, positions)
        )


def _check_author(options: Evaluate, data: DistillationData) -> None:
    """Text of another target is not what a draft of this one will meet. Raises Incompatible, ModelError."""
    ours, theirs = target_fingerprint(load_causal(options.target)), data.manifest.target_fingerprint
    if ours != theirs:
        raise Incompatible(
            f"--data: written by {data.manifest.target} (target_fingerprint {theirs[:12]}), not by --target "
            f"{options.target} ({ours[:12]}): configuration or weights differ"
        )


def _written(options: Evaluate, target: Engine, console: Console) -> list[TargetText]:
    """The target's answers to the benchmark's prompts at every temperature."""
    prompts = bench_prompts(options.target)
    texts: list[TargetText] = []
    for temperature in options.temperature:
        for sample in range(options.samples if temperature else 1):
            console.log(f"the target answers {len(prompts)} prompts at temperature {temperature:g}")
            seed = (options.seed + sample) % 2**64
            texts += write_texts(target, prompts, temperature=temperature, max_tokens=options.max_tokens, seed=seed)
    return texts


def _load(options: Evaluate, model: str, slots: int) -> Engine:
    return load_engine(
        model,
        dtype=options.dtype,
        device=options.device,
        num_slots=slots,
        max_model_len=options.max_model_len,
        max_batched_tokens=BATCH_TOKENS,
    )
