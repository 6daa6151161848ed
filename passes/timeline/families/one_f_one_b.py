"""1F1B with a flush: some forward passes, then a backward and a forward pass in turn, then the backward passes that are left
(PipeDream-Flush: Narayanan et al., ICML 2021, section 2.2). Stage s of S begins with S - s forward passes, as many as it has
microbatches in flight; in place of stages their replicas are counted, and a stage with r of them has r times as many.

With f, b seconds of a stage's passes, each with its transfers, and all f + b <= T, 1F1B without updates takes at most
(M+S-1) T, and just that where all stages are equal and transfers are part of the passes: pass m forward of the last stage can
begin at m T and the sum of f of all stages before; by induction no stage before it falls behind that. Transfers that take time
beside the passes (``comm`` other than ``sum``) make the way to the last stage and back longer than S - s passes: 1F1B then
waits, and deeper pipelines do not (``auto``).

ZB-H1 and ZB-H2 are 1F1B whose backward pass is split, so that W, which nobody waits for, fills what would be bubbles (Qi et
al., ICLR 2024, section 2). ``I`` sends gradients back, and W comes some microbatches later:

| family | forward passes first | W is late by | in flight | bubble of a device |
|---|---|---|---|---|
| ``zb-h1`` | S - s | s | S | (S-1)(F+I-W) |
| ``zb-h2`` | 2 (S - s) - 1 | 2 s | 2 S - 1 | (S-1)(F+I-2W) |

The *bubble of a device* is what its row takes from its first action to its last beyond its passes; where steps follow each
other, that is what a step loses. The time from the first action of the first device to the last of any is longer: the last
stage waits (S-1) F for its first microbatch, whatever the order.

Where stages share devices there is no turn of one stage: passes are listed as they become ready (``listed``)."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.rows import BACKWARD, COMPUTE, INPUT_GRADIENT, WEIGHT_GRADIENT
from passes.timeline.families.base import Orders, Pass, apart, by_devices, limited, stages_before, stages_from
from passes.timeline.families.listed import listed
from passes.timeline.workload import Workload


def one_f_one_b(load: Workload, microbatches: int) -> Orders:
    return in_turn(load, microbatches, stages_from(load))


def zb_h1(load: Workload, microbatches: int) -> Orders:
    return in_turn(load, microbatches, stages_from(load), stages_before(load))


def zb_h2(load: Workload, microbatches: int) -> Orders:
    return in_turn(load, microbatches, stages_from(load, 2), stages_before(load, 2))


def in_turn(load: Workload, microbatches: int, depths: Sequence[int], late: Sequence[int] | None = None) -> Orders:
    """1F1B in which each stage begins with so many forward passes. ``late``: the backward pass is split, and the W of each
    stage come so many microbatches behind its I."""
    depths, split = limited(depths, microbatches), late is not None
    behind = late or [0] * len(depths)
    if not apart(load):
        return listed(load, microbatches, limited(map(sum, zip(depths, behind, strict=True)), microbatches), split=split)
    turns = (_turns(s, microbatches, depths[s], behind[s], split=split) for s in range(len(depths)))
    return by_devices(load, dict(zip(load.replicas, turns, strict=True)))


def _turns(stage: int, microbatches: int, depth: int, late: int, *, split: bool) -> list[Pass]:
    order: list[Pass] = [(COMPUTE, stage, number) for number in range(depth)]
    for number in range(microbatches + late):
        if number < microbatches:
            order.append((INPUT_GRADIENT if split else BACKWARD, stage, number))
        if split and number >= late:
            order.append((WEIGHT_GRADIENT, stage, number - late))
        if depth + number < microbatches:
            order.append((COMPUTE, stage, depth + number))
    return order
