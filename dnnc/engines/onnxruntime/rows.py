"""A device's row of the schedule, as its process follows it: the steps of each lane, one after the other.

``ir/ops/rows.py`` says what the actions mean; here they move memory. ``recv`` takes the slot in which the values of its channel
have arrived, ``F`` takes a free slot of every edge that it writes to, runs the stage's program on the slots that its ``recv``
took and gives these back, ``send`` hands over the values of its channel. Inputs of the model arrive, and outputs leave, with
``F``. Actions of one stage and microbatch that follow each other and are of one kind are one step: what they move over an edge
is one token.

In period k of a row, a step works on microbatch k + its offset, if that is one of the run and of the stage's replica here. Each
kind of step of a stage comes once in a period, so its microbatches come in order, and what one step leaves for another is a
queue.

While a build generates tokens, a place works on each microbatch that it is fed, a *step* of a group: the table from the starter
(``dnnc.engines.onnxruntime.decoding.wire``) names the group, and the group the replicas that it comes from and goes to.

Invariant: a step runs as soon as its lane is free and nothing that it waits for is missing (``blocker``).
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from dnnc.engines.onnxruntime.decoding.wire import CONTROL, GROUP
from dnnc.engines.onnxruntime.engine import End, Incoming, Outgoing, Runnable
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.turns import Turns
from dnnc.onnx.elements import Array

STARTING, LOADING, RECEIVING, WAITING, RUNNING, SENDING, MEETING = range(7)
"""What a process is doing. WAITING: for a free slot of a consumer; MEETING: exchanging parts with the other members."""
LANE = object()
"""The blocker of a step that waits for a step of another lane."""

_NONE: Mapping[str, Any] = {}
_NO_CHANNELS = (None,)

Mark: TypeAlias = Callable[[int, int, int], None]
"""Called with what the process is doing, the stage and the microbatch."""
Event: TypeAlias = tuple[str, int, int, float, float, str, tuple[int | None, ...]]
"""A step: action, stage, microbatch, start, end, title, and the channel of each of its actions."""
Ends: TypeAlias = Sequence[Any]
"""Edge ends, one per turn of the other stage, or per group of sequences: end m % n handles microbatch m, or the steps of group
m; None where none of ours does."""


@dataclass(slots=True)
class Work:
    """What this process does of stage ``stage``: the microbatches ``turns``. ``receives`` and ``sends`` are edges from and to
    other stages, ``feeds`` and ``sinks`` those from and to the starter."""

    stage: int
    turns: Turns
    program: Runnable
    receives: list[Ends]
    sends: list[Ends]
    feeds: list[Incoming]
    sinks: list[Outgoing]
    outputs: list[Ends] = field(init=False)
    tables: Incoming | None = field(init=False)
    taken: int = 0

    def __post_init__(self) -> None:
        self.outputs = [*self.sends, *([sink] for sink in self.sinks)]
        self.tables = next((feed for feed in self.feeds if any(v.name == CONTROL for v in feed.edge.values)), None)

    def turn(self, microbatch: int) -> int | None:
        """Which end handles a microbatch that was not computed yet, modulo their number: that of its group where tables from
        the starter name groups, None while the table is not there. ``taken``: microbatches whose inputs ``F`` has taken."""
        if self.tables is None:
            return microbatch
        arrived, number = self.tables.arrived[0], microbatch - self.taken
        return int(self.tables.values(arrived[number])[CONTROL].data.reshape(-1)[GROUP]) if number < len(arrived) else None


Handed: TypeAlias = tuple[Outgoing, int, Mapping[str, Any], int]
"""An edge, its slot of a microbatch, the values of unknown size of that slot, and how many parts of the others are in use."""


@dataclass(slots=True)
class Receive:
    """``recv`` of some channels of a stage. ``parts``: of each edge the numbers of their values. ``taken``: slots that ``F``
    has not read yet."""

    work: Work
    offset: int
    channels: tuple[int, ...]
    parts: list[tuple[Ends, list[int]]]
    taken: deque[list[tuple[Incoming, int]]] = field(default_factory=deque)

    def blocker(self, microbatch: int) -> Any:
        turn = self.work.turn(microbatch)
        if turn is None:
            return self.work.tables
        for ends, numbers in self.parts:
            side = ends[turn % len(ends)]
            for number in numbers:
                if not side.arrived[number]:
                    return side
        return None

    def run(self, microbatch: int, follower: Follower) -> None:
        slots, turn = [], self.work.turn(microbatch) or 0
        for ends, numbers in self.parts:
            side = ends[turn % len(ends)]
            of_values = [side.arrived[number].popleft() for number in numbers]
            slots.append((side, of_values[0]))
        self.taken.append(slots)
        now = time.monotonic()
        follower.note(("recv", self.work.stage, microbatch, now, now, "", self.channels))


@dataclass(slots=True)
class Send:
    """``send`` of some channels of a stage. ``parts``: position among the stage's outputs of each edge that carries some, and
    ranges of their values (first, count). ``ready``: what ``F`` has made and not handed over yet, in order of ``parts``."""

    work: Work
    offset: int
    channels: tuple[int, ...]
    parts: list[tuple[int, list[tuple[int, int]]]]
    ready: deque[list[Handed]] = field(default_factory=deque)

    def blocker(self, microbatch: int) -> Any:
        return None if self.ready else LANE

    def run(self, microbatch: int, follower: Follower) -> None:
        start, stage = time.monotonic(), self.work.stage
        for (_, ranges), handed in zip(self.parts, self.ready.popleft(), strict=True):
            for first, count in ranges:
                follower.hand_over(stage, microbatch, handed, first, count)
        follower.note(("send", stage, microbatch, start, time.monotonic(), "", self.channels))


@dataclass(frozen=True, slots=True)
class Bound:
    """A binding, and what is to be copied after it ran: (target, source) each."""

    binding: Any
    copies: tuple[tuple[Array, Array], ...]


_UNBOUND = Bound(None, ())


@dataclass(slots=True)
class Compute:
    """``F`` of a stage, behind ``receives`` and before ``sends`` of it. ``bound``: bindings by the slots of all edges; a stream
    goes through few combinations."""

    work: Work
    offset: int
    receives: list[Receive]
    sends: list[Send]
    fixed: bool
    bound: dict[tuple[int, ...], Bound] = field(default_factory=dict)

    def blocker(self, microbatch: int) -> Any:
        for receive in self.receives:
            if not receive.taken:
                return LANE
        for feed in self.work.feeds:
            if not feed.complete:
                return feed
        turn = self.work.turn(microbatch) or 0
        for ends in self.work.outputs:
            side = ends[turn % len(ends)]
            if not side.has_free_slot:
                return side
        return None

    def run(self, microbatch: int, follower: Follower) -> None:
        work, program, turn = self.work, self.work.program, self.work.turn(microbatch) or 0
        inputs = {feed: feed.take() for feed in work.feeds}
        work.taken = microbatch + 1
        for receive in self.receives:
            inputs.update(receive.taken.popleft())
        sides: list[Outgoing] = [ends[turn % len(ends)] for ends in work.outputs]
        slots = [side.take() for side in sides]
        follower.mark(RUNNING, work.stage, microbatch)
        start = time.monotonic()
        bound = self._bound(inputs, sides, slots) if self.fixed else _UNBOUND
        values: Sequence[Mapping[str, Any]] = [_NONE] * len(sides)
        try:
            if self.fixed:
                program.run_bound(bound.binding)
            else:
                bound, values = self._run_once(inputs, sides, slots)
        except EOFError:  # of a member that has gone
            raise
        except Exception as error:  # whatever a model can raise; the others wait for this microbatch, so it goes on
            follower.fail(error)
            bound, values = _failed(sides, slots)
        spans = program.take_spans(start, time.monotonic())
        follower.mark(SENDING, work.stage, microbatch)
        for what, begin, end, title in spans:
            follower.note((what, work.stage, microbatch, begin, end, title, _NO_CHANNELS))
        for target, source in bound.copies:
            np.copyto(target, source)
        program.turn = (program.turn + 1) % program.turns
        for receiver, slot in inputs.items():
            receiver.release(slot)
        handed = [(side, slot, some, program.parts) for side, slot, some in zip(sides, slots, values, strict=True)]
        for send in self.sends:
            send.ready.append([handed[position] for position, _ in send.parts])
        for to_starter in handed[len(work.sends) :]:
            follower.hand_over(work.stage, microbatch, to_starter, 0, to_starter[0].count)

    def _bound(self, inputs: Mapping[Incoming, int], sides: Sequence[Outgoing], slots: Sequence[int]) -> Bound:
        """What to run for these slots: a binding that stays right as long as the process lives."""
        program = self.work.program
        key = (program.turn, *map(id, inputs), *inputs.values(), *map(id, sides), *slots)
        bound = self.bound.get(key)
        if bound is None:
            feeds, targets = _feeds(inputs), _targets(sides, slots)
            binding = program.bind(feeds, targets)
            bound = self.bound[key] = Bound(binding, _copies(sides, slots, program.output_places(feeds, targets)))
        return bound

    def _run_once(
        self, inputs: Mapping[Incoming, int], sides: Sequence[Outgoing], slots: Sequence[int]
    ) -> tuple[Bound, list[Mapping[str, Any]]]:
        """Runs; returns what is still to be copied, and of each side the values whose size was not known."""
        feeds = _feeds(inputs)
        results = self.work.program.run(feeds, _targets(sides, slots))
        own = {name: _own(value) if name in feeds else value for name, value in results.items()}
        values: list[Mapping[str, Any]] = []
        for side in sides:
            values.append({spec.name: own[spec.name] for spec in side.edge.values if spec.size is None})
        return Bound(None, _copies(sides, slots, results)), values


Step: TypeAlias = Receive | Send | Compute


class Follower:
    """Follows the row of a device. ``lanes``: of each lane its actions (kind, stage, offset, channel); transfers first, so that
    what can be handed over is before anything else is computed. ``fail`` is called with what a program raised for the
    microbatch that was marked last; its outputs are zeros then, which nobody gets to see. ``reports``: after how many events
    ``tell`` is called, which takes them; 0 where nobody wants any."""

    def __init__(
        self,
        works: Sequence[Work],
        lanes: Sequence[Sequence[Sequence[Any]]],
        mark: Mark,
        fail: Callable[[Exception], None],
        tell: Callable[[list[Event]], None],
    ) -> None:
        self.mark, self.fail, self.tell = mark, fail, tell
        self.reports = 0
        self.events: list[Event] = []
        self.lanes = [_steps({work.stage: work for work in works}, lane) for lane in lanes]
        every = [step for lane in self.lanes for step in lane]
        for step in every:
            if isinstance(step, Compute):
                step.receives = [other for other in every if isinstance(other, Receive) and other.work is step.work]
                step.sends = [other for other in every if isinstance(other, Send) and other.work is step.work]
        received = (side for work in works for ends in work.receives for side in ends if side)
        feeds = (feed for work in works for feed in work.feeds)
        self._streaming = [side for side in dict.fromkeys((*received, *feeds)) if side.streams]

    def follow(self, first: int, until: int) -> None:
        """Works on microbatches ``first`` to ``until - 1``. Raises EOFError when a neighbour has gone."""
        runs = [_stream(lane, first, until) for lane in self.lanes]
        if len(runs) == 1:  # whoever stands first is waited for: no need to ask the others
            for step, microbatch in runs[0]:
                while (blocker := step.blocker(microbatch)) is not None:
                    self.await_one([(step, microbatch, blocker)])
                step.run(microbatch, self)
            return
        heads = [next(run, None) for run in runs]
        while any(heads):
            moved, waiting = False, []
            for number, head in enumerate(heads):
                if head is None:
                    continue
                step, microbatch = head
                blocker = step.blocker(microbatch)
                if blocker is None:
                    step.run(microbatch, self)
                    moved, heads[number] = True, next(runs[number], None)
                else:
                    waiting.append((step, microbatch, blocker))
            if not moved:
                self.await_one(waiting)

    def note(self, event: Event) -> None:
        """Keeps an event, where somebody wants them (``reports``)."""
        if self.reports:
            self.events.append(event)
            if len(self.events) >= self.reports:
                self.tell(self.events)
                self.events = []

    def await_one(self, waiting: Sequence[tuple[Step, int, Any]]) -> None:
        """Waits until the blocker of one of these steps changes. Raises EOFError."""
        wanted = [(step, microbatch, side) for step, microbatch, side in waiting if side is not LANE]
        if not wanted:
            raise RuntimeError("the rows wait for each other")
        step, microbatch, side = wanted[-1]
        state = RECEIVING if side.incoming else WAITING
        self.wait(step.work.stage, microbatch, [side for *_, side in wanted], state)

    def wait(self, stage: int, microbatch: int, sides: Sequence[End], state: int) -> None:
        """Waits for a token of one of ``sides``; meanwhile reads what streams to this process. Raises EOFError."""
        self.mark(state, stage, microbatch)
        if len(sides) == 1 and not self._streaming:
            sides[0].read_tokens()
            return
        by_descriptor = {side.fileno(): side for side in (*sides, *self._streaming)}
        poll = select.poll()
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll():
            by_descriptor[descriptor].read_tokens()

    def hand_over(self, stage: int, microbatch: int, handed: Handed, first: int, count: int) -> None:
        """Sends ``count`` values from number ``first`` on. Raises EOFError."""
        side, slot, values, parts = handed
        if not side.streams:
            side.send(slot, first, count, parts)
            return
        for _ in side.send_streaming(slot, first, count, values):
            self.wait(stage, microbatch, [side], SENDING)


def _stream(steps: Sequence[Step], first: int, until: int) -> Iterator[tuple[Step, int]]:
    """The steps of a lane with the microbatch that each works on (``ir.ops.rows.stream``; a process imports no ``ir``, it
    starts faster without)."""
    offsets = [step.offset for step in steps]
    for period in range(first - max(offsets, default=0), until - min(offsets, default=0)):
        for step, offset in zip(steps, offsets, strict=True):
            microbatch = period + offset
            if first <= microbatch < until and microbatch in step.work.turns:
                yield step, microbatch


def _steps(works: Mapping[int, Work], lane: Sequence[Sequence[Any]]) -> list[Step]:
    """The steps of a lane: runs of actions of one kind, stage and offset."""
    runs: list[tuple[tuple[str, int, int], list[int]]] = []
    for kind, stage, offset, channel in lane:
        if runs and runs[-1][0] == (kind, stage, offset):
            runs[-1][1].append(channel)
        else:
            runs.append(((kind, stage, offset), [channel]))
    steps: list[Step] = []
    for (kind, stage, offset), channels in runs:
        work = works[stage]
        if kind == "F":
            steps.append(Compute(work, offset, [], [], _is_fixed(work)))
            continue
        parts = [_numbers(ends, channels) for ends in (work.receives if kind == "recv" else work.sends)]
        if kind == "recv":
            read = [(ends, numbers) for ends, numbers in zip(work.receives, parts, strict=True) if numbers]
            steps.append(Receive(work, offset, tuple(channels), read))
        else:
            sent = [(position, _ranges(numbers)) for position, numbers in enumerate(parts) if numbers]
            steps.append(Send(work, offset, tuple(channels), sent))
    return steps


def _is_fixed(work: Work) -> bool:
    """Whether everything that goes in and out lies in slots, so that bindings hold."""
    sides = [side for ends in (*work.receives, *work.outputs) for side in ends if side]
    return work.program.in_place and not any(side.streams for side in (*sides, *work.feeds))


def _numbers(ends: Ends, channels: Sequence[int]) -> list[int]:
    """Positions of the values of an edge that these channels carry, ascending."""
    edge = next(side.edge for side in ends if side)
    return [number for number, channel in enumerate(edge.channels) if channel in channels]


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges: first and count of each."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and sum(ranges[-1]) == number:
            ranges[-1] = ranges[-1][0], ranges[-1][1] + 1
        else:
            ranges.append((number, 1))
    return ranges


def _feeds(inputs: Mapping[Incoming, int]) -> dict[str, Any]:
    return {name: value for side, slot in inputs.items() for name, value in side.values(slot).items()}


def _failed(sides: Sequence[Outgoing], slots: Sequence[int]) -> tuple[Bound, list[Mapping[str, Any]]]:
    """What is handed on in place of outputs that could not be computed: zeros, and nothing for values of unknown size."""
    for side, slot in zip(sides, slots, strict=True):
        for view in side.views(slot).values():
            view.data.fill(0)
    return _UNBOUND, [{spec.name: None for spec in side.edge.values if spec.size is None} for side in sides]


def _targets(sides: Sequence[Outgoing], slots: Sequence[int]) -> dict[str, Raw]:
    """Where outputs of known size go: the first slot that wants each."""
    targets: dict[str, Raw] = {}
    for side, slot in zip(sides, slots, strict=True):
        targets = side.views(slot) | targets
    return targets


def _own(value: Any) -> Any:
    """An input that is handed on, as a copy: its slot is given back before it is sent."""
    if isinstance(value, Raw):
        return Raw(value.element, value.shape, value.data.copy())
    return [_own(item) for item in value] if isinstance(value, list) else value


def _copies(sides: Sequence[Outgoing], slots: Sequence[int], places: Mapping[str, Raw]) -> tuple[tuple[Array, Array], ...]:
    """Copies that bring each tensor of known size from its place to every slot that wants it. Raises ValueError for a shape
    that is not the planned one."""
    copies = []
    for side, slot in zip(sides, slots, strict=True):
        for name, target in side.views(slot).items():
            source = places[name]
            if source.shape != target.shape:
                raise ValueError(f"'{name}' has shape {list(source.shape)}, the plan says {list(target.shape)}")
            if source.data.ctypes.data != target.data.ctypes.data:
                copies.append((target.data, source.data))
    return tuple(copies)
