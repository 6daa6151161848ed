"""From the step of a decoder, as modules that differ in the sequences of a group alone, to a ``Decoding``.

The ops stand in the order of the function, without those that positions alone decide (``graph.positional``). Units are what
lies between places in that order where neither a class of ops that share a stage (``stages.colocation``) nor an op and what is
fused into it are parted: between all such places where few values cross, as few as keep the units within ``MOST_UNITS``. What a
run of units receives and sends, and so its seconds, is exact on the ports of devices; ``place`` evaluates the plan on the real
links.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.core.module import Module, State
from ir.core.topology import Topology
from ir.core.types import type_bytes
from passes.costs.memory.liveness import SLOTS
from passes.costs.network import Network
from passes.costs.op_time import chain_heads
from passes.graph.graph import reads, stage_members
from passes.graph.positional import positional
from passes.partition.decoding.detours import detours_of
from passes.partition.decoding.problem import Borders, Decoding
from passes.stages.colocation import colocation
from passes.stages.from_ir import problem_of
from passes.stages.problem import Kind, Problem

MOST_UNITS = 128
"""Tables of runs have the square of them as entries, for each batch and type of device."""


@dataclass(frozen=True)
class Asked:
    """``units``: positions of the ops of each, in the entry function; ops of positions alone are in the unit that first needs
    them. ``kinds``: the types of devices of ``decoding``. ``on_links``: the same with what links between unlike types cost."""

    units: tuple[tuple[int, ...], ...]
    kinds: tuple[Kind, ...]
    decoding: Decoding
    on_links: Decoding


def asked_of(
    modules: Mapping[int, Module],
    topology: Topology,
    net: Network,
    groups: tuple[int, int],
    *,
    stages: int = 0,
    replicas: int = 0,
    stream: bool = False,
) -> Asked:
    """``modules``: of the same ops, by sequences of a group. ``groups``, ``stages``, ``replicas``: as of ``Decoding``.
    ``stream``: of a stream of samples, no step of a decoder."""
    batches = tuple(sorted(modules))
    first = modules[batches[0]]
    problems = [problem_of(modules[batch], topology, net) for batch in batches]
    units, kinds = units_of(first, stream=stream), problems[0].kinds
    tables = [_Steps(problem, units) for problem in problems]
    alone, shared, caches = _held(first, units, batches[0])
    borders = Borders(
        np.stack([table.crossing for table in tables]),
        np.stack([table.buffers for table in tables]),
        np.stack([table.workspace for table in tables]),
        np.array([topology.type(kind.type).handover for kind in kinds], np.float64),
    )
    decoding = Decoding(
        batches,
        np.stack([table.seconds for table in tables]),
        alone,
        caches,
        np.zeros((len(batches), len(units))),
        tuple(kind.count for kind in kinds),
        tuple(math.inf if kind.memory is None else float(kind.memory) for kind in kinds),
        groups,
        shared,
        borders,
        stages,
        replicas,
        not stream,
    )
    detours = detours_of(problems, units, topology, net)
    return Asked(units, kinds, decoding, replace(decoding, borders=replace(borders, detours=detours)))


def units_of(module: Module, *, stream: bool) -> tuple[tuple[int, ...], ...]:
    """Positions of the ops of each unit, in an order in which any first units are closed under what they read."""
    func = module.entry
    computed = positional(module)
    order = [i for i in range(len(func.ops)) if i not in computed]
    place = {i: number for number, i in enumerate(order)}
    inside: set[int] = set()
    together = [*colocation(module)]
    together += [(*heads, e) for e, heads in chain_heads(func.ops, [value.name for value in func.results]).items()]
    for members in together:
        places = [place[i] for i in members if i in place]
        if places:
            inside.update(range(min(places) + 1, max(places) + 1))
    bounds = [0, *_cuts(module, order, inside, stream=stream), len(order)]
    unit_of = {i: unit for unit in range(len(bounds) - 1) for i in order[bounds[unit] : bounds[unit + 1]]}
    made = {value.name: i for i in computed for value in func.ops[i].results}
    for i in range(len(func.ops) - 1, -1, -1):  # an op of positions is in the first unit that reads what it makes
        if i in unit_of:
            for name in reads(func.ops[i]):
                if name in made:
                    unit_of[made[name]] = min(unit_of[i], unit_of.get(made[name], len(bounds)))
    units: list[list[int]] = [[] for _ in range(len(bounds) - 1)]
    for i in range(len(func.ops)):
        units[unit_of.get(i, 0)].append(i)
    return tuple(tuple(own) for own in units)


def in_units(module: Module) -> bool:
    """Whether the stages of the ops are runs of units of a stream."""
    members = stage_members(module.entry)
    stages = [{stage for i in unit for stage in members[i]} for unit in units_of(module, stream=True)]
    numbers = [number for own in stages for number in own]
    return all(len(own) == 1 for own in stages) and numbers == sorted(numbers)


def _cuts(module: Module, order: Sequence[int], inside: Container[int], *, stream: bool) -> list[int]:
    """Places in ``order`` before which a stage may begin: those where fewest values cross, as long as there are not too many.
    Of a stream, whose search is quick, where these are less than half as many as may be, some of the next too."""
    ops, place = module.entry.ops, {i: number for number, i in enumerate(order)}
    last: dict[str, int] = {}
    for i in order:
        last.update(dict.fromkeys(reads(ops[i]), place[i]))
    crossing = np.zeros(len(order) + 1, np.int64)
    for i in order:
        for value in ops[i].results:
            if last.get(value.name, -1) > place[i]:
                crossing[place[i] + 1 : last[value.name] + 1] += 1
    free = [p for p in range(1, len(order)) if p not in inside and (crossing[p] or stream)]
    cuts: list[int] = []
    for count in sorted({int(crossing[p]) for p in free}):
        wider = [p for p in free if crossing[p] <= count]
        if cuts and len(wider) >= MOST_UNITS:
            if stream and 2 * len(cuts) < MOST_UNITS:
                more = [p for p in wider if crossing[p] == count]
                cuts = sorted([*cuts, *more[:: math.ceil(len(more) / (MOST_UNITS - 1 - len(cuts)))]])
            break
        cuts = wider
    return cuts[:: 1 + len(cuts) // MOST_UNITS]


class _Steps:
    """The numbers of one batch: ``seconds`` ``[kind, unit]``, ``crossing`` ``[kind, i, j]``, seconds in which units i .. j - 1
    receive and send, ``buffers`` ``[i, j]`` and ``workspace`` ``[unit]``."""

    def __init__(self, problem: Problem, units: Sequence[Sequence[int]]) -> None:
        kinds, count = len(problem.kinds), len(units)
        unit_of = np.zeros(problem.size, np.int64)
        for unit, own in enumerate(units):
            unit_of[list(own)] = unit
        self.seconds = np.stack([problem.seconds[:, list(own)].sum(axis=1) for own in units], axis=1)
        self.crossing, self.buffers = np.zeros((kinds, count, count + 1)), np.zeros((count, count + 1))
        for h, (maker, readers) in enumerate(zip(problem.producer.tolist(), problem.consumers, strict=True)):
            here = int(unit_of[maker])
            behind = sorted({int(unit_of[reader]) for reader in readers} - {here})
            if not behind:
                continue
            seconds = problem.transfer[:, h]
            self.crossing[:, : here + 1, here + 1 : behind[-1] + 1] += seconds[:, None, None]
            begin = here + 1
            for reader in behind:  # runs that begin behind the last reader, at most here, receive it with this one
                self.crossing[:, begin : reader + 1, reader + 1 :] += seconds[:, None, None]
                self.buffers[begin : reader + 1, reader + 1 :] += SLOTS * float(problem.tensor_bytes[h])
                begin = reader + 1
        self.workspace = np.array([float(problem.live[list(own)].max(initial=0)) for own in units])


def _held(
    module: Module, units: Sequence[Sequence[int]], batch: int
) -> tuple[np.ndarray, tuple[tuple[float, tuple[int, ...]], ...], np.ndarray]:
    """Bytes of weights of each unit alone, weights of several with these units, and bytes of the caches of one sequence."""
    readers: dict[str, dict[int, None]] = {}
    for unit, own in enumerate(units):
        for i in own:
            for name in reads(module.entry.ops[i]):
                readers.setdefault(name, {}).setdefault(unit)
    weights, caches, shared = np.zeros(len(units)), np.zeros(len(units)), []
    for resource in module.resources.values():
        own, size = list(readers.get(resource.name, ())), float(type_bytes(resource.type) or 0)
        if isinstance(resource.data, State):
            for unit in own[:1]:
                caches[unit] += size / batch
        elif len(own) == 1:
            weights[own[0]] += size
        elif own and size:
            shared.append((size, tuple(own)))
    return weights, tuple(shared), caches
