"""Rule 3: the part of an op's result that follows from parts of its operands, by the op's layout rule.

Along each axis of the mesh the operands must lie as one strategy of the rule says. The strategies determine a range of each
factor for each member, and so the expression that computes the member's part (``ir.layout_rules.localise``). The ranges must be
the boxes that the placements of operands and results mean: placements cut dimensions by elements, strategies cut factors by
units, and they agree only where both cut at the same places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from dnnc.check.proof.facts import Families, Part, is_partial, reductions
from dnnc.check.proof.model import Application, Model
from dnnc.check.proof.programs import Unit
from dnnc.check.proof.terms import ABSENT, CONSTANT, constant_key, constant_of, content_of, op_key, version
from ir.core.module import Mesh
from ir.core.ops import Op, Value
from ir.core.shares import Shares, nested_cut
from ir.core.types import Replicate, Type
from ir.layout_rules import Cut, LayoutRule, Strategy, localise, rule_of
from ir.ops.boxes import Placements, box, coordinates, shape_of

Operand = tuple[int, Part]
"""A term, and what it is."""


class OpRule:
    """An op of the model on a stage's mesh."""

    def __init__(self, model: Model, application: Application, mesh: Mesh, families: Families) -> None:
        self.model, self.application, self.mesh, self.families = model, application, mesh, families
        op = application.op
        self.own = application.operands[: len(op.operands)]
        self.types: list[Type | None] = [None if node == ABSENT else model.types[node] for node in self.own]
        self.result_types = [model.types[node] if node != ABSENT else value.type for node, value in self.results()]
        self.constants = [None if node == ABSENT else model.numbers(node) for node in self.own]
        self.rule: LayoutRule | None = None
        if mesh.axes and not op.regions:
            self.rule = rule_of(op, self.types, self.result_types, self.constants, model.opsets)
        sizes = {size for _, size in mesh.axes}
        self.strategies = {size: self.rule.strategies(size) if self.rule is not None else () for size in sizes}

    def results(self) -> Iterator[tuple[int, Value]]:
        return zip(self.application.results, self.application.op.results, strict=True)

    def apply(self, unit: Unit, operands: Sequence[Operand | None]) -> Iterator[tuple[int, Part]]:
        """What follows from these operands: each term of the unit that is a part of a result."""
        for strategies in product(*(self.fitting(axis, operands) for axis in range(len(self.mesh.axes)))):
            yield from self.under(unit, operands, strategies)

    def fitting(self, axis: int, operands: Sequence[Operand | None]) -> list[Strategy | None]:
        """The strategies along an axis under which the operands lie so; None: each member does the same."""
        lying = [None if operand is None else operand[1].placements[axis] for operand in operands]
        if self.rule is None:
            return [None] if all(placement in (None, Replicate()) for placement in lying) else []
        return [
            strategy
            for strategy in self.strategies[self.mesh.axes[axis][1]]
            if all(placement in (None, wanted) for placement, wanted in zip(lying, strategy.operands, strict=True))
        ]

    def under(
        self, unit: Unit, operands: Sequence[Operand | None], strategies: Sequence[Strategy | None]
    ) -> Iterator[tuple[int, Part]]:
        """As ``apply``, under these strategies, one per axis."""
        placements = [
            tuple(Replicate() if strategy is None else strategy.results[number] for strategy in strategies)
            for number in range(len(self.application.results))
        ]
        lying = [operand[1].placements for operand in operands if operand is not None]
        if any(len(reductions(each)) > 1 for each in (*placements, *lying)):
            return  # sums and maxima do not commute
        cuts = self.cuts(unit, strategies)
        if cuts is None or not self.cut_alike(unit, operands, placements, cuts):
            return
        terms = [ABSENT if operand is None else operand[0] for operand in operands]
        found = self.plain(unit, terms) if not any(cuts) else self.local(unit, terms, cuts)
        if found is None:
            return
        names = tuple(None if strategy is None else strategy.name for strategy in strategies)
        sums = tuple(0 if operand is None else operand[1].family for operand in operands)
        for node, term, lies in zip(self.application.results, found, placements, strict=True):
            if node != ABSENT:
                key = ("op", self.application.number, names, sums)
                yield term, Part(node, lies, self.families.number(key) if is_partial(lies) else 0)

    def cuts(self, unit: Unit, strategies: Sequence[Strategy | None]) -> list[list[Cut]] | None:
        """The range of each sharded factor, for each member; None where a member would have nothing."""
        found = []
        for member in unit.members:
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
        self, unit: Unit, operands: Sequence[Operand | None], results: Sequence[Placements], cuts: Sequence[Sequence[Cut]]
    ) -> bool:
        """Whether the ranges of factors are the boxes of all operands and results, on each member."""
        tensors: list[tuple[Type, Placements, bool, int]] = [
            (self.model.types[operand[1].node], operand[1].placements, True, i)
            for i, operand in enumerate(operands[: len(self.own)])
            if operand is not None
        ]
        tensors += [
            (type_, lies, False, i)
            for i, (type_, lies, node) in enumerate(zip(self.result_types, results, self.application.results, strict=True))
            if node != ABSENT
        ]
        for member, own in zip(unit.members, cuts, strict=True):
            for type_, lies, reads, number in tensors:
                shape = shape_of(type_)
                if shape is None:
                    if any(placement != Replicate() and not is_partial((placement,)) for placement in lies):
                        return False
                    continue
                ranges = [(0, length) for length in shape]
                for cut in own:
                    dim = (cut.factor.operands if reads else cut.factor.results)[number]
                    if dim is not None:
                        unit_length = shape[dim] // cut.factor.size
                        ranges[dim] = cut.start * unit_length, cut.length * unit_length
                if tuple(ranges) != box(type_, lies, self.mesh, member):
                    return False
        return True

    def plain(self, unit: Unit, terms: Sequence[int]) -> list[int] | None:
        """The results of the op itself on these terms, if the unit has it."""
        application = self.application
        key = op_key(application.op, application.version, terms, application.structure)
        number = unit.terms.find(key)
        if number is None:
            return None
        return [unit.terms.number(("result", number, place)) for place in range(len(application.results))]

    def local(self, unit: Unit, terms: Sequence[int], cuts: Sequence[Sequence[Cut]]) -> list[int] | None:
        """The results of the ops that the rule gives for a shard, if the unit has them."""
        op = self.application.op
        names = tuple("" if node == ABSENT else f"%{i}" for i, node in enumerate(self.own))
        bare = Op(
            op.name,
            names,
            tuple(
                Value(value.name and f"%.{i}", type_)
                for i, (value, type_) in enumerate(zip(op.results, self.result_types, strict=True))
            ),
            op.attributes,
        )
        try:
            made = [localise(bare, self.types, own, self.constants) for own in cuts]
        except ValueError:
            return None
        env = {name: term for name, term in zip(names, terms, strict=True) if name}
        for same in zip(*made, strict=True):
            first = same[0]
            if first.name == CONSTANT:
                tensors = [constant_of(one) for one in same]
                contents = tuple(content_of(tensor) for tensor in tensors if tensor is not None)
                env[first.results[0].name] = unit.terms.number(constant_key(contents))
                continue
            if any(replace(one, results=()) != replace(first, results=()) for one in same):
                return None
            operands = [env[name] if name else ABSENT for name in first.operands]
            number = unit.terms.find(op_key(first, version(first, self.model.opsets), operands))
            if number is None:
                return None
            for place, value in enumerate(first.results):
                env[value.name] = unit.terms.number(("result", number, place))
        return [env.get(value.name, ABSENT) for value in bare.results]


__all__ = ["OpRule", "Operand"]
