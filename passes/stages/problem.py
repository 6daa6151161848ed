"""The partitioning problem as plain data: numbers, indices and names, no IR.

A DAG of nodes is split into *stages*, one per device, such that the stages taken in order form nested ideals
(downsets): data flows forward only. The load of a stage with node set S on a device of kind k, in seconds per sample:

- compute: sum of ``seconds[k, v]`` for v in S (inf: the kind cannot run v), and what the kind takes for any stage
  (``Kind.handover``);
- receive: sum of ``transfer[k, h]`` over tensors h made outside S and read inside;
- send: sum of ``transfer[k, h]`` over tensors h made inside S and read outside.

Each tensor counts once per stage and direction, whatever its number of readers (the port model). ``comm`` says how
the three add up (``load``). The objective, throughput, is to minimise the largest load.

The memory of a stage, in bytes: weights (each once, even when several nodes read it) + the largest ``live`` of its
nodes + ``slots(comm)`` times the bytes of what it receives (``passes.costs.memory``).

Constraints besides memory: ``seconds`` inf (unsupported, or pinned elsewhere), ``forced`` tensors whose maker and
readers must lie in different stages, ``stages`` when their number is prescribed (else at most one per device), ``most`` when
a plan may not have all devices, ``replicas`` when each stage has at least so many.

Invariants (``Problem.check``): nodes are in topological order, so every reader of a tensor comes after its maker;
readers are ascending, without repeats; each kind has at least one device; devices of one kind are interchangeable.

A stage on several devices is one of a kind of its own (``replicas``): kinds that name the same devices share them. Its devices
are of one type. They may be of several kinds, which stand in one order (``Kind.better``); the stage is then of the last of
theirs, and costs and holds what it does on a device of that kind: exact where each kind has ports no worse than the next, else
a lower bound. Nothing is lost if the stages of a plan, in any order, take devices of the last kind that is left to each: what
is better will do for all stages that what is taken will do for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.costs.memory.footprint import slots
from passes.stages.arrays import Ints, csr, distinct
from passes.stages.load import COMM, load

Floats: TypeAlias = NDArray[np.float64]


FAR = 100.0
"""How many times the load of a plan known a number may be before it is left out of sums over ideals (``within``)."""


@dataclass(frozen=True)
class Kind:
    """Interchangeable devices: same type, memory limit (bytes, None when unlimited), ports and pins. A stage of this kind takes
    ``replicas`` of them, and computes ``handover`` seconds besides those of its nodes. ``better``: the devices of each kind of
    the same type that comes before this one (``from_ir.kinds_of``), nearest first; a stage takes these if its own are taken.
    ``fills``: its devices are all devices of one host, so what it receives and sends comes from and goes to other hosts."""

    type: str
    devices: tuple[str, ...]
    memory: int | None = None
    replicas: int = 1
    handover: float = 0.0
    better: tuple[tuple[str, ...], ...] = ()
    fills: bool = False

    @property
    def count(self) -> int:
        return len(self.devices)

    @property
    def most(self) -> int:
        """Devices that a stage of this kind may have."""
        return self.count + sum(map(len, self.better))


def pools(kinds: Sequence[Kind]) -> tuple[int, ...]:
    """Of each kind the first that has the same devices: the one without replicas. Kinds of one pool share its devices."""
    first: dict[tuple[str, ...], int] = {}
    return tuple(first.setdefault(kind.devices, k) for k, kind in enumerate(kinds))


def taken_from(kinds: Sequence[Kind]) -> tuple[tuple[int, ...], ...]:
    """Of each kind the pools whose devices its stages take, in this order: its own, and, where stages may have replicas, those
    of ``better`` devices."""
    pool_of = pools(kinds)
    if len(set(pool_of)) == len(kinds):
        return tuple((pool,) for pool in pool_of)
    number = {kinds[pool].devices: pool for pool in pool_of}
    return tuple(
        (pool, *(number[devices] for devices in kind.better if devices in number))
        for pool, kind in zip(pool_of, kinds, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Turns:
    """Costs of interchangeable branches (``symmetry``): of turn q a stage pays ``transfer[T, q]`` times the absolute sum of
    ``signs[q, n]`` over its nodes, on the side ``side[q]`` of its load."""

    signs: Floats
    transfer: Floats
    side: Ints


@dataclass(frozen=True, eq=False)
class Joins:
    """Tensors without a direction: h joins the nodes ``pins[h]`` (two or more, ascending), and a stage that holds some of them
    but not all pays ``transfer[T, h]``, on the side ``side[h]`` of its load. ``seconds[G, T, n]``: the problem's,
    by side; loads have one side or two."""

    pins: tuple[tuple[int, ...], ...]
    transfer: Floats
    side: Ints
    seconds: Floats
    turns: Turns | None = None

    @cached_property
    def joining(self) -> tuple[Ints, Ints]:
        """``pins`` as arrays: the tensor and the node of each."""
        pointers, pin = csr(self.pins)
        return np.repeat(np.arange(len(self.pins)), np.diff(pointers)), pin


@dataclass(frozen=True, eq=False)
class Problem:
    """See the module. ``seconds[T, n]``, ``transfer[T, H]``, ``tensor_bytes[H]``, ``live[n]``; tensor h is made by node
    ``producer[h]`` and read by ``consumers[h]``; weight w has ``weight_bytes[w]`` and is read by ``weight_readers[w]``. With
    ``joins`` tensors only say who precedes whom, and what is paid for is said there (training; the definition of a load is
    then that of ``training``). ``borders``: tensors that are no data, but seconds of compute (``fusing``). ``sequences``:
    groups of a decoder, which the replicas of a stage share evenly; 0 of other models."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    seconds: Floats
    producer: Ints
    consumers: tuple[tuple[int, ...], ...]
    transfer: Floats
    tensor_bytes: Ints
    tensor_names: tuple[str, ...]
    live: Ints
    weight_bytes: Ints
    weight_readers: tuple[tuple[int, ...], ...]
    comm: str = "sum"
    forced: tuple[int, ...] = ()
    stages: int | None = None
    most: int | None = None
    replicas: int = 1
    joins: Joins | None = None
    borders: tuple[int, ...] = ()
    sequences: int = 0

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def devices(self) -> int:
        """How many devices a plan may have."""
        every = sum(self.kinds[pool].count for pool in dict.fromkeys(pools(self.kinds)))
        return every if self.most is None else min(self.most, every)

    @cached_property
    def reading(self) -> tuple[Ints, Ints, Ints]:
        """``consumers`` as arrays: readers of tensor h are ``readers[pointers[h]:pointers[h + 1]]``, and the tensor of each."""
        pointers, readers = csr(self.consumers)
        return pointers, readers, np.repeat(np.arange(len(self.consumers)), np.diff(pointers))

    @cached_property
    def touched(self) -> tuple[list[list[int]], list[list[int]]]:
        """Of each node the tensors that it makes or reads, and the weights that it reads, ascending: all that a stage has to
        do with, without a look at every one that there is."""
        tensors: list[list[int]] = [[] for _ in self.names]
        weights: list[list[int]] = [[] for _ in self.names]
        for h, (maker, readers) in enumerate(zip(self.producer.tolist(), self.consumers, strict=True)):
            for v in (maker, *readers):
                tensors[v].append(h)
        for w, readers in enumerate(self.weight_readers):
            for v in readers:
                weights[v].append(w)
        return tensors, weights

    @cached_property
    def neighbours(self) -> tuple[list[set[int]], list[set[int]]]:
        """Of each node those whose tensors it reads, and those that read its tensors."""
        before: list[set[int]] = [set() for _ in self.names]
        after: list[set[int]] = [set() for _ in self.names]
        for u, readers in zip(self.producer.tolist(), self.consumers, strict=True):
            after[u].update(readers)
            for v in readers:
                before[v].add(u)
        return before, after

    def check(self) -> None:
        """Raises ValueError where an invariant of the module docstring is broken."""
        nodes, kinds, tensors = self.size, len(self.kinds), len(self.consumers)
        if self.seconds.shape != (kinds, nodes) or self.transfer.shape != (kinds, tensors):
            raise ValueError(f"seconds {self.seconds.shape} or transfer {self.transfer.shape}: {kinds=} {nodes=} {tensors=}")
        if self.comm not in COMM:
            raise ValueError(f"comm is {self.comm!r}, expected one of {', '.join(COMM)}")
        if not all(kind.count for kind in self.kinds):
            raise ValueError("a kind without devices")
        if any(self.kinds[pool].replicas != 1 for pool in pools(self.kinds)):
            raise ValueError("a kind of several devices per stage without the kind of one")
        for h, readers in enumerate(self.consumers):
            if list(readers) != sorted(set(readers)) or (readers and readers[0] <= self.producer[h]):
                raise ValueError(
                    f"readers {readers} of tensor {h}, made by node {self.producer[h]}, are not in topological order"
                )
        if np.isnan(self.seconds).any() or (self.seconds < 0).any() or not np.isfinite(self.transfer).all():
            raise ValueError("seconds must be numbers >= 0 or inf, transfers finite")


