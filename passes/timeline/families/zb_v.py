"""ZB-V: stage s < p and stage 2p-1-s are on device s, so the last stage is on the device of the first (Qi et al., ICLR 2024,
section 6; "Pipeline Parallelism with Controllable Memory", NeurIPS 2024). With equal stages and F = I = W no device waits
between its first pass and its last, with p microbatches of a device's work in flight.

A device fills up with 2 (p-s) - 1 forward passes of its first chunk, then takes turns until p passes of the second are done, of
whose backward passes it has done p - s by then. From there on it does F, I, W of its first chunk and F, I, W of its second, and
leaves W for last once no forward pass is left."""

from __future__ import annotations

from collections import Counter

from ir.ops.rows import COMPUTE, INPUT_GRADIENT, WEIGHT_GRADIENT
from passes.timeline.families.base import Orders, Pass, by_devices, chunks
from passes.timeline.workload import Workload

_BACK = INPUT_GRADIENT + WEIGHT_GRADIENT
_ALL = COMPUTE + _BACK


def zb_v(load: Workload, microbatches: int) -> Orders:
    devices = chunks(load, "zb-v", lambda stage, count: min(stage, 2 * count - 1 - stage), 2)
    count = len(devices)
    whole = max(2 * count - 1, microbatches)  # with fewer, those that are not there are left out
    orders = {on: _order(d, count, whole) for d, on in enumerate(devices)}
    return by_devices(load, {on: [one for one in order if one[2] < microbatches] for on, order in orders.items()})


def _order(d: int, devices: int, microbatches: int) -> list[Pass]:
    """The passes of device ``d`` for at least 2 ``devices`` - 1 microbatches."""
    first, second = d, 2 * devices - 1 - d
    done: Counter[tuple[str, int]] = Counter()
    order: list[Pass] = []

    def do(kinds: str, stage: int, times: int = 1) -> None:
        for kind in kinds * times:
            order.append((kind, stage, done[kind, stage]))
            done[kind, stage] += 1

    do(COMPUTE, first, 2 * (devices - d) - 1)
    for _ in range(d):
        do(COMPUTE, second)
        do(COMPUTE, first)
    do(_ALL, second, devices - d)
    while done[COMPUTE, second] < microbatches:
        if done[COMPUTE, first] < microbatches:
            do(COMPUTE, first)
        do(_BACK, first)
        do(_ALL, second)
    for _ in range(d):
        do(INPUT_GRADIENT, first)
        do(INPUT_GRADIENT, second)
    do(_BACK, first, devices - d)  # a W that was left, behind each I
    do(WEIGHT_GRADIENT, second, microbatches - done[WEIGHT_GRADIENT, second])
    do(WEIGHT_GRADIENT, first, microbatches - done[WEIGHT_GRADIENT, first])
    return order
