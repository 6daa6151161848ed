"""What the rules must offer: the known ways to split the main ops, and nothing that would count a bias or a mean twice."""

from __future__ import annotations

from typing import Any

import pytest

from ir.core.attributes import attributes
from ir.core.module import Func, Module
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType, Type
from ir.layout_rules import Constants, Kind, LayoutRule, Strategy, backward_rule, coverage, rule_of, rules
from ir.layout_rules.table import RULES

Shape = tuple[int | str, ...]


def tensor(*shape: int | str, dtype: DType = DType.F32) -> TensorType:
    return TensorType(dtype, shape)


def rule(
    name: str, operands: list[Shape | None], *results: Shape, constants: Constants = (), opset: int = 20, **values: object
) -> LayoutRule:
    """The rule of an op on tensors of these shapes."""
    found = drawn(name, operands, *results, constants=constants, opset=opset, **values)
    assert found is not None
    return found


def drawn(
    name: str, operands: list[Shape | None], *results: Shape, constants: Constants = (), opset: int = 20, **values: object
) -> LayoutRule | None:
    types: list[Type | None] = [None if shape is None else tensor(*shape) for shape in operands]
    made = [tensor(*shape) for shape in results]
    op = Op(name, tuple(f"%x{i}" for i in range(len(types))), tuple(map(Value, "ab", made)), attributes(values))
    return rule_of(op, types, made, constants, {"onnx": opset})


def texts(found: LayoutRule, count: int = 2) -> dict[str, str]:
    """Each strategy as ``operands -> results | gradients of results -> gradients of operands``."""
    return {
        side.strategy.name: f"{_listed(side.strategy.operands)} -> {_listed(side.strategy.results)}"
        f" | {_listed(side.cotangents)} -> {_listed(side.gradients)}"
        for side in backward_rule(found, count)
    }


def _listed(placements: tuple[object, ...]) -> str:
    return " ".join("-" if placement is None else str(placement) for placement in placements)


def test_matmul_is_split_by_batch_by_column_and_by_row() -> None:
    found = texts(rule("onnx.MatMul", [(8, 16, 64), (64, 32)], (8, 16, 32)))
    assert found == {
        "replicate": "R R -> R | R -> R R",
        "b0": "S(0) R -> S(0) | S(0) -> S(0) P(sum)",  # data parallel: all-reduce of dW
        "m": "S(1) R -> S(1) | S(1) -> S(1) P(sum)",
        "k": "S(2) S(0) -> P(sum) | R -> S(2) S(0)",  # row: all-reduce of Y
        "n": "R S(1) -> S(2) | S(2) -> P(sum) S(1)",  # column: all-reduce of dX
        "sum of 0": "P(sum) R -> P(sum) | R -> R P(sum)",
        "sum of 1": "R P(sum) -> P(sum) | R -> P(sum) R",
    }


def test_experts_split_a_batched_product() -> None:
    found = texts(rule("onnx.MatMul", [(8, 16, 64), (8, 64, 32)], (8, 16, 32)))
    assert found["b0"] == "S(0) S(0) -> S(0) | S(0) -> S(0) S(0)"


def test_experts_stay_split_from_the_router_to_the_sum() -> None:
    """Every expert on every token, weighed by the gates: split by experts, only the last sum is left to reduce."""
    spread = texts(rule("onnx.MatMul", [(1, 16, 64), (8, 64, 32)], (8, 16, 32)))
    assert spread["b0"] == "R S(0) -> S(0) | S(0) -> P(sum) S(0)"
    turned = texts(rule("onnx.Transpose", [(16, 8)], (8, 16), perm=[1, 0]))
    assert turned["d1"].startswith("S(1) -> S(0)")
    weighed = texts(rule("onnx.Mul", [(8, 16, 32), (8, 16, 1)], (8, 16, 32)))
    assert weighed["d0"].startswith("S(0) S(0) -> S(0)")
    summed = texts(rule("onnx.ReduceSum", [(8, 16, 32), (1,)], (16, 32), keepdims=0, constants=(None, (0,))))
    assert summed["d0"].startswith("S(0) R -> P(sum)")


