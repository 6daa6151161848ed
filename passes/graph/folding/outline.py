"""Writes a folding down: variants of blocks become functions, copies become calls.

The body is the first copy with its own names; what it reads from outside are arguments, called after what the first copy reads
there. A call gives the copy's names for them, resources included, and its results bear the copy's names. The rest of what tells
a copy from the first stands in the call's attributes, and what was decided about all its ops alike in its facets
(``marks.py``). A call costs what its body does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ir.core.attributes import Attribute, Attributes, AttrKind, attributes
from ir.core.facets import Cost, Facets
from ir.core.module import Func, Resource
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.ops.opdefs import RESHARD
from ir.text.renaming import renaming
from passes.graph.folding import marks
from passes.graph.folding.names import assigned, locations
from passes.graph.folding.search import Item
from passes.graph.folding.structure import Copy, Folding
from passes.graph.folding.variants import variants
from passes.graph.graph import rebuild, total_cost


def outline(folding: Folding, resources: Mapping[str, Resource], taken: set[str]) -> tuple[Func, tuple[Func, ...]]:
    """The function with calls in it, and the functions of its blocks. ``taken`` are the names of symbols; it then holds theirs
    too. The function as it is where nothing is to be called."""
    outline_ = _Outline(folding, resources, taken)
    return outline_.run() if outline_.variants else (folding.func, ())


class _Outline:
    def __init__(self, folding: Folding, resources: Mapping[str, Resource], taken: set[str]) -> None:
        self.folding = folding
        self.ops = folding.func.ops
        self.types = {name: resource.type for name, resource in resources.items()}
        self.types.update((value.name, value.type) for value in folding.func.args)
        for op in self.ops:
            for value in op.results:
                self.types[value.name] = value.type
        self.outer, self.variants = variants(folding, self.types)
        self.blocks = [unique(f"@block_{number}", taken) for number in range(len(folding.blocks))]
        self.names = [
            unique(f"{self.blocks[variant.block]}.v{variant.number}", taken) if variant.number else self.blocks[variant.block]
            for variant in self.variants
        ]
        self.copy_at: dict[tuple[int, int], tuple[Copy, Facets]] = {}
        for number, variant in enumerate(self.variants):
            for copy, common in zip(variant.copies, variant.common, strict=True):
                self.copy_at[number, copy.ops[0]] = copy, common
        # Where in the order of the function the ops of a body stand, in its first copy: there, place by place.
        self.ranks = [_ranks(variant.copies[0].ops) for variant in self.variants]
        self.own = [self.texts(number, variant.copies[0]) for number, variant in enumerate(self.variants)]
        self.costs: dict[int, Facets] = {}

    def run(self) -> tuple[Func, tuple[Func, ...]]:
        func, folding = self.folding.func, self.folding
        bodies = tuple(self.body(number) for number in range(len(self.variants)))
        order = _order(self.expanded(self.outer, folding.order))
        attributes_ = tuple(sorted([*func.attributes, *order], key=lambda item: item[0]))
        ops = []
        for item in self.outer:
            op = folding.order[item.start]
            ops.append(self.ops[op] if item.block < 0 else self.call(item.block, op, {}, ()))
        return replace(func, ops=tuple(ops), attributes=attributes_), bodies

    def expanded(self, items: Iterable[Item], order: Sequence[int]) -> Iterable[int]:
        """The ops of ``items`` as ``expand`` puts them behind one another."""
        for item in items:
            op = order[item.start]
            yield from [op] if item.block < 0 else self.natural(item.block, self.copy_at[item.block, op][0])

    def natural(self, number: int, copy: Copy) -> list[int]:
        """The ops of a copy in the order that those of the first copy have in the function."""
        ordered = [0] * len(copy.ops)
        for rank, op in zip(self.ranks[number], copy.ops, strict=True):
            ordered[rank] = op
        return ordered

    def body(self, number: int) -> Func:
        """The function of a variant: its first copy."""
        variant = self.variants[number]
        block, first = self.folding.blocks[variant.block], variant.copies[0]
        taken = set(assigned(self.ops[op] for op in first.ops))
        names = {name: unique("%" + name[1:], taken) for name in first.operands}
        args = tuple(Value(names[name], self.types[name]) for name in first.operands)
        results = tuple(Value(name, self.types[name]) for name in first.results)
        ops = []
        for item in variant.body:
            op = first.ops[item.start]
            if item.block < 0:
                ops.append(rebuild(_without(self.ops[op], variant.common[0]), names))
            else:
                ops.append(self.call(item.block, op, names, variant.common[0]))
        rank = dict(zip(first.ops, self.ranks[number], strict=True))
        order = _order([rank[op] for op in self.expanded(variant.body, first.ops)])
        said = {
            marks.COPIES: len(variant.copies),
            **({marks.VARIANT: self.blocks[variant.block][1:]} if variant.number else {}),
        }
        if len(block.inputs) != len(args):
            raise AssertionError(f"{len(args)} arguments for the {len(block.inputs)} inputs of a block")
        return Func(self.names[number], args, results, tuple(ops), tuple(sorted([*attributes(said), *order], key=_key)))

    def call(self, number: int, op: int, names: Mapping[str, str], held: Facets) -> Op:
        """The call of the copy that begins with ``op``, where what it reads is called by ``names``. ``held``: decisions that
        its caller's calls give it."""
        copy, common = self.copy_at[number, op]
        operands = tuple(names.get(name, name) for name in copy.operands)
        results = tuple(Value(name, self.types[name]) for name in copy.results)
        made = Op(marks.CALL, operands, results, self.attributes(number, copy), facets=self.cost(number))
        return made.with_facets(*[facet for facet in common if facet not in held])

    def attributes(self, number: int, copy: Copy) -> Attributes:
        found = [(marks.CALLEE, Attribute(AttrKind.SYMBOL, self.names[number]))]
        if copy is not self.variants[number].copies[0]:
            found += _difference(self.own[number], self.texts(number, copy))
        return tuple(sorted(found, key=_key))

    def texts(self, number: int, copy: Copy) -> dict[str, tuple[str, ...]]:
        """What may tell a copy from another, by attribute."""
        ops = [self.ops[op] for op in self.natural(number, copy)]
        return {marks.NAMES: tuple(assigned(ops)), **marks.location_lists(locations(ops))}

    def cost(self, number: int) -> Facets:
        """The cost of a call, where the ops inside have one; a ``comm.reshard`` has none and is left out."""
        block = self.variants[number].block
        if block not in self.costs:
            ops = [self.ops[op] for op in self.folding.blocks[block].copies[0].ops if self.ops[op].name != RESHARD]
            known = all(op.facet(Cost) is not None for op in ops)
            self.costs[block] = (replace(total_cost(ops), kind="control"),) if known else ()
        return self.costs[block]


