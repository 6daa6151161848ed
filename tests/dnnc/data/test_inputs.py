"""Arrays of a person: names, dtypes and shapes are checked, microbatches told apart, files written whole."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.build.build import ValueInfo
from dnnc.data.inputs import join_outputs, npz_bytes, read_inputs, split_microbatches, write_npz, write_outputs
from dnnc.data.npz import read_npz
from ir.core.diagnostics import ExitCode, InvalidInput

X = ValueInfo("x", "float32", (2, 3), "tensor<2x3xf32>")
IDS = ValueInfo("ids", "int64", (2,), "tensor<2xi64>")
FREE = ValueInfo("f", "float32", ("batch", 3), "tensor<batch x 3 x f32>")


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_one_microbatch() -> None:
    found = split_microbatches((X,), {"x": zeros(2, 3)})
    assert (len(found.items), found.mode) == (1, "single")


def test_a_stack_and_a_shared_input() -> None:
    ids = np.array([7, 8])
    found = split_microbatches((X, IDS), {"x": np.arange(24, dtype=np.float32).reshape(4, 2, 3), "ids": ids})
    assert (len(found.items), found.mode) == (4, "stacked")
    assert found.items[2]["x"][0, 0] == 12
    assert all((item["ids"] == ids).all() for item in found.items)


def test_splitting_the_first_axis() -> None:
    found = split_microbatches((X,), {"x": np.arange(18, dtype=np.float32).reshape(6, 3)}, microbatches=3)
    assert (len(found.items), found.mode) == (3, "split")
    assert found.items[1]["x"][0, 0] == 6
    found = split_microbatches((FREE,), {"f": zeros(8, 3)}, microbatches=4)
    assert [item["f"].shape for item in found.items] == [(2, 3)] * 4


def test_a_shared_input_for_as_many_microbatches_as_asked() -> None:
    assert len(split_microbatches((X,), {"x": zeros(2, 3)}, microbatches=5).items) == 5


def faults(ports: tuple[ValueInfo, ...], arrays: dict[str, np.ndarray], microbatches: int | None = None) -> str:
    with pytest.raises(InvalidInput) as info:
        split_microbatches(ports, arrays, microbatches=microbatches, where="x.npz")
    assert info.value.exit_code is ExitCode.INVALID_INPUT
    assert all(d.where == "x.npz" for d in info.value.diagnostics)
    return str(info.value)


def test_all_faults_are_told_at_once() -> None:
    text = faults((X, IDS), {"x": np.zeros((2, 3)), "y": zeros(1)})
    assert "input 'x' has element type float64, the model expects float32" in text
    assert "input 'ids' is missing; expected tensor<2xi64>" in text
    assert "the model has no input 'y'; its inputs are 'x', 'ids'" in text


@pytest.mark.parametrize(
    ("shape", "microbatches", "words"),
    [
        ((2, 4), None, "input 'x' has shape 2 x 4, the model expects 2 x 3, or M x 2 x 3 for M microbatches"),
        ((), None, "input 'x' has shape of a scalar, the model expects 2 x 3"),
        ((5, 3), 2, "or 4 x 3 to be split in 2"),
    ],
)
def test_a_wrong_shape(shape: tuple[int, ...], microbatches: int | None, words: str) -> None:
    assert words in faults((X,), {"x": zeros(*shape)}, microbatches)


def test_unequal_counts() -> None:
    text = faults((X, IDS), {"x": zeros(4, 2, 3), "ids": np.zeros((3, 2), np.int64)})
    assert "do not hold equally many microbatches: 'ids' 3, 'x' 4" in text
    assert "3 asked for" in faults((X,), {"x": zeros(4, 2, 3)}, 3)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_element_types_that_numpy_lacks_come_back_from_a_file(tmp_path: Path, name: str) -> None:
    array = np.arange(6).astype(getattr(ml_dtypes, name)).reshape(2, 3)
    write_npz(tmp_path / "a.npz", {"x": array})
    raw = read_npz(tmp_path / "a.npz")
    port = ValueInfo("x", name, (2, 3), "")
    found = split_microbatches((port,), raw).items[0]["x"]
    assert found.dtype == array.dtype
    assert found.astype(float).tolist() == array.astype(float).tolist()
    unsigned = array.view(f"uint{8 * array.dtype.itemsize}")
    assert split_microbatches((port,), {"x": unsigned}).items[0]["x"].dtype == array.dtype


def test_strings_and_sequences(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", {"s": np.array(["a", "ü"], object), "q": [zeros(1), zeros(2)], "o": None})
    raw = read_npz(tmp_path / "a.npz")
    assert sorted(raw) == ["q.0", "q.1", "s"]
    ports = (
        ValueInfo("s", "string", (2,), ""),
        ValueInfo("q", "", None, "seq<tensor<?xf32>>"),
        ValueInfo("o", "", None, "optional<...>"),
    )
    found = split_microbatches(ports, raw).items[0]
    assert found["s"].tolist() == ["a", "ü"]
    assert [a.shape for a in found["q"]] == [(1,), (2,)]
    assert found["o"] is None


def test_outputs_are_joined_as_inputs_came() -> None:
    parts = [{"y": np.full((2, 3), i)} for i in range(3)]
    assert join_outputs(parts[:1], "single")["y"].shape == (2, 3)
    assert join_outputs(parts, "stacked")["y"].shape == (3, 2, 3)
    assert join_outputs(parts, "split")["y"].shape == (6, 3)
    assert join_outputs([{"y": np.array(1)}, {"y": np.array(2)}], "split")["y"].tolist() == [1, 2]
    ragged = join_outputs([{"y": zeros(1)}, {"y": zeros(2)}], "stacked")
    assert {name: value.shape for name, value in ragged.items()} == {"y.0": (1,), "y.1": (2,)}


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "noise.npz").write_bytes(b"\x93NUMPY noise")
    np.save(tmp_path / "bare.npy", zeros(2))
    np.savez(tmp_path / "objects.npz", x=np.array([{}, []], object))
    for name, words in (
        ("absent.npz", "no such file"),
        ("noise.npz", "not an .npz file, or damaged"),
        ("bare.npy", "one bare array found"),
        ("objects.npz", "it holds Python objects"),
    ):
        with pytest.raises(InvalidInput, match=words) as info:
            read_npz(tmp_path / name)
        assert info.value.diagnostics[0].where == str(tmp_path / name)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "y.npz"
    target.write_bytes(b"before")
    with pytest.raises((TypeError, ValueError)):
        write_npz(target, {"y": zeros(2), "z": np.array([{}], dtype=[("a", object)])})
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["y.npz"]
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_npz(tmp_path / "absent" / "y.npz", {"y": zeros(2)})


def header(shape: str, dtype: str = "<f4") -> bytes:
    """The header of an array, with nothing behind it."""
    told = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told) + 1) + told + b"\n"


def archive(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, data in entries.items():
            made.writestr(name, data)
    return path


def damaged(path: Path) -> Path:
    """An archive whose data differs from its sum."""
    np.savez(path, x=zeros(2, 3))
    data = bytearray(path.read_bytes())
    at = data.index(b"}") + 60
    data[at : at + 40] = bytes(39) + b"\x01"
    path.write_bytes(data)
    return path


def encrypted(path: Path) -> Path:
    np.savez(path, x=zeros(2, 3))
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: archive(path, {"x.npy": header("(1 << 40,)")}), "not an .npz file, or damaged"),
        (lambda path: archive(path, {"x.npy": header("(1099511627776,)")}), "its entry has"),
        (lambda path: archive(path, {"x.npy": header("(-1,)")}), "not an .npz file, or damaged"),
        (lambda path: archive(path, {"x.npy": header("(2, 3)", "|O") + bytes(48)}), "it holds Python objects"),
        (lambda path: archive(path, {"x.npy": header("(2, 3)") + bytes(23)}), "its entry has"),
        (lambda path: archive(path, {"x.npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(1 << 20)}), "damaged"),
        (lambda path: archive(path, {"x.npy": header("(" * 5000)}), "not an .npz file, or damaged"),
        (lambda path: archive(path, {"x": header("(2, 3)") + bytes(24)}), "'x' is no array"),
        (lambda path: archive(path, {"/etc/x.npy": header("(2, 3)") + bytes(24)}), "the model has no input '/etc/x'"),
        (lambda path: archive(path, {"x.npy": header("(2, 3)") + bytes(24), "\x1b[1m.npy": header("()") + bytes(4)}), "x1b"),
        (lambda path: archive(path, {"x.npy": header("(2, 3)") + bytes(24), "y.npy": header("(300000000,)")}), "its entry has"),
        (encrypted, "is encrypted"),
        (damaged, "not an .npz file, or damaged"),
    ],
)
def test_an_archive_that_means_harm(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    with pytest.raises(InvalidInput) as info:
        read_inputs(make(tmp_path / "x.npz"), (X,))
    assert words in str(info.value)
    assert info.value.diagnostics[0].where == str(tmp_path / "x.npz")


def test_nothing_is_unpacked_before_names_and_shapes_are_known(tmp_path: Path) -> None:
    """A file of a megabyte that unpacks to 300 MiB: refused by its names, its shape, its size, with little memory."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made, made.open("x.npy", "w") as entry:
        entry.write(header("(26214400, 3)"))
        for _ in range(299):
            entry.write(bytes(1 << 20))
        entry.write(bytes(26214400 * 12 - (299 << 20)))
    wide = ValueInfo("x", "float32", ("batch", 3), "tensor<batch x 3 x f32>")
    tracemalloc.start()
    for ports, words in (
        ((X,), "input 'x' has shape 26214400 x 3"),
        ((FREE,), "the model has no input 'x'"),
        ((IDS,), "the model has no input 'x'"),
        ((wide,), "bytes in a file of"),
    ):
        with pytest.raises(InvalidInput, match=words):
            read_inputs(path, ports)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_devices_and_pipes_are_no_inputs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, words in (("fifo", "found a FIFO"), ("zero", "found a device"), (".", "found a folder")):
        with pytest.raises(InvalidInput, match=words):
            read_npz(tmp_path / name)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_changed_byte_is_told_or_changes_nothing(data: st.DataObject) -> None:
    made = io.BytesIO()
    np.savez(made, x=np.arange(6, dtype=np.float32).reshape(2, 3))
    raw = bytearray(made.getvalue())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npz"
        path.write_bytes(raw)
        with contextlib.suppress(InvalidInput):
            assert read_inputs(path, (X,)).items[0]["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_maps_of_several_microbatches_keep_their_element_types(tmp_path: Path) -> None:
    port = ValueInfo("Z", "", None, "seq<map<i64, tensor<f32>>>")
    write_outputs(tmp_path / "z.npz", [{"Z": [{1: 0.1}]}, {"Z": [{1: 0.2}]}], "stacked", [port])
    with np.load(tmp_path / "z.npz") as file:
        assert {name: file[name].dtype.name for name in file} == {
            f"Z.{i}.0.{part}": dtype for i in range(2) for part, dtype in (("keys", "int64"), ("values", "float32"))
        }


def test_arrays_that_are_too_large_to_be_kept_are_not_copied() -> None:
    """These would be a terabyte."""
    port = ValueInfo("x", "float32", (1 << 18, 1 << 20), "tensor<262144x1048576xf32>")
    assert npz_bytes({"x": np.broadcast_to(np.float32(1), (1 << 18, 1 << 20))}, [port], 1 << 20) == b""
    assert npz_bytes({"x": np.ones(2, np.float32)}, [port], 1 << 20)
    assert npz_bytes({"x": np.ones(2, np.float32)}, [port], 8) == b""
