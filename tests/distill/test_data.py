"""Data sets on disk: what is written is read, and what does not fit is refused by name."""

import errno
import pickle
import shutil

import pytest
import torch

from distill import writer as writing
from distill.data import DistillationData, Example, Shard
from distill.manifest import MANIFEST, Manifest
from distill.writer import DataWriter
from draftwire.errors import Incompatible, InvalidArgument, ResourceExhausted

GIB = 1 << 30


def manifest(**changes):
    """Of a target of ten ids, two of which are kept at each position."""
    fields = {
        "target": "toy",
        "vocab_fingerprint": "v",
        "target_fingerprint": "t",
        "vocab_size": 10,
        "top_k": 2,
        "temperatures": (1.0, 2.0),
        "settings": {"seed": 0},
    }
    return Manifest(**(fields | changes))


def example(*tokens, prompt=1, kind="chat", temperature=0.5):
    """Tokens after a prompt; their rows hold numbers that say whose they are."""
    count = len(tokens) - prompt
    rows = torch.tensor(tokens[prompt:])[:, None]
    return Example(
        torch.tensor(tokens),
        torch.arange(len(tokens)) >= prompt,
        torch.cat([rows, rows + 1], 1),
        -torch.cat([rows, rows + 1], 1) / 4,
        torch.full((count, 2), -1.5),
        kind,
        temperature,
    )


def write(folder, *shards, **changes):
    """A data set of these lists of examples."""
    writer = DataWriter(folder, manifest(**changes), GIB)
    for examples in shards:
        writer.append(Shard.of(examples))
    return folder


ONE, TWO, THREE = example(1, 2, 3), example(7, 5, prompt=1, kind="code"), example(4, 4, 4, 8, prompt=3, temperature=0.0)


def same(one, two):
    """Field by field; these numbers survive float16."""
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(vars(one).values(), vars(two).values(), strict=True)
    )


def test_what_is_written_is_read(tmp_path):
    """Three sequences in two shards of one folder and one more in another, joined in order."""
    data = DistillationData(write(tmp_path / "a", [ONE, TWO], [THREE]), write(tmp_path / "b", [TWO]))
    assert len(data) == 4
    assert all(same(found, wanted) for found, wanted in zip(data, [ONE, TWO, THREE, TWO], strict=True))
    assert same(data[-2], THREE)
    assert [data[2].token_ids.dtype, data[2].top_ids.dtype, data[2].top_logprobs.dtype] == [
        torch.int64,
        torch.int64,
        torch.float32,
    ]
    with pytest.raises(IndexError):
        data[4]


def test_the_manifest_counts(tmp_path):
    """Five tokens and three supervised in the first shard; the writer and a reader agree."""
    writer = DataWriter(tmp_path / "a", manifest(), GIB)
    writer.append(Shard.of([ONE, TWO]))
    (shard,) = Manifest.read(tmp_path / "a").shards
    assert (shard.sequences, shard.tokens, shard.supervised) == (2, 5, 3)
    assert writer.manifest.supervised == 3


def test_a_worker_process_maps_the_files_anew(tmp_path):
    """What a data loader sends to its workers is small, also after the shards were opened."""
    data = DistillationData(write(tmp_path / "a", [ONE] * 500))
    assert same(data[0], ONE)
    sent = pickle.dumps(data)
    assert len(sent) < 4000
    assert same(pickle.loads(sent)[499], ONE)


@pytest.mark.parametrize("field", ["vocab_fingerprint", "target_fingerprint", "vocab_size", "top_k", "temperatures"])
def test_folders_that_do_not_fit(tmp_path, field):
    """The error names both folders, the field and both values."""
    other = {"vocab_size": 11, "top_k": 3, "temperatures": (1.0,)}.get(field, "other")
    one, two = write(tmp_path / "one", [ONE]), write(tmp_path / "two", [ONE], **{field: other})
    with pytest.raises(Incompatible, match=rf"one and .*two cannot be used together: {field} .* and "):
        DistillationData(one, two)


