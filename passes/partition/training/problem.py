"""Training on explicit forward and backward nodes: the graph, its units, and the load of a device from the definition.

A ``TrainingGraph`` is what a workload states. Nodes of one colour share a device. Contiguity is asked of the forward part only:
forward edges run from earlier stages to later ones; backward nodes go where their forward mates are. A backward node whose
colour has no forward node gets an artificial forward mate that costs nothing, and edges between backward nodes of which one is
such an orphan stand, reversed, between the forward mates. Colours that thereby lie on a cycle share a device.

So the graph becomes *units* (``units``): the least sets of nodes that must share a device, in a topological order of the
forward precedence. A stage is a set of units; the stages of a plan, in order, are differences of nested ideals of it. The units
are the nodes of a ``Problem`` whose tensors only say who precedes whom; what is paid for is in its ``joins``, of two sides.

The load of a device of kind k with units S has two sides, forward and backward, each: the seconds of its nodes of that phase +
the sum of ``transfer[k, h]`` over tensors h made by nodes of that phase which S parts (some of the units that make or read h
are in S, some are not), each once, whether S makes or reads it. Nothing in this depends on which way a tensor flows, so
backward tensors fit although they run against the order.

Objectives, to be minimised: ``sum``, max over devices of forward + backward (1F1B; PipeDream); ``split``, max over devices of
forward + max over devices of backward (GPipe: all forwards, then all backwards). Source: Tarnawski et al., NeurIPS 2020,
section 5.3.

Memory: the sizes of a stage's nodes, at most the kind's limit.

Replicas of a stage also average their gradients: 4 (r-1) W / (B r) seconds for W bytes of weights at B bytes/s, after each
minibatch of their own (PipeDream, SOSP 2019, section 3.1; its four halves of an all-reduce each way), hence a further r-th of
that per minibatch of the pipeline; or, with a flush every N microbatches, once in N (Piper, NeurIPS 2021, section 3). That is
the same for every byte, so it adds to the backward seconds of each unit. Fewer microbatches than replicas would leave some
idle, so r is at most N. Devices with free transfers synchronise for nothing, as they send for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.model.graph import topological
from passes.model.stages.arrays import distinct, rows_of
from passes.model.stages.colocation import acyclic, components
from passes.model.stages.problem import Floats, Ints, Joins, Kind, Problem, precedence
from passes.model.stages.reduce import Groups
from passes.partition.search.replicas import replicated_kinds

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


def units(graph: TrainingGraph) -> tuple[Problem, Groups]:
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


def colour_units(graph: TrainingGraph) -> tuple[Problem, Groups]:
    """The problem over the colours alone, without precedence (what a split that need not be contiguous keeps together), and the
    nodes of each."""
    members: dict[int, list[int]] = {}
    first: dict[int, int] = {}
    for v, colour in enumerate(graph.colour):
        members.setdefault(v if colour is None else first.setdefault(colour, v), []).append(v)
    return _over_units(graph, list(members.values()), [])


def _over_units(
    graph: TrainingGraph, groups: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]
) -> tuple[Problem, Groups]:
    """The problem whose nodes are the groups, in a topological order of ``pairs`` (first, later), ties by first member."""
    label = [0] * len(graph.names)
    for g, nodes in enumerate(groups):
        for v in nodes:
            label[v] = g
    after: list[set[int]] = [set() for _ in groups]
    for u, v in pairs:
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
    names = tuple(graph.names[nodes[0]] for nodes in members)
    size = np.zeros(len(members), np.int64)
    np.add.at(size, unit, graph.size)
    problem = Problem(
        names=names,
        kinds=graph.kinds,
        seconds=seconds.sum(axis=0),
        **precedence(names, len(graph.kinds), [{place[w] for w in after[g]} for g in order]),
        live=np.zeros(len(members), np.int64),
        weight_bytes=size,
        weight_readers=tuple((v,) for v in range(len(members))),
        joins=Joins(
            pins=tuple(pins[u] for u in parted),
            transfer=np.ascontiguousarray(graph.transfer[:, parted]),
            side=graph.backward[parted].astype(np.int64),
            seconds=seconds,
        ),
    )
    return problem, members


def joins_of(problem: Problem) -> Joins:
    """The tensors that units pay for, and the two sides of their seconds, of a problem that has units."""
    assert problem.joins is not None, "a problem of units"
    return problem.joins


def one_sided(problem: Problem) -> Problem:
    """The problem with forward and backward as one side."""
    joins = joins_of(problem)
    seconds = joins.seconds.sum(axis=0, keepdims=True)
    return replace(problem, joins=replace(joins, seconds=seconds, side=np.zeros_like(joins.side)))


@dataclass(frozen=True, eq=False)
class Replication:
    """Replicas of training stages: at most ``most`` devices each. ``weights[n]``: bytes of parameters of each node or unit;
    ``bandwidth``: bytes/s of each kind (inf: free transfers); ``microbatches``: between two flushes, None where there are
    none."""

    most: int
    weights: Ints
    bandwidth: tuple[float, ...]
    microbatches: int | None = None

    def sync(self, kind: int, replicas: int) -> float:
        """Seconds per byte of weights and per sample of the pipeline that ``replicas`` devices of ``kind`` synchronise."""
        return 4.0 * (replicas - 1) / (self.bandwidth[kind] * replicas * (self.microbatches or replicas))


def replicate_training(problem: Problem, replication: Replication) -> Problem:
    """The problem whose stages may have replicas; ``replication.weights`` are those of its units."""
    most = replication.most if replication.microbatches is None else min(replication.most, replication.microbatches)
    kinds, origin = replicated_kinds(problem.kinds, most)
    share, rows, joins = np.array([kind.replicas for kind in kinds], np.float64), list(origin), joins_of(problem)
    seconds = joins.seconds[:, rows] / share[None, :, None]
    for k, kind in enumerate(kinds):
        seconds[1, k] += replication.sync(origin[k], kind.replicas) * replication.weights
    transfer = np.ascontiguousarray(joins.transfer[rows] / share[:, None])
    return replace(
        problem,
        kinds=kinds,
        seconds=seconds.sum(axis=0),
        transfer=np.ascontiguousarray(problem.transfer[rows]),
        joins=replace(joins, seconds=seconds, transfer=transfer),
    )


def training_load(problem: Problem, kind: int, nodes: Iterable[int]) -> TrainingLoad:
    """The stage of ``nodes`` (units) on a device of ``kind``, from the definition."""
    inside, joins = sorted(set(nodes)), joins_of(problem)
    member = set(inside)
    transfers: tuple[list[float], list[float]] = ([], [])
    for h, pins in enumerate(joins.pins):
        if not member.isdisjoint(pins) and not member.issuperset(pins):
            transfers[int(joins.side[h])].append(float(joins.transfer[kind, h]))
    return TrainingLoad(
        kind,
        tuple(inside),
        (math.fsum(joins.seconds[0, kind, inside]), math.fsum(joins.seconds[1, kind, inside])),
        (math.fsum(transfers[0]), math.fsum(transfers[1])),
        sum(int(problem.weight_bytes[v]) for v in inside),
    )


def training_value(objective: str, loads: Sequence[TrainingLoad]) -> float:
    """The objective of a plan whose stages have these loads."""
    if objective == "sum":
        return max((load.forward + load.backward for load in loads), default=0.0)
    return max((load.forward for load in loads), default=0.0) + max((load.backward for load in loads), default=0.0)


__all__ = [
    "OBJECTIVES",
    "Replication",
    "TrainingGraph",
    "TrainingLoad",
    "colour_units",
    "joins_of",
    "one_sided",
    "replicate_training",
    "training_load",
    "training_value",
    "units",
]
