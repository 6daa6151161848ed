"""Latency as plain data: one sample, no pipelining, accelerators that run pieces and CPUs that run single nodes.

A DAG of nodes; every node is on a CPU or in one *piece*, a set of nodes on one accelerator. The model is that of Tarnawski et
al. (NeurIPS 2020, appendix A and the public ``lip.py``):

- An accelerator runs at most ``pieces`` (q) pieces, one after another, in a fixed order. The bytes of all its pieces together
  fit its memory. Those of a piece (``piece_bytes``) are the sizes of its nodes and, where ``programs`` says so, what a
  piece of a model needs besides: weights that several nodes read, workspace, and buffers of what it receives.
- A piece is contiguous: no path leaves and re-enters it. More: all pieces and CPU nodes can be put in one order in which data
  flows forward only (else some piece would wait for itself).
- A piece starts when its accelerator is free and all it reads from outside is ready. It takes, one after the other, what comes
  in + compute + what goes out: ``transfer[k, h]`` once for each tensor h made outside and read inside, and once for each made
  inside and read outside, whatever the number of readers. Where the other side is makes no difference: a CPU, another
  accelerator, or another piece of the same accelerator (tensors between pieces lie in the memory of the host). All that a
  piece makes is ready at its end, not before.
- A node on a CPU starts when all that it reads is ready and takes ``cpu[v]``. There are as many CPUs as the graph is wide;
  they pay nothing for transfers and have no memory limit.
- Nodes of one colour are all on CPUs (any of them), or all on one accelerator (any of its pieces).
- Sources wait for nothing and sinks send nothing.

The latency is the latest end of all, in seconds. ``schedule`` evaluates a plan from this definition; the solver is
tested against it. Accelerators may be of any number of kinds.

Invariants (``LatencyProblem.check``): nodes are in topological order; readers ascending without repeats; seconds >= 0 or inf
(cannot run there), transfers finite and >= 0, sizes >= 0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from passes.reference.latency.liveness import Liveness
from passes.stages.arrays import Ints
from passes.stages.problem import Floats, Kind


@dataclass(frozen=True, eq=False)
class Programs:
    """Bytes of a piece that are no sum over its nodes: by ``liveness`` the most that is alive at once; ``received[H]`` for each
    tensor that it receives; ``weight_bytes[W]`` once for each weight of which it holds one of ``weight_readers``."""

    received: Ints
    weight_bytes: Ints
    weight_readers: tuple[tuple[int, ...], ...]
    liveness: Liveness


@dataclass(frozen=True, eq=False)
class LatencyProblem:
    """See the module. ``kinds``: of accelerators; ``seconds[T, n]``, ``cpu[n]``, ``size[n]`` bytes; tensor h is made by node
    ``producer[h]`` and read by ``consumers[h]``, ``transfer[T, H]``; ``colours``: sets of nodes that share a device."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    seconds: Floats
    cpu: Floats
    size: Ints
    producer: Ints
    consumers: tuple[tuple[int, ...], ...]
    transfer: Floats
    colours: tuple[tuple[int, ...], ...] = ()
    pieces: int = 1
    programs: Programs | None = None

    @property
    def nodes(self) -> int:
        return len(self.names)

    @cached_property
    def makers(self) -> tuple[tuple[int, ...], ...]:
        """Of each node those whose tensors it reads, ascending."""
        found: list[set[int]] = [set() for _ in range(self.nodes)]
        for maker, readers in zip(self.producer.tolist(), self.consumers, strict=True):
            for v in readers:
                found[v].add(maker)
        return tuple(tuple(sorted(own)) for own in found)

    @property
    def accelerators(self) -> int:
        return sum(kind.count for kind in self.kinds)

    def check(self) -> None:
        """Raises ValueError where an invariant of the module docstring is broken."""
        nodes, kinds, tensors = self.nodes, len(self.kinds), len(self.consumers)
        if self.seconds.shape != (kinds, nodes) or self.transfer.shape != (kinds, tensors):
            raise ValueError(f"seconds {self.seconds.shape} or transfer {self.transfer.shape}: {kinds=} {nodes=} {tensors=}")
        if self.pieces < 1:
            raise ValueError(f"pieces is {self.pieces}, expected at least 1")
        for h, readers in enumerate(self.consumers):
            if list(readers) != sorted(set(readers)) or (readers and readers[0] <= self.producer[h]):
                raise ValueError(f"readers {readers} of tensor {h}, made by {self.producer[h]}, are not in topological order")
        for times in (self.seconds, self.cpu):
            if np.isnan(times).any() or (times < 0).any():
                raise ValueError("seconds must be numbers >= 0 or inf")
        if not np.isfinite(self.transfer).all() or (self.transfer < 0).any() or (self.size < 0).any():
            raise ValueError("transfers must be finite and >= 0, sizes >= 0")
        own = self.programs
        if own is not None and any((bytes_ < 0).any() for bytes_ in (own.received, own.weight_bytes)):
            raise ValueError("bytes must be >= 0")


