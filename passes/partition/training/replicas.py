"""Replicas of training stages: copies of a stage also average their gradients.

At training r replicas also average their gradients: 4 (r-1) W / (B r) seconds for W bytes of weights at B bytes/s, after each
minibatch of their own (PipeDream, SOSP 2019, section 3.1; its four halves of an all-reduce each way), hence a further r-th of
that per minibatch of the pipeline; or, with a flush every N microbatches, once in N (Piper, NeurIPS 2021, section 3). That is
the same for every byte, so it adds to the backward seconds of each unit. Fewer microbatches than replicas would leave some
idle, so r is at most N. Devices with free transfers synchronise for nothing, as they send for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from passes.model.stages.problem import Ints, Problem
from passes.partition.search.replicas import replicated_kinds
from passes.partition.training.problem import joined


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
    share, rows, joins = np.array([kind.replicas for kind in kinds], np.float64), list(origin), joined(problem)
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


__all__ = ["Replication", "replicate_training"]
