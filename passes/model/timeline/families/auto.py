"""1F1B as deep as slow links ask for: the least depths with which every stage reaches the pace of the slowest."""

from __future__ import annotations

import math

from passes.model.timeline.families.base import Orders
from passes.model.timeline.families.one_f_one_b import in_turn
from passes.model.timeline.workload import Workload


def auto(load: Workload, microbatches: int) -> Orders:
    return in_turn(load, microbatches, derived_depths(load, microbatches))


def derived_depths(load: Workload, microbatches: int) -> list[int]:
    """The least depths with which every stage reaches the pace of the slowest: that of stage i covers, for every later stage r,
    the way to r and back in units of that pace, and what r has in flight itself.

    With X the seconds of a stage's two passes and c the delay of a transfer each way, the steady period of depths w is the
    maximum, over i <= r, of (X_i + .. + X_r + 2 (c_i + .. + c_(r-1))) / (w_i - w_r + 1)."""
    count = len(load.compute)
    alone = load.comm == "sum"  # a transfer then takes time of the stages at its ends, and is no delay
    both = [(f + b) / len(on) for f, b, on in zip(load.compute, load.backward, load.flow.takers, strict=True)]
    delay = [0.0] * max(0, count - 1)
    for wire in load.wires:
        if alone:
            both[wire.source] += wire.send / len(load.flow.takers[wire.source])
            both[wire.target] += wire.receive / len(load.flow.takers[wire.target])
        elif wire.target == wire.source + 1:
            delay[wire.source] = max(delay[wire.source], wire.send + wire.receive)
    pace = max(both, default=0.0)
    depths = [1] * count
    for i in reversed(range(count - 1)):
        way, needed = both[i], depths[i + 1]
        for r in range(i + 1, count):
            way += both[r] + 2 * delay[r - 1]
            needed = max(needed, math.ceil(way / pace - 1e-9) + depths[r] - 1 if pace else 1)
        depths[i] = needed
    return [min(microbatches, depth * len(on)) for depth, on in zip(depths, load.flow.takers, strict=True)]
