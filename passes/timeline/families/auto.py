"""The order whose simulated step is shortest, of those that memory has space for: 1F1B as deep as slow links ask for, or
another family. Where nothing is known of memory it is the former, with the least depths that reach the pace of the slowest
stage.

That 1F1B has a split backward pass, W right behind I, so a gradient is on its way while its stage makes those of its weights:
no more is in flight than without, and the bubble of equal stages is (S-1)(F+I)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from ir.core.diagnostics import UsageError
from ir.core.facets import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from ir.ops.rows import RECEIVE, SEND, lane_of
from passes.costs.memory.stage import BEHIND, StageBytes
from passes.timeline.families.base import Orders, rows_of
from passes.timeline.families.gpipe import gpipe
from passes.timeline.families.interleaved import interleaved
from passes.timeline.families.one_f_one_b import in_turn, one_f_one_b, zb_h1, zb_h2
from passes.timeline.families.zb_v import zb_v
from passes.timeline.simulate import makespan
from passes.timeline.workload import Workload

OTHERS = (one_f_one_b, interleaved, zb_v, zb_h1, zb_h2, gpipe)
"""Families that may be faster, or fit where that does not (a backward pass in one frees what it reads op by op), by what is
in flight."""
WORTH = 1e-3
"""By what part of the step an order must be shorter than those before it that have less in flight."""


def auto(load: Workload, microbatches: int) -> Orders:
    candidates, least = [*_candidates(load, microbatches)], math.inf
    best = candidates[0]
    for orders in candidates:
        if fits(load, orders):
            ends = makespan(load, rows_of(load, orders))
            if ends < least * (1 - WORTH):
                best, least = orders, ends
    return best


def _candidates(load: Workload, microbatches: int) -> Iterator[Orders]:
    """Orders of work, the first one as deep as there is space for. No stage in it is deeper than one before it: the latter
    would wait for a gradient of the former, which would wait for another input first."""
    room = _room(load, microbatches)
    depths = [min(depth, most) for depth, most in zip(derived_depths(load, microbatches), room, strict=True)]
    depths = list(accumulate(depths, min))
    yield in_turn(load, microbatches, depths, [0] * len(depths))
    for family in OTHERS if load.holds else ():
        try:
            yield family(load, microbatches)
        except UsageError:  # the stages lie otherwise
            continue


def _room(load: Workload, microbatches: int) -> list[int]:
    """How many microbatches each stage may have in flight, those of all replicas together, if stages that share a device have
    as many each: at least one."""
    found = [microbatches] * len(load.compute)
    for device, limit in load.memory:
        own = [stage for stage, on in enumerate(load.replicas) if device in on]
        saved = sum(load.holds[stage].of_microbatch for stage in own)
        left = limit - sum(load.holds[stage].constant for stage in own) - max(_in_passes(load.holds[stage]) for stage in own)
        for stage in own if saved else ():
            found[stage] = min(found[stage], len(load.flow.takers[stage]) * max(1, left // saved))
    return found


def _in_passes(holds: StageBytes) -> int:
    """The most that a pass of a split microbatch has alive beside what is saved from forward passes."""
    behind = max(holds.busy((INPUT_GRADIENT,)), holds.busy((WEIGHT_GRADIENT,)))
    return max(holds.busy((FORWARD,)), holds.kept((INPUT_GRADIENT,)) + behind)


def fits(load: Workload, orders: Orders) -> bool:
    """Whether devices have the memory for what they hold while they follow these orders, as ``memory_over_time`` counts."""
    for device, limit in load.memory:
        own = [stage for stage, on in enumerate(load.replicas) if device in on]
        held = sum(load.holds[stage].constant for stage in own)
        for kind, stage, _ in orders[device]:
            holds, phases = load.holds[stage], BEHIND.get(kind, ())
            kept = holds.kept(phases)
            if held + kept + holds.busy(phases) > limit:
                return False
            held += kept - holds.freed(phases)
    return True


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
