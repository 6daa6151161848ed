"""From a module to a ``Problem``: one node per op of the entry function, in the function's order.

Seconds come from ``op_time``, transfers from each device's best port (``network``) or a ``Transfer`` facet,
bytes from ``liveness`` (a workload states them itself). Model inputs, model outputs and resources cost no transfer, nor does
what a stage computes from positions alone (``positional``).
Devices of one type with equal memory and ports are one kind; a device that something is pinned to is a kind of its own, which
alone runs what is pinned to it. So pins need no other rule: what is pinned to one device shares its only stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ir.core.facets import Transfer
from ir.core.module import Module
from ir.core.topology import Topology
from passes.costs.memory.liveness import live_bytes, resource_bytes, stated_bytes, value_bytes
from passes.costs.memory.stage import most_bytes
from passes.costs.network import Network
from passes.costs.op_time import body_seconds, epilogues
from passes.graph.graph import reads
from passes.graph.positional import positional
from passes.graph.serving import groups_of
from passes.graph.sizes import sized_results
from passes.stages.problem import Kind, Problem


def kinds_of(
    topology: Topology, net: Network, pinned: frozenset[str] = frozenset(), enough: float = math.inf
) -> tuple[Kind, ...]:
    """Kinds of devices in the topology's order; each of ``pinned`` stands alone. Of one type those with most memory come before
    others (``Kind.better``), of these those with most bandwidth, of these those with least latency. Memory of ``enough``
    bytes, more than which no stage needs, is as good as more."""
    found: dict[tuple[str, int | None, float, float, str], list[str]] = {}
    for device in topology.devices:
        port = net.port(device.name)
        alone = device.name if device.name in pinned else ""
        found.setdefault((device.type, topology.memory(device), port.latency, port.bandwidth, alone), []).append(device.name)

    def rank(key: tuple[str, int | None, float, float, str]) -> tuple[float, ...]:
        _, limit, latency, bandwidth, _ = key
        memory = math.inf if limit is None else limit
        return -min(memory, enough), -bandwidth, latency, -memory

    kinds = []
    for key, devices in found.items():
        type_, memory, *_, alone = key
        others = sorted((one for one in found if one[0] == type_ and not one[-1] and rank(one) < rank(key)), key=rank)
        better = () if alone else tuple(tuple(found[one]) for one in reversed(others))
        kinds.append(Kind(type_, tuple(devices), memory, better=better))
    return tuple(kinds)


def problem_of(
    module: Module,
    topology: Topology,
    net: Network,
    *,
    comm: str = "sum",
    pins: Mapping[int, str] | None = None,
    cuts: frozenset[str] = frozenset(),
    enough: float | None = None,
) -> Problem:
    """The problem of the entry function. ``pins``: device by position of the op; ``cuts``: values that must cross stages;
    ``enough``: bytes on a device, more than which no stage needs; those of inference where they are not given."""
    func = module.entry
    pins = pins or {}
    kinds = kinds_of(topology, net, frozenset(pins.values()), most_bytes(module) if enough is None else enough)
    outputs = [value.name for value in func.results]
    followed = epilogues(func.ops, outputs)
    rows = {type_.name: body_seconds(func.ops, type_, outputs, followed=followed) for type_ in topology.types}
    seconds = np.array([rows[kind.type] for kind in kinds], dtype=np.float64).reshape(len(kinds), len(func.ops))
    for position, device in pins.items():
        for k, kind in enumerate(kinds):
            if kind.devices != (device,):
                seconds[k, position] = np.inf

    readers: dict[str, list[int]] = {}
    for i, op in enumerate(func.ops):
        for name in reads(op):
            readers.setdefault(name, []).append(i)
    ports = [net.port(kind.devices[0]) for kind in kinds]
    stated_memory = stated_bytes(func)
    producer, consumers, names, sizes, stated = [], [], [], [], []
    computed = positional(module)  # in each stage that reads them
    for i, op in enumerate(func.ops):
        if i in computed:
            continue
        told = op.facet(Transfer)
        for number, value in enumerate(sized_results(op)):
            found = readers.get(value.name)
            if found is None:
                continue
            producer.append(i)
            consumers.append(tuple(found))
            names.append(value.name)
            sizes.append(value_bytes(value) if told is None or stated_memory is None else 0)
            stated.append(math.nan if told is None else told.seconds[number])
    transfer = np.zeros((len(kinds), len(names)))
    for row, kind, port in zip(transfer, kinds, ports, strict=True):
        if not topology.type(kind.type).free_transfers:
            on_port = port.latency + np.array(sizes, np.float64) / port.bandwidth
            row[:] = np.where(np.isnan(stated), on_port, stated)
    resources = _weights(module)
    if stated_memory is None:
        live = live_bytes(func)
    else:
        resources = [(size, (i,)) for i, size in enumerate(stated_memory) if size]
        live, sizes = (0,) * len(func.ops), [0] * len(sizes)
    problem = Problem(
        names=tuple(op.id for op in func.ops),
        kinds=kinds,
        seconds=seconds,
        producer=np.array(producer, np.int64),
        consumers=tuple(consumers),
        transfer=transfer,
        tensor_bytes=np.array(sizes, np.int64),
        tensor_names=tuple(names),
        live=np.array(live, np.int64),
        weight_bytes=np.array([size for size, _ in resources], np.int64),
        weight_readers=tuple(who for _, who in resources),
        comm=comm,
        forced=tuple(h for h, name in enumerate(names) if name in cuts),
        sequences=groups_of(module),
    )
    problem.check()
    return problem


def serving(problem: Problem, module: Module, groups: int) -> Problem:
    """The problem, a node per op, of devices that each serve so many groups of a decoder, and hold their states alone."""
    return replace(problem, weight_bytes=np.array([size for size, _ in _weights(module, groups)], np.int64))


def _weights(module: Module, groups: int = 0) -> list[tuple[int, tuple[int, ...]]]:
    """Bytes and readers of each resource that ops read; of a state those of so many groups, 0 for all."""
    readers: dict[str, list[int]] = {}
    for i, op in enumerate(module.entry.ops):
        for name in reads(op):
            if name[0] == "@":
                readers.setdefault(name, []).append(i)
    return [(size, tuple(readers[name])) for name, size in resource_bytes(module, groups).items() if name in readers and size]
