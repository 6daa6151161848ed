"""Which functions are written for the blocks of a folding: one for each distinct decision.

A block is the same program whatever was decided for its copies (``program.py``). Copies that were decided and laid alike become
calls of one function, a *variant* of the block; those about which nothing was decided, of the plain block. So a shared body
says only what holds for each of its copies.

A decision of which all ops of a copy hold the same (the stage of a layer that lies in one stage) makes no variant: it stands on
the call, where ``Variant.common`` gives it for each copy. ``expand`` puts it back on the ops.

A variant that saves no ops is not written: its copies stand where they were called. That is so for one that is called once (a
copy decided like no other), and for two ops called twice. Blocks whose copies all agree are written as they were found.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ir.core.facets import Facets
from ir.core.types import Type
from passes.graph.folding.program import choices, decided, laid
from passes.graph.folding.search import Item
from passes.graph.folding.structure import Copy, Folding


@dataclass(frozen=True, slots=True)
class Variant:
    """A function to be written for copies of block ``block`` that agree in all but names. ``number`` is 0 for those about which
    nothing was decided inside, else counts the block's variants from 1, by their first copies. ``body``: the block's items, but
    that ``Item.block`` is the position of a variant; those not written are replaced by their items. ``common`` are, copy by
    copy, the decisions that all its ops hold."""

    block: int
    number: int
    copies: tuple[Copy, ...]
    common: tuple[Facets, ...]
    body: tuple[Item, ...]


def variants(folding: Folding, types: Mapping[str, Type]) -> tuple[tuple[Item, ...], list[Variant]]:
    """The items of the function, and the functions that they and each other call, as ``Variant.body`` has them: variants of one
    block stand together, blocks as they are numbered. ``types`` are those of all values and resources that the function has."""
    return _Variants(folding, types).written()


@dataclass(slots=True)
class _Kind:
    """Copies of a block that were decided alike. ``divided``: others were not. ``items`` as ``Variant.body``."""

    block: int
    plain: bool
    copies: list[Copy]
    common: list[Facets]
    items: tuple[Item, ...]
    divided: bool = False


class _Variants:
    def __init__(self, folding: Folding, types: Mapping[str, Type]) -> None:
        self.folding, self.types = folding, types
        self.choices = [choices(op) for op in folding.func.ops]
        self.others = [decided(op) for op in folding.func.ops]
        self.kinds: list[_Kind] = []
        self.kind_at: dict[tuple[int, int], tuple[int, Facets]] = {}  # of a copy, by block and first op: kind, common decisions
        for block in _inner_first([block.body for block in folding.blocks]):
            self.divide(block)

    def divide(self, number: int) -> None:
        """The kinds of a block, those of blocks inside it known."""
        found: dict[Hashable, int] = {}
        block = self.folding.blocks[number]
        first = len(self.kinds)
        for copy in block.copies:
            # An item's decisions that all its ops hold, and all else that was decided about it.
            items: list[tuple[Facets, Hashable]] = []
            body: list[Item] = []
            for item in block.body:
                op = copy.ops[item.start]
                if item.block < 0:
                    items.append((self.choices[op], self.others[op]))
                    body.append(item)
                else:
                    kind, common = self.kind_at[item.block, op]
                    items.append((common, None if self.kinds[kind].plain else kind))
                    body.append(Item(item.start, item.length, kind))
            common = tuple([facet for facet in items[0][0] if all(facet in facets for facets, _ in items)])
            inside = [(tuple([facet for facet in facets if facet not in common]), other) for facets, other in items]
            around = laid([self.types[name] for name in copy.operands])
            plain = not around and not any(facets or other not in ((), None) for facets, other in inside)
            signature = None if plain else (tuple(inside), around)
            if signature not in found:
                found[signature] = len(self.kinds)
                self.kinds.append(_Kind(number, plain, [], [], tuple(body)))
            self.kinds[found[signature]].copies.append(copy)
            self.kinds[found[signature]].common.append(common)
            self.kind_at[number, copy.ops[0]] = found[signature], common
        for made in self.kinds[first:]:
            made.divided = len(found) > 1

    def written(self) -> tuple[tuple[Item, ...], list[Variant]]:
        """Leaves out what does not pay, inner kinds first: what they held then counts where they were called."""
        outer = tuple(self.called(item) for item in self.folding.outer)
        calls = self.calls(outer)
        dropped: set[int] = set()
        for kind, found in enumerate(self.kinds):  # a kind's number is greater than those of the kinds inside it
            found.items = self.spliced(found.items, dropped)
            length = len(found.items)
            if found.divided and calls[kind] * length <= calls[kind] + length:
                dropped.add(kind)
        outer = self.spliced(outer, dropped)
        left = [kind for kind in range(len(self.kinds)) if kind not in dropped]
        left.sort(key=lambda kind: (self.kinds[kind].block, not self.kinds[kind].plain, kind))
        position = {kind: place for place, kind in enumerate(left)}

        def placed(items: Iterable[Item]) -> tuple[Item, ...]:
            return tuple([item if item.block < 0 else Item(item.start, item.length, position[item.block]) for item in items])

        result: list[Variant] = []
        for kind in left:
            found = self.kinds[kind]
            before = result[-1].number if result and result[-1].block == found.block else 0
            number = 0 if found.plain else before + 1
            result.append(Variant(found.block, number, tuple(found.copies), tuple(found.common), placed(found.items)))
        return placed(outer), result

    def called(self, item: Item) -> Item:
        if item.block < 0:
            return item
        return Item(item.start, item.length, self.kind_at[item.block, self.folding.order[item.start]][0])

    def calls(self, outer: Sequence[Item]) -> list[int]:
        """How often each kind is called in the text."""
        counts = [0] * len(self.kinds)
        for items in (outer, *(kind.items for kind in self.kinds)):
            for item in items:
                if item.block >= 0:
                    counts[item.block] += 1
        return counts

    def spliced(self, items: Iterable[Item], dropped: set[int]) -> tuple[Item, ...]:
        """``items`` with those of ``dropped`` kinds replaced by theirs, which hold none of these any more."""
        found: list[Item] = []
        for item in items:
            if item.block in dropped:
                inside = self.kinds[item.block].items
                found += [Item(item.start + inner.start, inner.length, inner.block) for inner in inside]
            else:
                found.append(item)
        return tuple(found)


def _inner_first(bodies: Sequence[Sequence[Item]]) -> list[int]:
    """Blocks behind all that are inside them."""
    found: list[int] = []
    met: set[int] = set()
    for block in range(len(bodies)):
        todo: list[tuple[int, Iterator[Item]]] = []
        if block not in met:
            met.add(block)
            todo.append((block, iter(bodies[block])))
        while todo:
            inner = next((item.block for item in todo[-1][1] if item.block >= 0 and item.block not in met), None)
            if inner is None:
                found.append(todo.pop()[0])
            else:
                met.add(inner)
                todo.append((inner, iter(bodies[inner])))
    return found
