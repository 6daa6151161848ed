"""Interleaved 1F1B: device d of p has the v stages d, p + d, 2 p + d, .., its *chunks*, and does 1F1B over all of them
(Narayanan et al., SC 2021, section 2.2). A stage is 1/v of a device's work, so the pipeline fills in a v-th of the time: the
bubble is (p-1)(F+B)/v, for ((v-1) p + 2 (p-1-d) + 1) / v microbatches of a device's work in flight.

Microbatches go through the chunks in rounds of p: a round through chunk 0, then the same round through chunk 1, and so on; the
backward passes likewise from the last chunk. Device d begins with (v-1) p + 2 (p-1-d) forward passes. A last round that is not
full has the order of a full one without the microbatches that are not there: no pass waits for one of another microbatch, so
the rest completes."""

from __future__ import annotations

from ir.ops.rows import BACKWARD, COMPUTE
from passes.timeline.families.base import Orders, Pass, by_devices, chunks
from passes.timeline.workload import Workload


def interleaved(load: Workload, microbatches: int) -> Orders:
    devices = chunks(load, "interleaved", lambda stage, count: stage % count)
    count = len(devices)
    each = len(load.replicas) // count
    whole = -(-microbatches // count) * count
    orders = {}
    for d, on in enumerate(devices):
        first = min(each * whole, (each - 1) * count + 2 * (count - 1 - d))
        forward: list[Pass] = []
        backward: list[Pass] = []
        for start in range(0, whole, count):
            turn = range(start, start + count)
            forward += ((COMPUTE, chunk * count + d, number) for chunk in range(each) for number in turn)
            backward += ((BACKWARD, chunk * count + d, number) for chunk in reversed(range(each)) for number in turn)
        order = forward[:first]
        for number, back in enumerate(backward):
            order += [*forward[first + number : first + number + 1], back]
        orders[on] = [one for one in order if one[2] < microbatches]
    return by_devices(load, orders)
