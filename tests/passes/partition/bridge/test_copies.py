"""The plan of few hosts, on all hosts in turn."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.module import Module, Plan
from ir.core.topology import Topology
from passes.framework.base import PassContext
from passes.model import work
from passes.model.timeline.workload import largest_load, workload
from passes.partition import PartitionPass
from passes.place import PlacePass
from tests.passes.partition.groups.test_along_order import hosts_of_two, random_module


def two_stages(module: Module, topology: Topology, replicas: int) -> Plan:
    """The placed plan of two stages; the second count of its period is the simulator's."""
    context = PassContext()
    placed = PlacePass().run(PartitionPass(stages=2, replicas=replicas).run(module.extend([topology]), context), context)
    plan = placed.first(Plan)
    assert plan is not None
    assert plan.value == pytest.approx(largest_load(workload(placed)))
    assert plan.bound <= plan.value * (1 + 1e-9)
    return plan


@settings(max_examples=10, deadline=None)
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
