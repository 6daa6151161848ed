"""Samples in shards and mapped files: what is read, what is verified, and what becomes of a last batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.data.samples import open_data
from dnnc.data.samples.order import Batches, Order, shuffled
from ir import parse_module
from ir.core.diagnostics import InvalidInput

TEXT = """
module @m {opset.onnx = 20} {
  func @main(%x : tensor<4x3xf32>, %labels : tensor<4xi64>, %counted : tensor<f32>) -> () {loss = LOSS} {
    %each = onnx.SoftmaxCrossEntropyLoss(%x, %labels) {ignore_index = -100, reduction = "none"} : tensor<4xf32>
  }
}
"""
MODEL = parse_module(TEXT.replace("LOSS", '["cross-entropy", "labels", "counted"]'))
OF_ELEMENTS = parse_module(TEXT.replace("LOSS", '["mse", "labels"]').replace(", %counted : tensor<f32>", ""))


def arrays(first: int, count: int) -> dict[str, Any]:
    """Samples whose elements and labels tell which they are."""
    numbers = np.arange(first, first + count)
    return {"x": np.repeat(numbers[:, None], 3, axis=1).astype(np.float32), "labels": numbers % 3}


def write(path: Path, kind: str, **values: Any) -> None:
    """The arrays as a shard of this kind."""
    folder, shard = path.parent, path.name
    folder.mkdir(parents=True, exist_ok=True)
    match kind:
        case "npz":
            np.savez(folder / f"{shard}.npz", **values)
        case "compressed":
            np.savez_compressed(folder / f"{shard}.npz", **values)
        case "folder":
            path.mkdir()
            for name, array in values.items():
                np.save(path / f"{name}.npy", array)
        case "behind":
            for name, array in values.items():
                np.save(folder / f"{name}-{shard}.npy", array)
        case "before":
            for name, array in values.items():
                np.save(folder / f"{shard}.{name}.npy", array)


KINDS = ("npz", "compressed", "folder", "behind", "before")


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_one_list_of_samples(kind: str, tmp_path: Path) -> None:
    """Microbatches are those of one file with all samples, whatever the shards are, one of which is no microbatch long."""
    for shard, (first, count) in enumerate(((0, 9), (9, 2), (11, 13))):
        write(tmp_path / "shards" / f"{shard:03}", kind, **arrays(first, count))
    np.savez(tmp_path / "all.npz", **arrays(0, 24))
    sharded, whole = (open_data(str(tmp_path / name), MODEL, 5, 2) for name in ("shards", "all.npz"))
    for number in (0, 7, 3, 3, 100):
        one, other = sharded.microbatch(number), whole.microbatch(number)
        assert one.keys() == other.keys() == {"x", "labels", "counted"}
        assert all(np.array_equal(one[name], other[name]) for name in one)
        assert (one["x"][:, 0].astype(int) % 3 == one["labels"]).all()


def test_one_file_per_input(tmp_path: Path) -> None:
    for name, array in arrays(0, 8).items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "notes.npy").write_bytes(b"of no input")
    seen = [open_data(str(tmp_path), MODEL, 0).microbatch(number)["x"][:, 0] for number in (0, 1)]
    assert sorted(np.concatenate(seen).tolist()) == [*range(8)]
    with pytest.raises(InvalidInput, match=r"x\.npy: error\[E0451\]: one array found; the model reads x, labels"):
        open_data(str(tmp_path / "x.npy"), MODEL, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_reads_its_rows_alone(kind: str, tmp_path: Path) -> None:
    """Others are zeros; NaN in a row that nobody uses is not seen before it is used."""
    write(tmp_path / "s" / "0", kind, **arrays(1, 8))
    whole = open_data(str(tmp_path / "s"), MODEL, 0).microbatch(0)
    part = open_data(str(tmp_path / "s"), MODEL, 0, parts={"x": (2, 1)}).microbatch(0)
    assert part.keys() == {"x"}
    assert np.array_equal(part["x"][2], whole["x"][2])
    assert not part["x"][[0, 1, 3]].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "value", "told"), [("x", np.nan, "holds nan"), ("labels", 3, "holds 3")])
def test_a_wrong_sample_is_told_by_file_and_number(kind: str, name: str, value: float, told: str, tmp_path: Path) -> None:
    """Before the first step by one of the readers, and where there is too much to verify, when it is read."""
    write(tmp_path / "s" / "0", kind, **arrays(0, 8))
    wrong = arrays(8, 9)
    wrong[name][5] = value
    write(tmp_path / "s" / "1", kind, **wrong)
    data = [open_data(str(tmp_path / "s"), MODEL, 0) for _ in range(3)]
    messages = []
    for rank, one in enumerate(data):
        try:
            one.verify(rank, 3)
        except InvalidInput as error:
            messages.append(error.diagnostics[0])
    with pytest.raises(InvalidInput) as caught:
        [data[0].microbatch(number) for number in range(4)]
    assert messages == [*caught.value.diagnostics]
    assert f"{told} in sample 5" in messages[0].message
    file = {
        "npz": "1.npz",
        "compressed": "1.npz",
        "folder": f"1/{name}.npy",
        "behind": f"{name}-1.npy",
        "before": f"1.{name}.npy",
    }
    assert messages[0].where == str(tmp_path / "s" / file[kind])


def test_a_file_that_changes_while_it_is_used(tmp_path: Path) -> None:
    """A map of a file that was cut off would end the process."""
    np.savez(tmp_path / "a.npz", **arrays(0, 8))
    data = open_data(str(tmp_path / "a.npz"), MODEL, 0)
    data.microbatch(0)
    (tmp_path / "a.npz").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"a\.npz: error\[E0454\]: the file was changed"):
        data.microbatch(1)


def test_damaged_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(0, 4000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(np.float32(3900).tobytes() * 3)] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"a\.npz: error\[E0456\]: the array 'x' is damaged"):
        open_data(str(tmp_path / "a.npz"), MODEL, 0).verify(0, 1)
    for name, array in arrays(0, 8).items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-1])
    (tmp_path / "a.npz").unlink()
    with pytest.raises(InvalidInput, match=r"x\.npy: error\[E0455\]: the array cannot be read"):
        open_data(str(tmp_path), MODEL, 0)


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_other_samples_have_another_identity(kind: str, tmp_path: Path) -> None:
    """Two hosts see by it that their files differ, without reading all of them."""
    for name, changed in (("a", {}), ("b", {}), ("c", {"labels": np.zeros(8, int)}), ("d", {"x": np.ones((8, 3), np.float32)})):
        write(tmp_path / name / "0", kind, **{**arrays(0, 8), **changed})
    a, b, c, d = (open_data(str(tmp_path / name), MODEL, 0).identity for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.sampled_from(["drop", "use"]), st.integers(0, 9))
@settings(deadline=None)
def test_an_epoch_has_each_sample_once(count: int, units: int, microbatches: int, last: str, seed: int) -> None:
    """All of them where the last batch is used, else as many as fill batches. Numbers give the same in any order."""
    batches = Batches(units, microbatches, last)
    steps = batches.in_epoch(count)
    assert steps == (-(-count // (units * microbatches)) if last == "use" else count // (units * microbatches))
    if not steps:
        return
    orders = [Order(batches, lambda epoch: shuffled(seed, epoch, count), count) for _ in range(2)]
    for epoch in (1, 0):
        numbers = range(epoch * steps * microbatches, (epoch + 1) * steps * microbatches)
        drawn = {number: orders[0].samples(number) for number in numbers}
        again = {number: orders[1].samples(number) for number in reversed(numbers)}
        assert all(len(samples) == units for samples, _ in drawn.values())
        assert all(np.array_equal(drawn[n][0], again[n][0]) and drawn[n][1] == again[n][1] for n in numbers)
        used = Counter(int(one) for samples, counting in drawn.values() for one in samples[:counting])
        assert set(used.values()) <= {1}
        assert len(used) == (count if last == "use" else steps * units * microbatches)


def test_a_last_batch_that_is_used_counts_its_own_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(0, 13))
    data = open_data(str(tmp_path / "a.npz"), MODEL, 0, 2, last="use")
    step = [data.microbatch(number) for number in (2, 3)]
    labels = np.concatenate([one["labels"] for one in step])
    assert (labels != -100).sum() == 5
    assert [float(one["counted"]) for one in step] == [2.5, 2.5]
    assert (labels[5:] == -100).all()
    dropped = open_data(str(tmp_path / "a.npz"), MODEL, 0, 2)
    assert all((dropped.microbatch(number)["labels"] != -100).all() for number in range(8))


def test_a_last_batch_that_cannot_be_used(tmp_path: Path) -> None:
    for count, told in ((13, r"E0453.*5 of 8 samples.*the loss counts every sample"), (16, "")):
        values = arrays(0, count)
        np.savez(tmp_path / "a.npz", **values)
        if told:
            with pytest.raises(InvalidInput, match=told):
                open_data(str(tmp_path / "a.npz"), OF_ELEMENTS, 0, 2, last="use")
        else:
            open_data(str(tmp_path / "a.npz"), OF_ELEMENTS, 0, 2, last="use")


def test_fewer_samples_than_a_batch(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(0, 7))
    with pytest.raises(InvalidInput, match=r"E0452.*its 7 samples do not fill the batch of a step: 8, 4 in each of 2"):
        open_data(str(tmp_path / "a.npz"), MODEL, 0, 2)
    used = open_data(str(tmp_path / "a.npz"), MODEL, 0, 2, last="use")
    assert (np.concatenate([used.microbatch(n)["labels"] for n in (0, 1)]) != -100).sum() == 7
