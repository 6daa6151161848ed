"""Training steps on hosts of several devices: stages that fill a host, whose tensors take the links between hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dnnc.machines.topology.read import load_topology
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.topology import Topology
from passes.costs.exchange import rings
from passes.costs.network import network
from passes.framework.base import needed
from passes.partition.bridge.steps import Steps
from passes.stages.from_ir import kinds_of
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


@pytest.mark.parametrize("machine", ["2xa100x8", "4xa100x2", "4xl4x2", "8xrtx4090x1"])
def test_rings_that_leave_a_host_by_several_adapters(machine: str) -> None:
    """Devices with an adapter each share the sums of gradients among as many rings; those that share one do not."""
    topology = load_topology(f"preset:{machine}", DiagnosticSink())
    net, names = network(topology), [device.name for device in topology.devices]
    hosts = Steps(Module("@m", (topology,)), topology, net, 8).hosts
    (kind,) = kinds_of(topology, net)
    for replicas in range(2, len(names) + 1):
        every = [rings(net, [names[:replicas]])]
        for own in (own for own in range(1, replicas) if replicas % own == 0):
            rows = [[name for name in names if net.host(name) == host.name][:own] for host in topology.hosts]
            spread = [name for row in rows[: replicas // own] for name in row]
            every += [rings(net, [spread])] if len(spread) == replicas else []
        assert hosts.best_ring(replace(kind, replicas=replicas, fills=True))[0] >= max(speed.bandwidth for speed in every)
    assert hosts.best_ring(replace(kind, replicas=len(names)))[0] == pytest.approx(rings(net, [names]).bandwidth)
