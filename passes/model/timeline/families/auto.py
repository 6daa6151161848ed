"""1F1B as deep as slow links ask for, whose gradients leave before W: the least depths with which every stage reaches the pace
of the slowest, or as deep as memory allows.

The backward pass is split, W right behind I, so a gradient is on its way while its stage makes those of its weights: no more is
in flight than without, and the bubble of equal stages is (S-1)(F+I)."""

from __future__ import annotations

import math
from collections import defaultdict

from ir.rows import RECEIVE, SEND, lane_of
from passes.model.timeline.families.base import Orders
from passes.model.timeline.families.zero_bubble import split_turns
from passes.model.timeline.workload import Workload


def auto(load: Workload, microbatches: int) -> Orders:
    depths = derived_depths(load, microbatches)
    if load.room:
        depths = [min(depth, room) for depth, room in zip(depths, load.room, strict=True)]
    return split_turns(load, microbatches, depths, [0] * len(depths))


def derived_depths(load: Workload, microbatches: int) -> list[int]:
    """Microbatches in flight of each stage, those of all replicas together: for every later stage r, that of stage i covers the
    way to r and back, in units of the pace of the slowest device or lane, beside what r has in flight itself.

    With X the seconds of a stage's passes, Y those without W, and c the delay of a transfer each way, the steady period of
    depths w is the maximum, over i <= r, of (X_i + Y_(i+1) + .. + Y_r + 2 (c_i + .. + c_(r-1))) / (w_i - w_r + 1): from I of
    r back to i, W and F there, and forth again, as often as r is ahead."""
    takers = load.flow.takers
    count = len(load.compute)
    whole = [(f + b) / len(on) for f, b, on in zip(load.compute, load.backward, takers, strict=True)]
    delay = [0.0] * max(0, count - 1)
    lanes: dict[tuple[str, str], float] = defaultdict(float)
    for wire in load.wires:
        for stage, seconds, kind in ((wire.source, wire.send, SEND), (wire.target, wire.receive, RECEIVE)):
            if load.comm == "sum":  # a transfer takes time of the stages at its ends, and is no delay
                whole[stage] += seconds / len(takers[stage])
            else:
                lanes[takers[stage][0], lane_of(kind, load.comm)] += seconds / len(takers[stage])
        if load.comm != "sum" and wire.target == wire.source + 1:
            delay[wire.source] = max(delay[wire.source], wire.send + wire.receive)
    for stage, on in enumerate(takers):
        lanes[on[0], "compute"] += whole[stage]
    pace = max(lanes.values(), default=0.0)
    own = [(w / len(on)) for w, on in zip(load.weights or [0.0] * count, takers, strict=True)]
    depths = [1] * count
    for i in reversed(range(count - 1)):
        way, needed = whole[i], depths[i + 1]
        for r in range(i + 1, count):
            way += whole[r] - own[r] + 2 * delay[r - 1]
            needed = max(needed, math.ceil(way / pace - 1e-9) + depths[r] - 1 if pace else 1)
        depths[i] = needed
    return [min(microbatches, depth * len(on)) for depth, on in zip(depths, takers, strict=True)]