def test_the_router_is_split_by_tokens_only() -> None:
    chosen = rule("onnx.TopK", [(16, 8), (1,)], (16, 2), (16, 2))
    assert [factor.name for factor in chosen.shardable] == ["d0"]
    gates = rule("onnx.ScatterElements", [(16, 8), (16, 2), (16, 2)], (16, 8), axis=1)
    assert [factor.name for factor in gates.shardable] == ["d0"]
    sent = rule("onnx.OneHot", [(16, 2), (1,), (2,)], (16, 2, 8), constants=(None, (8,), None))
    assert [factor.name for factor in sent.shardable] == ["i0", "i1"]  # indices that are floats: no shift
    rows = rule("onnx.ScatterND", [(16, 64), (32, 1), (32, 64)], (16, 64), reduction="add")
    assert texts(rows)["i0"] == "P(sum) S(0) S(0) -> P(sum) | R -> R S(0) S(0)"


def test_a_position_bias_is_split_by_heads() -> None:
    """The buckets of relative positions pick rows of a table [buckets, heads]."""
    picked = texts(rule("onnx.Gather", [(32, 8), (16, 16)], (16, 16, 8)))
    assert picked["d1"].startswith("S(1) R -> S(2)")
    turned = texts(rule("onnx.Transpose", [(16, 16, 8)], (8, 16, 16), perm=[2, 0, 1]))
    assert turned["d2"].startswith("S(2) -> S(0)")
    spread = texts(rule("onnx.Unsqueeze", [(8, 16, 16), (1,)], (1, 8, 16, 16)))
    assert spread["d0"].startswith("S(0) R -> S(1)")
    added = texts(rule("onnx.Add", [(4, 8, 16, 16), (1, 8, 16, 16)], (4, 8, 16, 16)))
    assert added["d1"].startswith("S(1) S(1) -> S(1)")


def test_bias_of_a_row_split_stands_on_one_member() -> None:
    found = texts(rule("onnx.Gemm", [(8, 64), (32, 64), (32,)], (8, 32), transB=1))
    assert found["k"] == "S(1) S(1) P(sum) -> P(sum) | R -> S(1) S(1) R"
    assert found["n"] == "R S(0) S(0) -> S(1) | S(1) -> P(sum) S(0) S(0)"
    assert found["sum of 0, 2"] == "P(sum) R P(sum) -> P(sum) | R -> R P(sum) R"


def test_a_replicated_bias_is_not_added_to_terms() -> None:
    added = rule("onnx.Add", [(8, 64), (64,)], (8, 64))
    sums = [linear.operands for linear in added.linear if "sum" in linear.reductions]
    assert sums == [(0, 1)]
    scaled = rule("onnx.Mul", [(8, 64), (64,)], (8, 64))
    assert [linear.operands for linear in scaled.linear] == [(0,), (1,)]


def test_embedding_is_split_by_vocabulary_and_by_hidden() -> None:
    found = rule("onnx.Gather", [(500, 64), (8, 16)], (8, 16, 64), axis=0)
    assert texts(found)["entry"].startswith("S(0) R -> P(sum) | R -> S(0)")
    assert texts(found)["d1"].startswith("S(1) R -> S(2) | S(2) -> S(1)")
    assert texts(found)["i0"].startswith("R S(0) -> S(0) | S(0) -> P(sum)")
    assert found.factor("entry").share(4) == 1.0  # every member looks up every token
    assert found.factor("d1").share(4) == 0.25


def test_convolution_is_split_by_channels() -> None:
    found = texts(rule("onnx.Conv", [(8, 4, 9, 9), (16, 4, 3, 3), (16,)], (8, 16, 7, 7)))
    assert found["batch"] == "S(0) R R -> S(0) | S(0) -> S(0) P(sum) P(sum)"
    assert found["out"] == "R S(0) S(0) -> S(1) | S(1) -> P(sum) S(0) S(0)"
    assert found["in"] == "S(1) S(1) P(sum) -> P(sum) | R -> S(1) S(1) R"
    depthwise = texts(rule("onnx.Conv", [(8, 16, 9, 9), (16, 1, 3, 3)], (8, 16, 7, 7), group=16))
    assert depthwise["group"] == "S(1) S(0) -> S(1) | S(1) -> S(1) S(0)"


