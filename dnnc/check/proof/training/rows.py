"""Whether the rows of a schedule run each phase of each microbatch once, behind all that it reads.

Each row is followed action by action. A periodic row is unrolled for so many periods that steps repeat. Of each device:

1. ``F`` of a microbatch stands behind every ``recv`` of a tensor that phase F reads, ``I`` behind ``F``, ``W`` behind ``I``
   (``B`` is both), each behind the ``recv`` of what it reads; ``send`` behind the phase that makes the tensor;
2. each phase of each microbatch that is the device's (all of a mesh, every R-th of R replicas) runs once, and once at each end
   of a channel; members of a mesh have equal rows;
3. ``U`` runs once a step, behind all backward passes of the step and before those of the next; in rows with a flush it is the
   last of the step that touches what it assigns, on this device;
4. where phase F assigns resources (running averages), microbatches pass it in their order;
5. no row waits for ever for another;
6. passes of a step lack at most as many updates as the schedule allows: none with a flush; of ``2bw`` one; of ``pipedream``
   ceil((w - 1) / M), where w microbatches of the stage are under way at once and a step has M (Narayanan et al., SOSP 2019,
   section 3.3). Stages of one device share no weight then, since each keeps those of the steps that it works on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, islice

from dnnc.build.training import Step
from dnnc.check.proof.explain import NOT_PROVEN, REFUTED, Failure
from ir.core.facets import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, phase_of
from ir.core.module import Action, Stage
from ir.core.ops import all_reads
from ir.ops.grads import ASSIGN

_PHASES = {"F": (FORWARD,), "I": (INPUT_GRADIENT,), "W": (WEIGHT_GRADIENT,), "B": (INPUT_GRADIENT, WEIGHT_GRADIENT)}
_BEFORE = {INPUT_GRADIENT: FORWARD, WEIGHT_GRADIENT: INPUT_GRADIENT}
_BACKWARD = (INPUT_GRADIENT, WEIGHT_GRADIENT)
_LATE: Mapping[str, Callable[[int, int], int]] = {
    "2bw": lambda under_way, every: 1,
    "pipedream": lambda under_way, every: -(-(under_way - 1) // every),
}
"""How many updates a step may lack in rows without a flush, of the microbatches under way at once and those of a step."""


@dataclass(slots=True)
class _Needs:
    """What the rows must know of a stage. ``reads``, ``makes``: by phase, channels; ``phases``: those that have ops;
    ``passes``: resources that its passes read; ``assigns``: those that its update assigns; ``moves``: phase F assigns."""

    stage: Stage
    reads: dict[str, set[int]] = field(default_factory=dict)
    makes: dict[int, str] = field(default_factory=dict)
    phases: set[str] = field(default_factory=set)
    passes: set[str] = field(default_factory=set)
    assigns: set[str] = field(default_factory=set)
    moves: bool = False


def row_faults(step: Step) -> Iterator[Failure]:
    """What of the rows of a step does not follow."""
    schedule = step.schedule
    needs = {stage.index: _needs(stage) for stage in step.stages}
    if schedule.periodic and schedule.kind not in _LATE:
        yield Failure(NOT_PROVEN, f"rows without a flush of the kind {schedule.kind} are not known", schedule.name)
        return
    for rank, device in enumerate(step.devices) if schedule.periodic else ():
        own = [needs[stage.index] for stage in step.stages_of(rank)]
        for one, other in combinations(own, 2):
            for name in sorted(one.assigns & other.assigns):
                told = f"stages {one.stage.index} and {other.stage.index} share {name}, but each keeps weights of its own"
                yield Failure(REFUTED, told, f"row {device}")
    seen, failed = set(), False
    for rank, device in enumerate(step.devices):
        row = _Row(step, rank, needs)
        if (alike := (row.row, *((stage, *turns) for stage, turns in row.turns.items()))) not in seen:
            seen.add(alike)
            for fault in islice(row.faults(), 1):
                failed = True
                yield Failure(REFUTED, fault, f"row {device}")
    if not failed:
        yield from (Failure(REFUTED, fault, schedule.name) for fault in _waits(step, needs))
    rows = dict(schedule.rows)
    for stage in step.stages:
        if stage.mesh and len({rows.get(device, ()) for device in stage.devices}) > 1:
            yield Failure(REFUTED, f"the members of stage {stage.index} have different rows", schedule.name)


def _waits(step: Step, needs: Mapping[int, _Needs]) -> Iterator[str]:
    """A device that waits for ever: each does its row in order, a ``recv`` behind the ``send``, or the ``recv`` that passes the
    tensor on, of the rank that it comes from."""
    rows = [_Row(step, rank, needs) for rank in range(len(step.devices))]
    steps = max(row.steps for row in rows)
    queues = [deque(row.unrolled(steps)) for row in rows]
    done: set[tuple[int, str, int | None, int]] = set()
    moved = True
    while moved:
        moved = False
        for rank, queue in enumerate(queues):
            while queue:
                action, number = queue[0]
                if action.kind == "recv" and action.channel is not None:
                    maker = step.maker(step.channels[action.channel], rank, number % step.microbatches)
                    if not done & {(maker, kind, action.channel, number) for kind in ("send", "recv")}:
                        break
                done.add((rank, action.kind, action.channel, number))
                queue.popleft()
                moved = True
    for rank, queue in enumerate(queues):
        if queue:
            action, number = queue[0]
            yield f"{step.devices[rank]} waits for ever for channel {action.channel} of microbatch {number}"
            return


def _needs(stage: Stage) -> _Needs:
    found = _Needs(stage)
    for op in stage.ops:
        phase = phase_of(op.facets)
        found.phases.add(phase)
        if op.name == "comm.recv":
            found.reads.setdefault(phase, set()).add(op.get("channel"))
        elif op.name == "comm.send":
            found.makes[op.get("channel")] = phase
        elif op.name == ASSIGN:
            found.moves |= phase == FORWARD
            found.assigns |= {op.operands[0]} if phase == UPDATE else set()
        elif phase != UPDATE:
            found.passes.update(name for name in all_reads(op) if name[:1] == "@")
    return found


class _Row:
    """One device's row while it is followed. ``done``: phases and messages of microbatches; ``updates``: by stage, the steps
    whose update was done; ``began``: by stage and step, the updates done when its first F began."""

    def __init__(self, step: Step, rank: int, needs: Mapping[int, _Needs]) -> None:
        self.step, self.rank, self.every = step, rank, step.microbatches
        self.flush = not step.schedule.periodic
        self.row = step.row(rank) if step.devices[rank] in dict(step.schedule.rows) else ()
        self.needs = {stage.index: needs[stage.index] for stage in step.stages_of(rank)}
        self.turns = {stage.index: set(step.turns(stage, rank)) for stage in step.stages_of(rank)}
        self.done: Counter[tuple[object, ...]] = Counter()
        self.updates: dict[int, list[int]] = {index: [] for index in self.needs}
        self.began: dict[tuple[int, int], int] = {}
        self.under_way: dict[int, int] = {}
        self.most: dict[int, int] = {}

    @property
    def steps(self) -> int:
        """After so many steps a periodic row repeats itself."""
        deepest = max((abs(action.microbatch or 0) for action in self.row), default=0)
        return 1 if self.flush else 3 + -(-2 * deepest // self.every)

    def faults(self) -> Iterator[str]:
        steps = self.steps
        for action, number in self.unrolled(steps):
            if action.stage not in self.needs:
                yield f"{action.kind} is of stage {action.stage}, which is not on this device"
                return
            yield from self.follow(action, number, self.needs[action.stage])
        yield from self.left(steps)

    def unrolled(self, steps: int) -> Iterator[tuple[Action, int]]:
        """The actions of the first steps in order, each with its microbatch."""
        if self.flush:
            yield from ((action, action.microbatch or 0) for action in self.row)
            return
        offsets = [action.microbatch or 0 for action in self.row]
        first = -1 - max(offsets, default=0) // self.every
        for period in range(first, steps + 1 - min(offsets, default=0) // self.every):
            for action, offset in zip(self.row, offsets, strict=True):
                number = period * self.every + offset
                if 0 <= number < steps * self.every:
                    yield action, number

    def follow(self, action: Action, number: int, needs: _Needs) -> Iterator[str]:
        """What is wrong with the next action."""
        stage = action.stage
        told = f"{action.kind}({stage}, {number})"
        if action.kind == "U":
            yield from self.update(stage, number // self.every, needs)
        elif action.kind in ("recv", "send"):
            if action.kind == "send" and self.done[needs.makes.get(action.channel or 0), stage, number] != 1:
                yield f"{told} of channel {action.channel} stands before the phase that makes the tensor"
            self.done[action.kind, action.channel, number] += 1
        elif action.kind not in _PHASES:
            yield f"{told} is no action that is known"
        elif number % self.every not in self.turns[stage]:
            yield f"{told} is of a microbatch of another device"
        else:
            for phase in _PHASES[action.kind]:
                yield from self.phase(phase, stage, number, needs, told)

    def phase(self, phase: str, stage: int, number: int, needs: _Needs, told: str) -> Iterator[str]:
        at = number // self.every
        if self.done[_BEFORE.get(phase), stage, number] != int(phase in _BEFORE):
            yield f"{told} stands before phase {_BEFORE[phase]} of its microbatch"
        for channel in sorted(needs.reads.get(phase, ())):
            if self.done["recv", channel, number] != 1:
                yield f"{told} stands before the recv of channel {channel}, which it reads"
        if phase == FORWARD:
            if needs.moves and any(self.done[FORWARD, stage, other] for other in self.turns[stage] if other > number):
                yield f"{told} stands behind a later microbatch, but it moves running averages in their order"
            self.began.setdefault((stage, at), len(self.updates[stage]))
            self.under_way[stage] = self.under_way.get(stage, 0) + 1
            self.most[stage] = max(self.most.get(stage, 0), self.under_way[stage])
        elif at != len(self.updates[stage]) and UPDATE in needs.phases:
            yield f"{told} is not between the updates of the step before and its own"
        if phase == WEIGHT_GRADIENT:
            self.under_way[stage] = self.under_way.get(stage, 0) - 1
        if self.flush:
            for other, steps in self.updates.items():
                if steps and (other == stage or needs.passes & self.needs[other].assigns):
                    yield f"{told} stands behind U({other}, _), which changes weights that it reads"
        self.done[phase, stage, number] += 1

    def update(self, stage: int, at: int, needs: _Needs) -> Iterator[str]:
        if at != len(self.updates[stage]):
            yield f"U of stage {stage} and step {at} is missing, or there twice"
        for number in sorted(self.turns[stage]):
            if {*_BACKWARD} & needs.phases and self.done[WEIGHT_GRADIENT, stage, at * self.every + number] != 1:
                yield f"U of stage {stage} stands before the backward pass of microbatch {number}"
        self.updates[stage].append(at)

    def left(self, steps: int) -> Iterator[str]:
        """What was done other than once, in all steps; and weights that are older than the schedule allows."""
        for stage, needs in self.needs.items():
            has = UPDATE in needs.phases
            if len(self.updates[stage]) != steps and has:
                yield f"U of stage {stage} is done {len(self.updates[stage])} times in {steps} steps"
            channels = [("recv", c) for phase, some in needs.reads.items() if phase != UPDATE for c in some]
            channels += [("send", c) for c, phase in needs.makes.items() if phase != UPDATE]
            for number in (at * self.every + turn for at in range(steps) for turn in sorted(self.turns[stage])):
                for phase in (FORWARD, *_BACKWARD):
                    if (count := self.done[phase, stage, number]) != 1 and phase in needs.phases:
                        yield f"phase {phase} of stage {stage} and microbatch {number} is done {count} times"
                for kind, channel in channels:
                    if (count := self.done[kind, channel, number]) != 1:
                        yield f"{kind} of channel {channel} and microbatch {number} is done {count} times"
            allowed = 0 if self.flush else _LATE[self.step.schedule.kind](self.most.get(stage, 1), self.every)
            for (of, at), before in self.began.items():
                if of == stage and has and at - before > allowed:
                    late = f"works with weights that lack {at - before} updates"
                    yield f"step {at} of stage {stage} {late}, but the schedule allows {allowed}"