def precedence(names: Sequence[str], kinds: int, after: Sequence[Iterable[int]]) -> dict[str, Any]:
    """The fields of a ``Problem`` whose tensors cost nothing and only say that ``after[v]`` come after node v."""
    makers = [v for v, found in enumerate(after) if found]
    return {
        "producer": np.array(makers, np.int64),
        "consumers": tuple(tuple(sorted(after[v])) for v in makers),
        "transfer": np.zeros((kinds, len(makers))),
        "tensor_bytes": np.zeros(len(makers), np.int64),
        "tensor_names": tuple(names[v] for v in makers),
    }


def within(problem: Problem, value: float) -> Problem:
    """The problem for plans of load at most ``value``, which keep their loads: a node that takes over ``FAR`` times as long on
    a kind cannot run there, a transfer that does costs no more than that. Beside such numbers (a workload may say 1e30 where
    it means never) differences of sums over ideals would lose all others. The problem itself where there are none."""
    most = FAR * value
    joins = problem.joins
    paid = problem.transfer if joins is None else joins.transfer
    far = np.isfinite(problem.seconds) & (problem.seconds > most)
    if not most > 0 or not (far.any() or (paid > most).any()):
        return problem
    return replace(
        problem,
        seconds=np.where(far, np.inf, problem.seconds),
        transfer=np.minimum(problem.transfer, most),
        joins=None
        if joins is None
        else replace(joins, transfer=np.minimum(joins.transfer, most), seconds=np.where(far, np.inf, joins.seconds)),
    )


