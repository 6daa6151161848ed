"""Orders for stages on any devices, several on one included: of what is ready, each device does first a backward pass, else the
forward pass of its last stage, else a W (list scheduling: Graham, 1969).

The orders are those of a run in time, so their rows complete. A stage has at most ``depths`` microbatches in flight; the oldest
microbatch under way is never held up by that, so the run goes on until all is done. Seconds steer the choice and need not be
exact: with ``comm = sum`` a transfer is part of the passes at its ends, otherwise it delays the reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ir.ops.rows import BACKWARD, COMPUTE, INPUT_GRADIENT, WEIGHT_GRADIENT, Flow
from passes.timeline.families.base import Orders, Pass
from passes.timeline.workload import Workload

URGENCY = {BACKWARD: 0, INPUT_GRADIENT: 0, COMPUTE: 1, WEIGHT_GRADIENT: 2}
"""What a device does first of what is ready: a backward pass frees what was saved, and nobody waits for a W."""

_Choice: TypeAlias = tuple[float, int, int, Pass]
"""When a pass can start, its urgency, its stage from the last, and the pass: the least is done."""


def listed(load: Workload, microbatches: int, depths: Sequence[int], *, split: bool = False) -> Orders:
    """The orders of all devices. ``depths``: the most microbatches in flight of each stage, those of all replicas together."""
    flow = replace(load.flow, split=frozenset(range(len(load.compute)) if split else ()))
    run = _Run(load, flow, microbatches, depths)
    devices = list(dict.fromkeys(device for on in flow.takers for device in on))
    readers: list[set[str]] = [set(on) for on in flow.takers]
    for channel in flow.channels.values():
        readers[channel.source].update(flow.takers[channel.target])
    choices = {device: run.choice(device) for device in devices}
    while ready := [(choice, device) for device, choice in choices.items() if choice is not None]:
        (start, _, _, one), device = min(ready)
        run.do(device, one, start)
        choices.update((other, run.choice(other)) for other in readers[one[1]])
    return {device: run.orders[flow.leads.get(device, device)] for on in load.replicas for device in on}


@dataclass
class _Run:
    """What has been done: ``ended`` of each pass, ``free`` of each device, ``done`` passes of each device, stage and kind."""

    load: Workload
    flow: Flow
    microbatches: int
    depths: Sequence[int]
    ended: dict[Pass, float] = field(default_factory=dict)
    free: dict[str, float] = field(default_factory=dict)
    done: dict[tuple[str, int, str], int] = field(default_factory=dict)
    orders: dict[str, list[Pass]] = field(default_factory=dict)

    def choice(self, device: str) -> _Choice | None:
        """What the device does next, of its stages; None while nothing is ready or all is done."""
        found = [one for stage, on in enumerate(self.flow.takers) if device in on for one in self._ready(device, stage, on)]
        return min(found, default=None)

    def _ready(self, device: str, stage: int, on: Sequence[str]) -> Iterator[_Choice]:
        """The passes of a stage whose inputs are there, or on their way."""
        kinds = (COMPUTE, *self.flow.backward(stage))
        done = [self.done.get((device, stage, kind), 0) for kind in kinds]
        for kind, count in zip(kinds, done, strict=True):
            number = on.index(device) + count * len(on)
            full = kind == COMPUTE and count - done[-1] >= -(-self.depths[stage] // len(on))
            if number < self.microbatches and not full and (at := self._inputs(kind, stage, number)) is not None:
                yield max(at, self.free.get(device, 0.0)), URGENCY[kind], -stage, (kind, stage, number)

    def _inputs(self, kind: str, stage: int, number: int) -> float | None:
        """When all that a pass reads is there; None where some of it is not made yet."""
        needed: list[tuple[Pass, float]] = []
        if kind != COMPUTE:
            needed.append(((INPUT_GRADIENT if kind == WEIGHT_GRADIENT else COMPUTE, stage, number), 0.0))
        for c in self._channels(self.flow.received, stage, kind, "read"):
            wire, source = self.load.wires[c], self.flow.channels[c].source
            delay = 0.0 if self.load.comm == "sum" else wire.send + wire.receive
            needed.append(((self.flow.does(wire.made, source), source, number), delay))
        if any(one not in self.ended for one, _ in needed):
            return None
        return max((self.ended[one] + delay for one, delay in needed), default=0.0)

    def _channels(self, of_stage: Mapping[int, Sequence[int]], stage: int, kind: str, phase: str) -> list[int]:
        """Of the channels of a stage those whose ``phase``, ``made`` or ``read``, is part of passes of this kind."""
        return [c for c in of_stage.get(stage, ()) if self.flow.does(getattr(self.load.wires[c], phase), stage) == kind]

    def do(self, device: str, one: Pass, start: float) -> None:
        kind, stage, _ = one
        self.ended[one] = self.free[device] = start + self._seconds(kind, stage)
        self.done[device, stage, kind] = self.done.get((device, stage, kind), 0) + 1
        self.orders.setdefault(device, []).append(one)

    def _seconds(self, kind: str, stage: int) -> float:
        """Of a pass, with its transfers where these are part of it."""
        spent = self.load.seconds(kind, stage)
        if self.load.comm == "sum":
            spent += sum(self.load.wires[c].receive for c in self._channels(self.flow.received, stage, kind, "read"))
            spent += sum(self.load.wires[c].send for c in self._channels(self.flow.sent, stage, kind, "made"))
        return spent
