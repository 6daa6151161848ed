"""ZB-H1 and ZB-H2: 1F1B whose backward pass is split, so that W, which nobody waits for, fills what would be bubbles (Qi et
al., ICLR 2024, section 2). ``I`` sends gradients back, and W comes some microbatches later:

| family | forward passes first | W is late by | in flight | bubble of a device |
|---|---|---|---|---|
| ``zb-h1`` | S - s | s | S | (S-1)(F+I-W) |
| ``zb-h2`` | 2 (S - s) - 1 | 2 s | 2 S - 1 | (S-1)(F+I-2W) |

In place of stages their replicas are counted. The *bubble of a device* is what its row takes from its first action to its last
beyond its passes; where steps follow each other, that is what a step loses. The time from the first action of the first device
to the last of any is longer: the last stage waits (S-1) F for its first microbatch, whatever the order."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.rows import COMPUTE, INPUT_GRADIENT, WEIGHT_GRADIENT
from passes.timeline.families.base import Orders, Pass, apart, by_devices, limited, stages_before, stages_from
from passes.timeline.families.listed import listed
from passes.timeline.workload import Workload


def zb_h1(load: Workload, microbatches: int) -> Orders:
    return split_turns(load, microbatches, stages_from(load), stages_before(load))


def zb_h2(load: Workload, microbatches: int) -> Orders:
    return split_turns(load, microbatches, stages_from(load, 2), stages_before(load, 2))


def split_turns(load: Workload, microbatches: int, depths: Sequence[int], late: Sequence[int]) -> Orders:
    """Each stage begins with so many forward passes, and its W come so many microbatches behind its I."""
    depths = limited(depths, microbatches)
    if not apart(load):
        return listed(load, microbatches, limited(map(sum, zip(depths, late, strict=True)), microbatches), split=True)
    return by_devices(load, {on: _turns(s, microbatches, depths[s], late[s]) for s, on in enumerate(load.replicas)})


def _turns(stage: int, microbatches: int, depth: int, late: int) -> list[Pass]:
    order: list[Pass] = [(COMPUTE, stage, number) for number in range(depth)]
    for number in range(microbatches):
        order.append((INPUT_GRADIENT, stage, number))
        if number >= late:
            order.append((WEIGHT_GRADIENT, stage, number - late))
        if depth + number < microbatches:
            order.append((COMPUTE, stage, depth + number))
    order += ((WEIGHT_GRADIENT, stage, number) for number in range(max(0, microbatches - late), microbatches))
    return order
