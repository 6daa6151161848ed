"""1F1B with a flush: some forward passes, then a backward and a forward pass in turn, then the backward passes that are left
(PipeDream-Flush: Narayanan et al., ICML 2021, section 2.2). Stage s of S begins with S - s forward passes, as many as it has
microbatches in flight; in place of stages their replicas are counted, and a stage with r of them has r times as many.

With f, b seconds of a stage's passes, each with its transfers, and all f + b <= T, 1F1B without updates takes at most
(M+S-1) T, and just that where all stages are equal and transfers are part of the passes: pass m forward of the last stage can
begin at m T and the sum of f of all stages before; by induction no stage before it falls behind that. Transfers that take time
beside the passes (``comm`` other than ``sum``) make the way to the last stage and back longer than S - s passes: 1F1B then
waits, and deeper pipelines do not (``auto``).

Where stages share devices there is no turn of one stage: passes are listed as they become ready (``listed``)."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.rows import BACKWARD, COMPUTE
from passes.timeline.families.base import Orders, Pass, apart, by_devices, limited, stages_from
from passes.timeline.families.listed import listed
from passes.timeline.workload import Workload


def one_f_one_b(load: Workload, microbatches: int) -> Orders:
    return in_turn(load, microbatches, stages_from(load))


def in_turn(load: Workload, microbatches: int, depths: Sequence[int]) -> Orders:
    """1F1B in which each stage begins with so many forward passes."""
    depths = limited(depths, microbatches)
    if not apart(load):
        return listed(load, microbatches, depths)
    return by_devices(load, {on: _turns(s, microbatches, depths[s]) for s, on in enumerate(load.replicas)})


def _turns(stage: int, microbatches: int, depth: int) -> list[Pass]:
    order: list[Pass] = [(COMPUTE, stage, number) for number in range(depth)]
    for number in range(microbatches):
        order.append((BACKWARD, stage, number))
        if depth + number < microbatches:
            order.append((COMPUTE, stage, depth + number))
    return order