def _difference(own: Mapping[str, tuple[str, ...]], copied: Mapping[str, tuple[str, ...]]) -> list[tuple[str, Attribute]]:
    """What a call says of the lists of its copy, ``own`` those of the body: a renaming or the lists, whatever is shorter."""
    lists = {key: values for key, values in copied.items() if values != own[key]}
    if not lists:
        return []
    bare = [pair for key, values in copied.items() for pair in zip(_bare(key, own[key]), _bare(key, values), strict=True)]
    if (found := renaming(bare)) and len(found.pairs) < sum(map(len, lists.values())) / 2:
        return [(marks.RENAME, marks.texts(found.flat()))]
    return [(key, marks.texts(values)) for key, values in lists.items()]


def _bare(key: str, texts: tuple[str, ...]) -> Iterable[str]:
    return (text[1:] for text in texts) if key == marks.NAMES else texts


def _key(item: tuple[str, Attribute]) -> str:
    return item[0]


def _without(op: Op, common: Facets) -> Op:
    """``op`` as it stands in a body: without decisions that calls give."""
    facets = tuple([facet for facet in op.facets if facet not in common])
    return op if len(facets) == len(op.facets) else replace(op, facets=facets)


def _ranks(ops: Sequence[int]) -> list[int]:
    """The place of each number among the numbers sorted."""
    ranks = {op: rank for rank, op in enumerate(sorted(ops))}
    return [ranks[op] for op in ops]


def _order(positions: Iterable[int]) -> Attributes:
    """The mark that says where expanded ops stand; none when they stand in their own order."""
    pairs = marks.stretches(positions)
    return () if len(pairs) <= 2 else ((marks.ORDER, Attribute(AttrKind.INTS, pairs)),)