@dataclass(frozen=True, order=True)
class Piece:
    """What one accelerator, number ``device`` of its ``kind``, runs at one go; ``nodes`` ascending."""

    kind: int
    device: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class PieceTimes:
    """A piece in time, in seconds: ``finish`` = ``start`` + ``receive`` + ``compute`` + ``send``."""

    start: float
    finish: float
    compute: float
    receive: float
    send: float


@dataclass(frozen=True)
class Schedule:
    """A plan evaluated. ``ready[v]``: when what node v makes can be read; ``latency``: the latest end."""

    pieces: tuple[Piece, ...]
    times: tuple[PieceTimes, ...]
    ready: tuple[float, ...]
    latency: float

    @property
    def on_cpu(self) -> tuple[int, ...]:
        """Nodes in no piece, ascending."""
        inside = {v for piece in self.pieces for v in piece.nodes}
        return tuple(v for v in range(len(self.ready)) if v not in inside)


def piece_parts(problem: LatencyProblem, nodes: Iterable[int], kind: int) -> tuple[float, float, float]:
    """Seconds that a piece computes, receives and sends on an accelerator of ``kind``."""
    inside = set(nodes)
    received = [
        h
        for h, readers in enumerate(problem.consumers)
        if int(problem.producer[h]) not in inside and not inside.isdisjoint(readers)
    ]
    sent = [
        h
        for h, readers in enumerate(problem.consumers)
        if int(problem.producer[h]) in inside and any(v not in inside for v in readers)
    ]
    row = problem.transfer[kind]
    return math.fsum(problem.seconds[kind, sorted(inside)]), math.fsum(row[received]), math.fsum(row[sent])


def piece_bytes(problem: LatencyProblem, nodes: Iterable[int]) -> int:
    """Bytes that a piece takes of its accelerator's memory."""
    inside = set(nodes)
    total = sum(int(problem.size[v]) for v in inside)
    own = problem.programs
    if own is None:
        return total
    for h, readers in enumerate(problem.consumers):
        if int(problem.producer[h]) not in inside and not inside.isdisjoint(readers):
            total += int(own.received[h])
    for size, readers in zip(own.weight_bytes.tolist(), own.weight_readers, strict=True):
        total += 0 if inside.isdisjoint(readers) else size
    return total + own.liveness.workspace(inside)