@dataclass(frozen=True)
class StageCost:
    """One stage evaluated: seconds by part, bytes by part, and the load under the problem's ``comm``."""

    kind: int
    nodes: tuple[int, ...]
    compute: float
    receive: float
    send: float
    load: float
    weights: int
    workspace: int
    buffers: int

    @property
    def memory(self) -> int:
        return self.weights + self.workspace + self.buffers


def stage_cost(problem: Problem, nodes: Iterable[int], kind: int) -> StageCost:
    """The stage ``nodes`` on a device of ``kind``, from the definition; the solvers are tested against it."""
    inside = sorted(set(nodes))
    member = set(inside)
    compute = math.fsum((*problem.seconds[kind, inside], problem.kinds[kind].handover))
    touched, held = problem.touched
    tensors = sorted({h for v in inside for h in touched[v]})
    outside = [int(maker) not in member for maker in problem.producer[tensors]]
    received = [h for h, out in zip(tensors, outside, strict=True) if out]
    sent = [h for h, out in zip(tensors, outside, strict=True) if not out and not member.issuperset(problem.consumers[h])]
    if problem.borders:
        borders = set(problem.borders)
        compute += math.fsum(problem.transfer[kind, h] for h in (*received, *sent) if h in borders)
        received, sent = [h for h in received if h not in borders], [h for h in sent if h not in borders]
    receive = math.fsum(problem.transfer[kind, received])
    send = math.fsum(problem.transfer[kind, sent])
    weights = sum(problem.weight_bytes[sorted({w for v in inside for w in held[v]})].tolist())
    return StageCost(
        kind,
        tuple(inside),
        compute,
        receive,
        send,
        load(problem.comm, compute, receive, send),
        weights,
        max(problem.live[inside].tolist(), default=0),
        slots(problem.comm) * sum(problem.tensor_bytes[received].tolist()),
    )


def crowding(kinds: Sequence[Kind], chosen: Sequence[int]) -> list[str]:
    """Where stages of the kinds ``chosen`` need more devices than there are, as text."""
    sources, found = taken_from(kinds), []
    for own in dict.fromkeys(sources):
        used = sum(kinds[k].replicas for k in chosen if set(sources[k]) <= set(own))
        if used > (count := sum(kinds[pool].count for pool in own)):
            found.append(f"stages on {used} devices of kind {kinds[own[0]].type}, there are {count}")
    return found


def plan_costs(problem: Problem, stages: Sequence[tuple[int, Sequence[int]]]) -> tuple[StageCost, ...]:
    """Evaluates stages given as (kind, nodes) in pipeline order."""
    return tuple(stage_cost(problem, nodes, kind) for kind, nodes in stages)


