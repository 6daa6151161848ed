"""Runs the program of a mesh's member: its segments in order, and after each segment the collectives of its level.

A ``Member`` is a ``Runnable`` of the engine. A segment writes each value to where it is read: operands of collectives to their
places in shared memory, values that leave the stage to the slot of the receiver, others to buffers of the member. Results of
collectives are read in place. So a binding depends on the slots and the turn only, and is made once for each of these.

Invariant: a buffer has one value at a time. After the last segment that reads a value, later values may use its buffer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnc.build.collective import Collective
from dnnc.engines.onnxruntime.engine import Group, Loaded
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user, raw_view
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import BY_NUMBER, Array, nbytes

Span = tuple[str, float, float, str]
"""What a member did: ``F`` or ``collective``, from when to when, and which."""


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """A segment: its level and its loaded model."""

    level: int
    program: Loaded


@dataclass(frozen=True, slots=True)
class Step:
    """A bound segment (``program``), or a collective (``number``) with the copies (target, source) to make before it."""

    title: str
    program: Loaded | None
    binding: Any
    number: int = -1
    copies: tuple[tuple[Array, Array], ...] = ()


class Member:
    """A member's program. ``mark`` is called before each segment with False and before each collective with True."""

    def __init__(
        self,
        segments: Sequence[LoadedSegment],
        exchange: Group,
        outputs: tuple[ValueSpec, ...],
        mark: Callable[[bool], None] = lambda meeting: None,
    ) -> None:
        """``outputs``: the values that leave the stage, under this member's names."""
        self.programs = {segment.level: segment.program for segment in segments}
        self.exchange = exchange
        self.outputs = outputs
        self.mark = mark
        self.turn, self.turns, self.parts = 0, exchange.turns, 0
        self.spans: list[Span] = []
        levels = {*self.programs, *(collective.level for collective in exchange.collectives)}
        self.levels = sorted(levels)
        self.in_place = all(
            program.in_place and all(spec.size is not None for spec in program.outputs) for program in self.programs.values()
        )
        self._buffers = _buffers(self.levels, self.programs, exchange.collectives, {spec.name for spec in outputs})

    def bind(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> tuple[Step, ...]:
        """The steps to run for these feeds and targets in this turn."""
        steps: list[Step] = []
        self._places = dict(feeds)
        for level in self.levels:
            if program := self.programs.get(level):
                written = {spec.name: self._place(spec, targets) for spec in program.outputs}
                steps.append(Step(f"segment {level}", program, program.bind(self._places, written)))
                self._places |= written
            for number, collective in self._at(level):
                place, source = self.exchange.operand(number, self.turn), self._places[collective.operand]
                in_place = place.data.ctypes.data == source.data.ctypes.data
                copies = () if in_place else ((place.data, source.data),)
                steps.append(Step(_title(collective), None, None, number, copies))
                self._places[collective.result] = self.exchange.result(number, self.turn)
        return tuple(steps)

    def output_places(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """Every value of the last binding, where it lies."""
        return self._places

    def run_bound(self, binding: Any) -> None:
        """Runs a binding once. Raises EOFError when the process of another member has ended, and what onnxruntime raises of a
        segment: then no further segment is run, but every collective, for which the other members wait."""
        steps: tuple[Step, ...] = binding
        error: Exception | None = None
        for step in steps:
            self.mark(step.program is None)
            start = time.monotonic()
            if step.program is not None:
                try:
                    if error is None:
                        step.program.run_bound(step.binding)
                except Exception as raised:
                    error = raised
                self.spans.append(("F", start, time.monotonic(), step.title))
                continue
            for target, source in step.copies:
                np.copyto(target, source)
            self.exchange.run(step.number, self.turn)
            self.spans.append(("collective", start, time.monotonic(), step.title))
        if error is not None:
            raise error

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw]) -> dict[str, Any]:
        """Runs once, where some values have an unknown size; returns all values. Raises as ``run_bound``."""
        values, error = dict(feeds), None
        for level in self.levels:
            if program := self.programs.get(level):
                self.mark(False)
                start = time.monotonic()
                try:
                    if error is None:
                        values |= program.run({name: values[name] for name in program.input_names}, {})
                except Exception as raised:
                    error = raised
                self.spans.append(("F", start, time.monotonic(), f"segment {level}"))
            for number, collective in self._at(level):
                self.mark(True)
                start = time.monotonic()
                operand = self.exchange.operand(number, self.turn).data
                if error is None:
                    np.copyto(operand, from_user(values[collective.operand]).data)
                else:
                    operand.fill(0)
                self.exchange.run(number, self.turn)
                values[collective.result] = self.exchange.result(number, self.turn)
                self.spans.append(("collective", start, time.monotonic(), _title(collective)))
        if error is not None:
            raise error
        return values

    def take_spans(self, start: float, end: float) -> list[Span]:
        """The spans since the last call."""
        spans, self.spans = self.spans, []
        return spans

    def _at(self, level: int) -> list[tuple[int, Collective]]:
        return [(n, collective) for n, collective in enumerate(self.exchange.collectives) if collective.level == level]

    def _place(self, spec: ValueSpec, targets: Mapping[str, Raw]) -> Raw:
        """The place to which a segment writes a value."""
        for number, collective in enumerate(self.exchange.collectives):
            if collective.operand == spec.name:
                return self.exchange.operand(number, self.turn)
        if spec.name in targets:
            return targets[spec.name]
        assert spec.shape is not None
        size = nbytes(BY_NUMBER[spec.element], spec.shape)
        return raw_view(spec.element, spec.shape, self._buffers[spec.name][:size])


def _title(collective: Collective) -> str:
    return f"{collective.kind} {collective.operand}"


def _buffers(
    levels: Sequence[int], programs: Mapping[int, Loaded], collectives: Sequence[Collective], leaving: set[str]
) -> dict[str, Array]:
    """A buffer for each value that only later segments read. A value that leaves the stage has a buffer of its own, because it
    is read after the last segment."""
    last_level: dict[str, int] = {}
    for level in levels:
        if level in programs:
            last_level.update(dict.fromkeys(programs[level].input_names, level))
    in_shared = {collective.operand for collective in collectives}
    buffers: dict[str, Array] = {}
    free: list[Array] = []
    busy: list[tuple[int, Array]] = []
    for level in levels:
        free += [buffer for end, buffer in busy if end < level]
        busy = [(end, buffer) for end, buffer in busy if end >= level]
        specs = programs[level].outputs if level in programs else ()
        for spec in sorted(specs, key=lambda spec: -(spec.size or 0)):
            if spec.name in in_shared or spec.size is None:
                continue
            fitting = [buffer for buffer in free if buffer.size >= spec.size]
            buffer = min(fitting, key=lambda b: b.size) if fitting else np.empty(spec.size, np.uint8)
            free = [other for other in free if other is not buffer]
            buffers[spec.name] = buffer
            if spec.name not in leaving:
                busy.append((last_level.get(spec.name, level), buffer))
    return buffers