def test_folders_that_hold_no_data(tmp_path):
    """Nothing there, nothing in it, something else in it."""
    with pytest.raises(InvalidArgument, match="nowhere: is not a data set"):
        DistillationData(tmp_path / "nowhere")
    with pytest.raises(InvalidArgument, match="the data set is empty"):
        DistillationData(write(tmp_path / "empty"))
    (tmp_path / "empty" / MANIFEST).write_text('{"format": 2}')
    with pytest.raises(InvalidArgument, match="manifest.json: format"):
        DistillationData(tmp_path / "empty")
    with pytest.raises(InvalidArgument, match="at least one folder"):
        DistillationData()


def test_a_damaged_shard(tmp_path):
    """Cut short; missing; of another data set."""
    folder = write(tmp_path / "a", [ONE, TWO])
    file = folder / "shard-00000.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    with pytest.raises(InvalidArgument, match="cannot be read as a shard"):
        DistillationData(folder)[0]
    file.unlink()
    with pytest.raises(InvalidArgument, match="cannot be read as a shard"):
        DistillationData(folder)[0]
    shutil.copy(write(tmp_path / "b", [ONE]) / file.name, file)
    with pytest.raises(InvalidArgument, match="not hold what the manifest says"):
        DistillationData(folder)[0]


def test_what_a_killed_run_left_behind_is_replaced(tmp_path):
    """A shard that the manifest does not list, and halves of files: the next run writes over them."""
    folder = write(tmp_path / "a", [ONE])
    for name in ("shard-00001.safetensors", "shard-00001.safetensors.unfinished", f"{MANIFEST}.unfinished"):
        (folder / name).write_text("half of somethi")
    assert len(DistillationData(folder)) == 1
    DataWriter(folder, manifest(), GIB).append(Shard.of([TWO]))
    assert same(DistillationData(folder)[1], TWO)
    assert not list(folder.glob("*.unfinished"))


@pytest.mark.parametrize(
    "change", [{"target_fingerprint": "u"}, {"top_k": 3}, {"settings": {"seed": 1}}, {"settings": {}}]
)
def test_going_on_with_other_settings(tmp_path, change):
    """Refused, naming the field, where the data set was begun differently."""
    folder = write(tmp_path / "a", [ONE])
    (field,) = change
    with pytest.raises(Incompatible, match=f"was begun with {'seed 0' if field == 'settings' else field}"):
        DataWriter(folder, manifest(**change), GIB)


def test_a_folder_of_something_else(tmp_path):
    """A folder with other files is not written into, and neither is a file."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidArgument, match="--output: .* is not empty"):
        DataWriter(tmp_path, manifest(), GIB)
    with pytest.raises(InvalidArgument, match="--output: .* cannot be written"):
        DataWriter(tmp_path / "thesis.txt", manifest(), GIB)


def test_the_bound_on_the_disk(tmp_path):
    """A shard that would pass the bound is not written; what there is stays whole, and a higher bound goes on."""
    shard = Shard.of([ONE] * 100)
    writer = DataWriter(tmp_path / "a", manifest(), int(1.5 * shard.num_bytes))
    writer.append(shard)
    with pytest.raises(ResourceExhausted, match="--max-disk-gib"):
        writer.append(shard)
    assert len(DistillationData(tmp_path / "a")) == 100
    DataWriter(tmp_path / "a", manifest(), 4 * shard.num_bytes).append(shard)
    assert len(DistillationData(tmp_path / "a")) == 200


def test_a_full_disk(tmp_path, monkeypatch):
    """Little space is noticed before writing, and a disk that fills up meanwhile is named as such."""
    writer = DataWriter(tmp_path / "a", manifest(), GIB)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "RESERVE_BYTES", 1 << 60)
        with pytest.raises(ResourceExhausted, match="the disk of .* is full"):
            writer.append(Shard.of([ONE]))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "save_file", full)
    with pytest.raises(ResourceExhausted, match="the disk of .* is full"):
        writer.append(Shard.of([ONE]))
    assert Manifest.read(tmp_path / "a").shards == ()
