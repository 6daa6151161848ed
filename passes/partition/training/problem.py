"""Training on explicit forward and backward nodes: the graph, its units, and the load of a device from the definition.

A ``TrainingGraph`` is what a workload states. Nodes of one colour share a device. Contiguity is asked of the forward part only:
forward edges run from earlier stages to later ones; backward nodes go where their forward mates are. A backward node whose
colour has no forward node gets an artificial forward mate that costs nothing, and edges between backward nodes of which one is
such an orphan stand, reversed, between the forward mates. Colours that thereby lie on a cycle share a device.

So the graph becomes *units* (``units``): the least sets of nodes that must share a device, in a topological order of the
forward precedence. A stage is a set of units; the stages of a plan, in order, are differences of nested ideals of it.

The load of a device of kind k with units S has two sides, forward and backward, each: the seconds of its nodes of that phase +
the sum of ``transfer[k, h]`` over tensors h made by nodes of that phase which S parts (some of the units that make or read h
are in S, some are not), each once, whether S makes or reads it. Nothing in this depends on which way a tensor flows, so
backward tensors fit although they run against the order.

Objectives, to be minimised: ``sum``, max over devices of forward + backward (1F1B; PipeDream); ``split``, max over devices of
forward + max over devices of backward (GPipe: all forwards, then all backwards). Source: Tarnawski et al., NeurIPS 2020,
section 5.3.

Memory: the sizes of a stage's nodes, at most the kind's limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.model.graph import topological as order_of
from passes.model.stages.arrays import distinct, rows_of
from passes.model.stages.colocation import acyclic, components
from passes.model.stages.problem import Floats, Ints, Kind, crowding
from passes.model.stages.reduce import Groups

OBJECTIVES = ("sum", "split")
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """``seconds[T, n]`` (inf: the kind cannot run it), ``size[n]`` bytes, ``backward[n]``, ``colour[n]`` (None: alone),
    ``transfer[T, n]``: seconds that a device pays for the output of a node when it parts that from a reader; ``edges``: (maker,
    reader), in any order."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    seconds: Floats
    size: Ints
    backward: Flags
    colour: tuple[int | None, ...]
    transfer: Floats
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """Units in topological order: ``seconds[2, T, n]`` (forward, backward), ``size[n]``, ``following[v]``: units that must not
    lie before v. Tensor h joins the units ``pins[h]`` (two or more, ascending), is of side ``side[h]`` (0 forward, 1 backward)
    and costs ``transfer[T, h]``."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    seconds: Floats
    size: Ints
    following: tuple[tuple[int, ...], ...]
    pins: tuple[tuple[int, ...], ...]
    side: Ints
    transfer: Floats

    @property
    def count(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class TrainingLoad:
    """One stage evaluated: (forward, backward) seconds of compute and of transfers, and bytes."""

    kind: int
    nodes: tuple[int, ...]
    compute: tuple[float, float]
    transfers: tuple[float, float]
    memory: int

    @property
    def forward(self) -> float:
        return self.compute[0] + self.transfers[0]

    @property
    def backward(self) -> float:
        return self.compute[1] + self.transfers[1]


def units(graph: TrainingGraph) -> tuple[TrainingProblem, Groups]:
    """The problem over units, and the nodes of each."""
    first: dict[int, int] = {}
    of = [v if colour is None else first.setdefault(colour, v) for v, colour in enumerate(graph.colour)]
    mated = {of[v] for v in range(len(of)) if not graph.backward[v]}
    following: dict[int, set[int]] = {v: set() for v in of}
    backward = graph.backward.tolist()
    for u, v in graph.edges:
        a, b = of[u], of[v]
        if not backward[u] and not backward[v]:
            following[a].add(b)
        elif backward[u] and backward[v] and not (a in mated and b in mated):
            following[b].add(a)
    fused = {v: v for v in following}
    if not acyclic(following):
        fused = {v: min(nodes) for nodes in components({v: sorted(after) for v, after in following.items()}) for v in nodes}
    members: dict[int, list[int]] = {}
    for v, colour_of in enumerate(of):
        members.setdefault(fused[colour_of], []).append(v)
    return _over_units(graph, list(members.values()), [(u, v) for u, after in following.items() for v in after])


def colour_units(graph: TrainingGraph) -> tuple[TrainingProblem, Groups]:
    """The problem over the colours alone, without precedence (what a split that need not be contiguous keeps together), and the
    nodes of each."""
    members: dict[int, list[int]] = {}
    first: dict[int, int] = {}
    for v, colour in enumerate(graph.colour):
        members.setdefault(v if colour is None else first.setdefault(colour, v), []).append(v)
    return _over_units(graph, list(members.values()), [])


def _over_units(
    graph: TrainingGraph, groups: Sequence[Sequence[int]], precedence: Sequence[tuple[int, int]]
) -> tuple[TrainingProblem, Groups]:
    """The problem whose nodes are the groups, in a topological order of ``precedence``, ties by first member."""
    label = [0] * len(graph.names)
    for g, nodes in enumerate(groups):
        for v in nodes:
            label[v] = g
    after: list[set[int]] = [set() for _ in groups]
    for u, v in precedence:
        if label[u] != label[v]:
            after[label[u]].add(label[v])
    order = topological(after)
    place = {g: i for i, g in enumerate(order)}
    members = tuple(tuple(groups[g]) for g in order)
    unit = np.array([place[g] for g in label], np.int64)
    seconds = np.zeros((2, len(graph.kinds), len(members)))
    for side in (0, 1):
        mine = np.flatnonzero(graph.backward == bool(side))
        for k, row in enumerate(graph.seconds):
            seconds[side, k] = np.bincount(unit[mine], weights=row[mine], minlength=len(members))
    count = max(len(members), 1)
    maker, reader = np.array(graph.edges, np.int64).reshape(-1, 2).T
    joined = distinct(np.concatenate([maker, maker]) * count + unit[np.concatenate([maker, reader])])
    pins = rows_of(joined // count, joined % count, len(graph.names))
    parted = [u for u, inside in enumerate(pins) if len(inside) > 1]
    problem = TrainingProblem(
        names=tuple(graph.names[nodes[0]] for nodes in members),
        kinds=graph.kinds,
        seconds=seconds,
        size=sums_by(unit, graph.size, len(members)),
        following=tuple(tuple(sorted(place[w] for w in after[g])) for g in order),
        pins=tuple(pins[u] for u in parted),
        side=graph.backward[parted].astype(np.int64),
        transfer=np.ascontiguousarray(graph.transfer[:, parted]),
    )
    return problem, members


def sums_by(label: Ints, values: Ints, count: int) -> Ints:
    """Whole numbers added up by label."""
    result = np.zeros(count, np.int64)
    np.add.at(result, label, values)
    return result


def topological(after: Sequence[Iterable[int]]) -> list[int]:
    """Positions in a topological order, the least ready first. Raises ValueError when there is a cycle."""
    order = order_of(after)
    if len(order) != len(after):
        raise ValueError("the units form a cycle")
    return order


def training_load(problem: TrainingProblem, kind: int, nodes: Iterable[int]) -> TrainingLoad:
    """The stage of ``nodes`` (units) on a device of ``kind``, from the definition."""
    inside = sorted(set(nodes))
    member = set(inside)
    transfers: tuple[list[float], list[float]] = ([], [])
    for h, pins in enumerate(problem.pins):
        if not member.isdisjoint(pins) and not member.issuperset(pins):
            transfers[int(problem.side[h])].append(float(problem.transfer[kind, h]))
    compute = math.fsum(problem.seconds[0, kind, inside]), math.fsum(problem.seconds[1, kind, inside])
    return TrainingLoad(
        kind,
        tuple(inside),
        compute,
        (math.fsum(transfers[0]), math.fsum(transfers[1])),
        sum(int(problem.size[v]) for v in inside),
    )


def training_value(objective: str, loads: Sequence[TrainingLoad]) -> float:
    """The objective of a plan whose stages have these loads."""
    if objective == "sum":
        return max((load.forward + load.backward for load in loads), default=0.0)
    return max((load.forward for load in loads), default=0.0) + max((load.backward for load in loads), default=0.0)


def training_faults(problem: TrainingProblem, stages: Sequence[tuple[int, Sequence[int]]]) -> list[str]:
    """Every constraint that the stages (kind, units) break, as text. Shares nothing with the solver."""
    if sorted(v for _, nodes in stages for v in nodes) != list(range(problem.count)):
        return ["the stages do not cover every unit exactly once"]
    found = []
    place = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    for v, targets in enumerate(problem.following):
        for w in targets:
            if place[w] < place[v]:
                found.append(f"{problem.names[v]} in stage {place[v]} precedes {problem.names[w]} in stage {place[w]}")
    found += crowding(problem.kinds, [kind for kind, _ in stages])
    for s, (k, nodes) in enumerate(stages):
        load = training_load(problem, k, nodes)
        limit = problem.kinds[k].memory
        if not nodes:
            found.append(f"stage {s} is empty")
        if math.isinf(load.forward + load.backward):
            found.append(f"stage {s} holds a node that {problem.kinds[k].type} cannot run")
        if limit is not None and load.memory > limit:
            found.append(f"stage {s} needs {load.memory} bytes, its device has {limit}")
    return found


__all__ = [
    "OBJECTIVES",
    "TrainingGraph",
    "TrainingLoad",
    "TrainingProblem",
    "colour_units",
    "topological",
    "training_faults",
    "training_load",
    "training_value",
    "units",
]
