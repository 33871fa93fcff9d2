"""Training: Hugging Face's Trainer over collected data, with the distillation loss and an averaged student.

The Trainer brings checkpoints, resumption, mixed precision, several GPUs (torchrun) and TensorBoard. What is ours: the
loss, batches of about equally many supervised tokens, the average of the weights, and the learning curve.

One pass of the batch sampler is the whole run, however many epochs that is. So a run that goes on only skips the
batches that were used, and ends with the same bits as one that was never killed.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from transformers import TrainingArguments, set_seed

from distill import build
from distill.average import AverageWeights
from distill.batches import Collator, TokenBudgetBatches, example_sizes
from distill.data import DistillationData
from distill.draft_vocab import frequent_tokens
from distill.fingerprint import target_fingerprint
from distill.hardware import resolve_dtype
from distill.losses import DistillationLoss, vocab_map
from distill.manifest import Manifest
from distill.pretrained import load_causal
from distill.run_folder import begin, check_space, disk_of, finish, step_of
from distill.student import Student
from distill.train_options import DRAFT_VOCAB, Train
from distill.trainer import DistillationTrainer
from draftwire.engine.parallel_group import leave
from draftwire.errors import Incompatible, InvalidArgument

#: Options that say where files are or how often to look, and so do not change the result.
_INCIDENTAL = {"data", "output", "eval_data", "eval_sequences", "eval_steps", "save_steps", "log_steps", "threads"}

#: A batch's padded tokens for each supervised one, at most: prompts and padding cost memory, too.
_PADDED = 4


def train(options: Train) -> None:
    """Train a student, or go on with a run of the same settings.

    Raises InvalidArgument, Incompatible, ModelError, ResourceExhausted; the text names the option.
    """
    try:
        _train(options)
    finally:
        leave()  # only now, when nothing holds the group any more, do its threads end


def _train(options: Train) -> None:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    data = DistillationData(*options.data)
    held_out = DistillationData(*options.eval_data) if options.eval_data else None
    _check_data(data.manifest, held_out, options)
    precision = resolve_dtype(options.precision, "cuda" if torch.cuda.is_available() else "cpu")
    set_seed(options.seed)
    student = _build(options, data)
    checkpoint = begin(options.output, _settings(options, precision, student))
    check_space(options.output, 3 * student.checkpoint_bytes)  # two are kept while the third is written
    trainer = _trainer(options, precision, student, data, held_out, checkpoint)
    with disk_of(options.output):
        if student.draft_vocab is None and trainer.is_world_process_zero():
            student.causal.config.save_pretrained(options.output)
        if step_of(checkpoint) < trainer.args.max_steps:  # else the Trainer would make one more
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if trainer.is_world_process_zero():
            finish(options.output)


def _trainer(
    options: Train,
    precision: str,
    student: Student,
    data: DistillationData,
    held_out: DistillationData | None,
    checkpoint: Path | None,
) -> DistillationTrainer:
    arguments = _arguments(options, precision, evaluate=held_out is not None)
    if arguments.n_gpu > 1:
        raise InvalidArgument("CUDA_VISIBLE_DEVICES", "shows several GPUs; start with torchrun, or show one")
    rank, world = arguments.process_index, arguments.world_size
    max_length = min(options.max_length, student.max_length)
    collate = Collator(data.temperatures, options.loss_temperature, max_length)
    sizes = example_sizes(data, max_length)
    budget = options.batch_tokens
    plan = list(TokenBudgetBatches(sizes, budget, budget * _PADDED, passes=options.epochs, seed=options.seed))
    steps = len(plan) // world
    if not steps:
        raise InvalidArgument("--data", f"makes {len(plan)} batches, fewer than there are processes ({world})")
    arguments.max_steps = min(steps, options.max_steps or steps)
    seen = list(accumulate(sum(sizes[i][1] for i in batch) for batch in plan))
    few = None
    if held_out is not None:
        few_of = min(options.eval_sequences, len(held_out))
        part = Subset(held_out, [i * len(held_out) // few_of for i in range(few_of)])  # evenly spread
        held_out_plan = list(TokenBudgetBatches(example_sizes(part, max_length), budget, budget * _PADDED))
        own = Collator(held_out.temperatures, held_out.temperatures[0], max_length)  # agreement reads no tail
        few = DataLoader(part, batch_sampler=held_out_plan[rank::world], collate_fn=own)
    return DistillationTrainer(
        student,
        arguments,
        muon=options.optimizer == "muon",
        loss=DistillationLoss(options.loss_temperature, options.loss_alpha, options.loss),
        rows=_rows(student, data.manifest.vocab_size),
        batches=DataLoader(data, batch_sampler=plan[rank : steps * world : world], collate_fn=collate),
        held_out=few,
        average=AverageWeights(student, options.average_decay, checkpoint),
        seen=seen[world - 1 :: world],
    )


def _arguments(options: Train, precision: str, *, evaluate: bool) -> TrainingArguments:
    """The Trainer's own options."""
    has_board = importlib.util.find_spec("tensorboard") is not None
    return TrainingArguments(
        output_dir=str(options.output),
        num_train_epochs=1,
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=options.warmup_steps,
        weight_decay=options.weight_decay,
        adam_beta1=0.9,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        seed=options.seed,
        bf16=precision == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        logging_steps=options.log_steps,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if evaluate else "no",
        eval_steps=options.eval_steps,
        save_steps=options.save_steps,
        save_total_limit=2,
        report_to=["tensorboard"] if has_board else [],
        remove_unused_columns=False,
        ddp_broadcast_buffers=False,  # the frozen embedding, which never changes
        ddp_find_unused_parameters=False,  # every step uses all of them
    )


