"""Training steps on hosts of several devices: stages that fill a host, whose tensors take the links between hosts."""

from __future__ import annotations

import pytest

from ir.core.topology import Topology
from passes.costs.network import network
from passes.framework.base import needed
from passes.partition.bridge.steps import Steps
from tests.passes.partition.bridge.test_on_links import planned, random_module


@pytest.mark.parametrize(
    ("seed", "microbatches", "best"),
    [
        (720201159, 4, 0.012963),  # 28 % slower, on one host
        (802264249, 4, 0.045194),  # 36 %
        (64827269, 8, 0.063893),  # 27 %, across a slow link
        (955929202, 8, 0.083001),  # 28 %
        (100733508, 8, 0.087213),  # 23 %
        (284929193, 4, 0.019951),  # 32 %
    ],
)
def test_stages_on_hosts_of_several_devices(seed: int, microbatches: int, best: float) -> None:
    """What the plans were while ports said that a stage sends as fast from host to host as inside one."""
    plan = planned(random_module(seed, training=True), objective="training", replicas=0, stages=3, microbatches=microbatches)
    assert plan.value <= best
    assert plan.bound <= plan.value


def test_a_stage_fills_a_host_or_is_on_several() -> None:
    """Inside one of two hosts of two devices sums of gradients are quick and tensors slow, across both it is the other way."""
    module = random_module(64, training=True)
    topology = needed(module, Topology)
    steps = Steps(module, topology, network(topology), 8, replicas=2)
    alone = steps.problem(steps.stream)
    wide = steps.replicated(alone, None, 2)
    (one, across, within), far = wide.kinds, network(topology).path("d00", "d10")
    assert (one.replicas, across.replicas, within.replicas) == (1, 2, 2)
    assert (one.fills, across.fills, within.fills) == (False, False, True)
    assert steps.hosts.best_ring(across) == (far.bandwidth, far.latency)
    assert steps.hosts.best_ring(within) == (network(topology).port("d00").bandwidth, network(topology).port("d00").latency)
    assert wide.seconds[1].sum() > 1.3 * wide.seconds[2].sum()
    sent = 2 * (far.latency + wide.tensor_bytes / far.bandwidth)  # and the gradient back
    assert wide.transfer[2] == pytest.approx(sent / 2)  # every second microbatch
    assert wide.transfer[1] == pytest.approx(alone.transfer[0] / 2)
