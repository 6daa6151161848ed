"""Random sharding problems of integers, small ones and repeated ones."""

from __future__ import annotations

import numpy as np

from passes.partition.layouts.problem.graph import Graph, ValueNode
from passes.partition.layouts.problem.problem import NodeKind, ShardProblem, ValueKind


def random_kinds(random: np.random.Generator, layouts: int, kinds: int, most_reads: int) -> tuple[list[NodeKind], ValueKind]:
    """Node kinds with one result, of ``0 .. most_reads`` ports (as many as ``kind % (most_reads + 1)``); needs of
    one or two keys."""
    weights = random.integers(0, 20, (layouts, 2 * layouts)).astype(float)
    weights[:, :layouts][np.diag_indices(layouts)] = 0.0
    needs = [(layout,) for layout in range(layouts)]
    needs += [(int(a), int(layouts + b)) for a, b in random.integers(0, layouts, (layouts, 2))]
    found = []
    for kind in range(kinds):
        count = int(random.integers(2, 5))
        ports = kind % (most_reads + 1)
        found.append(
            NodeKind(
                tuple(map(str, range(count))),
                random.integers(0, 15, count).astype(float),
                random.integers(0, 8, count).astype(float),
                tuple(random.integers(0, len(needs), count) for _ in range(ports)),
                (random.integers(0, layouts, count),),
            )
        )
    return found, ValueKind(weights, tuple(needs))


def random_graph(seed: int, nodes: int) -> ShardProblem:
    """A random acyclic graph: any node may read any earlier one, twice as well."""
    random = np.random.default_rng(seed)
    kinds, value = random_kinds(random, int(random.integers(2, 5)), 6, 2)
    chosen: list[int] = []
    readers: dict[int, list[tuple[int, int]]] = {}
    for node in range(nodes):
        kind = int(random.integers(len(kinds))) if node else 0
        chosen.append(kind)
        for port in range(len(kinds[kind].reads)):
            if node:
                readers.setdefault(int(random.integers(node)), []).append((node, port))
    chosen = [0 if not node else kind for node, kind in enumerate(chosen)]
    values = tuple(ValueNode(0, (maker, 0), tuple(ends)) for maker, ends in sorted(readers.items()))
    return ShardProblem(tuple(kinds), (value,), Graph(tuple(chosen), values))


def random_layers(seed: int, copies: int, size: int) -> ShardProblem:
    """``copies`` equal layers of ``size`` nodes behind a first node: each node reads random earlier ones of its layer, or of
    the layer before, or a node that all layers share."""
    random = np.random.default_rng(seed)
    kinds, value = random_kinds(random, int(random.integers(2, 4)), 6, 2)
    shapes = [int(random.integers(1, len(kinds))) if slot else 1 + int(random.integers(2)) for slot in range(size)]
    wiring = []
    for slot, kind in enumerate(shapes):
        ends = []
        for port in range(len(kinds[kind].reads)):
            near = int(random.integers(-min(2, size), slot)) if slot + port else -1
            ends.append(None if random.random() < 0.15 and (slot or port) else near)
        wiring.append(ends)
    chosen = [0, 3, *shapes * copies]
    readers: dict[int, list[tuple[int, int]]] = {}
    cells = []
    for copy in range(copies):
        start = 2 + copy * size
        cells.append(tuple(range(start, start + size)))
        for slot, ends in enumerate(wiring):
            for port, near in enumerate(ends):
                maker = 1 if near is None else max(start + near, 0) if near >= 0 or copy else 0
                readers.setdefault(maker, []).append((start + slot, port))
    values = tuple(ValueNode(0, (maker, 0), tuple(ends)) for maker, ends in sorted(readers.items()))
    return ShardProblem(tuple(kinds), (value,), Graph(tuple(chosen), values, (tuple(cells),)))


__all__ = ["random_graph", "random_layers"]