def _build(options: Train, data: DistillationData) -> Student:
    if options.config is not None:
        return build.from_config(options.config, options.target)
    if options.init is not None:
        return build.from_model(options.init, options.target)
    size = DRAFT_VOCAB if options.draft_vocab is None else options.draft_vocab
    layers = options.student_layers
    assert layers is not None
    return build.from_target(options.target, layers, frequent_tokens(data, size or data.manifest.vocab_size))


def _rows(student: Student, vocab_size: int) -> Tensor | None:
    """The student's row for each id of the target; None if they are the same."""
    if student.draft_vocab is not None:
        return vocab_map(student.draft_vocab, vocab_size)
    own = student.causal.config.vocab_size
    return None if own == vocab_size else vocab_map(torch.arange(min(own, vocab_size)), vocab_size)


def _check_data(manifest: Manifest, held_out: DistillationData | None, options: Train) -> None:
    build.check_vocabulary("--data", str(options.data[0]), manifest.vocab_fingerprint, options.target)
    fingerprint = target_fingerprint(load_causal(options.target))
    if manifest.target_fingerprint != fingerprint:
        raise Incompatible(
            f"--target: {options.target} has other weights (fingerprint {fingerprint[:12]}) than the target that "
            f"wrote {options.data[0]} ({manifest.target_fingerprint[:12]})"
        )
    if options.loss_temperature not in manifest.temperatures:
        stored = ", ".join(f"{t:g}" for t in manifest.temperatures)
        raise InvalidArgument("--loss-temperature", f"must be one the data was collected for: {stored}")
    if held_out is None:
        return
    if same := {path.resolve() for path in options.data} & {path.resolve() for path in options.eval_data}:
        raise InvalidArgument("--eval-data", f"{same.pop()} is --data, too; nothing would be held out")
    for field in ("vocab_fingerprint", "target_fingerprint", "vocab_size"):
        one, two = getattr(manifest, field), getattr(held_out.manifest, field)
        if one != two:
            raise Incompatible(f"--eval-data: {field} is {two}, of --data it is {one}")


def _settings(options: Train, precision: str, student: Student) -> dict[str, Any]:
    """What decides the result: options, data by their manifests, the student by its first weights."""
    manifests = [Manifest.read(folder) for folder in options.data]
    digest = hashlib.sha256("".join(manifest.model_dump_json() for manifest in manifests).encode())
    return options.model_dump(mode="json", exclude=_INCIDENTAL) | {
        "target": str(Path(options.target).resolve()) if Path(options.target).is_dir() else options.target,
        "precision": precision,
        "student_sha256": student.digest(),
        "layers": options.student_layers,
        "data": {"sha256": digest.hexdigest(), "supervised": sum(manifest.supervised for manifest in manifests)},
        "vocab_fingerprint": manifests[0].vocab_fingerprint,
        "target_fingerprint": manifests[0].target_fingerprint,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "processes": int(os.environ.get("WORLD_SIZE", "1")),  # torchrun's
    }
