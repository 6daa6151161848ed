"""Orders of work of training steps of M microbatches: a *family* for each way to order the passes of S stages, in a file of its
own, which says how it goes. A step ends when all are done and the weights are updated, and then the next begins; but the two
families of ``ASYNCHRONOUS`` repeat their rows without end.

| family | in flight on the device of stage s | bubble, of equal stages without transfers | stages |
|---|---|---|---|
| ``1f1b`` | S - s | (S-1)(F+B) | on any devices |
| ``gpipe`` | M | (S-1)(F+B) | on any devices |
| ``interleaved`` | ((v-1) p + 2 (p-1-s) + 1) / v | (p-1)(F+B) / v | v on each of p devices: s on device s mod p |
| ``zb-h1`` | S | (S-1)(F+I-W) | on any devices |
| ``zb-h2`` | 2 S - 1 | (S-1)(F+I-2W) | on any devices |
| ``zb-v`` | p | 0 where F = I = W | 2 on each of p devices: s and 2p-1-s on device s |
| ``pipedream`` | S - s | 0, with old weights | one on each device |
| ``2bw`` | S - s | 0, with weights of the step before | one on each device |
| ``auto`` | what memory has space for | the least that there is | on any devices |

``B`` is ``I``, the gradients of values, then ``W``, those of weights alone, which nobody waits for. What is in flight counts a
device's whole work for a microbatch as one. The bubbles of ``zb-*`` are those of a device, from its first action to its last;
all others are of the step too. Several stages on one device without a family of their own are ordered by ``listed``.

Files: ``one_f_one_b`` (and both ``zb-h``), ``gpipe``, ``interleaved``, ``zb_v``, ``pipedream`` (both asynchronous ones),
``auto``, ``listed``; ``base`` has what they share.

Invariants: each row holds, for each microbatch, every ``recv``, ``F``, ``B`` (or ``I`` and ``W``) and ``send`` of its stages
once, in an order that ``simulate`` completes, and one ``U`` of each stage, last, where there is an update. ``period`` and
``latency`` are both the seconds that the simulated step takes; of asynchronous steps the former is the time from one to the
next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ir.core.module import Action, Module, Schedule
from ir.ops.rows import BACKWARD, COMPUTE, RECEIVE, SEND, WEIGHT_GRADIENT, lane_of, unrolled
from passes.costs.learning import ASYNCHRONOUS, InFlight, learning, saved_values
from passes.costs.memory.liveness import SLOTS
from passes.timeline.families.auto import auto, derived_depths
from passes.timeline.families.base import Family, rows_of
from passes.timeline.families.gpipe import gpipe
from passes.timeline.families.interleaved import interleaved
from passes.timeline.families.one_f_one_b import one_f_one_b, zb_h1, zb_h2
from passes.timeline.families.pipedream import pipedream, two_buffers
from passes.timeline.families.zb_v import zb_v
from passes.timeline.orders import steady_period
from passes.timeline.simulate import makespan
from passes.timeline.workload import Workload

FAMILIES: dict[str, Family] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "pipedream": pipedream,
    "2bw": two_buffers,
    "auto": auto,
}
"""The orders of work of a training step, by the names that ``--schedule`` takes."""
DEFAULT = "1f1b"
SHARING = ("interleaved", "zb-v")
"""The families that deal several stages to each device."""


def step(load: Workload, microbatches: int, family: str = DEFAULT) -> Schedule:
    """The schedule of a training step; see the module. ``load.backward`` and ``load.sync`` are given; ``family`` is one of
    ``FAMILIES``. Raises UsageError where the stages do not lie on the devices as the family needs them."""
    rows = rows_of(load, FAMILIES[family](load, microbatches))
    endless = family in ASYNCHRONOUS
    schedule = Schedule("@schedule", family, tuple(rows.items()), microbatches=microbatches, periodic=endless, slots=SLOTS)
    ends = makespan(load, unrolled(schedule, load.flow, microbatches))
    period = max(steady_period(load, schedule), _busiest(load, rows)) if endless else ends
    return replace(schedule, period=period, latency=ends)


def in_flight(stages: Sequence[tuple[str, ...]], microbatches: int, family: str, saved: Sequence[int]) -> InFlight:
    """What a device of each stage has at most of steps that ``family`` orders (``InFlight.of``); stages of a family that shares
    devices out among them, at the moment at which their device holds most. ``stages``: their devices; ``saved``: bytes of a
    microbatch. Raises UsageError where the stages do not lie on the devices as the family needs them."""
    counted = InFlight.of(microbatches, [len(on) for on in stages], family)
    if family not in SHARING:
        return counted
    ones = (1.0,) * len(stages)
    load = Workload(ones, tuple(stages), (), backward=ones, sync=ones, weights=ones)
    most = list(counted.microbatches)
    for device, order in FAMILIES[family](load, microbatches).items():
        halved = {stage for kind, stage, _ in order if kind == WEIGHT_GRADIENT}
        held = dict.fromkeys((stage for stage, on in enumerate(stages) if device in on), 0)
        peak = (-1, -1)
        for kind, stage, _ in order:
            if kind == COMPUTE:
                held[stage] += 1
            elif kind == (WEIGHT_GRADIENT if stage in halved else BACKWARD):
                held[stage] -= 1
            now = sum(saved[one] * count for one, count in held.items()), sum(held.values())
            if now > peak:
                peak = now
                for one, count in held.items():
                    most[one] = count
    return replace(counted, microbatches=tuple(most))


def stages_in_flight(
    module: Module, own: Sequence[Sequence[int]], on: Sequence[tuple[str, ...]], microbatches: int, family: str
) -> InFlight:
    """``in_flight`` of stages on these devices, given the positions of each stage's ops in the entry function."""
    learned, ops = learning(module), module.entry.ops
    kept = [{name: size for i in positions for name, size in saved_values(ops[i], learned).items()} for positions in own]
    return in_flight(on, microbatches, family, [sum(values.values()) for values in kept])


def _busiest(load: Workload, rows: Mapping[str, Sequence[Action]]) -> float:
    """Seconds of the actions of one device in one lane, at most."""
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for device, row in rows.items():
        for action in row:
            wire = load.wires[action.channel] if action.channel is not None else None
            ends = {RECEIVE: wire.receive, SEND: wire.send} if wire is not None else {}
            own = ends[action.kind] if ends else load.seconds(action.kind, action.stage)
            spent[device, lane_of(action.kind, load.comm)] += own
    return max(spent.values(), default=0.0)


__all__ = ["ASYNCHRONOUS", "DEFAULT", "FAMILIES", "derived_depths", "in_flight", "stages_in_flight", "step"]
