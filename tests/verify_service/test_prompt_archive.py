"""What is kept of prompts and answers: a sample, bounded, whole or not at all, and nothing that waits."""

import functools
import json
import logging
import stat
import threading
import time
from pathlib import Path

import pytest
from support.pair import connected, draft_worker
from support.timing import PATIENCE
from support.verify_worker import output, verify_worker

from draftwire.errors import InvalidArgument
from draftwire.fake_model import FakeModel
from draftwire.types import (
    Committed,
    Finished,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    SpeculationStats,
    Started,
    Usage,
)
from verify_service.prompt_archive import MAX_WAITING, PromptArchive
from verify_service.prompt_files import PromptFiles

DONE = Finished(FinishReason.LENGTH, Usage(1, 1), SpeculationStats())


def request(name="r", **fields) -> GenerateRequest:
    return GenerateRequest(name, (1, 2), **fields)


class Counts(dict[str, int]):
    """The callback of an archive."""

    def __call__(self, outcome: str, count: int) -> None:
        self[outcome] = self.get(outcome, 0) + count


def archive(folder: Path, *, count=None, fraction=1.0, file_bytes=1 << 16, max_bytes=1 << 20, seconds=600.0):
    return PromptArchive(
        PromptFiles(folder, max_bytes),
        file_bytes=file_bytes,
        fraction=fraction,
        count=Counts() if count is None else count,
        seconds=seconds,
    )


def answer(kept: PromptArchive, wanted: GenerateRequest, *tokens: int) -> None:
    record = kept.begin(wanted)
    assert record is not None
    record.saw(Started("worker", wanted.request_id))
    for token in tokens:
        record.saw(Committed(0, (token,)))
    record.saw(DONE)


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(folder.glob("prompts-*.jsonl")) for line in path.open()]


def test_a_line_for_each_answer(tmp_path):
    """Ids and the temperature; null where the answer is not a plain sample at it; what came before a failover too."""
    counts = Counts()
    kept = archive(tmp_path, count=counts)
    answer(kept, request(), 3, 4)
    answer(kept, request(sampling=SamplingParams(temperature=0.7, top_p=0.9)), 3)
    answer(kept, request(sampling=SamplingParams(temperature=0.0, top_p=0.9)), 3)
    answer(kept, request(committed_token_ids=(8, 9)), 3)
    kept.close()
    assert lines(tmp_path) == [
        {"prompt_token_ids": [1, 2], "output_token_ids": [3, 4], "temperature": 1.0},
        {"prompt_token_ids": [1, 2], "output_token_ids": [3], "temperature": None},
        {"prompt_token_ids": [1, 2], "output_token_ids": [3], "temperature": 0.0},
        {"prompt_token_ids": [1, 2], "output_token_ids": [8, 9, 3], "temperature": 1.0},
    ]
    assert counts == {"written": 4}


def test_what_is_not_kept(tmp_path):
    """An answer that neither finished nor was ended by its caller, and one with nothing in it."""
    kept = archive(tmp_path)
    record = kept.begin(request())
    assert record is not None
    record.saw(Committed(0, (5,)))
    answer(kept, request())
    nothing = kept.begin(request())
    assert nothing is not None
    nothing.over()
    kept.close()
    assert list(tmp_path.iterdir()) == []


def test_the_sample_goes_by_the_requests_id(tmp_path):
    """A quarter of many, the same ones on every worker."""
    one, other = archive(tmp_path, fraction=0.25), archive(tmp_path, fraction=0.25)
    chosen = [one.begin(request(f"id-{index}")) is not None for index in range(4000)]
    assert chosen == [other.begin(request(f"id-{index}")) is not None for index in range(4000)]
    assert 880 < sum(chosen) < 1120
    one.close()
    other.close()


def test_old_files_make_room(tmp_path):
    """A line has 69 bytes: two make a file of at most 150, and two files fit into 400; the oldest make room."""
    tmp_path.joinpath("notes.txt").write_text("x" * 1000)
    kept = archive(tmp_path, file_bytes=150, max_bytes=400)
    for token in range(10, 40):
        answer(kept, request(), token)
    kept.close()
    assert [path.stat().st_size for path in tmp_path.glob("prompts-*")] == [138, 138]
    assert [line["output_token_ids"] for line in lines(tmp_path)] == [[36], [37], [38], [39]]
    assert (tmp_path / "notes.txt").exists()


def test_files_of_earlier_runs_count(tmp_path):
    PromptFiles(tmp_path, 1000).write(b"a" * 600)
    (old,) = tmp_path.glob("prompts-*")
    old.rename(tmp_path / "prompts-20200101T000000-aaaaaa.jsonl")
    PromptFiles(tmp_path, 1000).write(b"b" * 600)
    (left,) = tmp_path.glob("prompts-*")
    assert left.read_bytes() == b"b" * 600


