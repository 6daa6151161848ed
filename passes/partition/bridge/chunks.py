"""Several stages on each device, its *chunks*: a contiguous split into as many stages for each of p equal devices, put on them
in an order that a schedule asks for (``interleaved``, ``zb-v``).

The search is that of stages on so many devices, each of which has its part of the memory; a stage has all of a device's speed
while it runs, so stages of equal seconds are what is looked for. What the devices do together is known once the rows are
simulated (pass ``schedule``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ir.core.diagnostics import UsageError
from ir.core.module import Plan
from ir.core.topology import Topology
from passes.graph.faults import NotAChoice
from passes.partition.faults import DevicesUnlike, OneDevice
from passes.stages.problem import Problem

ORDERS: Mapping[str, Callable[[int, int], int]] = {
    "loop": lambda stage, devices: stage % devices,
    "v": lambda stage, devices: min(stage % (2 * devices), 2 * devices - 1 - stage % (2 * devices)),
}
"""The place of a stage's device: round all devices again and again, or to the last of them and back."""


def check_chunks(topology: Topology, chunks: int, order: str) -> None:
    """Raises UsageError where devices cannot have so many stages each."""
    if order not in ORDERS:
        raise UsageError(NotAChoice("chunk-order", order, " or ".join(ORDERS)), where="partition")
    if len({device.type for device in topology.devices}) > 1:
        raise UsageError(DevicesUnlike(), where=topology.name)
    if len(topology.devices) < 2:
        raise UsageError(OneDevice(chunks), where=topology.name)


def chunked(problem: Problem, chunks: int, stages: int) -> Problem:
    """The problem of exactly so many ``stages``, ``chunks`` for each device."""
    kinds = tuple(
        replace(kind, devices=kind.devices * chunks, memory=None if kind.memory is None else kind.memory // chunks)
        for kind in problem.kinds
    )
    return replace(problem, kinds=kinds, stages=stages)


def chunk_devices(topology: Topology, order: str, stages: int) -> list[tuple[str, ...]]:
    """The device of each of so many stages."""
    names, place = [device.name for device in topology.devices], ORDERS[order]
    return [(names[place(stage, len(names))],) for stage in range(stages)]


def on_devices(plan: Plan, topology: Topology, order: str) -> Plan:
    """The plan with each stage on its device."""
    on = chunk_devices(topology, order, len(plan.stages))
    return replace(plan, stages=tuple(replace(stage, devices=on[stage.index]) for stage in plan.stages))
