"""Replication: a stage on r devices of one kind, of which each handles every r-th sample.

A device of the stage is busy with compute and transfers once in r samples, so per sample for an r-th of their seconds; it holds
what the stage would hold alone. So a stage on r devices is a stage on one device of another kind, r times as fast, which
takes r devices of those there are. ``replicate`` adds these kinds; all else (windows, bounds, the programme) then holds as it
stands, at r times the price (``bounds.prices``): a stage of load at most T does at most r T seconds of work.

Nothing is refused replicas: at inference no sample depends on the one before, and at training a colour (forward and backward
nodes of the same weights) is whole on each replica. Devices with free transfers replicate like others. The largest node is no
bound any more as it stands: its least share is, on as many devices as there are.

At training r replicas also average their gradients: 4 (r-1) W / (B r) seconds for W bytes of weights at B bytes/s, after each
minibatch of their own (PipeDream, SOSP 2019, section 3.1; its four halves of an all-reduce each way), hence a further r-th of
that per minibatch of the pipeline; or, with a flush every N microbatches, once in N (Piper, NeurIPS 2021, section 3). That is
the same for every byte, so it adds to the backward seconds of each unit. Fewer microbatches than replicas would leave some
idle, so r is at most N. Devices with free transfers synchronise for nothing, as they send for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from passes.model.stages.problem import Ints, Kind, Problem

if TYPE_CHECKING:
    from passes.partition.training.problem import TrainingProblem


MOST_REPLICAS = 1024
"""Devices of a stage: each number of them is a kind of its own, and the programme has room for so many."""


def replicated_kinds(kinds: Sequence[Kind], most: int) -> tuple[tuple[Kind, ...], tuple[int, ...]]:
    """The kinds, then each with 2 to ``most`` devices per stage as far as it has them; and which one each was made of."""
    made = [(k, r) for k, kind in enumerate(kinds) for r in range(2, min(most, kind.count) + 1)]
    every = [(k, 1) for k in range(len(kinds))] + sorted(made, key=lambda pair: (pair[1], pair[0]))
    return tuple(replace(kinds[k], replicas=r) for k, r in every), tuple(k for k, _ in every)


def replicate(problem: Problem, most: int) -> Problem:
    """The problem whose stages may run on up to ``most`` devices of a kind."""
    kinds, origin = replicated_kinds(problem.kinds, most)
    share = np.array([kind.replicas for kind in kinds], np.float64)[:, None]
    rows = list(origin)
    return replace(
        problem,
        kinds=kinds,
        seconds=np.ascontiguousarray(problem.seconds[rows] / share),
        transfer=np.ascontiguousarray(problem.transfer[rows] / share),
    )


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


def replicate_training(problem: TrainingProblem, replication: Replication) -> TrainingProblem:
    """The problem whose stages may have replicas; ``replication.weights`` are those of its units."""
    most = replication.most if replication.microbatches is None else min(replication.most, replication.microbatches)
    kinds, origin = replicated_kinds(problem.kinds, most)
    share = np.array([kind.replicas for kind in kinds], np.float64)
    seconds = problem.seconds[:, list(origin)] / share[None, :, None]
    for k, kind in enumerate(kinds):
        seconds[1, k] += replication.sync(origin[k], kind.replicas) * replication.weights
    transfer = np.ascontiguousarray(problem.transfer[list(origin)] / share[:, None])
    return replace(problem, kinds=kinds, seconds=seconds, transfer=transfer)


__all__ = ["MOST_REPLICAS", "Replication", "replicate", "replicate_training", "replicated_kinds"]
