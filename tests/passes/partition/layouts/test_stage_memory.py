"""Stages within limits of memory: with the microbatches in flight before their backward passes, by the place of a stage."""

from __future__ import annotations

import math

import pytest

from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Plan
from ir.core.topology import Topology
from passes.costs.network import network
from passes.partition.chain.bounding import Bounding
from passes.partition.chain.stages import StageSearch
from passes.partition.layouts.solver.search import ENOUGH_PROVEN
from passes.solvers.anytime import Limits
from tests.passes.partition.layouts.stage_oracle import costed
from tests.passes.partition.layouts.test_stage_plans import SMALL, sharded
from tests.passes.partition.layouts.test_stages import blocks_of, searched, text_of


def test_memory_holds_the_microbatches_in_flight() -> None:
    """With less than a plan without a limit holds: every stage fits with those that are before their backward passes."""
    from dnnc.machines.topology.read import load_topology
    from passes.graph.symbols import insert_symbols
    from tests.passes.partition.layouts.models import prepared

    module = insert_symbols(prepared(SMALL)[0], (load_topology("preset:cpu-4", DiagnosticSink()),))
    found, meshes = prepared(SMALL)[1], blocks_of(module, (1,), training=True)

    topology = module.first(Topology)
    assert topology is not None

    def bills(memory: int, microbatches: int) -> list[float]:
        bounding = Bounding(
            module, topology, network(topology), found, meshes, memory=memory, training=True, microbatches=microbatches
        )
        plan = StageSearch(bounding, Limits(seconds=20.0, gap=ENOUGH_PROVEN)).run(4)
        return [stage.bill.memory for stage in plan.stages] if plan is not None else []

    one, many = bills(-1, 1), bills(-1, 8)
    assert max(many) > max(one)
    limit = math.ceil(0.97 * max(many))
    fits = bills(limit, 8)
    assert fits
    assert max(fits) <= limit


def test_a_first_stage_too_large_before_two_others_fits_before_one() -> None:
    """It holds three microbatches there, and two here; the plan of any number of stages is that of two."""
    module = costed(text_of([64, 32, 8, 64], False, [3], [1, 1, 3], 1e9, 1e8))
    blocks = blocks_of(module, (1,), training=True)

    def value(stages: int) -> float:
        return searched(module, blocks, stages, 8, 44540)[1]

    assert value(3) == math.inf
    assert value(0) == value(2) < math.inf


def test_a_stage_too_large_as_the_second_of_four_fits_as_the_third() -> None:
    """The product in the middle decides what a step takes. As the second stage, with the cheapest borders, it holds three
    microbatches, as the third two."""
    text = text_of([8, 16, 64, 64, 8, 8], False, [4], [1] * 4, 1e9, 1e8).replace("tensor<4x", "tensor<16x")
    module = costed(text)
    blocks = blocks_of(module, (1,), training=True)
    assert searched(module, blocks, 4, 8, 108_000) == searched(module, blocks, 4, 8)


def test_the_bound_of_any_number_of_stages_counts_what_each_number_holds() -> None:
    """It had counted two microbatches in flight of every stage but the last: 9 % below a plan that is the best."""
    module = costed(text_of([16, 16, 16, 16, 16, 8], False, [4], [3, 1, 3, 1], 1e9, 1e8).replace("tensor<4x", "tensor<16x"))
    bound, value = searched(module, blocks_of(module, (1,), training=True), 0, 8, 14_336)
    assert value <= bound * (1 + ENOUGH_PROVEN) < math.inf


@pytest.mark.slow
def test_memory_is_kept() -> None:
    """With little memory per device the weights are spread over more of them."""
    loose = sharded(SMALL, "preset:cpu-4", stages=0).first(Plan)
    assert loose is not None
    limit = max(stage.weights for stage in loose.stages) * 2 // 3
    tight = sharded(SMALL, "preset:cpu-4", stages=0, memory=limit).first(Plan)
    assert tight is not None
    assert max(stage.memory for stage in tight.stages) <= limit
    assert tight.value >= loose.bound
