"""GPipe: all forward passes, then all backward passes (Huang et al., NeurIPS 2019). Every microbatch is in flight.

On a device with several stages the forward passes of one stage follow those of the stage before, and the backward passes come
stage by stage from the last: breadth first (Lamy-Poirier, MLSys 2023)."""

from __future__ import annotations

from ir.ops.rows import BACKWARD, COMPUTE
from passes.timeline.families.base import Orders, Pass, by_devices
from passes.timeline.workload import Workload


def gpipe(load: Workload, microbatches: int) -> Orders:
    forward: dict[tuple[str, ...], list[Pass]] = {on: [] for on in load.replicas}
    for stage, on in enumerate(load.replicas):
        forward[on] += [(COMPUTE, stage, number) for number in range(microbatches)]
    for stage, on in reversed(list(enumerate(load.replicas))):
        forward[on] += [(BACKWARD, stage, number) for number in range(microbatches)]
    return by_devices(load, forward)
