"""The plan of few hosts, on all hosts in turn."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.diagnostics import Infeasible
from ir.core.module import Module, Plan
from ir.core.topology import Topology
from passes.framework.base import PassContext
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from passes.solvers import work
from passes.timeline.workload import largest_load, workload
from tests.passes.partition.bridge.test_steps import chain
from tests.passes.partition.lattice.groups.test_along_order import hosts_of_two, random_module


def two_stages(module: Module, topology: Topology, replicas: int) -> Plan:
    """The placed plan of two stages; the second count of its period is the simulator's."""
    context = PassContext()
    placed = PlacePass().run(PartitionPass(stages=2, replicas=replicas).run(module.extend([topology]), context), context)
    plan = placed.first(Plan)
    assert plan is not None
    assert plan.value == pytest.approx(largest_load(workload(placed)))
    assert plan.bound <= plan.value * (1 + 1e-9)
    return plan


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6))
def test_hosts_in_turn_take_their_part_of_the_seconds_of_one(seed: int) -> None:
    module, topology = random_module(seed), hosts_of_two(random.Random(seed), 4)
    one = two_stages(module, hosts_of_two(random.Random(seed), 1), 1)
    assert two_stages(module, topology, 0).value <= one.value / 4 * (1 + 1e-9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "LARGE", 1)
        patch.setattr(work, "NEAR_ENOUGH", 1e9)
        plan = two_stages(module, topology, 0)
    assert plan.value == pytest.approx(one.value / 4)
    assert [stage.devices for stage in plan.stages] == [("d0", "d2", "d4", "d6"), ("d1", "d3", "d5", "d7")]


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from((1, 0)))
def test_a_plan_for_hosts_fits_in_place(seed: int, replicas: int) -> None:
    """Whatever memory devices have: plans for two speeds of links are made behind those that fit to the byte."""
    rng = random.Random(seed)
    widths = [rng.choice((8, 32, 64, 128)) for _ in range(rng.randint(5, 9))]
    weights, topology = 4 * sum(a * b for a, b in pairwise(widths)), hosts_of_two(rng, rng.choice((2, 3, 4)))
    memory = int(weights * rng.choice((0.3, 0.5, 0.8))) + rng.choice((15_000, 30_000, 60_000))
    types = tuple(replace(type_, memory=memory, memory_bandwidth=1e6) for type_ in topology.types)
    module = chain(widths, 1)
    known = module.first(Topology)
    assert known is not None
    try:
        planned = PartitionPass(replicas=replicas).run(module.replace(known, replace(topology, types=types)), PassContext())
    except Infeasible:
        return
    assert PlacePass().run(planned, PassContext()).first(Plan) is not None
