"""Constants: arrays and their packed data, weights on disk and generated, and the evaluator with its limits."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from dnnc.onnx.arrays import numpy_dtype, to_array, to_data, to_dense
from dnnc.onnx.importer.evaluate import OnnxEvaluator
from dnnc.onnx.types import ELEMENT_NUMBERS, ELEMENT_TYPES, type_of, type_proto
from dnnc.onnx.weights import check_weights, data_path, read_resource
from ir.core.attributes import Dense, attributes
from ir.core.diagnostics import InvalidInput
from ir.core.module import Declared, External, Inline, Module, Random, Resource, ResourceData, Splat
from ir.core.ops import Op, Region, Value
from ir.core.types import UNKNOWN, DType, MapType, OptionalType, SeqType, TensorType, Type

OPSETS = {"onnx": 20}


def test_every_element_type_of_onnx_has_one_of_ours() -> None:
    numbers = {number for _, number in onnx.TensorProto.DataType.items() if number}
    assert set(ELEMENT_TYPES) == numbers
    assert set(ELEMENT_NUMBERS) == set(DType)


@given(st.sampled_from([d for d in DType if d is not DType.STRING]), st.integers(0, 20), st.randoms(use_true_random=False))
def test_packing_agrees_with_onnx(dtype: DType, count: int, rng: Any) -> None:
    size = -(-count * dtype.bits // 8)
    raw = bytearray(rng.randbytes(size))
    if dtype is DType.BOOL:
        raw = bytearray(byte & 1 for byte in raw)
    if count * dtype.bits % 8:
        raw[-1] &= (1 << (count * dtype.bits % 8)) - 1
    array = to_array(TensorType(dtype, (count,)), bytes(raw))
    assert to_data(array, dtype) == bytes(raw)
    tensor = onnx.TensorProto(data_type=ELEMENT_NUMBERS[dtype], dims=[count], raw_data=bytes(raw))
    expected = numpy_helper.to_array(tensor)
    assert array.dtype == expected.dtype
    assert to_data(expected, dtype) == bytes(raw)


def test_data_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 8 bytes, 7 are given"):
        to_array(TensorType(DType.F32, (2,)), bytes(7))


_types: st.SearchStrategy[Type] = st.recursive(
    st.builds(
        TensorType,
        st.sampled_from(list(DType)),
        st.none() | st.lists(st.integers(0, 9) | st.sampled_from(["n", "2*n"]) | st.none(), max_size=3).map(tuple),
        sparse=st.booleans(),
    ),
    lambda inner: st.builds(SeqType, inner) | st.builds(OptionalType, inner) | st.builds(MapType, st.just(DType.I64), inner),
    max_leaves=3,
)


@given(_types)
def test_types_round_trip(type_: Type) -> None:
    assert type_of(type_proto(type_)) == type_


def _resource(data: ResourceData, *shape: int, dtype: DType = DType.F32) -> Resource:
    return Resource("@w", TensorType(dtype, shape), data)


def test_inline_and_splat() -> None:
    np.testing.assert_array_equal(read_resource(_resource(Inline(bytes(8)), 2), Path()), np.zeros(2, np.float32))
    full = read_resource(_resource(Splat(1.5), 2, 3, dtype=DType.BF16), Path())
    assert full.dtype == numpy_dtype(DType.BF16)
    assert full.astype(float).tolist() == [[1.5] * 3] * 2
    strings = read_resource(_resource(Inline((b"a", b"\xff")), 2, dtype=DType.STRING), Path())
    assert strings.tolist() == [b"a", b"\xff"]


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16, DType.BF16])
def test_random_has_its_moments_and_is_reproducible(dtype: DType) -> None:
    data = Random("normal", 3, scale=2.0, mean=1.0)
    first = read_resource(_resource(data, 100, 50, dtype=dtype), Path())
    again = read_resource(_resource(data, 100, 50, dtype=dtype), Path())
    assert first.tobytes() == again.tobytes()
    values = first.astype(np.float64)
    assert abs(values.mean() - 1) < 0.1
    assert abs(values.std() - 2) < 0.1
    other = read_resource(_resource(Random("normal", 4, scale=2.0, mean=1.0), 100, 50, dtype=dtype), Path())
    assert other.tobytes() != first.tobytes()


def test_uniform_integers_and_booleans_stay_in_range() -> None:
    data = Random("uniform", 1, scale=5.0, mean=5.0)
    values = read_resource(_resource(data, 1000, dtype=DType.I64), Path())
    assert (values.min(), values.max()) == (0, 10)
    assert read_resource(_resource(Random("normal", 1, scale=99.0), 100, dtype=DType.U4), Path()).astype(int).max() == 15
    assert 300 < read_resource(_resource(data, 1000, dtype=DType.BOOL), Path()).sum() < 700
    with pytest.raises(InvalidInput, match="'zipf' is not known"):
        read_resource(_resource(Random("zipf", 1), 2), Path())


def test_external_is_mapped_and_checked(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    (tmp_path / "w").write_bytes(b"abc" + array.tobytes() + b"\x21\x03")
    np.testing.assert_array_equal(read_resource(_resource(External("w", 3, 24), 2, 3), tmp_path), array)
    nibbles = read_resource(_resource(External("w", 27, 2), 3, dtype=DType.I4), tmp_path)
    assert nibbles.astype(int).tolist() == [1, 2, 3]
    with pytest.raises(InvalidInput, match="has 29 bytes; @w ends at byte 34"):
        read_resource(_resource(External("w", 10, 24), 2, 3), tmp_path)
    with pytest.raises(InvalidInput, match="needs 24 bytes; 20 are given"):
        read_resource(_resource(External("w", 0, 20), 2, 3), tmp_path)
    with pytest.raises(InvalidInput, match=r"v: error\[E2001\]: no such file"):
        read_resource(_resource(External("v", 0, 24), 2, 3), tmp_path)
    with pytest.raises(InvalidInput, match="declared without data"):
        read_resource(_resource(Declared(), 2), tmp_path)


def test_weights_of_a_module_are_checked_without_reading(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(4 << 30)
    module = Module("@m", (_resource(External("big", 0, 4 << 30), 1 << 30),))
    tracemalloc.start()
    check_weights(module, tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with pytest.raises(InvalidInput, match="'absent' is missing"):
        check_weights(Module("@m", (_resource(External("absent", 0, 8), 2),)), tmp_path)


def test_a_link_inside_the_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    assert data_path("b", tmp_path, "@w").read_bytes() == b"1"


def _evaluate(op: Op, *operands: Any, opsets: dict[str, int] = OPSETS, **options: Any) -> list[Any] | None:
    constants = tuple(None if value is None else to_dense(np.asarray(value)) for value in operands)
    results = OnnxEvaluator(**options)(op, constants, opsets)
    return None if results is None else [to_array(r.type, r.data).tolist() for r in results]


def _op(name: str, results: int = 1, types: tuple[Type, ...] = (), **attrs: Any) -> Op:
    values = tuple(Value(f"%{i}", types[i] if types else UNKNOWN) for i in range(results))
    return Op(name, (), values, attributes(attrs))


def test_evaluator_runs_operators_of_shape_arithmetic() -> None:
    assert _evaluate(_op("onnx.Concat", axis=0), [1, 2], [3]) == [[1, 2, 3]]
    assert _evaluate(_op("onnx.Gather", axis=0), [5, 6, 7], 1) == [6]
    assert _evaluate(_op("onnx.Slice"), [1, 2, 3, 4], [1], [3]) == [[2, 3]]
    assert _evaluate(_op("onnx.Range"), 0, 3, 1) == [[0, 1, 2]]
    assert _evaluate(_op("onnx.Split", 2, axis=0), [1, 2, 3], [1, 2]) == [[1], [2, 3]]
    assert _evaluate(_op("onnx.Clip"), [1, 5], None, 3) == [[1, 3]]
    assert _evaluate(_op("onnx.ConstantOfShape"), [2]) == [[0.0, 0.0]]
    assert _evaluate(_op("onnx.Constant", value_ints=[4, 5])) == [[4, 5]]


def test_evaluator_agrees_with_the_opset() -> None:
    # Unsqueeze took its axes as an attribute until opset 13.
    assert _evaluate(_op("onnx.Unsqueeze", axes=[0]), [1], opsets={"onnx": 11}) == [[[1]]]
    assert _evaluate(_op("onnx.Unsqueeze"), [1], [0], opsets={"onnx": 13}) == [[[1]]]


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        (_op("onnx.ConstantOfShape"), ([1 << 20, 1 << 20],)),
        (_op("onnx.Expand"), ([1.0], [1 << 40])),
        (_op("onnx.Tile"), ([1.0], [1 << 40])),
        (_op("onnx.Range"), (0, 1 << 50, 1)),
        (_op("onnx.Pad"), ([1.0], [0, 1 << 40])),
        (_op("onnx.OneHot"), ([1], 1 << 40, [0, 1])),
        (_op("onnx.MatMul", types=(TensorType(DType.F32, (1 << 30,)),)), ([[1.0]], [[1.0]])),
        (_op("onnx.Resize"), ([[1.0]], None, [1e9, 1e9])),
    ],
    ids=lambda value: value.name if isinstance(value, Op) else "",
)
def test_evaluator_refuses_large_results_before_making_them(op: Op, operands: tuple[Any, ...]) -> None:
    assert _evaluate(op, *operands) is None


def test_evaluator_refuses_what_is_no_constant() -> None:
    assert _evaluate(_op("onnx.RandomNormal", shape=[2])) is None
    assert _evaluate(_op("onnx.com.acme.Add"), 1, 2) is None
    assert _evaluate(_op("comm.recv")) is None
    assert _evaluate(_op("onnx.Add"), [1, 2], [1, 2, 3]) is None
    assert _evaluate(_op("onnx.NoSuchOperator"), [1]) is None
    branch = Op("onnx.If", ("%c",), (Value("%y"),), regions=(("then_branch", Region((), (), ())),))
    assert OnnxEvaluator()(branch, (to_dense(np.array(True)),), OPSETS) is None


def test_evaluator_keeps_small_types_and_strings() -> None:
    nibbles = Dense(TensorType(DType.I4, (3,)), b"\x21\x0f")
    cast = Op("onnx.Cast", (), (Value("%y"),), attributes(to=helper.np_dtype_to_tensor_dtype(np.dtype(np.int64))))
    results = OnnxEvaluator()(cast, (nibbles,), {"onnx": 21})
    assert results == (to_dense(np.array([1, 2, -1])),)
    text = Dense(TensorType(DType.STRING, (1,)), (b"ab",))
    joined = OnnxEvaluator()(_op("onnx.StringConcat"), (text, text), OPSETS)
    assert joined == (Dense(TensorType(DType.STRING, (1,)), (b"abab",)),)
