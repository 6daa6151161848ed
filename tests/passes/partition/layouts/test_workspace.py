"""What runs of units need at least beside weights, against what plans of them need; and plans in stages under tight limits."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module, Plan
from ir.core.topology import Topology
from ir.core.types import type_bytes
from passes.costs.memory.liveness import SLOTS, stage_live
from passes.costs.network import network
from passes.graph.folding import folding
from passes.meshes.costs.footprint import footprint
from passes.meshes.costs.price import price
from passes.meshes.mesh import mesh_of
from passes.meshes.staged import Staged
from passes.partition.chain.borders import Border, Cutter
from passes.partition.chain.bounding import Bounding, Form
from passes.partition.chain.pipeline import StageRun
from passes.partition.chain.solved import StageTask
from passes.partition.chain.submeshes import Block
from passes.partition.chain.units import units_of
from passes.partition.chain.workspace import Workspace
from passes.partition.layouts import build
from passes.partition.on_meshes import MeshesSearch
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.planning import topology
from tests.passes.partition.layouts.test_stages import blocks_of, costed, random_chain, text_of

MESHES = [((1,), False, ()), ((2,), False, ()), ((2, 2), False, ()), ((4,), True, ((3, 1, 1, 1),))]


@settings(deadline=None, max_examples=10)
@example(1024, 9, ((2,), False, ()), 1, False)  # two ops in two units read an argument in one layout: it is cut once
@given(st.integers(0, 10**6), st.integers(3, 14), st.sampled_from(MESHES), st.sampled_from([0, 1, 3]), st.booleans())
def test_no_plan_of_a_run_needs_less(seed: int, count: int, of: tuple, microbatches: int, slow: bool) -> None:  # type: ignore[type-arg]
    """Random plans of all runs; on one device that is the workspace of the stage to the byte."""
    (sizes, uneven, shares), generator = of, np.random.default_rng(seed)
    module = random_module(seed, count, uneven=uneven)
    top = topology(math.prod(sizes), (0,) if slow else ())
    mesh, found = mesh_of(top, network(top), sizes, 0, shares), folding(module.entry, module)
    training, steps = microbatches > 0, max(1, microbatches)
    whole = build(module, module.entry, mesh, found, training=training, microbatches=steps)
    units, resources = units_of(module.entry, found, whole), {r.name: r.type for r in module.resources.values()}
    bytes_, cutter = Workspace(whole, units, module.resources, training=training, microbatches=steps), Cutter(whole)
    for first in range(units.count):
        for behind in range(first + 1, units.count + 1):
            ops = units.run(first, behind)
            entering, leaving = cutter.crossing(ops)
            layouts = {name: len(whole.layouts[name].placements) for name in (*entering, *leaving)}
            border = Border(send={name: np.zeros(layouts[name]) for name in leaving})
            form = Form(mesh, *[np.zeros((0, 0))] * 4, cutter)
            task = StageTask(StageRun(first, behind, Block(0, 0, mesh)), ops, form, cutter.cut(ops, border), border, 1)
            problem = task.given.problem
            choices = [int(generator.integers(len(problem.node(node).seconds))) for node in range(problem.size)]
            decisions = task.decisions(choices)
            bill = price(module, task.given.func, mesh, decisions, training=training, microbatches=steps, in_flight=1)
            stage = Staged(tuple(sorted(ops)), mesh, decisions, bill)
            received = sum(type_bytes(cutter.types[name]) or 0 for name in entering)
            needs = footprint(module.entry, resources, stage).workspace - math.ceil(bill.saved) + bill.constants
            for given_ in (whole, None):
                assert bytes_.inside(mesh, given_)[first, behind] <= needs * (1 + 1e-9)
                for alike in (False, True):
                    assert bytes_.received(mesh, given_, alike)[first, behind] <= SLOTS * received
            if sizes == (1,) and not training and bytes_.in_order and not units.constants.ops:
                alive = max(stage_live(module.entry, sorted(ops)))
                assert bytes_.inside(mesh, whole)[first, behind] == alive + bill.constants


def plan_within(module: Module, memory: int, **options: object) -> Plan:
    asked = MeshesSearch(stages=0, device_memory=memory, gap=1e-6, **options)  # type: ignore[arg-type]
    plan = asked.run(module, pass_context(DiagnosticSink())).first(Plan)
    assert plan is not None
    return plan


@pytest.mark.parametrize(("seed", "part"), [(0, 0.9), (2, 0.9), (3, 0.9), (7, 0.9), (9, 0.5), (10, 0.7)])
def test_bounds_are_of_plans_whose_activations_fit(seed: int, part: float) -> None:
    """By weights alone these bounds had been less than half of the best plan."""
    module = random_chain(Random(seed))
    most = max(stage.memory for stage in plan_within(module, -1, replicas=0).stages)
    plan = plan_within(module, int(part * most), replicas=0)
    assert max(stage.memory for stage in plan.stages) <= int(part * most)
    assert plan.value <= plan.bound * 1.05


@pytest.mark.parametrize(("family", "further"), [("", (1, 0, 0)), ("gpipe", (3, 3, 3))])
def test_bounds_hold_what_microbatches_in_flight_save(family: str, further: tuple[int, int, int]) -> None:
    """A product saves its operand of 4 x 64 floats for each. In 1F1B a stage before another holds two, the last one."""
    module = costed(text_of([64, 64, 64], False, [2], [1, 1], 1e9, 1e9))
    top = module.first(Topology)
    assert top is not None
    found, blocks = folding(module.entry, module), blocks_of(module, training=True)
    bounding = Bounding(module, top, network(top), found, blocks, training=True, microbatches=4, family=family)
    least = bounding.least
    saved = least.saved_of(least.base) * (least.in_flight - 1)
    bytes_ = [saved[0, 1], saved[1, 2], saved[0, 2] / 2]
    assert bytes_ == pytest.approx([1024 * often for often in further])


@settings(deadline=None, max_examples=3)
@given(st.integers(0, 10**6), st.floats(0.3, 1.0), st.sampled_from([0, 0, 4]))
def test_what_is_found_fits_by_its_own_count(seed: int, part: float, microbatches: int) -> None:
    module = random_chain(Random(seed), products=2)
    options = {"objective": "training", "microbatches": microbatches} if microbatches else {"replicas": 0}
    limit = int(part * max(stage.memory for stage in plan_within(module, -1, **options).stages))
    try:
        plan = plan_within(module, limit, **options)
    except Infeasible:
        return
    assert max(stage.memory for stage in plan.stages) <= limit