def schedule(problem: LatencyProblem, pieces: Sequence[Piece]) -> Schedule:
    """The plan whose pieces, in the order given, are all that accelerators do; every other node is on a CPU. Pieces of one
    accelerator run in that order. Raises ValueError where some piece would wait for itself."""
    home = {v: p for p, piece in enumerate(pieces) for v in piece.nodes}
    makers = problem.makers
    ready = [-1.0] * problem.nodes
    times: list[PieceTimes | None] = [None] * len(pieces)
    free: dict[tuple[int, int], float] = {}
    upcoming = 0
    waiting = list(range(problem.nodes))
    while True:
        left = []
        for v in waiting:
            if v not in home and all(ready[u] >= 0 for u in makers[v]):
                ready[v] = max((ready[u] for u in makers[v]), default=0.0) + float(problem.cpu[v])
            elif ready[v] < 0:
                left.append(v)
        waiting = left
        if upcoming == len(pieces):
            break
        piece = pieces[upcoming]
        inside = set(piece.nodes)
        outside = {u for v in piece.nodes for u in makers[v]} - inside
        if any(ready[u] < 0 for u in outside):
            raise ValueError(f"piece {upcoming} reads what is made after it")
        device = (piece.kind, piece.device)
        start = max([free.get(device, 0.0), *(ready[u] for u in outside)])
        compute, receive, send = piece_parts(problem, piece.nodes, piece.kind)
        finish = start + (compute + receive + send)
        times[upcoming] = PieceTimes(start, finish, compute, receive, send)
        free[device] = finish
        for v in piece.nodes:
            ready[v] = finish
        upcoming += 1
    if waiting:
        raise ValueError(f"{len(waiting)} nodes are never ready")
    return Schedule(tuple(pieces), tuple(t for t in times if t is not None), tuple(ready), max(ready, default=0.0))


def filled(problem: LatencyProblem, kinds: Sequence[int]) -> list[Piece]:
    """Accelerators in the order of their ``kinds``, each with as many of the next nodes as it holds and runs; empty where some
    nodes are left."""
    pieces, first = list[Piece](), 0

    def behind_last(kind: int) -> int:
        """The first node that such an accelerator cannot take too."""
        limit, stuck = problem.kinds[kind].memory, np.flatnonzero(np.isinf(problem.seconds[kind, first:]))
        ends = range(first + 1, 1 + (first + int(stuck[0]) if len(stuck) else problem.nodes))
        if limit is None:
            return ends.stop - 1
        return first + bisect_right(ends, limit, key=lambda end: piece_bytes(problem, range(first, end)))

    for kind in kinds:
        for device in range(problem.kinds[kind].count):
            if (behind := behind_last(kind)) > first:
                pieces.append(Piece(kind, device, tuple(range(first, behind))))
                first = behind
    return pieces if first == problem.nodes else []


def faults(problem: LatencyProblem, pieces: Sequence[Piece]) -> list[str]:
    """Every rule that a plan breaks, as text; empty for a feasible plan. Order is ``schedule``'s to judge."""
    found = []
    home: dict[int, int] = {}
    for p, piece in enumerate(pieces):
        for v in piece.nodes:
            if home.setdefault(v, p) != p:
                found.append(f"node {v} is in pieces {home[v]} and {p}")
        if not piece.nodes:
            found.append(f"piece {p} is empty")
        if not 0 <= piece.device < problem.kinds[piece.kind].count:
            found.append(f"piece {p} is on accelerator {piece.device} of {problem.kinds[piece.kind].count}")
        if np.isinf(problem.seconds[piece.kind, list(piece.nodes)]).any():
            found.append(f"piece {p} holds a node that its accelerator cannot run")
    for device in sorted({(piece.kind, piece.device) for piece in pieces}):
        own = [piece for piece in pieces if (piece.kind, piece.device) == device]
        limit = problem.kinds[device[0]].memory
        used = sum(piece_bytes(problem, piece.nodes) for piece in own)
        if len(own) > problem.pieces:
            found.append(f"accelerator {device} runs {len(own)} pieces of at most {problem.pieces}")
        if limit is not None and used > limit:
            found.append(f"accelerator {device} holds {used} bytes of at most {limit}")
    for v in range(problem.nodes):
        if v not in home and math.isinf(problem.cpu[v]):
            found.append(f"node {v} is on a CPU, which cannot run it")
    for colour in problem.colours:
        places = {(pieces[home[v]].kind, pieces[home[v]].device) if v in home else None for v in colour}
        if len(places) > 1:
            found.append(f"nodes {colour} of one colour are on {len(places)} devices")
    return found
