"""A training step on one mesh: microbatches one after another, whose gradients are added up and synchronised once."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink, UsageError
from ir.core.module import Module, Plan, Schedule
from ir.core.types import DType
from passes.costs.exchange import LAST
from passes.costs.network import network
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.graph.graph import reads
from passes.meshes.costs.bill import UNSUMMED, Bill, Collective, Decisions
from passes.meshes.costs.price import price
from passes.meshes.mesh import mesh_of
from passes.partition.layouts import ShardInput, build, decisions_of
from passes.partition.layouts.problem.build import OVERLAPS
from tests.passes.meshes.graphs import Graph, random_module
from tests.passes.meshes.planning import searched, through, topology
from tests.passes.partition.on_meshes import on_meshes

NEAR = 1.1
"""How much more than the best a plan may take whose sums travel beside a backward pass: two problems near it are searched."""
FEW = 3_000
"""Assignments up to which all are counted."""


def synchronised(bill: Bill) -> float:
    """Seconds in which gradients of weights are exchanged."""
    return math.fsum(one.seconds for one in bill.collectives if one.summed)


def behind(module: Module, bill: Bill) -> float:
    """Seconds that sums go on behind the backward pass, told event by event: ops backward from the last, each followed by the
    sums whose bucket it makes whole; one sum at a time. All random weights fit into the last bucket of their axis."""
    first: dict[str, int] = {}
    for position, op in enumerate(module.entry.ops):
        for name in reads(op):
            first.setdefault(name, position)
    chains: dict[str, list[Collective]] = {}
    for one in bill.collectives:
        if one.summed:
            chains.setdefault(one.value, []).append(one)
    early = {name: chain[0] for name, chain in chains.items() if len(chain) == 1 and chain[0].kind == "all_reduce"}
    assert sum(one.size for one in early.values()) <= LAST
    clock = busy = 0.0
    waiting = dict(early)
    for position in reversed(range(len(module.entry.ops))):
        clock += bill.back[module.entry.ops[position].id]
        for name in [name for name in waiting if first[name] == position]:
            del waiting[name]
        if early and not waiting:
            busy, early = clock + math.fsum(one.seconds for one in early.values()), {}
    late = math.fsum(one.seconds for chain in chains.values() for one in chain if len(chain) > 1 or one.kind != "all_reduce")
    return max(0.0, busy - clock) + late


def step_by_hand(module: Module, given_: ShardInput, decisions: Decisions, microbatches: int, *, beside: bool = False) -> float:
    """A step of so many runs, from the bill of one: all but synchronisation and update once for each, and these once, of the
    synchronisation only what is ``behind`` the backward pass where it travels ``beside`` it."""
    bill = price(module, module.entry, given_.mesh, decisions, training=True)
    once = synchronised(bill) + bill.update
    return microbatches * (bill.total - once) + (behind(module, bill) + bill.update if beside else once)


def on_two(seed: int, count: int) -> tuple[Module, ShardInput]:
    module, top = random_module(seed, count), topology(2)
    mesh = mesh_of(top, network(top), (2,))
    return module, build(module, module.entry, mesh, None, training=True)


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 10**6), st.integers(1, 10), st.integers(1, 9))
def test_gradients_are_exchanged_once_a_step(seed: int, count: int, microbatches: int) -> None:
    module, given_ = on_two(seed, count)
    random = np.random.default_rng(seed)
    choices = [int(random.integers(len(given_.problem.node(v).labels))) for v in range(given_.problem.size)]
    decisions = decisions_of(given_, choices)
    bill = price(module, module.entry, given_.mesh, decisions, training=True, microbatches=microbatches)
    assert microbatches * bill.total == pytest.approx(step_by_hand(module, given_, decisions, microbatches), rel=1e-9)
    overlapped = step_by_hand(module, given_, decisions, microbatches, beside=True)
    assert microbatches * bill.overlapped == pytest.approx(overlapped, rel=1e-9)
    for overlap in (0.0, UNSUMMED, *OVERLAPS, 0.5):  # what is searched is below it
        found = build(module, module.entry, given_.mesh, None, training=True, microbatches=microbatches, overlap=overlap)
        assert found.problem.cost(choices) == pytest.approx(bill.relaxed(overlap, microbatches), rel=1e-9)
        assert found.problem.cost(choices) <= bill.overlapped * (1 + 1e-9)


@settings(deadline=None, max_examples=5)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 9))
def test_of_sums_over_two_axes_the_first_may_be_hidden(seed: int, count: int, microbatches: int) -> None:
    """What the problem counts of a plan is counted again by ``price``, and no more than the step takes."""
    module, top = random_module(seed, count), topology(4)
    mesh = mesh_of(top, network(top), (2, 2))
    random = np.random.default_rng(seed)
    for overlap in (0.0, *OVERLAPS, 0.5):
        found = build(module, module.entry, mesh, None, training=True, microbatches=microbatches, overlap=overlap)
        labels = [len(found.problem.node(v).labels) for v in range(found.problem.size)]
        choices = [int(random.integers(count)) for count in labels]
        bill = price(module, module.entry, mesh, decisions_of(found, choices), training=True, microbatches=microbatches)
        assert found.problem.cost(choices) == pytest.approx(bill.relaxed(overlap, microbatches), rel=1e-9)
        assert found.problem.cost(choices) <= bill.overlapped * (1 + 1e-9)


@settings(deadline=None, max_examples=2)
@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(2, 9))
def test_the_plan_is_the_best_of_all(seed: int, count: int, microbatches: int) -> None:
    module, given_ = on_two(seed, count)
    counts = [range(len(given_.problem.node(v).seconds)) for v in range(given_.problem.size)]
    assume(math.prod(map(len, counts)) <= FEW)
    every = (decisions_of(given_, choices) for choices in itertools.product(*counts))
    best = min(step_by_hand(module, given_, decisions, microbatches, beside=True) for decisions in every)
    plan = searched(module, "2", training=True, microbatches=microbatches, gap=0.0).first(Plan)
    assert plan is not None
    assert plan.microbatches == microbatches
    assert plan.bound * (1 - 1e-9) <= best <= plan.value * (1 + 1e-9)
    assert plan.value <= best * NEAR


def test_no_sum_is_hidden_before_the_first_gradient_is_made() -> None:
    """Behind the last weight come twenty ops without weights, in whose backward pass there is nothing to sum yet."""
    graph, name = Graph(0, uneven=False), "%wide"
    graph.argument("wide", DType.F32, (1024, 1024))
    for number in range(23):
        operands = (name, graph.weight(1024, 1024)) if number < 3 else (name,)
        graph.add("MatMul" if number < 3 else "Tanh", operands, (1024, 1024))
        name = graph.ops[-1].results[0].name
    machine = topology(2)
    quick = replace(machine.types[0], rates=(("f32", 1e13),), memory_bandwidth=1e11)
    module = graph.finish().extend([replace(machine, types=(quick,))])
    plan = through(module, on_meshes(mesh="2", training=True, microbatches=1)).first(Plan)
    assert plan is not None
    assert plan.value <= plan.bound * 1.002  # of 8 %


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 9))
def test_the_schedule_runs_them_one_after_another(seed: int, count: int, microbatches: int) -> None:
    """Forward and backward pass of each, then one synchronisation: what the value says."""
    module = searched(random_module(seed, count), "2", training=True, microbatches=microbatches)
    module = PassManager(parse_pipeline("schedule")).run(module, pass_context(DiagnosticSink()))
    plan, schedule = module.first(Plan), module.first(Schedule)
    assert plan is not None
    assert schedule is not None
    stage = plan.stages[0]
    passes = [(kind, number) for number in range(microbatches) for kind in "FB"]
    rows = [*passes, *([("U", None)] if stage.sync else [])]
    assert [[(action.kind, action.microbatch) for action in row] for _, row in schedule.rows] == [rows, rows]
    assert schedule.period == pytest.approx(plan.value, rel=1e-9)


def test_memory_is_that_of_one_microbatch_and_the_gradients() -> None:
    """Beside one run alone, a step of four holds no activation more, but the gradients between the runs."""
    module, held = random_module(3, 8), []
    for microbatches in (1, 2, 4):
        plan = searched(module, "2", training=True, microbatches=microbatches, strategy="data").first(Plan)
        assert plan is not None
        held.append((plan.stages[0].workspace, plan.stages[0].weights))
    assert held[1] == held[2]
    assert held[1][0] <= held[0][0]
    assert sum(held[1]) < 2 * sum(held[0])


def test_microbatches_of_inference_are_refused() -> None:
    with pytest.raises(UsageError, match="microbatches is 4, expected those of a training step"):
        searched(random_module(0, 3), "2", microbatches=4)
