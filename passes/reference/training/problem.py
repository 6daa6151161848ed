"""Training on explicit forward and backward nodes: the graph, its units, and the load of a device from the definition.

A ``TrainingGraph`` is what a workload states. Nodes of one colour share a device: a backward node is where the forward nodes of
its colour are. Contiguity is asked of the forward part only: forward edges run from earlier stages to later ones. A colour
without a forward node counts as if it had one that costs nothing: where an edge between backward nodes touches such a colour,
the reverse of the edge is a forward edge. Colours on a cycle of these edges share a device.

So the graph becomes *units* (``units``): the least sets of nodes that must share a device, in a topological order of the
forward edges. A stage is a set of units; the stages of a plan, in order, are differences of nested ideals of the units. The
units are the nodes of a ``Problem`` whose tensors only say who precedes whom; what is paid for is in its ``joins``.

The load of a device of kind k with units S has two sides, forward and backward, each: the seconds of its nodes of that phase +
the sum of ``transfer[k, h]`` over tensors h made by nodes of that phase of which some of the units that make or read h are in S
and some are not, each once, whether S makes or reads it. Nothing in this depends on which way a tensor flows, so backward
tensors fit although they run against the order.

Objectives, to be minimised: ``sum``, max over devices of forward + backward (1F1B; PipeDream); ``split``, max over devices of
forward + max over devices of backward (GPipe: all forwards, then all backwards). Source: Tarnawski et al., NeurIPS 2020,
section 5.3.

Memory: the sizes of a stage's nodes, at most the kind's limit.

A stage on r devices (replicas) also averages gradients: 4 (r-1) W / (B r) seconds for W bytes of weights at B bytes/s
(PipeDream, SOSP 2019, section 3.1). Each replica does so after each minibatch of its own, which is every r-th: per minibatch of
the pipeline an r-th of these seconds; or, with a flush every N microbatches, once in N (Piper, NeurIPS 2021, section 3). They
are proportional to W, so each unit adds its part to its backward seconds. Fewer microbatches than replicas would leave some
idle, so r is at most N. Devices with free transfers average for nothing, as they send for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.graph.graph import components, topological
from passes.partition.lattice.search.replicas import replicated_kinds
from passes.stages.arrays import Ints, distinct, rows_of
from passes.stages.problem import Floats, Joins, Kind, Problem, precedence
from passes.stages.reduce import Groups

OBJECTIVES = ("sum", "split")
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """``seconds[T, n]`` (inf: the kind cannot run it), ``size[n]`` bytes, ``backward[n]``, ``colour[n]`` (None: of its own),
    ``transfer[T, n]``: seconds that a device pays for the output of a node where it has some of the nodes that make or read
    it but not all; ``edges``: (maker, reader), in any order."""

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
    colour_of = _colours(graph)
    has_forward = {colour for colour, backward in zip(colour_of, graph.backward, strict=True) if not backward}
    after: list[set[int]] = [set() for _ in colour_of]
    backward = graph.backward.tolist()
    for u, v in graph.edges:
        maker, reader = colour_of[u], colour_of[v]
        if not backward[u] and not backward[v]:
            after[maker].add(reader)
        elif backward[u] and backward[v] and not (maker in has_forward and reader in has_forward):
            after[reader].add(maker)
    unit_of = {colour: cycle[0] for cycle in components(after) for colour in cycle}
    pairs = [(u, v) for u, targets in enumerate(after) for v in targets]
    return _over_groups(graph, [unit_of[colour] for colour in colour_of], pairs)


def colour_units(graph: TrainingGraph) -> tuple[Problem, Groups]:
    """The problem over the colours alone, without precedence (what a split that need not be contiguous keeps together), and the
    nodes of each."""
    return _over_groups(graph, _colours(graph), [])


def _colours(graph: TrainingGraph) -> list[int]:
    """Of each node the first node of its colour."""
    first: dict[int, int] = {}
    return [v if colour is None else first.setdefault(colour, v) for v, colour in enumerate(graph.colour)]


def _over_groups(graph: TrainingGraph, group_of: Sequence[int], pairs: Sequence[tuple[int, int]]) -> tuple[Problem, Groups]:
    """The problem whose nodes are the groups of nodes of equal ``group_of``, in a topological order in which the group of the
    first of a pair of nodes comes before that of the second; ties by first member."""
    number: dict[int, int] = {}
    label = [number.setdefault(group, len(number)) for group in group_of]
    groups: list[list[int]] = [[] for _ in number]
    for v, g in enumerate(label):
        groups[g].append(v)
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
    pairs_of_units = distinct(np.concatenate([maker, maker]) * count + unit[np.concatenate([maker, reader])])
    pins = rows_of(pairs_of_units // count, pairs_of_units % count, len(graph.names))  # units of each node's output
    shared = [v for v, inside in enumerate(pins) if len(inside) > 1]
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
            pins=tuple(pins[v] for v in shared),
            transfer=np.ascontiguousarray(graph.transfer[:, shared]),
            side=graph.backward[shared].astype(np.int64),
            seconds=seconds,
        ),
    )
    return problem, members


def joins_of(problem: Problem) -> Joins:
    """``problem.joins``, which a problem of units has."""
    assert problem.joins is not None, "a problem of units"
    return problem.joins


def one_sided(problem: Problem) -> Problem:
    """The problem with forward and backward as one side."""
    joins = joins_of(problem)
    seconds = joins.seconds.sum(axis=0, keepdims=True)
    return replace(problem, joins=replace(joins, seconds=seconds, side=np.zeros_like(joins.side)))


@dataclass(frozen=True, eq=False)
class Replication:
    """Stages may have up to ``most`` replicas. ``weights[n]``: bytes of parameters of each node or unit; ``bandwidth``: bytes/s
    of each kind (inf: free transfers); ``microbatches``: between two flushes, None where there are none."""

    most: int
    weights: Ints
    bandwidth: tuple[float, ...]
    microbatches: int | None = None

    def sync(self, kind: int, replicas: int) -> float:
        """Seconds in which ``replicas`` devices of ``kind`` average gradients, per byte of weights and minibatch."""
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
