"""Checkpoints: whole or not there, read in parts, and how a file that does not fit is told."""

from __future__ import annotations

import fcntl
import math
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.program.elements import user_dtype
from ir.diagnostics import DnncError, ExitCode, InvalidInput
from ir.signals import Terminated

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from safetensors.torch import save_file  # noqa: E402

from dnnc.backend.torch import checkpoint  # noqa: E402
from dnnc.backend.torch.checkpoint import Part, Position, from_array, names, position, read_parts, read_whole, write_checkpoint  # noqa: E402

TENSORS = {
    "fc.weight": torch.arange(12, dtype=torch.float32).reshape(4, 3),
    "fc.bias": torch.ones(4),
    "half": torch.arange(4, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "turned": torch.arange(6).reshape(2, 3).t(),
}
WEIGHT = Part(torch.float32, (4, 3), ((0, 4), (0, 3)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "step7.safetensors"
    write_checkpoint(found, TENSORS, Position(7, 3))
    return found


def test_what_was_written_is_read(path: Path) -> None:
    found = read_whole(path)
    assert found.keys() == TENSORS.keys() == {*names(path)}
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in TENSORS.items())
    assert position(path) == Position(7, 3)
    assert path.stat().st_mode & 0o600 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_parts_are_read(path: Path) -> None:
    parts = {
        "fc.weight": Part(torch.float32, (4, 3), ((1, 2), (0, 3))),
        "scalar": Part(torch.float64, (), ()),
        "fc.weight.exp_avg": WEIGHT,
    }
    found = read_parts(path, parts, ["fc.weight.exp_avg"])
    assert found.keys() == {"fc.weight", "scalar"}
    assert torch.equal(found["fc.weight"], TENSORS["fc.weight"][1:3])
    assert torch.equal(found["scalar"], TENSORS["scalar"])


@pytest.mark.parametrize(
    ("name", "part", "told"),
    [
        ("fc.missing", WEIGHT, "it holds no weight 'fc.missing'"),
        (
            "fc.weight",
            Part(torch.float32, (4, 2), ((0, 4), (0, 2))),  # it is in the file's
            "its weight 'fc.weight' is float32[4, 3]; expected float32[4, 2]",
        ),
        (
            "fc.weight",
            Part(torch.float32, (8, 3), ((4, 4), (0, 3))),  # it is beyond the file's
            "its weight 'fc.weight' is float32[4, 3]; expected float32[8, 3]",
        ),
        ("fc.bias", WEIGHT, "its weight 'fc.bias' is float32[4]; expected float32[4, 3]"),
        ("fc.weight", Part(torch.float32, (), ()), "its weight 'fc.weight' is float32[4, 3]; expected float32[]"),
        ("half", Part(torch.float16, (4,), ((0, 4),)), "its weight 'half' is bfloat16[4]; expected float16[4]"),
    ],
)
def test_weights_of_another_model(name: str, part: Part, told: str, path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_parts(path, {name: part})
    assert str(caught.value) == f"{path}: error: {told}\n  hint: is it of another model?"
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
        case "a folder":
            path.unlink()
            path.mkdir()
    return path


UNREADABLE = "it cannot be read as safetensors: "


@pytest.mark.parametrize(
    ("how", "told"),
    [
        *((how, UNREADABLE) for how in ("truncated", "in its header", "empty", "text")),
        ("missing", "no such file; expected a checkpoint"),
        ("a folder", "found a folder, expected a checkpoint"),
    ],
)
def test_files_that_are_no_checkpoints(how: str, told: str, path: Path) -> None:
    damaged(path, how)
    for read in (position, names, read_whole, lambda path: read_parts(path, {"fc.weight": WEIGHT})):
        with pytest.raises(InvalidInput) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: error: {told}")


@pytest.mark.parametrize("name", ["float32", "int64", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_tensor_has_the_elements_of_an_array(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(user_dtype(name))
    found = from_array(array)
    assert (found.dtype, tuple(found.shape)) == (getattr(torch, name), shape)
    assert found.double().tolist() == array.astype(np.float64).tolist()


def test_an_array_that_torch_has_no_type_for() -> None:
    with pytest.raises(InvalidInput, match="torch has no element type float8_e3m4"):
        from_array(np.zeros(2, user_dtype("float8_e3m4")))


@pytest.mark.parametrize("header", [{"step": "many"}, {"step": "-3"}, {"step": "1", "seed": "1.5"}, {"seed": ""}])
def test_a_header_that_says_no_position(header: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": torch.ones(1)}, path, header)
    with pytest.raises(InvalidInput) as caught:
        position(path)
    assert str(caught.value) == f"{path}: error: its header does not say the step and the seed in numbers"


def test_weights_of_elsewhere_are_those_of_the_first_step(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    assert position(tmp_path / "a.safetensors") == Position(0, 0)


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
    assert str(caught.value).startswith(f"{path}: error: it cannot be written: ")
    assert position(path) == Position(7, 3)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_a_file(path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        write_checkpoint(path / "step8.safetensors", TENSORS, Position(8))
    assert str(caught.value).startswith(f"{path}/step8.safetensors: error: it cannot be written: ")


def test_a_request_to_end_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(tensors: Any, name: str, header: Any) -> None:
        Path(name).write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(checkpoint, "save_file", save)
    with pytest.raises(Terminated):
        write_checkpoint(path, TENSORS, Position(8))
    assert position(path) == Position(7, 3)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_a_killed_writer_left_goes_with_the_next_write(path: Path) -> None:
    """What a living one holds locked stays, and what is no checkpoint."""
    left, held, other = (path.with_name(f".{name}.partial") for name in ("step5.safetensors.1f", "step6.safetensors.2f", "x"))
    left.mkdir()
    (left / ".tmp5").write_bytes(b"half of it")
    held.mkdir()
    other.write_bytes(b"of another")
    lock = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_checkpoint(path.with_name("step8.safetensors"), TENSORS, Position(8))
    finally:
        os.close(lock)
    kept = sorted(entry.name for entry in path.parent.iterdir())
    assert kept == sorted([held.name, other.name, "step7.safetensors", "step8.safetensors"])
