"""The best sequence of stages, given what each run of units costs on each form of mesh: dynamic programmes.

A plan cuts the units into runs and gives them blocks of devices, both in order; devices may stay idle. ``least`` minimises the
largest seconds of a stage, in O(blocks * units^2): f[d, j], the least over plans of the first j units on the first d devices,
is the minimum over blocks that end at d of max(f[block's first, i], seconds[i, j]). ``shortest`` minimises the sum of the
stages' seconds among plans whose stages stay below a limit. The number of stages may be fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from passes.shard.problem import Floats
from passes.shard.submeshes import Block, Submeshes


@dataclass(frozen=True, slots=True)
class StageRun:
    """Units ``first .. behind - 1`` on a block."""

    first: int
    behind: int
    block: Block


@dataclass(frozen=True, slots=True)
class Sequenced:
    """``value``: what was minimised; inf, without runs, where nothing fits."""

    value: float
    runs: tuple[StageRun, ...]


def least(seconds: Sequence[Floats], meshes: Submeshes, stages: int = 0) -> Sequenced:
    """Least largest seconds. ``seconds[form][i, j]`` of the run of units i .. j - 1; ``stages``: exactly so many, 0 for any."""
    return _programme(seconds, meshes, stages, np.maximum)


def shortest(seconds: Sequence[Floats], meshes: Submeshes, limit: float, stages: int = 0) -> Sequenced:
    """Least sum of seconds of stages that each take at most ``limit``."""
    return _programme([np.where(table <= limit, table, np.inf) for table in seconds], meshes, stages, np.add)


def _programme(
    seconds: Sequence[Floats], meshes: Submeshes, stages: int, join: Callable[[Floats, Floats], Floats]
) -> Sequenced:
    units = seconds[0].shape[0]
    layers = stages + 1 if stages else 1
    # best[s, d, j]: with any number of stages there is one layer, which reads itself.
    best = np.full((layers, meshes.devices + 1, units + 1), math.inf)
    best[0, :, 0] = 0.0
    came: dict[tuple[int, int], tuple[Floats, np.ndarray, np.ndarray]] = {}
    by_end: dict[int, list[int]] = {}
    for number, block in enumerate(meshes.blocks):
        by_end.setdefault(block.behind, []).append(number)
    for layer in range(1 if stages else 0, layers):
        before = layer - 1 if stages else 0
        for d in range(1, meshes.devices + 1):
            value = best[layer, d]
            np.minimum(value, best[layer, d - 1], out=value)
            idle = np.full(units + 1, -1)
            start = np.zeros(units + 1, np.int64)
            for number in by_end.get(d, ()):
                block = meshes.blocks[number]
                table = join(best[before, block.first, :units, None], seconds[block.form])  # [i, j]
                first = table.argmin(axis=0)
                found = table[first, np.arange(units + 1)]
                better = found < value
                value[better] = found[better]
                idle[better] = number
                start[better] = first[better]
            came[layer, d] = (value, idle, start)
    layer, d, j = layers - 1, meshes.devices, units
    total = float(best[layer, d, j])
    runs: list[StageRun] = []
    while j and math.isfinite(total):
        _, chosen, start = came[layer, d]
        if chosen[j] < 0:
            d -= 1
            continue
        block = meshes.blocks[chosen[j]]
        runs.append(StageRun(int(start[j]), j, block))
        j, d, layer = int(start[j]), block.first, max(layer - 1, 0) if stages else 0
    return Sequenced(total, tuple(reversed(runs)))


__all__ = ["Sequenced", "StageRun", "least", "shortest"]
