"""Places of collectives are used again, and never raced for: an oracle follows every access with vector clocks."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.build.build import StageProgram
from dnnc.build.collective import SMALL
from dnnc.engines.onnxruntime.transport.collectives import TURNS, Places
from dnnc.engines.onnxruntime.transport.sharing import NEVER, Uses, offset_inside, places
from dnnc.engines.onnxruntime.transport.wiring import uses_of
from tests.dnnc.engines.onnxruntime.test_collectives import collective
from tests.dnnc.engines.onnxruntime.test_mesh_random import SHAPES, written

Span = tuple[Any, int, int]
"""A memory, start and end."""


@dataclass
class Oracle:
    """Runs three samples of a stage on paper, members in step, and complains of a read that finds another value than was meant,
    and of two accesses, one of them a write, that nothing orders."""

    stage: StageProgram
    places: Places
    clocks: list[list[int]] = field(default_factory=list)
    accesses: list[tuple[int, int, Span, bool, Any]] = field(default_factory=list)

    def check(self) -> None:
        count = len(self.stage.members)
        self.clocks = [[0] * count for _ in range(count)]
        levels = {s.level for m in self.stage.members for s in m.segments} | {c.level for c in self.stage.collectives}
        for sample in range(3):
            where: list[dict[str, Span]] = [{} for _ in range(count)]
            for level in sorted(levels):
                self.segments(sample, level, where)
                for number, one in enumerate(self.stage.collectives):
                    if one.level == level:
                        self.meeting(sample, number, where)
            for member, program in enumerate(self.stage.members):
                for part in (*program.sends, *program.outputs):
                    self.read(member, where[member].get(part.value), (sample, part.value))

    def segments(self, sample: int, level: int, where: list[dict[str, Span]]) -> None:
        for member, program in enumerate(self.stage.members):
            for segment in (segment for segment in program.segments if segment.level == level):
                read = [where[member].get(name) for name in segment.inputs]
                for name, span in zip(segment.inputs, read, strict=True):
                    self.read(member, span, (sample, name))
                for value in segment.outputs:
                    numbers = [n for n, c in enumerate(self.stage.collectives) if c.operand == value.name]
                    if numbers:
                        span = where[member][value.name] = self.operand(numbers[0], member, sample)
                        assert not any(other and overlap(other, span) for other in read), "written while it is read"
                        self.write(member, span, (sample, value.name))

    def meeting(self, sample: int, number: int, where: list[dict[str, Span]]) -> None:
        one = self.stage.collectives[number]
        members = range(len(self.stage.members))
        for member in members:
            span, source = self.operand(number, member, sample), where[member].get(one.operand)
            if source != span:
                self.read(member, source, (sample, one.operand))
                self.write(member, span, (sample, one.operand))
            if one.kind == "all_gather" and not self.inside(number, member):
                self.write(member, self.result_part(number, member, sample), (sample, one.result))
        self.meet(one.groups)
        for member in members:
            result = self.result(number, member, sample)
            if one.kind != "all_gather":
                for peer in one.group_of(member):
                    self.read(member, self.operand(number, peer, sample), (sample, one.operand))
                self.write(member, self.result_part(number, member, sample) if one.shared else result, (sample, one.result))
            where[member][one.result] = result
        if one.kind == "all_reduce" and one.shared:
            self.meet(one.groups)

    # Where things lie

    def operand(self, number: int, member: int, sample: int) -> Span:
        one = self.stage.collectives[number]
        start = sample % TURNS * self.places.size + self.places.operands[number, member]
        return "shared", start, start + one.nbytes(one.operands[member])

    def inside(self, number: int, member: int) -> bool:
        one = self.stage.collectives[number]
        group = one.group_of(member)
        return offset_inside(one, group, group.index(member)) is not None

    def result(self, number: int, member: int, sample: int) -> Span:
        one = self.stage.collectives[number]
        size = one.nbytes(one.results[member])
        if not one.shared:
            start = self.places.own_results[number, member]
            assert start + size <= self.places.own_size
            return member, start, start + size
        start = sample % TURNS * self.places.size + self.places.results[number, one.group_of(member)[0]]
        assert start + size <= (sample % TURNS + 1) * self.places.size
        return "shared", start, start + size

    def result_part(self, number: int, member: int, sample: int) -> Span:
        """The slice of a shared result that a member writes; of strided parts, as good as an equal share."""
        contiguous = math.prod(self.stage.collectives[number].results[member][: self.stage.collectives[number].join]) == 1
        if self.stage.collectives[number].kind == "all_gather" and contiguous:
            one = self.stage.collectives[number]
            memory, start, _ = self.result(number, member, sample)
            peers = one.group_of(member)
            start += sum(one.nbytes(one.operands[peer]) for peer in peers[: peers.index(member)])
            return memory, start, start + one.nbytes(one.operands[member])
        one = self.stage.collectives[number]
        group = one.group_of(member)
        memory, start, end = self.result(number, member, sample)
        step, place = (end - start) // len(group), group.index(member)
        return memory, start + place * step, start + (place + 1) * step

    # Accesses

    def meet(self, groups: tuple[tuple[int, ...], ...]) -> None:
        for group in groups:
            joined = [max(column) for column in zip(*(self.clocks[member] for member in group), strict=True)]
            for member in group:
                self.clocks[member] = list(joined)

    def read(self, member: int, span: Span | None, value: Any) -> None:
        if span is None:  # in a buffer of the member's own
            return
        last = next((v for _, _, other, write, v in reversed(self.accesses) if write and overlap(other, span)), None)
        known = {value, *self.same(value)}
        assert last in known, f"member {member} reads {value} and finds {last}"
        self.note(member, span, False, value)

    def same(self, value: Any) -> set[Any]:
        """A gathered tensor is made of operands in place."""
        sample, name = value
        return {(sample, c.operand) for c in self.stage.collectives if c.result == name and c.kind == "all_gather"}

    def write(self, member: int, span: Span, value: Any) -> None:
        self.note(member, span, True, value)

    def note(self, member: int, span: Span, write: bool, value: Any) -> None:
        for other, time, where, wrote, what in self.accesses:
            if other != member and (write or wrote) and overlap(where, span):
                assert self.clocks[member][other] >= time, f"members {other} ({what}) and {member} ({value}) race"
        self.clocks[member][member] += 1
        self.accesses.append((member, self.clocks[member][member], span, write, value))


def overlap(left: Span, right: Span) -> bool:
    return left[0] == right[0] and left[1] < right[2] and right[1] < left[2]


def widened(stage: StageProgram) -> StageProgram:
    """The stage with tensors so large that results are shared."""
    return replace(
        stage,
        collectives=tuple(
            replace(
                one,
                operands=tuple((*shape[:-1], shape[-1] * SMALL) if shape else shape for shape in one.operands),
                results=tuple((*shape[:-1], shape[-1] * SMALL) if shape else shape for shape in one.results),
            )
            for one in stage.collectives
        ),
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(4, 12), st.sampled_from([*SHAPES, (2, 2, 2)]), st.booleans())
def test_nothing_is_raced_for(seed: int, ops: int, shape: tuple[int, ...], wide: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stage = written(Path(folder), seed, ops, [shape], "shared")[1].stages[0]
    if wide:
        stage = widened(stage)
    Oracle(stage, places(stage.collectives, uses_of(stage))).check()


def test_the_oracle_sees_races() -> None:
    """A slot that is used again too early is found."""
    with tempfile.TemporaryDirectory() as folder:
        stage = widened(written(Path(folder), 2, 12, [(2, 2)], "shared")[1].stages[0])
    careless = {name: Uses(use.made, -1, -1) for name, use in uses_of(stage).items()}
    oracle = Oracle(stage, places(stage.collectives, careless))
    with pytest.raises(AssertionError, match=r"race|finds|written while"):
        oracle.check()


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_memory_does_not_grow_with_the_layers(kind: str) -> None:
    """Each layer reads what the one before it made, and no longer: few slots do for any number."""

    def of(layers: int) -> Places:
        several = [
            replace(
                collective(kind, (512, 512), ((0, 1, 2, 3),), split=1, join=0, channel=n),
                level=n,
                operand=f"p{n}",
                result=f"s{n}",
            )
            for n in range(layers)
        ]
        uses = {f"p{n}": Uses(n, -1, n) for n in range(layers)} | {f"s{n}": Uses(None, n + 1) for n in range(layers)}
        return places(several, uses)

    few, many = of(4), of(100)
    assert (many.size, many.own_size) == (few.size, few.own_size)
    assert NEVER > 100
