"""Small random problems, and the slow and obvious answers that the solvers are compared with."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from functools import cache

import numpy as np

from passes.stages.problem import Kind, Problem, stage_cost


def random_problem(
    seed: int, *, nodes: int = 6, comm: str = "sum", memory: bool = True, demands: bool = True, handover: bool = False
) -> Problem:
    """A DAG of 1 to ``nodes`` nodes on 1 to 3 kinds. Small whole numbers, so that ties are frequent; now and then kinds that
    cannot run a node, zero costs, shared weights, limits that bind, demanded cuts, a prescribed number of stages, and with
    ``handover`` seconds of any stage."""
    rng, other = random.Random(seed), random.Random(seed + 1)
    n = rng.randint(1, nodes)
    kinds = rng.randint(1, 3)
    density = rng.choice((0.2, 0.4, 0.7))
    producer, consumers = [], []
    for u in range(n):
        for _ in range(rng.choice((1, 1, 2))):
            readers = tuple(v for v in range(u + 1, n) if rng.random() < density)
            if readers:
                producer.append(u)
                consumers.append(readers)
    seconds = np.array([[float(rng.choice((0, 1, 2, 3, 5))) for _ in range(n)] for _ in range(kinds)]).reshape(kinds, n)
    zero = [v for v in range(n) if rng.random() < 0.3]
    seconds[:, zero] = 0.0
    if rng.random() < 0.3:
        for v in range(n):
            if rng.random() < 0.3:
                seconds[rng.randrange(kinds), v] = math.inf
    rates = [rng.choice((0.0, 0.5, 1.0, 3.0)) for _ in range(kinds)]
    sizes = np.array([rng.choice((0, 1, 2, 4)) for _ in producer], np.int64)
    weights = [(rng.randint(1, 8), (v,)) for v in range(n) if rng.random() < 0.7]
    if n > 1 and rng.random() < 0.5:
        weights.append((rng.randint(1, 9), tuple(sorted(rng.sample(range(n), 2)))))
    limits = [rng.choice((None, 6, 10, 15, 25)) if memory else None for _ in range(kinds)]
    counts = [rng.randint(1, 3) for _ in range(kinds)]
    return Problem(
        names=tuple(f"%n{v}" for v in range(n)),
        kinds=tuple(
            Kind(
                f"kind{k}",
                tuple(f"d{k}{i}" for i in range(counts[k])),
                limits[k],
                handover=float(other.choice((0, 0, 1, 4))) if handover else 0.0,
            )
            for k in range(kinds)
        ),
        seconds=seconds,
        producer=np.array(producer, np.int64),
        consumers=tuple(consumers),
        transfer=np.array([[rate * size for size in sizes] for rate in rates]).reshape(kinds, len(producer)),
        tensor_bytes=sizes,
        tensor_names=tuple(f"%t{h}" for h in range(len(producer))),
        live=np.array([rng.randint(0, 6) for _ in range(n)], np.int64),
        weight_bytes=np.array([size for size, _ in weights], np.int64),
        weight_readers=tuple(readers for _, readers in weights),
        comm=comm,
        forced=(rng.randrange(len(producer)),) if demands and producer and rng.random() < 0.2 else (),
        stages=rng.randint(1, 4) if demands and rng.random() < 0.25 else None,
    )


def of_unlike_ports(problem: Problem, seed: int) -> Problem:
    """The problem with the devices of each kind divided into up to three kinds of one type, each with slower ports than those
    before it, and some with less memory; listed in any order."""
    rng, rows = random.Random(seed), list[tuple[Kind, int, int]]()
    for number, kind in enumerate(problem.kinds):
        left, better, memory = kind.devices, tuple[tuple[str, ...], ...](), kind.memory
        for slower in (1, 2, 5):
            cut = rng.randint(0, len(left)) if slower < 5 else len(left)
            own, left = left[:cut], left[cut:]
            if own:
                rows.append((replace(kind, devices=own, memory=memory, better=better), number, slower))
                better = own, *better
                memory = memory if memory is None or rng.random() < 0.7 else max(1, memory - rng.randint(1, 5))
    rng.shuffle(rows)
    numbers, rates = [number for _, number, _ in rows], np.array([slower for *_, slower in rows], np.float64)
    return replace(
        problem,
        kinds=tuple(kind for kind, *_ in rows),
        seconds=np.ascontiguousarray(problem.seconds[numbers]),
        transfer=np.ascontiguousarray(problem.transfer[numbers] * rates[:, None]),
    )


def ideals(problem: Problem) -> list[frozenset[int]]:
    """Every downset, by testing every subset."""
    edges = [(int(u), v) for u, readers in zip(problem.producer, problem.consumers, strict=True) for v in readers]
    subsets = itertools.chain.from_iterable(itertools.combinations(range(problem.size), k) for k in range(problem.size + 1))
    return [s for s in map(frozenset, subsets) if all(u in s for u, v in edges if v in s)]


def brute_force(problem: Problem, most: int = 1) -> float:
    """The optimum from the definition: every chain of downsets with every type and, up to ``most``, number of devices of each
    kind of it that share a stage, which is as slow as the slowest; inf when there is no plan."""
    downsets = ideals(problem)
    everything = frozenset(range(problem.size))

    @cache
    def stage(nodes: frozenset[int], kind: int) -> float:
        for h in problem.forced:
            if int(problem.producer[h]) in nodes and nodes & set(problem.consumers[h]):
                return math.inf
        cost = stage_cost(problem, nodes, kind)
        limit = problem.kinds[kind].memory
        return math.inf if limit is not None and cost.memory > limit else cost.load

    @cache
    def rest(done: frozenset[int], left: tuple[int, ...], used: int) -> float:
        if done == everything:
            return 0.0 if problem.stages is None or used == problem.stages else math.inf
        best = math.inf
        for wider in downsets:
            if not done < wider:
                continue
            for type_ in types:
                own = [range(count + 1 if kind.type == type_ else 1) for count, kind in zip(left, problem.kinds, strict=True)]
                for taken in itertools.product(*own):
                    if problem.replicas <= sum(taken) <= most:
                        here = max(stage(wider - done, kind) for kind, count in enumerate(taken) if count) / sum(taken)
                        fewer = tuple(c - t for c, t in zip(left, taken, strict=True))
                        if here < best and sum(kind.count for kind in problem.kinds) - sum(fewer) <= problem.devices:
                            best = min(best, max(here, rest(wider, fewer, used + 1)))
        return best

    types = dict.fromkeys(kind.type for kind in problem.kinds)

    return rest(frozenset(), tuple(kind.count for kind in problem.kinds), 0)


class Layers:
    """Builds large problems op by op, in units of one hidden-by-hidden product: seconds = work + 0.02, one tensor per op."""

    def __init__(self) -> None:
        self.work: list[float] = []
        self.size: list[int] = []
        self.reads: list[tuple[int, ...]] = []

    def op(self, work: float, size: int, *operands: int) -> int:
        self.work.append(work + 0.02)
        self.size.append(size)
        self.reads.append(operands)
        return len(self.work) - 1

    def attention(self, x: int, memory: int, mask: int) -> int:
        query = self.op(1, 4, x)
        key = self.op(0.02, 4, self.op(1, 4, memory))
        value = self.op(1, 4, memory)
        scores = self.op(0.02, 4, self.op(0.1, 4, query, key), mask)
        mixed = self.op(0.1, 4, self.op(0.05, 4, scores), value)
        return self.op(0.02, 4, x, self.op(1, 4, mixed))

    def feed(self, x: int) -> int:
        return self.op(0.02, 4, x, self.op(4, 4, self.op(0.1, 16, self.op(4, 16, self.op(0.05, 4, x)))))

    def problem(self, devices: int, *, rate: float = 0.02, memory: int | None = None) -> Problem:
        n = len(self.work)
        readers: list[list[int]] = [[] for _ in range(n)]
        for v, operands in enumerate(self.reads):
            for u in sorted(set(operands)):
                readers[u].append(v)
        made = [u for u in range(n) if readers[u]]
        return Problem(
            names=tuple(f"%{v}" for v in range(n)),
            kinds=(Kind("acc", tuple(f"d{i}" for i in range(devices)), memory),),
            seconds=np.array([self.work]),
            producer=np.array(made, np.int64),
            consumers=tuple(tuple(readers[u]) for u in made),
            transfer=np.array([[rate * self.size[u] for u in made]]),
            tensor_bytes=np.array([self.size[u] for u in made], np.int64),
            tensor_names=tuple(f"%t{u}" for u in made),
            live=np.zeros(n, np.int64),
            weight_bytes=np.array([int(10 * w) for w in self.work], np.int64),
            weight_readers=tuple((v,) for v in range(n)),
        )


def encoder_decoder(layers: int, devices: int = 8) -> Problem:
    """``layers`` encoder and as many decoder layers; every decoder layer reads the encoder's last output for its keys and
    values, and a mask made at the start: side chains that each multiply the lattice."""
    build = Layers()
    mask = build.op(0.02, 1)
    x = build.op(0.1, 4)
    for _ in range(layers):
        x = build.feed(build.attention(x, x, mask))
    encoded = x
    y = build.op(0.1, 4)
    causal = build.op(0.02, 1)
    for _ in range(layers):
        y = build.feed(build.attention(build.attention(y, y, causal), encoded, mask))
    build.op(8, 4, y)
    return build.problem(devices)


def experts(count: int, layers: int = 2, devices: int = 8) -> Problem:
    """Mixture of experts: in each layer ``count`` identical chains between a router and a sum."""
    build = Layers()
    x = build.op(0.1, 4)
    for _ in range(layers):
        router = build.op(0.1, 1, x)
        parts = [build.op(1, 1, build.op(0.02, 1, build.op(1, 1, build.op(0.02, 1, x, router)))) for _ in range(count)]
        x = build.op(0.1, 4, x, *parts)
    return build.problem(devices)


def series_parallel(seed: int, nodes: int = 150, devices: int = 8) -> Problem:
    """A random series-parallel graph of at least so many nodes."""
    rng = random.Random(seed)
    build = Layers()

    def block(x: int, depth: int) -> int:
        shape = rng.random()
        if depth == 0 or shape < 0.2:
            return build.op(rng.uniform(0, 2), rng.choice((1, 2, 4)), x)
        if shape < 0.6:
            for _ in range(rng.randint(2, 3)):
                x = block(x, depth - 1)
            return x
        return build.op(0.05, 2, *[block(x, depth - 1) for _ in range(rng.randint(2, 4))])

    x = build.op(0.1, 4)
    while len(build.work) < nodes:
        x = block(x, 4)
    return build.problem(devices, rate=0.05)


def blocks(length: int, devices: int, count: int = 6) -> Problem:
    """``count`` blocks in a row of two branches of ``length`` nodes each, no two alike: (length + 1) ** 2 ideals a block."""
    rng = random.Random(length)
    build = Layers()
    x = build.op(1.0, 4)
    for _ in range(count):
        ends = []
        for _ in range(2):
            y = x
            for _ in range(length):
                y = build.op(rng.uniform(0.5, 2), rng.choice((1, 2, 4)), y)
            ends.append(y)
        x = build.op(1.0, 4, *ends)
    return build.problem(devices, rate=0.05)


def random_chains(seed: int, *, comm: str = "sum") -> Problem:
    """Mostly chains, with transfers of about the size of compute and limits that just bind: where reductions apply, and where
    they must not."""
    rng = random.Random(seed)
    n = rng.randint(3, 6)
    reads: list[set[int]] = [set() for _ in range(n)]
    for v in range(1, n):
        if rng.random() < 0.9:
            reads[v].add(v - 1 if rng.random() < 0.7 else rng.randrange(v))
        if rng.random() < 0.2:
            reads[v].add(rng.randrange(v))
    made = [u for u in range(n) if any(u in r for r in reads)]
    kinds = rng.randint(1, 2)
    counts = [rng.randint(1, 3 - kinds + 1) for _ in range(kinds)]
    seconds = np.array([[rng.choice((0.0, 0.0, 0.5, 1.0, 2.0, 4.0)) for _ in range(n)] for _ in range(kinds)])
    sizes = np.array([rng.choice((1, 2, 3, 6)) for _ in made], np.int64)
    rates = [rng.choice((0.0, 0.25, 0.5, 1.0)) for _ in range(kinds)]
    weights = [rng.choice((0, 0, 4)) for _ in range(n)]
    live = np.array([rng.choice((0, 0, 1, 8)) for _ in range(n)], np.int64)
    tight = rng.choice((None, 0.5, 0.7))
    limit = None if tight is None else int(tight * (sum(weights) + int(live.max()) + 4 * int(sizes.max(initial=0)))) + 1
    return Problem(
        names=tuple(f"%n{v}" for v in range(n)),
        kinds=tuple(Kind(f"kind{k}", tuple(f"d{k}{i}" for i in range(counts[k])), limit) for k in range(kinds)),
        seconds=seconds.reshape(kinds, n),
        producer=np.array(made, np.int64),
        consumers=tuple(tuple(v for v in range(n) if u in reads[v]) for u in made),
        transfer=np.array([[rate * size for size in sizes] for rate in rates]).reshape(kinds, len(made)),
        tensor_bytes=sizes,
        tensor_names=tuple(f"%t{u}" for u in made),
        live=live,
        weight_bytes=np.array(weights, np.int64),
        weight_readers=tuple((v,) for v in range(n)),
        comm=comm,
        forced=(rng.randrange(len(made)),) if made and rng.random() < 0.15 else (),
    )
