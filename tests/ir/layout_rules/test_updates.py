"""Layout rules of the ops of an update."""

from __future__ import annotations

from ir import DType, Op, TensorType, Value
from ir.core.types import Partial, Replicate, Shard
from ir.layout_rules import rule_of

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


def test_an_assignment_is_of_parts_without_a_result() -> None:
    rule = rule_of(Op("grad.assign", ("@w", "%new")), [WEIGHT, WEIGHT], [])
    assert rule is not None
    assert [strategy.operands for strategy in rule.strategies(2)] == [
        (placement, placement) for placement in (Replicate(), Shard(0), Shard(1))
    ]
