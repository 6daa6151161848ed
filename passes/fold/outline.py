"""Writes a folding down: blocks become functions, copies become calls.

The body is the first copy with its own names; what it reads from outside are arguments, called after what the first copy reads
there. A call gives the copy's names for them, resources included, and its results bear the copy's names. The rest of what tells
a copy from the first stands in the call's attributes (``marks.py``). A call costs what its body does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ir.attributes import Attribute, Attributes, AttrKind, attributes
from ir.facets import Cost, Facets
from ir.module import Func
from ir.names import unique
from ir.ops import Op, Value
from passes.cost import total_cost
from passes.fold import marks
from passes.fold.names import assigned, locations, rebuild
from passes.fold.search import Item
from passes.fold.structure import Copy, Folding


def outline(folding: Folding, taken: set[str]) -> tuple[Func, tuple[Func, ...]]:
    """The function with calls in it, and the functions of its blocks. ``taken`` are the names of symbols; it then holds theirs
    too."""
    return _Outline(folding, taken).run()


class _Outline:
    def __init__(self, folding: Folding, taken: set[str]) -> None:
        self.folding = folding
        self.ops = folding.func.ops
        self.names = [unique(f"@block_{number}", taken) for number in range(len(folding.blocks))]
        self.copy_at = {(number, copy.ops[0]): copy for number, block in enumerate(folding.blocks) for copy in block.copies}
        # Where in the order of the function the ops of a block's body stand, in its first copy: there, place by place.
        self.ranks = [_ranks(block.copies[0].ops) for block in folding.blocks]
        self.own = [self.texts(number, block.copies[0]) for number, block in enumerate(folding.blocks)]
        self.costs: dict[int, Facets] = {}

    def run(self) -> tuple[Func, tuple[Func, ...]]:
        func, folding = self.folding.func, self.folding
        blocks = tuple(self.body(number) for number in range(len(folding.blocks)))
        order = _order(self.expanded(folding.outer, folding.order))
        attributes_ = tuple(sorted([*func.attributes, *order], key=lambda item: item[0]))
        ops = tuple(self.items(folding.outer, folding.order, {}))
        return replace(func, ops=ops, attributes=attributes_), blocks

    def expanded(self, items: Iterable[Item], order: Sequence[int]) -> Iterable[int]:
        """The ops of ``items`` as ``expand`` puts them behind one another."""
        for item in items:
            op = order[item.start]
            yield from [op] if item.block < 0 else self.natural(item.block, self.copy_at[item.block, op])

    def natural(self, number: int, copy: Copy) -> list[int]:
        """The ops of a copy in the order that those of the first copy have in the function."""
        ordered = [0] * len(copy.ops)
        for rank, op in zip(self.ranks[number], copy.ops, strict=True):
            ordered[rank] = op
        return ordered

    def body(self, number: int) -> Func:
        """The function of a block: its first copy."""
        block = self.folding.blocks[number]
        first = block.copies[0]
        taken = set(assigned(self.ops[op] for op in first.ops))
        names = {name: unique("%" + name[1:], taken) for name in first.operands}
        args = tuple(Value(names[name], given.type) for name, given in zip(first.operands, block.inputs, strict=True))
        results = tuple(Value(name, given.type) for name, given in zip(first.results, block.outputs, strict=True))
        ops = tuple(self.items(block.body, first.ops, names))
        rank = dict(zip(first.ops, self.ranks[number], strict=True))
        order = _order([rank[op] for op in self.expanded(block.body, first.ops)])
        return Func(self.names[number], args, results, ops, (*attributes({marks.COPIES: len(block.copies)}), *order))

    def items(self, items: Iterable[Item], order: tuple[int, ...], names: Mapping[str, str]) -> Iterable[Op]:
        """Ops and calls of a sequence whose ops stand in ``order``, with what it reads from outside called by ``names``."""
        for item in items:
            op = order[item.start]
            if item.block < 0:
                yield rebuild(self.ops[op], names) if names else self.ops[op]
            else:
                yield self.call(item.block, self.copy_at[item.block, op], names)

    def call(self, number: int, copy: Copy, names: Mapping[str, str]) -> Op:
        block = self.folding.blocks[number]
        operands = tuple(names.get(name, name) for name in copy.operands)
        results = tuple(Value(name, given.type) for name, given in zip(copy.results, block.outputs, strict=True))
        return Op(marks.CALL, operands, results, self.attributes(number, copy), facets=self.facets(number))

    def attributes(self, number: int, copy: Copy) -> Attributes:
        found = [(marks.CALLEE, Attribute(AttrKind.SYMBOL, self.names[number]))]
        if copy is not self.folding.blocks[number].copies[0]:
            own = self.own[number]
            found += [(key, marks.texts(values)) for key, values in self.texts(number, copy).items() if values != own[key]]
        return tuple(sorted(found, key=lambda item: item[0]))

    def texts(self, number: int, copy: Copy) -> dict[str, tuple[str, ...]]:
        """What may tell a copy from another, by attribute."""
        ops = [self.ops[op] for op in self.natural(number, copy)]
        return {marks.NAMES: tuple(assigned(ops)), **marks.location_lists(locations(ops))}

    def facets(self, number: int) -> Facets:
        """The cost of a call, where the ops inside have one."""
        if number not in self.costs:
            ops = [self.ops[op] for op in self.folding.blocks[number].copies[0].ops]
            known = all(op.facet(Cost) is not None for op in ops)
            self.costs[number] = (replace(total_cost(ops), kind="control"),) if known else ()
        return self.costs[number]


def _ranks(ops: Sequence[int]) -> list[int]:
    """The place of each number among the numbers sorted."""
    ranks = {op: rank for rank, op in enumerate(sorted(ops))}
    return [ranks[op] for op in ops]


def _order(positions: Iterable[int]) -> Attributes:
    """The mark that says where expanded ops stand; none when they stand in their own order."""
    pairs = marks.stretches(positions)
    return () if len(pairs) <= 2 else ((marks.ORDER, Attribute(AttrKind.INTS, pairs)),)


__all__ = ["outline"]
