"""Checkpoints of several files: any part of any tensor is read, and what is not all of one checkpoint is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.types import DType
from tests.dnnc.engines.torch.training_builds import element_type

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from safetensors.torch import load_file  # noqa: E402

from dnnc.engines.torch.checkpoint import Checkpoint, Part, Position, publish, write_tensors  # noqa: E402

WHOLE = torch.arange(24.0).reshape(6, 4)
ROWS = {0: ((0, 4), (0, 4)), 1: ((4, 2), (0, 4))}
BIAS = torch.ones(4)
STEP = Position(7, 3)


def slices(box: Any) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in box)


def written(folder: Path, boxes: Any, whole: Any = WHOLE, position: Position = STEP, name: str = "step7") -> Path:
    """A checkpoint in which each rank has a box of ``w``, and rank 0 all of ``b``."""
    partial = folder / f".{name}.partial"
    partial.mkdir(parents=True)
    for rank, box in boxes.items():
        tensors = {"w": whole[slices(box)], **({"b": BIAS} if rank == 0 else {})}
        parts = {"w": Part(element_type(whole), tuple(whole.shape), box), "b": Part.whole(element_type(BIAS), BIAS.shape)}
        write_tensors(partial / f"rank{rank}.safetensors", {n: parts[n] for n in tensors}, tensors.__getitem__, position)
    publish(partial, [f"rank{rank}.safetensors" for rank in boxes], folder / name)
    return folder / name


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any], Any]:
    """A shape, boxes that together are all of it, and a box to read."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=3)))
    boxes = [tuple((0, size) for size in shape)]
    for _ in range(draw(st.integers(0, 4)) if shape else 0):
        number, dim = draw(st.integers(0, len(boxes) - 1)), draw(st.integers(0, len(shape) - 1))
        box = boxes.pop(number)
        start, length = box[dim]
        at = draw(st.integers(0, length))
        boxes += [(*box[:dim], part, *box[dim + 1 :]) for part in ((start, at), (start + at, length - at))]
    wanted = []
    for size in shape:
        first = draw(st.integers(0, size))
        wanted.append((first, draw(st.integers(0, size - first))))
    return shape, boxes, tuple(wanted)


@given(cuts())
def test_any_part_is_put_together_of_those_that_were_written(cut: Any) -> None:
    shape, boxes, wanted = cut
    whole = torch.arange(math.prod(shape)).reshape(shape)
    with TemporaryDirectory() as folder:
        opened = Checkpoint.open(written(Path(folder), dict(enumerate(boxes)), whole))
        assert torch.equal(opened.tensor("w"), whole)
        found = opened.parts({"w": Part(DType.I64, shape, wanted)})["w"]
        assert torch.equal(found, whole[slices(wanted)])
        assert found.untyped_storage().nbytes() == found.numel() * 8
        opened.verify()


def test_what_is_read_of_each_file(tmp_path: Path) -> None:
    """A host of a cluster is sent these bytes alone."""
    opened = Checkpoint.open(written(tmp_path, ROWS))
    heads = {name: file.header_bytes for name, file in opened.files.items()}
    assert opened.ranges({}) == {name: [(0, count)] for name, count in heads.items()}
    ranges = opened.ranges({"w": ((3, 2), (0, 4)), "b": ((0, 4),)})
    w, b = (opened.files["rank0.safetensors"].entries[name].offset for name in ("w", "b"))
    assert ranges["rank0.safetensors"][1:] == [(w + 3 * 16, 16), (b, 16)]
    assert ranges["rank1.safetensors"][1:] == [(heads["rank1.safetensors"], 16)]


