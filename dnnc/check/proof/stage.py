"""One stage: all facts that follow from what it reads, and which of its goals they reach.

Ops of the model are tried in the order of the model, each when a value that it reads has a new fact. Every rule yields true
facts from true facts, so the order, and what is tried, decide only what is found.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import prod

from dnnc.check.proof import moves
from dnnc.check.proof.facts import Boxes, Facts, Families, Part, is_partial, reductions, whole
from dnnc.check.proof.model import Application, Model
from dnnc.check.proof.programs import Line, StageText, Unit
from dnnc.check.proof.rules import Operand, OpRules
from dnnc.check.proof.terms import ABSENT, constant_key
from ir.core.ops import Op
from ir.core.types import Partial, TensorType, Type, without_layout
from ir.ops.boxes import placements_of
from ir.ops.opdefs import is_collective

MOST_TRIED = 1 << 10
"""Combinations of operands of one op that are tried."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a stage must show: that ``terms``, one of each unit, are the part of the node ``wanted`` that the type ``of`` says.
    ``what``: in words."""

    what: str
    terms: tuple[int, ...]
    wanted: int
    of: Type


@dataclass(slots=True)
class Derived:
    """The facts of a unit, and the terms that read each term by an Identity, a Slice or a collective."""

    unit: Unit
    facts: Facts = field(default_factory=Facts)
    readers: dict[int, list[Line]] = field(default_factory=dict)
    zeros: dict[tuple[object, tuple[int, ...]], list[int]] = field(default_factory=dict)


class StageProof:
    """The derivation of a stage. ``refusals``: why the result of a collective does not follow though its operand is known;
    ``untried``: ops of the model, by id, with more than ``MOST_TRIED`` combinations of operands."""

    def __init__(self, model: Model, text: StageText) -> None:
        self.model, self.text, self.mesh = model, text, text.mesh
        self.families = Families()
        self.derived = [Derived(unit) for unit in text.units]
        self.number_of = {id(unit): number for number, unit in enumerate(text.units)}
        self.boxes = Boxes(self.mesh)
        self.rules = OpRules(model, self.boxes, self.families)
        self.waiting: list[int] = []
        self.queued: set[int] = set()
        self.tried: set[tuple[int, int, tuple[Operand | None, ...]]] = set()
        self.refusals: dict[int, str] = {}
        self.untried: set[str] = set()
        self.reductions = _reductions(text)
        self.collectives = lines_by_channel(text, is_collective)
        for derived in self.derived:
            for line in derived.unit.lines:
                if is_collective(line.op) or line.op.name in (moves.IDENTITY, moves.SLICE):
                    derived.readers.setdefault(line.operands[0], []).append(line)

    def assume(self) -> None:
        """What is known at the start: inputs of the model, parts of resources by their declarations, and what channels are to
        carry."""
        for number, derived in enumerate(self.derived):
            unit = derived.unit
            for value in unit.program.args:
                node = self.model.node_of.get(value.name)
                if node is not None and value.name in self.model.args:
                    self.add(number, unit.env[value.name], Part(node, whole(self.mesh)))
            for term, (name, of) in unit.parts.items():
                lies = whole(self.mesh) if of is None else placements_of(of, self.mesh)
                node = self.model.node_of.get(name)
                if node is not None and not is_partial(lies) and (of is None or same_type(self.model.types[node], of)):
                    self.add(number, term, Part(node, lies))
            for line in unit.lines:
                if line.op.name == "comm.recv" and (part := self.carried(line.op)) is not None:
                    self.add(number, line.results[0], part)

        for application in self.model.applications:
            if all(node == ABSENT or node in self.model.contents for node in application.operands):
                self.queue(application.number)

    def queue(self, number: int) -> None:
        """Has an op of the model tried."""
        if number not in self.queued:
            self.queued.add(number)
            heapq.heappush(self.waiting, number)

    def carried(self, op: Op) -> Part | None:
        """What a ``comm.recv`` gets by its name and type, as the sender must show."""
        value = op.results[0]
        node, of = self.model.node_of.get(value.name), op.get("of", value.type)
        if node is None or not same_type(self.model.types[node], of):
            return None
        placements = placements_of(of, self.mesh)
        family = self.families.number(("channel", op.get("channel"))) if is_partial(placements) else 0
        return Part(node, placements, family)

    def run(self) -> None:
        """Derives all that follows."""
        while self.waiting:
            number = heapq.heappop(self.waiting)
            self.queued.discard(number)
            self.apply(self.model.applications[number])

    # -- facts ---------------------------------------------------------------------------------------------------------

    def add(self, number: int, term: int, part: Part) -> None:
        """Adds a fact of unit ``number`` and what follows of it without an op of the model."""
        todo = [(number, term, part)]
        while todo:
            number, term, part = todo.pop()
            derived = self.derived[number]
            if not derived.facts.add(term, part):
                continue
            for reader in self.model.readers[part.node]:
                self.queue(reader)
            for line in derived.readers.get(term, ()):
                todo += self.moved(number, line, part)

    def moved(self, number: int, line: Line, part: Part) -> Iterator[tuple[int, int, Part]]:
        """Facts that follow from ``part`` of the operand of ``line``."""
        unit, result = self.derived[number].unit, line.results[0]
        if line.op.name == moves.IDENTITY:
            for found in moves.identity(unit, self.boxes, part, self.families, sorted(self.reductions)):
                yield number, result, found
                axis = next((i for i, (a, b) in enumerate(zip(part.placements, found.placements, strict=True)) if a != b), -1)
                if axis >= 0 and found.placements[axis] == Partial("sum"):
                    yield from self.beside(number, part, found, axis)
        elif line.op.name == moves.SLICE:
            for found in moves.slices(unit, self.boxes, line, part, self.model.types[part.node]):
                yield number, result, found
        else:
            yield from self.collective(line, part)

    def beside(self, number: int, value: Part, term: Part, axis: int) -> Iterator[tuple[int, int, Part]]:
        """The zeros of the members that are not first along ``axis``, where ``term`` is a term of a sum."""
        type_ = self.model.types[value.node]
        for other, derived in enumerate(self.derived):
            places = self.boxes.places(derived.unit.members, axis)
            shape = self.boxes.local_shape(type_, value.placements, derived.unit.members)
            if other != number and 0 not in places and shape is not None and isinstance(type_, TensorType):
                if (type_.dtype, shape) not in derived.zeros:
                    derived.zeros[type_.dtype, shape] = list(dict.fromkeys(moves.zeros(derived.unit, type_.dtype, shape)))
                for zero in derived.zeros[type_.dtype, shape]:
                    yield other, zero, term

    def collective(self, line: Line, part: Part) -> Iterator[tuple[int, int, Part]]:
        """The results of a collective, if every member has ``part``."""
        channel = line.op.get("channel")
        lines = alike(self.collectives[channel])
        if lines is None:
            self.refusals[channel] = "each member must take part in it once, and all by the same op"
            return
        if len({(one.op.operands, tuple(value.name for value in one.op.results)) for one in lines}) != 1:
            self.refusals[channel] = "its members name what it takes or makes differently; the runtime knows one name for all"
            return
        if not all(d.facts.has(one.operands[0], part) for d, one in zip(self.derived, lines, strict=True)):
            return
        found = moves.collective(self.text, line.op, part, self.families)
        if isinstance(found, Part):
            found = self.typed(lines, part, found)
        if not isinstance(found, Part):
            self.refusals.setdefault(channel, found)
            return
        for number, one in enumerate(lines):
            yield number, one.results[0], found

    def typed(self, lines: Sequence[Line], before: Part, after: Part) -> Part | str:
        """``after``, if the types in the programs, by which the runtime cuts and joins, are those of the parts."""
        whole_type = self.model.types[before.node]
        for derived, line in zip(self.derived, lines, strict=True):
            for name, part in ((line.op.operands[0], before), (line.op.results[0].name, after)):
                for expected in self.boxes.types(whole_type, part.placements, derived.unit.members):
                    if not same_type(derived.unit.types[name], expected):
                        return f"{name} is {derived.unit.types[name]}, its part is {expected}"
        return after

    # -- ops of the model ----------------------------------------------------------------------------------------------

    def apply(self, application: Application) -> None:
        """Tries an op of the model on each unit that has all its operands."""
        if application.unknown:
            return
        for number, derived in enumerate(self.derived):
            choices: list[list[Operand | None]] = []
            for node in application.operands:
                found: list[Operand | None] = [None] if node == ABSENT else [*self.terms(derived, node)]
                if not found:
                    break
                choices.append(found)
            else:
                rule = self.rules.of(application)
                if prod(map(len, choices)) > MOST_TRIED:
                    self.untried.add(application.op.id)
                for operands in islice(product(*choices), MOST_TRIED):
                    if (application.number, number, operands) not in self.tried:
                        self.tried.add((application.number, number, operands))
                        for term, part in list(rule.apply(derived.unit, operands)):
                            self.add(number, term, part)

    def terms(self, derived: Derived, node: int) -> list[Operand]:
        """The terms that are parts of a node. A small constant is whole on every member, whether the program has it or not."""
        found = derived.facts.terms(node)
        constant = self.model.contents.get(node)
        if constant is not None:
            term = derived.unit.terms.number(constant_key((constant,) * len(derived.unit.members)))
            part = Part(node, whole(self.mesh))
            if (term, part) not in found:
                found.append((term, part))
        return found

    # -- goals ---------------------------------------------------------------------------------------------------------

    def reached(self, goal: Goal) -> bool:
        """Whether all members have the part that a goal wants, of one family where it is a term."""
        placements = placements_of(goal.of, self.mesh)
        common: set[Part] | None = None
        for derived, term in zip(self.derived, goal.terms, strict=True):
            own = {p for p in self.parts(derived, term) if p.node == goal.wanted and p.placements == placements}
            common = own if common is None else common & own
        return bool(common) and same_type(self.model.types[goal.wanted], goal.of)

    def parts(self, derived: Derived, term: int) -> tuple[Part, ...]:
        """What a term of a unit is known to be, constants included."""
        found = derived.facts.of(term)
        key = derived.unit.terms.keys[term]
        if key[0] == "constant":
            own = [n for n, c in self.model.contents.items() if key == constant_key((c,) * len(derived.unit.members))]
            found = (*found, *(part for node in own if (part := Part(node, whole(self.mesh))) not in found))
        return found


def _reductions(text: StageText) -> set[str]:
    """The reductions that collectives of a stage do, and of which terms leave it."""
    found: set[str] = set()
    for unit in text.units:
        for line in unit.lines:
            found |= {line.op.get("reduction", "")} if is_collective(line.op) else set()
            if isinstance(of := line.op.get("of"), TensorType):
                found |= reductions(placements_of(of, text.mesh))
        for value in unit.program.results:
            found |= reductions(placements_of(value.type, text.mesh))
    return found


def completed(proofs: Sequence[StageProof], progress: Callable[[str, float | None], None]) -> Iterator[StageProof]:
    """Each of the proofs, once it has derived all that it can."""
    for number, proof in enumerate(proofs):
        progress(f"prove stage {proof.text.stage.index}", number / len(proofs))
        proof.assume()
        proof.run()
        yield proof


def received_values(texts: Iterable[StageText]) -> dict[int, str]:
    """By channel, the name of the value that its reader takes it for."""
    return {
        line.op.get("channel"): line.op.results[0].name
        for text in texts
        for unit in text.units
        for line in unit.lines
        if line.op.name == "comm.recv"
    }


def lines_by_channel(text: StageText, which: Callable[[Op], bool]) -> dict[int, list[list[Line]]]:
    """The lines of each unit whose ops are such, by channel."""
    found: dict[int, list[list[Line]]] = {}
    for number, unit in enumerate(text.units):
        for line in unit.lines:
            if which(line.op):
                found.setdefault(line.op.get("channel"), [[] for _ in text.units])[number].append(line)
    return found


def alike(lines: Sequence[Sequence[Line]]) -> list[Line] | None:
    """The line of each unit, if each has one and all are the same op with the same attributes."""
    if any(len(own) != 1 for own in lines) or len({(own[0].op.name, own[0].op.attributes) for own in lines}) != 1:
        return None
    return [own[0] for own in lines]


def same_type(one: Type, other: Type) -> bool:
    """Whether two types are equal, layouts aside; a dimension that one of them does not know in numbers fits any."""
    one, other = without_layout(one), without_layout(other)
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return one == other
    if one.dtype != other.dtype:
        return False
    if one.shape is None or other.shape is None:
        return True
    pairs = zip(one.shape, other.shape, strict=False)
    return len(one.shape) == len(other.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs
    )
