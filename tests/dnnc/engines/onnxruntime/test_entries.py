"""Values of any name and any type in an ``.npz``: what is written is read back, by dnnc and by ``numpy.load``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.build.build import ValueInfo
from dnnc.data.entries import prefixes, to_arrays
from dnnc.data.inputs import read_inputs, write_npz
from dnnc.onnx.elements import BY_NAME, user_dtype
from ir.core.diagnostics import InvalidInput
from ir.core.types import DType

TRAPS = [
    *("file", "allow_pickle", "y", "y.npy", "y.npy.npy", "s", "s.", "s..", "s.0", "s.0.keys", "s.nuls", "0", ".", "..", "../y"),
    *("a/b", "/a", "a\\b", "ü", "\x1b[1m", " ", "x" * 300, "keys", "Y", "y.NPY", ".npy", ""),
]
NAMES = st.lists(
    st.sampled_from(TRAPS) | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), unique=True
)


@settings(max_examples=30, deadline=None)
@given(NAMES)
def test_any_names_of_tensors(names: list[str]) -> None:
    values = {name: np.array([number], np.float32) for number, name in enumerate(names)}
    ports = [ValueInfo(name, "float32", (1,), "tensor<1xf32>") for name in names]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "y.npz"
        write_npz(path, values)
        assert read_inputs(path, ports).items[0] == values
        with np.load(path, allow_pickle=False) as found:
            assert {name: found[name].tolist() for name in names} == {name: [number] for number, name in enumerate(names)}


KINDS: dict[str, list[Any]] = {
    "tensor<f32>": [np.float32(2)],
    "tensor<2xstring>": [np.array(["a\0\0", "b"], object), np.array(["", "\0"], object), np.array(["ü", "\0a"], object)],
    "seq<tensor<*xf32>>": [[], [np.ones(2, np.float32), np.zeros((1, 3), np.float32)]],
    "seq<tensor<*xbf16>>": [[np.ones(2, ml_dtypes.bfloat16)]],
    "seq<tensor<string>>": [[np.array("a\0", object), np.array("b", object)]],
    "optional<tensor<*xf32>>": [None, np.ones(2, np.float32)],
    "optional<seq<tensor<*xi64>>>": [None, [np.array([1])]],
    "map<i64, tensor<f32>>": [{1: 0.5, 7: 0.25}],
    "map<string, tensor<i64>>": [{"a": 1, "b\0": 2}],
    "seq<map<i64, tensor<f32>>>": [[], [{1: 0.5}, {2: 0.25, 3: 0.125}]],
}


def port_of(name: str, type_: str) -> ValueInfo:
    return ValueInfo(name, {"tensor<f32>": "float32", "tensor<2xstring>": "string"}.get(type_, ""), None, type_)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_values_of_any_kind_beside_each_other(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(TRAPS), unique=True, max_size=5))
    types = {name: data.draw(st.sampled_from(sorted(KINDS))) for name in names}
    values = {name: data.draw(st.sampled_from(KINDS[type_])) for name, type_ in types.items()}
    ports = [port_of(name, type_) for name, type_ in types.items()]
    with tempfile.TemporaryDirectory() as folder:
        write_npz(Path(folder) / "y.npz", values, ports)
        found = read_inputs(Path(folder) / "y.npz", ports).items[0]
    assert list(found) == names
    for name in names:
        same(found[name], values[name])


def same(found: Any, value: Any) -> None:
    if isinstance(value, list):
        assert len(found) == len(value)
        for one, other in zip(found, value, strict=True):
            same(one, other)
    elif isinstance(value, dict) or value is None:
        assert found == value
    else:
        assert (found.dtype, found.shape) == (np.asarray(value).dtype, np.shape(value))
        assert found.tolist() == value.tolist()


def test_no_part_has_the_name_of_another_value() -> None:
    assert prefixes(["s", "s.0", "s.", "t"]) == {"s": "s..", "s.0": "s.0.", "s.": "s...", "t": "t."}


def test_a_map_has_the_types_that_it_states() -> None:
    found = to_arrays({"z": [{1: 0.1}]}, {"z": "seq<map<i64, tensor<f32>>>"})
    assert {name: array.dtype.name for name, array in found.items()} == {"z.0.keys": "int64", "z.0.values": "float32"}
    assert to_arrays({"z": {}}, {"z": "map<string, tensor<f32>>"})["z.values"].dtype == np.float32


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype is not DType.STRING])
def test_every_element_type(tmp_path: Path, dtype: DType) -> None:
    """Numpy reads each; as one that it lacks, unsigned integers whose view is the array. So are arrays that were saved as they
    are."""
    name = dtype.numpy_name
    user, bits = user_dtype(name), BY_NAME[name].bits
    codes = (np.arange(6) % (1 << min(bits, 7))).astype(np.uint8)
    array = codes.view(user) if user.itemsize == 1 and name != "bool" else codes.astype(np.float32).astype(user)
    array = array.reshape(2, 3)
    write_npz(tmp_path / "y.npz", {"y": array})
    with np.load(tmp_path / "y.npz", allow_pickle=False) as found:
        plain = found["y"]
    assert plain.view(user).tobytes() == array.tobytes()
    if name in ("bfloat16", "int4", "float8_e5m2"):
        assert plain.dtype == (np.uint16 if name == "bfloat16" else np.uint8)
    np.savez(tmp_path / "saved.npz", y=array)
    np.savez(tmp_path / "turned.npz", y=np.asfortranarray(array))
    port = ValueInfo("y", name, (2, 3), f"tensor<2x3x{dtype.value}>")
    for file in ("y.npz", "saved.npz", "turned.npz"):
        back = read_inputs(tmp_path / file, [port]).items[0]["y"]
        assert back.dtype == user
        assert np.ascontiguousarray(back).tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["a\0b", "x" * 70_000])
def test_a_name_that_no_archive_has_space_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be written: its name is too long, or has a NUL"):
        write_npz(tmp_path / "y.npz", {name: np.zeros(2)})
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([b"\xff"]))
    with pytest.raises(InvalidInput, match="input 'x' cannot be read: 'utf-8' codec"):
        read_inputs(tmp_path / "x.npz", [ValueInfo("x", "string", (1,), "tensor<1xstring>")])
