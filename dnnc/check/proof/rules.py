"""Rule 3: the part of an op's result that follows from parts of its operands, by the op's layout rule.

Along each axis of the mesh the operands must lie as one strategy of the rule says. The strategies determine a range of each
factor for each member, and so the expression that computes the member's part (``ir.layout_rules.localise``). The ranges must be
the boxes that the placements of operands and results mean: placements cut dimensions by elements, strategies cut factors by
units, and they agree only where both cut at the same places.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

from dnnc.check.proof.facts import Boxes, Families, Part, is_partial, reductions
from dnnc.check.proof.model import Application, Model
from dnnc.check.proof.programs import Unit
from dnnc.check.proof.terms import ABSENT, CONSTANT, Content, constant_key, constant_of, content_of, op_key, version
from ir.core.ops import Op, Value
from ir.core.shares import Shares, nested_cut
from ir.core.types import Replicate, Shard, Type
from ir.layout_rules import Cut, LayoutRule, Numbers, Strategy, localise, rule_of
from ir.ops.boxes import Placements, coordinates, shape_of

Operand: TypeAlias = tuple[int, Part]
"""A term, and what it is."""
Step: TypeAlias = tuple[Op, tuple[Content, ...] | None]
"""An op that members run for one of the model, or a constant, with its bytes on each."""
Members: TypeAlias = tuple[int, ...]


class Followed(NamedTuple):
    """What follows from parts of operands: ``placements`` of each result, under the ``strategies`` of these names (None where
    the op has no rule), if the members run ``steps``; None: the op itself."""

    strategies: tuple[str | None, ...]
    placements: tuple[Placements, ...]
    steps: tuple[Step, ...] | None


class OpKind:
    """What ops of the model share that differ by names alone, on a stage's mesh. ``types`` and ``results``: of operands (None
    for absent ones) and results; ``constants``: the elements of operands that are known."""

    def __init__(
        self,
        op: Op,
        types: Sequence[Type | None],
        results: Sequence[Type],
        constants: Sequence[Numbers | None],
        opsets: Mapping[str, int],
        boxes: Boxes,
    ) -> None:
        self.types, self.results, self.constants, self.boxes, self.mesh = types, results, constants, boxes, boxes.mesh
        self.present = [bool(value.name) for value in op.results]
        self.op = Op(
            op.name,
            tuple("" if type_ is None else f"%{i}" for i, type_ in enumerate(types)),
            tuple(
                Value(value.name and f"%.{i}", type_) for i, (value, type_) in enumerate(zip(op.results, results, strict=True))
            ),
            op.attributes,
        )
        self.rule: LayoutRule | None = None
        if self.mesh.axes and not op.regions:
            self.rule = rule_of(op, types, results, constants, opsets)
        sizes = {size for _, size in self.mesh.axes}
        self.strategies = {size: self.rule.strategies(size) if self.rule is not None else () for size in sizes}
        self._followed: dict[tuple[Members, tuple[Placements | None, ...]], list[Followed]] = {}

    def followed(self, members: Members, lying: tuple[Placements | None, ...]) -> list[Followed]:
        """What follows where the operands lie so (None for absent ones), on these members."""
        if (members, lying) not in self._followed:
            ways = product(*(self.fitting(axis, lying) for axis in range(len(self.mesh.axes))))
            found = (self.under(members, lying, strategies) for strategies in ways)
            self._followed[members, lying] = [one for one in found if one is not None]
        return self._followed[members, lying]

    def fitting(self, axis: int, lying: Sequence[Placements | None]) -> list[Strategy | None]:
        """The strategies along an axis under which the operands lie so; None: each member does the same."""
        along = [None if placements is None else placements[axis] for placements in lying]
        if self.rule is None:
            return [None] if all(placement in (None, Replicate()) for placement in along) else []
        return [
            strategy
            for strategy in self.strategies[self.mesh.axes[axis][1]]
            if all(placement in (None, wanted) for placement, wanted in zip(along, strategy.operands, strict=True))
        ]

    def under(
        self, members: Members, lying: Sequence[Placements | None], strategies: Sequence[Strategy | None]
    ) -> Followed | None:
        """What follows under these strategies, one per axis."""
        placements = tuple(
            tuple(Replicate() if strategy is None else strategy.results[number] for strategy in strategies)
            for number in range(len(self.results))
        )
        if any(len(reductions(each)) > 1 for each in (*placements, *lying) if each is not None):
            return None  # sums and maxima do not commute
        cuts = self.cuts(members, strategies)
        if cuts is None or not self.cut_alike(members, lying, placements, cuts):
            return None
        names = tuple(None if strategy is None else strategy.name for strategy in strategies)
        if not any(cuts):
            return Followed(names, placements, None)
        steps = self.steps(cuts)
        return None if steps is None else Followed(names, placements, steps)

    def cuts(self, members: Members, strategies: Sequence[Strategy | None]) -> list[list[Cut]] | None:
        """The range of each sharded factor, for each member; None where a member would have nothing."""
        found = []
        for member in members:
            ranges: dict[str, list[tuple[Shares, int]]] = {}
            factors = {}
            places = coordinates(self.mesh, member)
            for axis, strategy in enumerate(strategies):
                if strategy is not None and strategy.factor is not None:
                    factors[strategy.name] = strategy.factor
                    ranges.setdefault(strategy.name, []).append((self.mesh.along(axis), places[axis]))
            cuts = [Cut(factors[name], *nested_cut(factors[name].size, among)) for name, among in ranges.items()]
            if any(cut.length == 0 for cut in cuts):
                return None
            found.append(cuts)
        return found

    def cut_alike(
        self,
        members: Members,
        lying: Sequence[Placements | None],
        results: Sequence[Placements],
        cuts: Sequence[Sequence[Cut]],
    ) -> bool:
        """Whether the ranges of factors are the boxes of all operands and results, on each member."""
        tensors: list[tuple[Type, Placements, bool, int]] = [
            (type_, placements, True, i)
            for i, (type_, placements) in enumerate(zip(self.types, lying, strict=False))
            if type_ is not None and placements is not None
        ]
        tensors += [
            (type_, placements, False, i)
            for i, (type_, placements, there) in enumerate(zip(self.results, results, self.present, strict=True))
            if there
        ]
        for type_, placements, reads, number in tensors:
            shape, boxes = shape_of(type_), self.boxes.of(type_, placements)
            if shape is None:
                if any(isinstance(placement, Shard) for placement in placements):
                    return False
                continue
            for member, own in zip(members, cuts, strict=True):
                ranges = [(0, length) for length in shape]
                for cut in own:
                    dim = (cut.factor.operands if reads else cut.factor.results)[number]
                    if dim is not None:
                        unit_length = shape[dim] // cut.factor.size
                        ranges[dim] = cut.start * unit_length, cut.length * unit_length
                if tuple(ranges) != boxes[member]:
                    return False
        return True

    def steps(self, cuts: Sequence[Sequence[Cut]]) -> tuple[Step, ...] | None:
        """The ops that the rule gives for a shard; None where members would run different ones."""
        try:
            made = [localise(self.op, self.types, own, self.constants) for own in cuts]
        except ValueError:
            return None
        if len({len(ops) for ops in made}) != 1:
            return None
        steps: list[Step] = []
        for same in zip(*made, strict=True):
            first = same[0]
            if first.name == CONSTANT:
                tensors = [constant_of(one) for one in same]
                steps.append((first, tuple(content_of(tensor) for tensor in tensors if tensor is not None)))
                continue
            run = (first.name, first.operands, first.attributes)
            if any((one.name, one.operands, one.attributes) != run for one in same):
                return None
            steps.append((first, None))
        return tuple(steps)


class OpRule:
    """An op of the model on a stage's mesh."""

    def __init__(self, model: Model, application: Application, kind: OpKind, families: Families) -> None:
        self.model, self.application, self.kind, self.families = model, application, kind, families

    def apply(self, unit: Unit, operands: Sequence[Operand | None]) -> Iterator[tuple[int, Part]]:
        """What follows from these operands: each term of the unit that is a part of a result."""
        lying = tuple(None if operand is None else operand[1].placements for operand in operands)
        terms = [ABSENT if operand is None else operand[0] for operand in operands]
        sums = tuple(0 if operand is None else operand[1].family for operand in operands)
        for followed in self.kind.followed(unit.members, lying):
            found = self.plain(unit, terms) if followed.steps is None else self.local(unit, terms, followed.steps)
            if found is None:
                continue
            for node, term, lies in zip(self.application.results, found, followed.placements, strict=True):
                if node != ABSENT:
                    key = ("op", self.application.number, followed.strategies, sums)
                    yield term, Part(node, lies, self.families.number(key) if is_partial(lies) else 0)

    def plain(self, unit: Unit, terms: Sequence[int]) -> list[int] | None:
        """The results of the op itself on these terms, if the unit has it."""
        application = self.application
        number = unit.terms.find(op_key(application.op, application.version, terms, application.structure))
        if number is None:
            return None
        return [unit.terms.number(("result", number, place)) for place in range(len(application.results))]

    def local(self, unit: Unit, terms: Sequence[int], steps: Sequence[Step]) -> list[int] | None:
        """The results of the ops that the rule gives for a shard, if the unit has them."""
        env = {name: term for name, term in zip(self.kind.op.operands, terms, strict=True) if name}
        types: dict[int, Type] = {}
        for op, contents in steps:
            if contents is not None:
                env[op.results[0].name] = unit.terms.number(constant_key(contents))
                continue
            operands = [env[name] if name else ABSENT for name in op.operands]
            number = unit.terms.find(op_key(op, version(op, self.model.opsets), operands))
            if number is None:
                return None
            for place, value in enumerate(op.results):
                env[value.name] = unit.terms.number(("result", number, place))
                types[env[value.name]] = value.type
        unit.inner.update(types)
        return [env.get(value.name, ABSENT) for value in self.kind.op.results]


class OpRules:
    """The rules of all ops of a model on one mesh; those that differ by names alone share a kind."""

    def __init__(self, model: Model, boxes: Boxes, families: Families) -> None:
        self.model, self.boxes, self.families = model, boxes, families
        self._kinds: dict[Hashable, OpKind] = {}
        self._rules: dict[int, OpRule] = {}

    def of(self, application: Application) -> OpRule:
        rule = self._rules.get(application.number)
        if rule is None:
            rule = self._rules[application.number] = OpRule(self.model, application, self.kind(application), self.families)
        return rule

    def kind(self, application: Application) -> OpKind:
        op, model = application.op, self.model
        own = application.operands[: len(op.operands)]
        types = tuple(None if node == ABSENT else model.types[node] for node in own)
        values = zip(application.results, op.results, strict=True)
        results = tuple(value.type if node == ABSENT else model.types[node] for node, value in values)
        constants = tuple(None if node == ABSENT else model.numbers(node) for node in own)
        there = tuple(bool(value.name) for value in op.results)
        key = (op.name, op.attributes, bool(op.regions), types, results, constants, there)
        if key not in self._kinds:
            self._kinds[key] = OpKind(op, types, results, constants, model.opsets, self.boxes)
        return self._kinds[key]