def test_normalisation_is_split_but_for_what_it_normalises() -> None:
    found = rule("onnx.LayerNormalization", [(8, 16, 64), (64,), (64,)], (8, 16, 64), axis=-1)
    assert texts(found)["d0"] == "S(0) R R -> S(0) | S(0) -> S(0) P(sum) P(sum)"
    assert [factor.name for factor in found.shardable] == ["d0", "d1"]
    assert [factor.name for factor in rule("onnx.Softmax", [(8, 4, 16)], (8, 4, 16), axis=-1).shardable] == ["d0", "d1"]


def test_statistics_of_training_span_the_batch() -> None:
    vectors: list[Shape | None] = [(4,)] * 4
    x: list[Shape | None] = [(8, 4, 9)]
    still = rule("onnx.BatchNormalization", x + vectors, (8, 4, 9))
    assert [factor.name for factor in still.shardable] == ["channel", "d0", "d2"]
    trains = rule("onnx.BatchNormalization", x + vectors, (8, 4, 9), training_mode=1)
    assert [factor.name for factor in trains.shardable] == ["channel"]


def test_a_mean_is_scaled_to_a_term() -> None:
    found = rule("onnx.ReduceMean", [(8, 64), (1,)], (8, 1), constants=(None, (1,)))
    assert texts(found)["d1"].startswith("S(1) R -> P(sum) | R -> S(1)")
    assert found.factor("d1").adapt


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((8, 64), (8, 4, 16), [(0, 0, 8), (1, 1, 4)]),  # heads: 4 units of 16
        ((8, 4, 16), (8, 64), [(0, 0, 8), (1, 1, 4)]),
        ((8, 4, 16), (32, 16), [(0, 0, 8), (2, 1, 16)]),  # the batch is outermost in 32, the heads are no part of it
        ((1, 4, 16), (4, 16), [(1, 0, 4), (2, 1, 16)]),
        ((6, 4), (4, 6), [(0, 0, 2)]),
        ((2, 12), (4, 6), [(0, 0, 2)]),
        ((5, 7), (35,), [(0, 0, 5)]),
        ((3, 4), (4, 3), []),
        ((8, 1, 64), (1, 8, 64, 1), [(0, 1, 8), (2, 2, 64)]),
        ((0, 4), (4, 0), []),
        ((), (1, 1), []),
    ],
)
def test_reshape_keeps_the_outermost_part(source: Shape, target: Shape, expected: list[tuple[int, int, int]]) -> None:
    found = rule("onnx.Reshape", [source, (len(target),)], target)
    assert [(factor.operands[0], factor.results[0], factor.size) for factor in found.shardable] == expected


def test_grouped_heads_are_split_by_those_they_share() -> None:
    found = rule("onnx.Attention", [(2, 8, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16)], (2, 8, 5, 16), opset=23)
    heads = found.factor("heads")
    assert (heads.size, heads.operands, heads.results) == (4, (1, 1, 1), (1,))
    assert not any(strategy.name == "heads" for strategy in found.strategies(8))


def test_a_mask_is_split_by_heads_and_by_queries() -> None:
    shapes: list[Shape | None] = [(2, 8, 5, 16), (2, 8, 7, 16), (2, 8, 7, 16), (2, 8, 5, 7)]
    found = rule("onnx.Attention", shapes, (2, 8, 5, 16), opset=23)
    assert {name: found.factor(name).operands[3] for name in ("batch", "heads", "query")} == {
        "batch": 0,
        "heads": 1,
        "query": 2,
    }


def test_whole_is_what_no_factor_takes() -> None:
    found = rule("onnx.Concat", [(8, 3), (8, 5)], (8, 8), axis=1)
    assert {factor.name for factor in found.factors if factor.kind is Kind.WHOLE} == {"operand0.1", "operand1.1", "result0.1"}