def test_what_a_crash_left_goes(tmp_path):
    """A file that was never finished is deleted at the next start; nothing else is, and the start leaves nothing."""
    (tmp_path / "prompts-20200101T000000-aaaaaa.jsonl.unfinished").write_bytes(b"a")
    kept = {"prompts-20200101T000000-bbbbbb.jsonl", "notes.unfinished"}
    for name in kept:
        (tmp_path / name).touch()
    PromptFiles(tmp_path, 1000)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_only_the_services_user_reads_them(tmp_path):
    PromptFiles(tmp_path / "made", 100).write(b"x")
    (file,) = (tmp_path / "made").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_a_long_answer_is_dropped(tmp_path):
    counts = Counts()
    kept = archive(tmp_path, file_bytes=100, count=counts)
    answer(kept, request(), *range(100))
    answer(kept, request(), 7)
    kept.close()
    assert [line["output_token_ids"] for line in lines(tmp_path)] == [[7]]
    assert counts == {"dropped": 1, "written": 1}


def test_a_slow_disk_drops_and_never_waits(tmp_path):
    """The thread hangs in a write: so many answers wait, the others are dropped at once."""
    counts, go_on, begun = Counts(), threading.Event(), threading.Event()

    class SlowFiles(PromptFiles):
        def write(self, content: bytes) -> None:
            begun.set()
            assert go_on.wait(PATIENCE)

    kept = PromptArchive(SlowFiles(tmp_path, 1 << 20), file_bytes=80, fraction=1.0, count=counts)
    answer(kept, request(), 1)
    answer(kept, request(), 2)  # does not fit into the file of the first, which is written therefore
    assert begun.wait(PATIENCE)
    for _ in range(MAX_WAITING + 5):
        answer(kept, request(), 3)
    assert counts == {"dropped": 5}
    go_on.set()
    kept.close()
    assert counts["dropped"] == 5
    assert counts["written"] == MAX_WAITING + 2


def test_a_full_disk_drops_and_says_so_without_a_word_of_the_prompt(tmp_path, caplog):
    """No space: nothing half written stays, the count tells, the log holds no token."""
    counts = Counts()

    class FullFiles(PromptFiles):
        def write(self, content: bytes) -> None:
            raise OSError(28, "No space left on device")

    kept = PromptArchive(FullFiles(tmp_path, 1 << 20), file_bytes=1 << 16, fraction=1.0, count=counts)
    with caplog.at_level(logging.DEBUG):
        answer(kept, request("secret-id"), 424242)
        kept.close()
    assert counts == {"dropped": 1}
    assert "1 collected prompts could not be written: No space left on device" in caplog.text
    assert "424242" not in caplog.text
    assert "secret" not in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_half_a_file_never_shows(tmp_path, monkeypatch):
    """The disk fails at the flush: neither the file nor what was begun is there."""
    files = PromptFiles(tmp_path, 1000)

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.write(b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_lonely_answer_is_written_in_time(tmp_path):
    kept = archive(tmp_path, seconds=0.05)
    answer(kept, request(), 3)
    until(lambda: lines(tmp_path))
    kept.close()
    assert len(lines(tmp_path)) == 1


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match=r"--collect-prompts: .*file cannot be written: (File exists|Not a dir)"):
        PromptFiles(tmp_path / "file", 100)


def until(condition, seconds=PATIENCE) -> None:
    """Wait for another thread."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


async def test_the_service_collects_what_it_answered(tmp_path):
    """Over gRPC, with --collect-prompts: a finished answer, and what its caller read of one that it ended."""
    async with verify_worker(
        FakeModel(step_seconds=0.001), collect_prompts=tmp_path / "kept", collect_fraction=1.0
    ) as target:
        answered = await target.generate([7], max_tokens=4, sampling=SamplingParams(temperature=0.0))
        ended: list[int] = []
        async for event in target.events(GenerateRequest("gone", (9,), max_tokens=4000)):
            if isinstance(event, Committed):
                ended += event.token_ids
                break
        await target.until(lambda: not target.metric("draftwire_verify_running_sessions"))
    first, second = lines(tmp_path / "kept")
    assert first == {"prompt_token_ids": [7], "output_token_ids": output(answered), "temperature": 0.0}
    assert second["prompt_token_ids"] == [9]
    assert ended
    assert second["output_token_ids"][: len(ended)] == ended
    assert target.metric("draftwire_verify_collected_prompts_total", outcome="written") == 2


async def test_nothing_is_kept_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with verify_worker(FakeModel()) as target:
        await target.generate([7], max_tokens=4)
    assert list(tmp_path.iterdir()) == []


async def test_acceptance_by_draft_model():
    """A perfect draft and one that is always wrong, told apart by the names that they gave in their hellos."""
    target = FakeModel(vocab_size=512)
    async with (
        draft_worker(FakeModel(), served_model_name="good") as good,
        draft_worker(FakeModel(drift=1), served_model_name="bad") as bad,
    ):
        for drafter in (good, bad):
            async with verify_worker(
                target, drafts=(f"127.0.0.1:{drafter.port}",), schedule="lockstep", num_speculative_tokens=3
            ) as worker:
                await connected(worker)
                await worker.generate([7], max_tokens=40, sampling=SamplingParams(temperature=0.0))
                name = drafter.config.served_model_name
                tested = worker.metric("speculative_decoding_draft_tested_tokens_total", draft_model=name)
                accepted = worker.metric("speculative_decoding_draft_accepted_tokens_total", draft_model=name)
                assert tested > 10
                assert accepted == (tested if drafter is good else 0)
                of_all = functools.partial(worker.metric, "speculative_decoding_accepted_tokens_total")
                await worker.until(lambda of_all=of_all, accepted=accepted: of_all() == accepted)
