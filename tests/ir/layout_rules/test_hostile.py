"""Ops that are none: any name, any types, any attributes. A rule keeps its invariants or there is none; nothing is raised."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.attributes import attributes
from ir.core.ops import Op, Value
from ir.core.types import UNKNOWN, DType, TensorType, Type
from ir.layout_rules import RULES, backward_rule, rule_of
from tests.ir.layout_rules.harness import check_rule

KEYS = (
    *("axes", "axis", "batch_dims", "block_size", "dilations", "equation", "group", "is_causal", "keepdims", "kernel_shape"),
    *("kv_num_heads", "layout", "mode", "num_groups", "num_heads", "pads", "perm", "q_num_heads", "reduction", "strides"),
    *("K", "N", "bits", "channels_last", "gather_axis", "opset", "quantize_axis", "weight_prepacked"),
    *("training_mode", "transA", "transB", "noop_with_empty_axes", "end", "start", "ceil_mode", "auto_pad", "to"),
)
LENGTHS = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 1 << 40, "batch", None])
DTYPES = st.sampled_from([DType.F32, DType.I64, DType.BOOL, DType.STRING])
TYPES: st.SearchStrategy[Type] = st.one_of(
    st.builds(TensorType, DTYPES, st.lists(LENGTHS, max_size=4).map(tuple)),
    st.just(TensorType(DType.F32, None)),
    st.just(UNKNOWN),
)
NUMBERS = st.integers(-9, 9) | st.sampled_from([1 << 62, -(1 << 63)])
VALUES: st.SearchStrategy[Any] = st.one_of(
    NUMBERS,
    st.lists(NUMBERS, min_size=1, max_size=4).map(tuple),
    st.sampled_from([0.5, "", "add", "VALID", "ij,jk->ik", "...i,i...->", "iii", "->", ",,", "i->z"]),
)
KNOWN = st.none() | st.lists(NUMBERS | st.just(float("nan")), max_size=4).map(tuple)


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(RULES)), data=st.data())
def test_nothing_is_raised(name: str, data: st.DataObject) -> None:
    operands = data.draw(st.lists(st.none() | TYPES, max_size=8))
    results = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    given_ = data.draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
    constants = data.draw(st.lists(KNOWN, max_size=4))
    names = tuple("" if type_ is None else f"%x{i}" for i, type_ in enumerate(operands))
    op = Op(name, names, tuple(Value(f"%y{i}", type_) for i, type_ in enumerate(results)), attributes(given_))
    found = rule_of(op, operands, results, constants, {"onnx": data.draw(st.sampled_from([1, 6, 11, 13, 24]))})
    if found is not None:
        check_rule(found, operands, results)
        for count in (2, 3):
            backward_rule(found, count)