def test_even_shards_only_where_asked() -> None:
    found = rule("onnx.Relu", [(6, 8)], (6, 8))
    names: list[list[str]] = [[s.name for s in found.strategies(4, even=even) if s.factor] for even in (False, True)]
    assert names == [["d0", "d1"], ["d1"]]
    assert found.factor("d0").cuts(4) == ((0, 2), (2, 2), (4, 1), (5, 1))
    assert found.factor("d0").share(4) == 2 / 6
    with pytest.raises(ValueError, match="6 units"):
        found.factor("d0").cuts(7)


def test_symbols_are_whole() -> None:
    found = rule("onnx.Relu", [("batch", 8)], ("batch", 8))
    assert [factor.name for factor in found.shardable] == ["d1"]


@pytest.mark.parametrize(
    ("name", "operands", "results", "values"),
    [
        ("onnx.MatMul", [(8, 3), (4, 8)], [(8, 8)], {}),  # no such product
        ("onnx.Transpose", [(8, 3)], [(3, 8)], {"perm": [0, 5]}),
        ("onnx.Reshape", [(8, 3), (1,)], [(5,)], {}),
        ("onnx.Concat", [(8, 3)], [(8, 3)], {"axis": 7}),
        ("onnx.ReduceSum", [(8, 3), (1,)], [(8,)], {"keepdims": 0}),  # axes are not known
        ("onnx.Slice", [(8,), (1,), (1,), (1,), (1,)], [(8,)], {}),  # it may reverse
        ("onnx.Dropout", [(8,), (), ()], [(8,)], {}),  # it may be training
        ("onnx.MaxPool", [(8, 4, 4, 4)], [(8, 4, 2, 2), (8, 4, 2, 2)], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("onnx.NonZero", [(8,)], [(1, "n")], {}),
        ("onnx.If", [()], [(8,)], {}),
        ("onnx.Conv", [(8, 4, 9), (4, 1, 3)], [(8, 4, 7)], {"group": 3}),
        ("onnx.Einsum", [(8, 4)], [(8, 4)], {"equation": "ij,jk->ik"}),
        ("onnx.GroupNormalization", [(8, 4, 9), (4,), (4,)], [(8, 4, 9)], {"num_groups": 3}),
    ],
)
def test_what_is_not_known_has_no_rule(
    name: str, operands: list[Shape | None], results: list[Shape], values: dict[str, Any]
) -> None:
    found = drawn(name, operands, *results, **values)
    assert found is None


def test_meanings_follow_the_opset() -> None:
    old = rule("onnx.Softmax", [(8, 4, 16)], (8, 4, 16), opset=11)
    assert [factor.name for factor in old.shardable] == ["d0"]  # flattened from axis 1 on
    assert drawn("onnx.Add", [(8, 4), (4,)], (8, 4), opset=6) is None


def test_equal_ops_share_a_rule() -> None:
    one = rule("onnx.MatMul", [(8, 16, 64), (64, 32)], (8, 16, 32))
    assert rule("onnx.MatMul", [(8, 16, 64), (64, 32)], (8, 16, 32)) is one


def test_ops_without_a_rule_are_listed() -> None:
    ops = (
        Op("onnx.NonZero", ("%x",), (Value("%a", tensor(1, "n", dtype=DType.I64)),)),
        Op("onnx.my.Odd", ("%x",), (Value("%b", tensor(8)),)),
        Op("onnx.my.Odd", ("%b",), (Value("%c", tensor(8)),)),
        Op("onnx.Relu", ("%c",), (Value("%d", tensor(8)),)),
    )
    func = Func("@main", (Value("%x", tensor(8)),), (Value("%d", tensor(8)),), ops)
    module = Module("@m", (func,))
    assert coverage(module) == {"onnx.NonZero": 1, "onnx.my.Odd": 2}
    assert [found is not None for _, found in rules(module)] == [False, False, False, True]


def test_names_of_strategies_are_unique() -> None:
    found = rule("onnx.Add", [(8, 4), (4,)], (8, 4))
    names: list[Strategy] = list(found.strategies())
    assert len({strategy.name for strategy in names}) == len(names)
    assert "onnx.Add" in RULES