def plan_loads(problem: Problem, stages: Sequence[tuple[int, Sequence[int]]]) -> Floats | None:
    """``[G, stages]``: the load of every stage, by side, by summing arrays: as ``stage_cost`` says but for rounding. None for a
    plan that breaks a constraint; bytes, demanded cuts and the number of stages are not looked at."""
    count, kinds = len(stages), np.array([kind for kind, _ in stages], np.int64)
    place = np.full(problem.size, -1, np.int64)
    for s, (_, nodes) in enumerate(stages):
        place[list(nodes)] = s
    whole = sum(len(nodes) for _, nodes in stages) == problem.size and all(nodes for _, nodes in stages)
    if not whole or (place < 0).any() or crowding(problem.kinds, kinds.tolist()):
        return None
    counts = [problem.kinds[kind].replicas for kind in kinds]
    if sum(counts) > problem.devices or min(counts, default=problem.replicas) < problem.replicas:
        return None
    _, reader, tensor = problem.reading
    made, read = place[problem.producer], place[reader]
    if (read < made[tensor]).any():
        return None
    every, kind_of, joins = np.arange(problem.size), kinds[place], problem.joins
    if joins is None:
        compute = np.bincount(place, weights=problem.seconds[kind_of, every], minlength=count)
        compute = compute + np.array([kind.handover for kind in problem.kinds])[kinds]
        moved = distinct((tensor * count + read)[read > made[tensor]])
        receiver, received = moved % count, moved // count
        sent = distinct(received)
        into = np.bincount(receiver, weights=problem.transfer[kinds[receiver], received], minlength=count)
        out = np.bincount(made[sent], weights=problem.transfer[kinds[made[sent]], sent], minlength=count)
        parts = zip(compute.tolist(), into.tolist(), out.tolist(), strict=True)
        loads = np.array([[load(problem.comm, *seconds) for seconds in parts]])
    else:
        net, pin = joins.joining
        held = distinct(net * count + place[pin])
        tensor, stage = held // count, held % count
        parted = np.bincount(tensor, minlength=len(joins.pins))[tensor] > 1
        tensor, stage = tensor[parted], stage[parted]
        paid, side = joins.transfer[kinds[stage], tensor], joins.side[tensor]
        loads = np.array(
            [
                np.bincount(place, weights=seconds[kind_of, every], minlength=count)
                + np.bincount(stage, weights=np.where(side == number, paid, 0.0), minlength=count)
                for number, seconds in enumerate(joins.seconds)
            ]
        )
    return loads if np.isfinite(loads).all() else None


def violations(problem: Problem, stages: Sequence[tuple[int, Sequence[int]]], *, ordered: bool = True) -> list[str]:
    """Every constraint that the stages break, as text; empty for a feasible plan. Shares nothing with the solvers.
    Data may flow backward between stages when ``ordered`` is false (a split that need not be contiguous)."""
    found = []
    place = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    if sorted(v for _, nodes in stages for v in nodes) != list(range(problem.size)):
        found.append("the stages do not cover every node exactly once")
        return found
    for h, readers in enumerate(problem.consumers):
        maker = place[int(problem.producer[h])]
        for v in readers:
            if ordered and place[v] < maker:
                found.append(f"{problem.tensor_names[h]} flows backward, from stage {maker} to stage {place[v]}")
            if h in problem.forced and place[v] == maker:
                found.append(f"no cut at {problem.tensor_names[h]}: stage {maker} makes and reads it")
    found += crowding(problem.kinds, [kind for kind, _ in stages])
    if (used := sum(problem.kinds[kind].replicas for kind, _ in stages)) > problem.devices:
        found.append(f"stages on {used} devices, {problem.devices} may be used")
    if any(problem.kinds[kind].replicas < problem.replicas for kind, _ in stages):
        found.append(f"a stage of fewer than {problem.replicas} replicas")
    if problem.stages is not None and len(stages) != problem.stages:
        found.append(f"{len(stages)} stages, expected {problem.stages}")
    for s, cost in enumerate(plan_costs(problem, stages)):
        limit = problem.kinds[cost.kind].memory
        if not cost.nodes:
            found.append(f"stage {s} is empty")
        if math.isinf(cost.compute):
            found.append(f"stage {s} holds a node that {problem.kinds[cost.kind].type} cannot run")
        if limit is not None and cost.memory > limit:
            found.append(f"stage {s} needs {cost.memory} bytes, its device has {limit}")
    return found
