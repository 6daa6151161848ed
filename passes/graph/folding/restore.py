"""Bodies in place of calls: the inverse of ``outline``, by what ``marks.py`` describes.

A body is expanded once, with its own names; a copy is that with names and locations put in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from ir.core.attributes import AttrKind
from ir.core.diagnostics import InvalidInput
from ir.core.facets import DECISIONS
from ir.core.module import Func, Module, Stage, Symbol
from ir.core.ops import Location, Op, all_ops
from ir.system.collector import collector_paused
from ir.text.renaming import Renaming
from passes.graph.faults import CallMisfit, CallsItself, LostOrder, NamesClash, ResultMisnamed, TooManyOps
from passes.graph.folding import marks
from passes.graph.folding.names import assigned, locations
from passes.graph.folding.taken import takes, with_ops
from passes.graph.graph import rebuild

P = TypeVar("P", Func, Stage)
MOST_OPS = 20_000_000
"""Ops made in all; a text of a few lines can ask for more than any machine holds."""


@collector_paused()
def expand(module: Module) -> Module:
    """``module`` without fold's blocks, its stages with the ops that they take; itself where there is neither to undo. Raises
    InvalidInput."""
    blocks = {func.name: func for func in module.of_type(Func) if marks.is_block(func)}
    if not blocks and not takes(module):
        return module
    expander = _Expander(blocks)
    symbols: list[Symbol] = []
    for symbol in module.symbols:
        if symbol.name in blocks:
            symbols.append(symbol)
        elif isinstance(symbol, Func):
            symbols.append(expander.program(symbol))
        else:
            symbols.append(expander.program(symbol) if isinstance(symbol, Stage) else symbol)
    entry = next((symbol for symbol in symbols if isinstance(symbol, Func)), None)
    if entry is not None:
        symbols = [expander.stage(symbol, entry) if isinstance(symbol, Stage) else symbol for symbol in symbols]
    # A call inside a region is none of fold's; what it needs stays.
    kept: set[str] = set()
    todo = [op for s in symbols if isinstance(s, Func | Stage) and s.name not in blocks for op in s.ops]
    while todo:
        op = todo.pop()
        todo += [inner for _, region in op.regions for inner in region.ops]
        callee = op.get(marks.CALLEE) if op.name == marks.CALL else None
        if callee in blocks and callee not in kept:
            kept.add(callee)
            todo += blocks[callee].ops
    return Module(module.name, tuple(s for s in symbols if s.name not in blocks or s.name in kept), module.attributes)


def expanded_bodies(module: Module) -> list[tuple[Func, tuple[Op, ...]]]:
    """The functions that fold wrote, each with the ops that a call of it stands for. Raises InvalidInput."""
    expander = _Expander({func.name: func for func in module.of_type(Func) if marks.is_block(func)})
    return [(block, expander.body(block)) for block in expander.blocks.values()]


class _Expander:
    """Bodies of blocks without calls of blocks, each made once."""

    def __init__(self, blocks: dict[str, Func]) -> None:
        self.blocks = blocks
        self.flat: dict[str, tuple[Op, ...]] = {}
        self.made = 0

    def program(self, program: P) -> P:
        """``program`` with its calls of blocks expanded, in its own order."""
        ops = tuple(self.ops(program.ops))
        order = next((value for key, value in program.attributes if key == marks.ORDER), None)
        if order is not None:
            positions = marks.positions(order.value, len(ops)) if order.kind is AttrKind.INTS else None
            if positions is None:
                raise InvalidInput(LostOrder(marks.ORDER, program.name, len(ops)), where=program.name)
            placed = dict(zip(positions, ops, strict=True))
            ops = tuple(placed[position] for position in range(len(ops)))
        if program.name not in self.blocks:
            self.distinct(program, ops)
        kept = tuple((key, value) for key, value in program.attributes if key != marks.ORDER)
        return replace(program, ops=ops, attributes=kept)

    def stage(self, stage: Stage, entry: Func) -> Stage:
        """``stage`` with the ops that it takes of ``entry``, which is expanded."""
        result = with_ops(stage, entry)
        if result is not stage:
            self.count(len(result.ops), stage.name)
            self.distinct(result, result.ops)
        return result

    def count(self, ops: int, name: str) -> None:
        self.made += ops
        if self.made > MOST_OPS:
            raise InvalidInput(TooManyOps(MOST_OPS), where=name)

    def distinct(self, program: P, ops: Iterable[Op]) -> None:
        """Names that calls give their copies may be names of others."""
        names = [value.name for value in program.args]
        names += assigned(ops)
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise InvalidInput(NamesClash(twice, program.name), where=program.name)

    def ops(self, ops: Iterable[Op]) -> Iterator[Op]:
        for op in ops:
            if op.name == marks.CALL and op.get(marks.CALLEE) in self.blocks:
                block = self.blocks[op.get(marks.CALLEE)]
                body = self.body(block)
                self.count(len(body), block.name)
                yield from self.copy(op, block, body)
            else:
                yield op

    def body(self, block: Func) -> tuple[Op, ...]:
        """The ops of ``block``, those of the blocks that it calls first: nesting may be deeper than Python's stack."""
        if block.name in self.flat:
            return self.flat[block.name]
        todo, met = [block], {block.name}
        while todo:
            inner = [
                self.blocks[callee]
                for op in todo[-1].ops
                if op.name == marks.CALL and (callee := op.get(marks.CALLEE)) in self.blocks and callee not in self.flat
            ]
            if not inner:
                done = todo.pop()
                self.flat[done.name] = self.program(done).ops
            elif inner[0].name in met:
                raise InvalidInput(CallsItself(inner[0].name), where=inner[0].name)
            else:
                met.add(inner[0].name)
                todo.append(inner[0])
        return self.flat[block.name]

    def copy(self, call: Op, block: Func, body: tuple[Op, ...]) -> Iterator[Op]:
        """The ops that ``call`` stands for: those of ``body``, the expanded ``block``, under its own names."""
        own = list(assigned(body))
        pairs = call.get(marks.RENAME, ())
        renamed = Renaming(pairs[: len(pairs) // 2 * 2])
        given = call.get(marks.NAMES)
        if given is None:
            given = [renamed.name(name) for name in own]
        places = self.places(call, body, renamed)
        count = sum(1 for _ in all_ops(body))
        fits = len(given) == len(own) and len(pairs) % 2 == 0 and len(call.operands) == len(block.args)
        if not fits or (places is not None and len(places) != count):
            raise InvalidInput(CallMisfit(call.id, block.name), where=call.id)
        names = dict(zip(own, given, strict=True))
        names.update((value.name, name) for value, name in zip(block.args, call.operands, strict=True))
        for inside, result in zip(block.results, call.results, strict=True):
            name = names.get(inside.name, inside.name)
            if result.name not in ("", name):
                raise InvalidInput(ResultMisnamed(result.name, name, block.name), where=call.id)
        following = None if places is None else iter(places)
        decisions = [facet for facet in call.facets if isinstance(facet, DECISIONS)]
        for op in body:
            copied = rebuild(op, names, following)
            yield copied.with_facets(*decisions) if decisions else copied

    def places(self, call: Op, body: Iterable[Op], renamed: Renaming) -> list[Location] | None:
        """Locations of the copy's ops; None where they are those of the body."""
        if all(call.attribute(key) is None for key in (*marks.PLACES, marks.RENAME)):
            return None
        own = marks.location_lists(locations(body))
        parts = [call.get(key, tuple(map(renamed.renamed, own[key]))) for key in marks.PLACES]
        if len({len(part) for part in parts}) != 1:
            return []
        return [Location(*part) for part in zip(*parts, strict=True)]
