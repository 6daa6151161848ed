"""Layout rules of the ops of an update."""

from __future__ import annotations

import ir
from ir import DType, Op, TensorType, Value
from ir.core.types import Partial, Replicate, Shard
from ir.layout_rules import LayoutRule, rule_of
from ir.ops.optimizers import ADAFACTOR, ADAFACTOR_SQUARES

WEIGHT = TensorType(DType.F32, (8, 4))
STEP = TensorType(DType.I64, ())


def test_a_mean_of_terms_is_a_term_of_the_mean() -> None:
    rule = rule_of(Op("grad.accumulate", ("%g",), (Value("%m", WEIGHT),)), [WEIGHT], [WEIGHT])
    assert rule is not None
    found = {strategy.operands[0]: strategy.results[0] for strategy in rule.strategies(2)}
    assert found == {Replicate(): Replicate(), Shard(0): Shard(0), Shard(1): Shard(1), Partial(): Partial()}


def test_an_optimizer_works_on_parts_of_weight_gradient_and_state_alike() -> None:
    results = tuple(Value(f"%r{i}", WEIGHT) for i in range(3))
    op = Op("grad.adam", ("@w", "%g", "@m", "@v", "%step"), results)
    rule = rule_of(op, [WEIGHT] * 4 + [STEP], [WEIGHT] * 3)
    assert rule is not None
    whole, rows, columns = rule.strategies(4)
    assert rows.operands == (*(Shard(0),) * 4, Replicate())
    assert columns.results == (Shard(1),) * 3
    assert whole.name == "replicate"


def adafactor_rules(shape: tuple[int, ...]) -> tuple[LayoutRule, LayoutRule]:
    """Those of the update of a matrix, and of the sum of squares that it reads."""
    kinds = {"w": shape, "row": (shape[0], 1), "column": (1, shape[1]), "both": (1, 1), "none": ()}
    w, row, column, both, scalar = (TensorType(DType.F32, kind) for kind in kinds.values())
    sums, numbers = [row, column, both, both], ir.attributes(shape=shape, beta2_decay=-0.8, epsilon1=1e-7)
    update, squares = (
        rule_of(Op(name, tuple(f"%{i}" for i in range(len(types))), tuple(map(Value, "abc", made)), numbers), types, made)
        for name, types, made in (
            (ADAFACTOR, [w, w, row, column, STEP, None, None, None, scalar, scalar, *sums], [w, row, column]),
            (ADAFACTOR_SQUARES, [w, STEP, None, row, column, *sums], [scalar]),
        )
    )
    assert update is not None
    assert squares is not None
    return update, squares


def test_adafactor_works_on_parts_with_sums_of_all() -> None:
    """Averages of rows are split where rows are, and whole where columns are."""
    update, squares = adafactor_rules((8, 4))
    whole, rows, columns = update.strategies(2)
    everywhere = (Replicate(),) * 6
    assert rows.operands == (*(Shard(0),) * 3, *everywhere, Replicate(), Shard(0), *(Replicate(),) * 3)
    assert rows.results == (Shard(0), Shard(0), Replicate())
    assert columns.results == (Shard(1), Replicate(), Shard(1))
    assert [one.results for one in squares.strategies(2)[1:]] == [(Partial("sum"),)] * 2
    assert whole.name == "replicate"


def test_an_assignment_is_of_parts_without_a_result() -> None:
    rule = rule_of(Op("grad.assign", ("@w", "%new")), [WEIGHT, WEIGHT], [])
    assert rule is not None
    assert [strategy.operands for strategy in rule.strategies(2)] == [
        (placement, placement) for placement in (Replicate(), Shard(0), Shard(1))
    ]
