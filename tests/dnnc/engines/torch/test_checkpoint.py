"""Checkpoints: whole or not there, read in parts, and how a file that does not fit is told."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.onnx.elements import user_dtype
from ir.core.diagnostics import DnncError, ExitCode, InvalidInput
from ir.core.types import DType
from ir.system.digests import OpenFile, digest_file
from tests.dnnc.engines.torch.training_builds import write_checkpoint

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402

from dnnc.engines.torch.checkpoint import Checkpoint, Part, Position, from_array, write_tensors  # noqa: E402

TENSORS = {
    "fc.weight": torch.arange(12, dtype=torch.float32).reshape(4, 3),
    "fc.bias": torch.ones(4),
    "half": torch.arange(4, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "turned": torch.arange(6).reshape(2, 3).t(),
    "empty": torch.from_numpy(np.zeros(0, np.int64)),  # its stride is 0
}
WEIGHT = Part(DType.F32, (4, 3), ((0, 4), (0, 3)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "step7.safetensors"
    write_checkpoint(found, TENSORS, Position(7, 3))
    return found


def test_what_was_written_is_read(path: Path) -> None:
    opened = Checkpoint.open(path)
    found = opened.tensors()
    assert found.keys() == TENSORS.keys() == {*opened.names}
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in TENSORS.items())
    assert opened.position == Position(7, 3)
    assert path.stat().st_mode & 0o600 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    """safetensors writes metadata in another order each time."""
    tensors, written = {"b/ü\n": torch.arange(6.0), "a": torch.ones(3)}, set()
    for number in range(12):
        write_checkpoint(tmp_path / f"{number}.safetensors", tensors, Position(3, 5))
        written.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(written) == 1
    assert torch.equal(load_file(tmp_path / "0.safetensors")["b/ü\n"], tensors["b/ü\n"])


def test_parts_are_read(path: Path) -> None:
    parts = {
        "fc.weight": Part(DType.F32, (4, 3), ((1, 2), (0, 3))),
        "scalar": Part(DType.F64, (), ()),
        "fc.weight.exp_avg": WEIGHT,
    }
    found = Checkpoint.open(path).parts(parts, ["fc.weight.exp_avg"])
    assert found.keys() == {"fc.weight", "scalar"}
    assert torch.equal(found["fc.weight"], TENSORS["fc.weight"][1:3])
    assert torch.equal(found["scalar"], TENSORS["scalar"])


@pytest.mark.parametrize(
    ("name", "part", "told"),
    [
        ("fc.missing", WEIGHT, "[E0732]: it holds no weight 'fc.missing'"),
        (
            "fc.weight",
            Part(DType.F32, (4, 2), ((0, 4), (0, 2))),  # it is in the file's
            "[E0733]: its weight 'fc.weight' is float32[4, 3]; expected float32[4, 2]",
        ),
        (
            "fc.weight",
            Part(DType.F32, (8, 3), ((4, 4), (0, 3))),  # it is beyond the file's
            "[E0733]: its weight 'fc.weight' is float32[4, 3]; expected float32[8, 3]",
        ),
        ("fc.bias", WEIGHT, "[E0733]: its weight 'fc.bias' is float32[4]; expected float32[4, 3]"),
        ("fc.weight", Part(DType.F32, (), ()), "[E0733]: its weight 'fc.weight' is float32[4, 3]; expected float32[]"),
        ("half", Part(DType.F16, (4,), ((0, 4),)), "[E0733]: its weight 'half' is bfloat16[4]; expected float16[4]"),
    ],
)
def test_weights_of_another_model(name: str, part: Part, told: str, path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(path).parts({name: part})
    assert str(caught.value) == f"{path}: error{told}\n  hint: is it of another model?"
    assert caught.value.exit_code is ExitCode.INVALID_INPUT


def damaged(path: Path, how: str) -> Path:
    match how:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-5])
        case "in its header":
            path.write_bytes(path.read_bytes()[:40])
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("step 7\n")
        case "missing":
            path.unlink()
    return path


UNREADABLE = "error[E0728]: it cannot be read as safetensors: "


@pytest.mark.parametrize(
    ("how", "told"),
    [
        *((how, UNREADABLE) for how in ("truncated", "in its header", "empty", "text")),
        ("missing", "error[E2001]: no such file; expected a checkpoint"),
    ],
)
def test_files_that_are_no_checkpoints(how: str, told: str, path: Path) -> None:
    damaged(path, how)
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(path)
    assert str(caught.value).startswith(f"{path}: {told}")


def header(**tensors: Any) -> bytes:
    data = json.dumps(tensors).encode()
    return len(data).to_bytes(8, "little") + data


def tensor(*place: Any, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": place}


@pytest.mark.parametrize(
    "data",
    [
        (1 << 63).to_bytes(8, "little") + b"{}",
        b"\x02" + bytes(7) + b"[]",
        b"\x04" + bytes(7) + b"\xff{}\xff",
        header(a=None),
        header(a=tensor(0, 8, dtype=None)) + bytes(8),
        header(a=tensor(0, 8, dtype="F4")) + bytes(8),
        header(a=tensor(0, 8, shape="2")) + bytes(8),
        header(a=tensor(0, 8, shape=[-2])) + bytes(8),
        header(a=tensor(0, 8, shape=[True, 2])) + bytes(8),
        header(a=tensor(0)) + bytes(8),
        header(a=tensor(8, 0)) + bytes(8),
        header(a=tensor(0, 4)) + bytes(4),
        header(a=tensor(0, 8), b=tensor(0, 8)) + bytes(8),
        header(a=tensor(0, 8), b=tensor(12, 20)) + bytes(20),
        header(a=tensor(0, 8)) + bytes(9),
        header(a=tensor(0, 1 << 61, shape=[1 << 59])) + bytes(8),
    ],
)
def test_a_header_that_does_not_fit_its_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(path)
    assert str(caught.value).startswith(f"{path}: {UNREADABLE}")


def test_a_part_along_each_dimension(tmp_path: Path) -> None:
    whole = torch.arange(2 * 3 * 4).reshape(2, 3, 4)
    save_file({"w": whole, "none": torch.zeros(0, 3)}, tmp_path / "a.safetensors")
    opened = Checkpoint.open(tmp_path / "a.safetensors")
    for box in (((0, 2), (1, 2), (0, 4)), ((1, 1), (0, 3), (3, 1)), ((0, 2), (0, 3), (0, 4)), ((1, 0), (0, 3), (0, 4))):
        expected = whole[tuple(slice(start, start + length) for start, length in box)]
        found = opened.parts({"w": Part(DType.I64, (2, 3, 4), box)})["w"]
        assert torch.equal(found, expected)
        assert found.untyped_storage().nbytes() == expected.numel() * 8
    assert opened.tensors()["none"].shape == (0, 3)


def test_a_checkpoint_that_is_replaced_is_read_as_it_was_opened(path: Path) -> None:
    opened = Checkpoint.open(path)
    write_checkpoint(path, {name: tensor + 1 for name, tensor in TENSORS.items()}, Position(8))
    assert all(torch.equal(opened.tensors()[name], tensor) for name, tensor in TENSORS.items())
    path.unlink()
    assert torch.equal(opened.parts({"fc.weight": WEIGHT})["fc.weight"], TENSORS["fc.weight"])
    opened.confirm()


def test_a_checkpoint_that_is_written_to_with_its_time_set_back_is_found(path: Path) -> None:
    opened = Checkpoint.open(path)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"else")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InvalidInput, match="the file was changed while it was used"):
        opened.confirm()


def test_a_part_of_a_checkpoint_that_loses_its_name_is_not_changed(path: Path) -> None:
    """A host keeps the bytes that its ranks read, with holes between; another run may remove the file of its cache."""
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(bytes(4))
    opened = Checkpoint.of({"": OpenFile(path.open("rb"), digest_file(path.open("rb")))}, str(path))
    path.unlink()
    opened.confirm()


def test_a_checkpoint_that_is_written_to_is_found(path: Path) -> None:
    opened = Checkpoint.open(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)
    for use in (opened.confirm, opened.tensors):
        with pytest.raises(InvalidInput) as caught:
            use()
        assert str(caught.value).startswith(f"{path}: error[E0731]: the file was changed while it was used")


@pytest.mark.parametrize("name", ["float32", "int64", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_tensor_has_the_elements_of_an_array(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(user_dtype(name))
    found = from_array(array)
    assert (found.dtype, tuple(found.shape)) == (getattr(torch, name), shape)
    assert found.double().tolist() == array.astype(np.float64).tolist()


def test_an_array_that_torch_has_no_type_for() -> None:
    with pytest.raises(InvalidInput, match="torch, or the format of its checkpoints, has no element type float8_e3m4"):
        from_array(np.zeros(2, user_dtype("float8_e3m4")))


@pytest.mark.parametrize("header", [{"step": "many"}, {"step": "-3"}, {"step": "1", "seed": "1.5"}, {"seed": ""}])
def test_a_header_that_says_no_position(header: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": torch.ones(1)}, path, header)
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(path)
    assert str(caught.value) == f"{path}: error[E0729]: its header does not say the step and the seed in numbers"


def test_weights_of_elsewhere_are_those_of_the_first_step(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    assert Checkpoint.open(tmp_path / "a.safetensors").position == Position(0, 0)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file grows beyond ``size``, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_refuses_leaves_the_file_as_it_was(path: Path) -> None:
    with small_files(1000), pytest.raises(DnncError) as caught:
        write_checkpoint(path, {"fc.weight": torch.zeros(1000)}, Position(8))
    assert caught.value.exit_code is ExitCode.INVALID_INPUT
    assert str(caught.value).startswith(f"{path}: error[E0726]: it cannot be written: ")
    assert Checkpoint.open(path).position == Position(7, 3)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_a_file(path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        write_checkpoint(path / "step8.safetensors", TENSORS, Position(8))
    assert str(caught.value).startswith(f"{path}/step8.safetensors: error[E0726]: it cannot be written: ")


def test_a_folder_of_checkpoints_names_them(tmp_path: Path) -> None:
    """The folder that ``--checkpoint`` names is given in place of a checkpoint in it."""
    for name in ("step2", "step10", "other"):
        (tmp_path / name).mkdir()
        if name != "other":
            (tmp_path / name / "index.json").write_text("{}")
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(tmp_path)
    assert f"it holds the checkpoints step2, step10: {tmp_path}/step10 is one" in str(caught.value.diagnostics[0].hint)


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    before: list[weakref.ref[Any]] = []

    def read(name: str) -> Any:
        assert all(tensor() is None for tensor in before)
        tensor = torch.full((1000,), float(len(before)))
        before.append(weakref.ref(tensor))
        return tensor

    path = tmp_path / "a.safetensors"
    write_tensors(path, {f"w{number}": Part.whole(DType.F32, (1000,)) for number in range(5)}, read, Position())
    assert [float(Checkpoint.open(path).tensor(f"w{number}")[999]) for number in range(5)] == [0, 1, 2, 3, 4]


STARTER = """
import sys
from pathlib import Path
import dnnc.engines.torch.launch.host
import dnnc.engines.torch.launch.hosts
from dnnc.engines.torch.checkpoint import Checkpoint
checkpoint = Checkpoint.open(Path(sys.argv[1]))
checkpoint.verify()
print(checkpoint.names, checkpoint.ranges({}), "torch" in sys.modules)
"""


def test_who_starts_ranks_imports_no_torch(tmp_path: Path) -> None:
    """It takes seconds, before the ranks do it again: neither of ``dnnc train``, which opens checkpoints, nor of a host's."""
    write_checkpoint(tmp_path / "one", {"w": torch.zeros(4)}, Position())
    command = [sys.executable, "-P", "-c", STARTER, str(tmp_path / "one")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    start = Checkpoint.open(tmp_path / "one").files[""].header_bytes
    assert done.stdout == f"('w',) {{'': [(0, {start})]}} False\n", done.stderr
