"""Views lie where PyTorch has them: the bases of values against storages of tensors."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir import Op, TensorType, Value
from ir.core.attributes import attributes
from ir.core.types import DType
from passes.costs.views import bases

torch = pytest.importorskip("torch")
SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


def factors(draw: Any, count: int) -> list[int]:
    """Any shape of so many elements."""
    shape = list[int]()
    while count > 1:
        shape.append(draw(st.sampled_from([size for size in range(2, count + 1) if count % size == 0])))
        count //= shape[-1]
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return shape or [1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_views_have_the_storage_of_their_base(data: st.DataObject) -> None:
    """Of a chain of transposes, splits, repetitions, new shapes and sums, whose results keep the order of the first term."""
    tensors = {"%0": torch.empty(data.draw(SIZES))}
    ops = [Op("onnx.Relu", ("%in",), (Value("%0", TensorType(DType.F32, tuple(tensors["%0"].shape))),))]
    for number in range(1, 6):
        name, before = f"%{number}", tensors[f"%{number - 1}"]
        kind = data.draw(
            st.sampled_from(["Transpose", "Split", "Expand", "Reshape", *(["Add"] if 0 not in before.stride() else [])])
        )
        stated: dict[str, Any] = {}
        if kind == "Transpose":
            order = data.draw(st.permutations(range(before.ndim)))
            made, stated = [before.permute(order)], {"perm": tuple(order)}
        elif kind == "Split":
            axis = data.draw(st.integers(0, before.ndim - 1))
            parts = -(-before.shape[axis] // 2)
            made, stated = list(torch.split(before, parts, axis)), {"axis": axis}
        elif kind == "Expand":
            sizes = [data.draw(st.sampled_from([2, 3])) if size == 1 else size for size in before.shape]
            made = [before.expand([*data.draw(st.sampled_from([[], [1], [2]])), *sizes])]
        elif kind == "Add":
            other = data.draw(
                st.sampled_from([name for name, one in tensors.items() if name != "%0" and one.shape == before.shape] or [""])
            )
            made = [tensors[other] + before] if other else [before.tanh()]
        else:
            made = [before.reshape(factors(data.draw, prod(before.shape)))]
        names = [name, *(f"{name}.{i}" for i in range(1, len(made)))]
        tensors.update(zip(names, made, strict=True))
        results = tuple(Value(one, TensorType(DType.F32, tuple(made.shape))) for one, made in zip(names, made, strict=True))
        operands = (other, f"%{number - 1}") if kind == "Add" and other else (f"%{number - 1}",)
        ops.append(Op(f"onnx.{kind}", operands, results, attributes(stated)))
    found = bases(ops)
    for name, tensor in tensors.items():
        base = found.get(name, name)
        assert tensor.untyped_storage().data_ptr() == tensors[base].untyped_storage().data_ptr()
        assert base not in found
        same = {other for other in tensors if found.get(other, other) == base}
        assert same == {
            other for other, one in tensors.items() if one.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        }


def test_a_new_shape_of_a_sum_in_the_order_of_a_transposed_term_is_a_copy() -> None:
    """Of a sum whose first term lies in the usual order it is a view."""

    def op(name: str, operands: tuple[str, ...], made: str, shape: tuple[int, ...], **stated: Any) -> Op:
        return Op(f"onnx.{name}", operands, (Value(made, TensorType(DType.F32, shape)),), attributes(stated))

    for terms, base in ((("%t", "%d"), {}), (("%d", "%t"), {"%z": "%y"})):
        transposed, dense = torch.empty(4, 6, 8).transpose(1, 2), torch.empty(4, 8, 6)
        y = transposed + dense if terms[0] == "%t" else dense + transposed
        assert (y.reshape(4, 48).data_ptr() == y.data_ptr()) is bool(base)
        found = bases(
            [
                op("Transpose", ("%x",), "%t", (4, 8, 6), perm=(0, 2, 1)),
                op("Relu", ("%x",), "%d", (4, 8, 6)),
                op("Add", terms, "%y", (4, 8, 6)),
                op("Reshape", ("%y", "@shape"), "%z", (4, 48)),
            ]
        )
        assert found == {"%t": "%x", **base}