def test_parts_are_safetensors_files(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    assert torch.equal(load_file(path / "rank1.safetensors")["w"], WHOLE[4:])
    assert sorted(file.name for file in path.iterdir()) == ["index.json", "rank0.safetensors", "rank1.safetensors"]
    assert json.loads((path / "index.json").read_text())["step"] == 7
    assert not list(tmp_path.glob(".*"))


def test_one_takes_the_place_of_another_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    opened = Checkpoint.open(path)
    assert written(tmp_path, {0: ((0, 6), (0, 4))}, WHOLE + 1) == path
    assert torch.equal(Checkpoint.open(path).tensor("w"), WHOLE + 1)
    assert torch.equal(opened.tensor("w"), WHOLE)
    assert [file.name for file in tmp_path.iterdir()] == ["step7"]


def test_a_folder_of_another_kind_is_left(tmp_path: Path) -> None:
    (tmp_path / "step7").mkdir()
    (tmp_path / "step7/mine").write_text("mine")
    with pytest.raises(UsageError):
        written(tmp_path, ROWS)
    assert (tmp_path / "step7/mine").read_text() == "mine"


def damage(path: Path, how: str) -> Path:
    """Damages a checkpoint; returns the file that is to be named."""
    index, part = path / "index.json", path / "rank1.safetensors"
    match how:
        case "no index":
            index.unlink()
        case "no JSON":
            index.write_text("{")
        case "another format":
            index.write_text("{}")
        case "no step":
            index.write_text(index.read_text().replace("7", "-7"))
        case "another folder's file":
            index.write_text(index.read_text().replace("rank1", "../rank1"))
        case "no part":
            part.unlink()
            return part
        case "half a part":
            part.write_bytes(part.read_bytes()[:-5])
            return part
        case "a part of another step":
            other = written(path.parent, ROWS, position=Position(8, 3), name="step8")
            part.write_bytes((other / part.name).read_bytes())
            return part
        case "a part of another training":
            other = written(path.parent, ROWS, WHOLE + 1, name="step8")
            part.write_bytes((other / part.name).read_bytes())
            return part
        case "a part changed":
            data = part.read_bytes()
            part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            return part
    return index


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("no index", "E2001]: no such file; expected the index of a checkpoint"),
        ("no JSON", "E0753]: it is no index of a checkpoint: it is no JSON"),
        ("another format", "E0753]: it is no index of a checkpoint: its format is not 1"),
        ("no step", "E0753]: it is no index of a checkpoint: it does not say the step and the seed"),
        ("another folder's file", "E0753]: it is no index of a checkpoint: it does not list the files"),
        ("no part", "E2001]: no such file; expected a part of the checkpoint"),
        ("half a part", "E0728]: it cannot be read as safetensors: "),
        ("a part of another step", "E0754]: it is not the file that index.json lists"),
        ("a part of another training", "E0754]: it is not the file that index.json lists"),
        ("a part changed", "E0730]: it is damaged: "),
    ],
)
def test_what_is_damaged_or_foreign_is_refused(how: str, told: str, tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    file = damage(path, how)
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(path).verify()
    assert str(caught.value).startswith(f"{file}: error[{told}")


def test_parts_that_lack_some_of_a_weight(tmp_path: Path) -> None:
    opened = Checkpoint.open(written(tmp_path, {0: ROWS[0]}))
    assert torch.equal(opened.parts({"w": Part(DType.F32, (6, 4), ((1, 3), (0, 4)))})["w"], WHOLE[1:4])
    with pytest.raises(InvalidInput, match=r"E0756.*do not have all of weight 'w'"):
        opened.tensor("w")


def test_parts_that_are_not_of_one_tensor(tmp_path: Path) -> None:
    partial = tmp_path / ".x"
    for rank, size in ((0, 6), (1, 8)):
        part = Part(DType.F32, (size, 4), ((0, 2), (0, 4)))
        write_tensors(partial / f"rank{rank}.safetensors", {"w": part}, lambda name: WHOLE[:2], Position())
    publish(partial, ["rank0.safetensors", "rank1.safetensors"], tmp_path / "step0")
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(tmp_path / "step0")
    assert str(caught.value).startswith(f"{tmp_path}/step0/rank1.safetensors: error[E0755]: its part of weight 'w'")
