"""Bytes alive: by hand on small programs, and the planner's estimate never below the exact walk of a stage."""

from __future__ import annotations

import random

import pytest

from ir.core.module import Func
from ir.core.ops import Op, Region, Value
from ir.core.types import DType, TensorType
from passes.costs.memory.liveness import live_bytes, own_bytes, stage_live
from passes.graph.graph import reads
from tests.passes.staging import op


def sized(name: str, size: int) -> Value:
    return Value(name, TensorType(DType.U8, (size,)))


def make(name: str, operands: list[str], *results: Value, region: Region | None = None) -> Op:
    return Op(name, tuple(operands), results, regions=(("body", region),) if region else ())


def test_a_value_lives_until_its_last_reader() -> None:
    func = Func(
        "@main",
        (sized("%x", 1),),
        (sized("%d", 1000),),
        (
            make("onnx.A", ["%x"], sized("%a", 10)),
            make("onnx.B", ["%a"], sized("%b", 100)),
            make("onnx.C", ["%a"], sized("%c", 5)),
            make("onnx.D", ["%b", "%c"], sized("%d", 1000)),
        ),
    )
    assert live_bytes(func) == (11, 110, 115, 1105)
    assert max(stage_live(func, (0, 1, 2, 3))) == 1105
    # %a arrives in a buffer; %b and %c leave as soon as they exist.
    assert max(stage_live(func, (1, 2))) == 100
    assert max(stage_live(func, (3,))) == 1000


def test_regions_count_at_their_peak_and_capture() -> None:
    region = Region((), (make("onnx.E", ["%a"], sized("%e", 50)), make("onnx.F", ["%e"], sized("%f", 7))), ("%f",))
    func = Func(
        "@main",
        (sized("%x", 1),),
        (sized("%y", 2),),
        (make("onnx.A", ["%x"], sized("%a", 10)), make("onnx.If", ["%x"], sized("%y", 2), region=region)),
    )
    assert reads(func.ops[1]) == ("%x", "%a")
    assert live_bytes(func) == (11, 1 + 10 + 2 + 57)


def test_region_arguments_are_not_captured() -> None:
    inner = op("onnx.Add", ["%i", "%outer", "@w", ""], ["%s"])
    loop = make("onnx.Loop", ["%n", ""], sized("%r", 1), region=Region((sized("%i", 8),), (inner,), ("%s",)))
    assert reads(loop) == ("%n", "%outer", "@w")


@pytest.mark.parametrize("seed", range(12))
def test_estimates_are_never_below_and_never_above_the_exact_walk(seed: int) -> None:
    rng = random.Random(seed)
    ops = []
    for i in range(10):
        operands = [f"%v{j}" for j in range(i) if rng.random() < 0.3] or ["%x"]
        ops.append(make("onnx.Sum", operands, sized(f"%v{i}", rng.randint(0, 100))))
    func = Func("@main", (sized("%x", rng.randint(0, 50)),), (ops[-1].results[0],), tuple(ops))
    live, own = live_bytes(func), own_bytes(func)
    for _ in range(20):
        members = sorted(rng.sample(range(10), rng.randint(1, 10)))
        assert max(own[i] for i in members) <= max(stage_live(func, members)) <= max(live[i] for i in members)
