"""Local programs and boxes, case by case."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ir
from dnnc.compile.context import pass_context
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Mesh, Module, Plan, Stage
from ir.core.ops import Op
from ir.core.types import DType, Partial, Placement, Replicate, Shard, TensorType
from ir.ops.boxes import box, coordinates, delivers, members_along
from passes.graph.graph import renamed
from passes.meshes import count
from passes.programs.lower import LowerPass
from tests.passes.meshes.members import local_programs
from tests.passes.meshes.planning import check_runs, lowered, prepared, random_plan, searched
from tests.passes.meshes.test_refused import TEXT

GRID = Mesh("@mesh", (("x", 2), ("y", 3)), tuple(f"d{i}" for i in range(6)))


def test_members_are_numbered_row_by_row() -> None:
    assert [coordinates(GRID, member) for member in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert members_along(GRID, 4, "x") == (1, 4)
    assert members_along(GRID, 4, "y") == (3, 4, 5)
    with pytest.raises(KeyError):
        members_along(GRID, 0, "z")


def test_the_first_parts_are_longer() -> None:
    type_ = TensorType(DType.F32, (4, 5))
    assert [box(type_, (Replicate(), Shard(1)), GRID, member) for member in (0, 1, 2)] == [
        ((0, 4), (0, 2)),
        ((0, 4), (2, 2)),
        ((0, 4), (4, 1)),
    ]
    assert box(type_, (Partial("sum"), Replicate()), GRID, 3) == ((0, 4), (0, 5))


def test_a_later_axis_cuts_what_the_earlier_left() -> None:
    type_ = TensorType(DType.F32, (7,))
    assert [box(type_, (Shard(0), Shard(0)), GRID, member)[0] for member in range(6)] == [
        (0, 2), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1),
    ]  # fmt: skip


PLACEMENTS: list[Placement] = [Shard(0), Shard(1), Replicate()]


@given(st.tuples(st.integers(6, 13), st.integers(6, 13)), st.sampled_from(list(product(PLACEMENTS, repeat=2))))
def test_what_members_deliver_is_the_tensor_once(shape: tuple[int, int], lies: tuple[Placement, ...]) -> None:
    times = np.zeros(shape, int)
    for member in range(6):
        (a, m), (b, n) = box(TensorType(DType.F32, shape), lies, GRID, member)
        assert m > 0
        assert n > 0
        if delivers(lies, GRID, member):
            times[a : a + m, b : b + n] += 1
    assert (times == 1).all()


def stages(module: Module) -> list[Stage]:
    return list(module.of_type(Stage))


@pytest.mark.slow
def test_every_operand_is_there_and_names_are_assigned_once() -> None:
    module, _ = prepared("zoo:gpt2,layers=1,hidden=64,heads=4,vocab=100,seq=8,batch=4")
    for seed in range(2):
        result = lowered(random_plan(module, [(2, 2)], np.random.default_rng(seed))[0])
        (stage,) = stages(result)
        for program in local_programs(result, stage):
            known = {arg.name for arg in program.args} | {part.name for part in program.parts}
            for op in program.ops:
                assert known.issuperset(name for name in op.operands if name)
                made = [value.name for value in op.results if value.name]
                assert known.isdisjoint(made)
                known.update(made)
            assert known.issuperset(program.results)
            collectives = [op.get("channel") for op in program.ops if op.dialect == "comm"]
            assert collectives == sorted(set(collectives))


def test_names_that_a_model_has_already_are_passed_over() -> None:
    """What is made of ``%a`` would be ``%a.1`` and ``%a.2``, cut by constants ``%a.2/start``."""
    module, _ = prepared("zoo:mlp")
    made = [op.results[0].name for op in module.entry.ops]
    names = dict(zip(made, ["%a.1", "%a", "%a.2/start"], strict=False))
    ops = renamed(module.entry.ops, names)
    module = module.replace(module.entry, replace(module.entry, ops=ops))
    assert ir.verify(module, dialects=DIALECTS) == []
    for seed in range(3):
        check_runs(module, random_plan(module, [(2,)], np.random.default_rng(seed))[0], Path())


def test_a_plan_that_says_other_seconds_is_told() -> None:
    sink = DiagnosticSink()
    module = LowerPass().run(ir.load_module(TEXT, dialects=DIALECTS), pass_context(sink))
    seconds = math.fsum(one.seconds for one in count(module) if one.stage == 0)
    assert [d.message for d in sink.diagnostics] == [
        f"the collectives of stage {one} take {seconds if one == 0 else other:.4g} s by count, 0 s by @plan"
        for one, other in ((0, seconds), (1, math.fsum(c.seconds for c in count(module) if c.stage == 1)))
    ]
    searched_ = searched(prepared("zoo:mlp")[0], "2")
    sink = DiagnosticSink()
    LowerPass().run(searched_, pass_context(sink))
    assert sink.diagnostics == []
    assert searched_.first(Plan) is not None


def test_facets_of_whole_ops_do_not_reach_members() -> None:
    result = lowered(searched(prepared("zoo:mlp")[0], "2"))
    for program in local_programs(result, stages(result)[0]):
        facets: list[Op] = [op for op in program.ops if op.facets]
        assert facets == []
