"""Graphs too large for every prefix of an order: consecutive nodes as one, finer where a plan is cut.

The prefixes of an order of n nodes take n * n / 64 words, and what they cut up to n entries each. Those that end a segment of
the order are prefixes of a quotient, which takes as little room as wanted. The segments are even, half by weight and half by
number of nodes; given a plan along the order, half of them are spent near the places where it is cut, and none reaches over
such a place: so the plan is one of the quotient too, and the next one is no worse.

Invariants: the groups follow each other in the order, so the quotient has no cycle; a stage of the quotient costs what its
nodes cost, since what two groups have in common counts once in both (``merged`` adds up only what is always paid together).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from passes.partition.lattice.bounds.policy import POLICY
from passes.stages.arrays import Ints, csr
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Floats, Problem
from passes.stages.reduce import Groups, quotient


def segments(problem: Problem, order: Sequence[int], weight: Floats, stages: Stages | None, most: int) -> Groups:
    """About ``most`` segments of ``order``, one more for each of the ``stages`` (whose cuts are prefixes of it), and more
    where a cut is demanded or other kinds can run what follows; ``weight[n]`` by node."""
    walked = np.asarray(order, np.int64)
    n = len(walked)
    heavy = weight[walked]
    total = float(heavy.sum())
    share = (heavy / total + 1 / n) / 2 if total > 0 else np.full(n, 1 / n)
    starts = np.zeros(n, np.bool_)
    if stages is not None:
        stage_of = np.empty(n, np.int64)
        for s, (_, nodes) in enumerate(stages):
            stage_of[list(nodes)] = s
        starts[1:] = np.diff(stage_of[walked]) != 0
        reach = np.cumsum(share) * most
        cuts = reach[starts]
        if len(cuts):
            after = np.searchsorted(cuts, reach)
            distance = np.minimum(
                np.abs(reach - cuts[np.maximum(after - 1, 0)]), np.abs(reach - cuts[np.minimum(after, len(cuts) - 1)])
            )
            near = distance <= POLICY.segments_near
            share = share / 2 + near / (2 * near.sum())
    number = np.minimum((np.cumsum(share) * most).astype(np.int64), most - 1)
    starts[1:] |= np.diff(number) != 0
    lacking = np.isinf(problem.seconds)[:, walked]
    changes = (lacking[:, 1:] != lacking[:, :-1]).any(axis=0)
    if changes.sum() <= most:
        starts[1:] |= changes
    place = np.empty(n, np.int64)
    place[walked] = np.arange(n)
    for h in problem.forced:
        if problem.consumers[h]:
            starts[place[list(problem.consumers[h])].min()] = True
    bounds = [0, *np.flatnonzero(starts).tolist(), n]
    return tuple(tuple(sorted(walked[a:b].tolist())) for a, b in itertools.pairwise(bounds) if a < b)


def segmented(problem: Problem, groups: Groups) -> Problem:
    """The quotient by ``groups``, with what is always paid together as one."""
    return merged(quotient(problem, groups))


def merged(problem: Problem) -> Problem:
    """The problem with tensors of one maker and the same readers, and joins of the same nodes and side, as one: wherever one
    is paid, all are, so their seconds and bytes are added. Weights of the same readers likewise."""
    keys = list(zip(problem.producer.tolist(), problem.consumers, strict=True))
    label, first = _numbered([(*key, h in problem.forced) for h, key in enumerate(keys)])
    weight_label, held = _numbered(list(problem.weight_readers))
    joins = problem.joins
    if joins is not None:
        net, kept = _numbered(list(zip(joins.pins, joins.side.tolist(), strict=True)))
        pins = tuple(joins.pins[h] for h in kept)
        joins = replace(joins, pins=pins, side=joins.side[kept], transfer=_added(joins.transfer, net, len(kept)))
    return replace(
        problem,
        producer=problem.producer[first],
        consumers=tuple(problem.consumers[h] for h in first),
        transfer=_added(problem.transfer, label, len(first)),
        tensor_bytes=_added(problem.tensor_bytes[None], label, len(first))[0],
        tensor_names=tuple(problem.tensor_names[h] for h in first),
        weight_bytes=_added(problem.weight_bytes[None], weight_label, len(held))[0],
        weight_readers=tuple(problem.weight_readers[w] for w in held),
        forced=tuple(sorted({int(label[h]) for h in problem.forced})),
        borders=(),
        joins=joins,
    )


def entries(problem: Problem) -> int:
    """Tensors cut by the prefixes of the problem's own order, added up."""
    if problem.joins is not None:
        pointers, pin = csr(problem.joins.pins)
        return int((pin[pointers[1:] - 1] - pin[pointers[:-1]]).sum())
    pointers, reader, _ = problem.reading
    read = np.diff(pointers) > 0
    return int((reader[pointers[1:][read] - 1] - problem.producer[read]).sum())


def _numbered(keys: Sequence[object]) -> tuple[Ints, list[int]]:
    """The number of each key, equal for equal ones, and where each number appears first."""
    numbers: dict[object, int] = {}
    label = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    first: list[int] = np.unique(label, return_index=True)[1].tolist()
    return label, first


def _added(rows: NDArray[Any], label: Ints, count: int) -> NDArray[Any]:
    """``rows[K, H]`` added up by label: ``[K, count]``."""
    sums = np.zeros((len(rows), count), rows.dtype)
    for total, row in zip(sums, rows, strict=True):
        np.add.at(total, label, row)
    return sums
