"""Small random latency problems, and the slow and obvious answer that the solver is compared with."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np

from passes.reference.latency import LatencyProblem, Programs
from passes.reference.latency.liveness import Liveness
from passes.stages.problem import Kind


def random_latency(seed: int, *, nodes: int = 6, pieces: int = 1, kinds: int = 2, devices: int = 2) -> LatencyProblem:
    """A DAG of 1 to ``nodes`` nodes; small whole numbers, so that ties are frequent; weights that cost only bytes, nodes that a
    device cannot run, colours, limits that bind, now and then no CPU at all."""
    rng = random.Random(seed)
    n = rng.randint(1, nodes)
    count = rng.randint(1, kinds)
    density = rng.choice((0.2, 0.35, 0.6))
    producer, consumers = [], []
    for u in range(n):
        readers = tuple(v for v in range(u + 1, n) if rng.random() < density)
        if readers:
            producer.append(u)
            consumers.append(readers)
    seconds = np.array([[float(rng.choice((0, 1, 1, 2, 3))) for _ in range(n)] for _ in range(count)]).reshape(count, n)
    cpu = np.array([float(rng.choice((0, 2, 4, 7))) for _ in range(n)])
    for v in range(n):
        if rng.random() < 0.35:
            cpu[v] = 0.0
            seconds[:, v] = 0.0
        if rng.random() < 0.1:
            seconds[rng.randrange(count), v] = math.inf
        if rng.random() < 0.1:
            cpu[v] = math.inf
    if rng.random() < 0.15:
        cpu[:] = math.inf
    rates = [rng.choice((0.0, 0.5, 1.0, 2.0)) for _ in range(count)]
    sizes = [rng.choice((0, 1, 1, 3)) for _ in producer]
    limits = [rng.choice((None, 0, 3, 5, 8, 12)) for _ in range(count)]
    counts = [rng.randint(1, max(1, devices // count)) for _ in range(count)]
    colours: list[tuple[int, ...]] = []
    if n > 2 and rng.random() < 0.4:
        shuffled = rng.sample(range(n), n)
        cut = rng.randint(2, min(3, n))
        colours.append(tuple(sorted(shuffled[:cut])))
        if n - cut >= 2 and rng.random() < 0.3:
            colours.append(tuple(sorted(shuffled[cut : cut + 2])))
    return LatencyProblem(
        names=tuple(f"%n{v}" for v in range(n)),
        kinds=tuple(Kind(f"kind{k}", tuple(f"d{k}{i}" for i in range(counts[k])), limits[k]) for k in range(count)),
        seconds=seconds,
        cpu=cpu,
        size=np.array([rng.choice((0, 0, 1, 2, 4)) for _ in range(n)], np.int64),
        producer=np.array(producer, np.int64),
        consumers=tuple(consumers),
        transfer=np.array([[rate * size for size in sizes] for rate in rates]).reshape(count, len(producer)),
        colours=tuple(colours),
        pieces=pieces,
    )


def with_programs(problem: LatencyProblem, seed: int) -> LatencyProblem:
    """The problem with weights that nodes share, workspace and buffers, as pieces of a model have them; no colours."""
    rng = random.Random(seed)
    nodes, tensors = range(problem.nodes), len(problem.consumers)
    shared = [tuple(sorted(rng.sample(nodes, rng.randint(1, min(3, problem.nodes))))) for _ in range(rng.randint(0, 2))]
    live, nothing = np.array([rng.choice((0, 0, 1, 2)) for _ in nodes], np.int64), ((),) * problem.nodes
    programs = Programs(
        received=np.array([rng.choice((0, 1, 2)) for _ in range(tensors)], np.int64),
        weight_bytes=np.array([rng.choice((1, 2, 3)) for _ in shared], np.int64),
        weight_readers=tuple(shared),
        liveness=Liveness(np.arange(problem.nodes), live, nothing, nothing, np.zeros(0, np.int64), ()),
    )
    return replace(problem, programs=programs, colours=())


def least_latency(problem: LatencyProblem) -> float:
    """The optimum by trying every assignment of nodes to CPU or (accelerator, piece number); inf when none is feasible."""
    slots = [(k, d, p) for k, kind in enumerate(problem.kinds) for d in range(kind.count) for p in range(problem.pieces)]
    best = math.inf
    for places in itertools.product(range(-1, len(slots)), repeat=problem.nodes):
        best = min(best, _latency(problem, slots, places, best))
    return best


def _latency(problem: LatencyProblem, slots: list[tuple[int, int, int]], places: tuple[int, ...], best: float) -> float:
    used: dict[tuple[int, int], int] = {}
    for v, s in enumerate(places):
        if s < 0:
            if math.isinf(problem.cpu[v]):
                return math.inf
            continue
        k, d, _ = slots[s]
        if math.isinf(problem.seconds[k, v]):
            return math.inf
        used[k, d] = used.get((k, d), 0) + int(problem.size[v])
    for s in sorted(set(places) - {-1}):
        used[slots[s][:2]] += _besides(problem, [v for v, other in enumerate(places) if other == s])
    for (k, _), size in used.items():
        limit = problem.kinds[k].memory
        if limit is not None and size > limit:
            return math.inf
    for colour in problem.colours:
        if len({None if places[v] < 0 else slots[places[v]][:2] for v in colour}) > 1:
            return math.inf
    # Units: a piece, or a node on a CPU. Longest path over what they wait for; a cycle cannot run.
    unit = [("cpu", v) if s < 0 else ("piece", s) for v, s in enumerate(places)]
    length: dict[tuple[str, int], float] = {}
    waits: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for v, s in enumerate(places):
        length[unit[v]] = length.get(unit[v], 0.0) + float(problem.cpu[v] if s < 0 else problem.seconds[slots[s][0], v])
        waits.setdefault(unit[v], set())
    for h, readers in enumerate(problem.consumers):
        maker = unit[int(problem.producer[h])]
        outside = {unit[v] for v in readers} - {maker}
        for other in outside:
            waits[other].add(maker)
            if other[0] == "piece":
                length[other] += float(problem.transfer[slots[other[1]][0], h])
        if outside and maker[0] == "piece":
            length[maker] += float(problem.transfer[slots[maker[1]][0], h])
    for a, b in itertools.permutations([name for name in waits if name[0] == "piece"], 2):
        if slots[a[1]][:2] == slots[b[1]][:2] and slots[a[1]][2] < slots[b[1]][2]:
            waits[b].add(a)
    end: dict[tuple[str, int], float] = {}
    while len(end) < len(waits):
        ready = [name for name in waits if name not in end and all(other in end for other in waits[name])]
        if not ready:
            return math.inf
        for name in ready:
            end[name] = max((end[other] for other in waits[name]), default=0.0) + length[name]
            if end[name] >= best:
                return math.inf
    return max(end.values(), default=0.0)


def _besides(problem: LatencyProblem, nodes: list[int]) -> int:
    """Bytes of a piece that are no sum over its nodes."""
    own = problem.programs
    if own is None:
        return 0
    makers = zip(problem.producer, problem.consumers, own.received, strict=True)
    received = sum(int(size) for maker, readers, size in makers if maker not in nodes and any(v in nodes for v in readers))
    weights = sum(int(size) for size, who in zip(own.weight_bytes, own.weight_readers, strict=True) if set(who) & set(nodes))
    return received + weights + max(int(own.liveness.inner[v]) for v in nodes)
