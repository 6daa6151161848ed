"""Replication: a stage on r devices of one type, of which each handles every r-th sample.

A device of the stage is busy with compute, transfers and hand-over once in r samples, so per sample for an r-th of their
seconds; it holds what the stage would hold alone. So a stage on r devices is a stage on one device of another kind, r times as
fast, which takes r devices of those there are. ``replicate`` adds these kinds; all else (windows, bounds, the programme) then
holds as it stands, at r times the price (``bounds.prices``): a stage of load at most T does at most r T seconds of work. Where
ports differ, the slowest of its devices says which kind a stage is of, and the others may be ``better`` ones (``problem``).

Of a decoder, whose groups of sequences each stay on one device of a stage, the replicas take equally many groups. Nothing else
is refused replicas: at inference no sample depends on the one before, and at training a colour (forward and backward
nodes of the same weights) is whole on each replica. Devices with free transfers replicate like others. The largest node is no
bound any more as it stands: its least share is, on as many devices as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from passes.graph.serving import shared_evenly
from passes.stages.problem import Kind, Problem

MOST_REPLICAS = 1024
"""Devices of a stage: each number of them is a kind of its own, and the programme has room for so many."""


def replicated_kinds(kinds: Sequence[Kind], most: int, groups: int = 0) -> tuple[tuple[Kind, ...], tuple[int, ...]]:
    """The kinds, then each with 2 to ``most`` devices per stage as far as it has them, in numbers that share ``groups`` evenly;
    and which one each was made of."""
    made = [(k, r) for k, kind in enumerate(kinds) for r in range(2, min(most, kind.most) + 1) if shared_evenly(groups, r)]
    every = [(k, 1) for k in range(len(kinds))] + sorted(made, key=lambda pair: (pair[1], pair[0]))
    return tuple(replace(kinds[k], replicas=r, handover=kinds[k].handover / r) for k, r in every), tuple(k for k, _ in every)


def replicate(problem: Problem, most: int) -> Problem:
    """The problem whose stages may run on up to ``most`` devices of a type."""
    kinds, origin = replicated_kinds(problem.kinds, most, problem.sequences)
    share = np.array([kind.replicas for kind in kinds], np.float64)[:, None]
    rows = list(origin)
    return replace(
        problem,
        kinds=kinds,
        seconds=np.ascontiguousarray(problem.seconds[rows] / share),
        transfer=np.ascontiguousarray(problem.transfer[rows] / share),
    )
