"""Fold: repeated parts of a function become one function and its calls, provably the same program.

Reads functions and resources; writes ``dnnc.call`` ops and block functions behind the functions of the module (``marks.py``
says what stands in them). ``expand`` undoes it exactly: structure, names, locations, facets, layouts, order.

The way: every op gets a key that says all but names and decisions (``program.py``); a canonical topological order puts the
copies of a block side by side whatever the order and names of the input (``order.py``); exact repeats of keys are found as in
strings (``repeats.py``) and chosen by the ops they save, with their wiring compared (``search.py``); each copy is proven
against the first and its interface told (``structure.py``, the analysis ``folding``); copies that were decided alike share a
function (``variants.py``); then it is written down (``outline.py``).

Invariants: copies of a block agree in everything but names, resources, locations, decisions and layouts, copies of a function
in the last two as well: what stands in a shared body holds for each of its copies. Resources are arguments, but for constants
that all copies share. What is found does not depend on names, on the order of ops, nor on decisions. Bodies of If, Loop and
Scan are part of their op: two such ops fold when their bodies are the same but for names.

Passes that look at ops one by one work on the expanded program (``on_expanded``): given a folded module they give a folded one
back, with a variant for each distinct decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import ClassVar, TypeVar

from ir.collector import collector_paused
from ir.diagnostics import UsageError
from ir.module import Func, Module, Stage, Symbol
from ir.ops import Op
from passes.fold.marks import CALL, CALLEE, GROUPS, NAMES, PLACES, copies_of, is_block
from passes.fold.names import assigned, locations
from passes.fold.outline import outline
from passes.fold.restore import expand, expanded_bodies
from passes.fold.search import Item
from passes.fold.structure import (
    MIN_OPS,
    MIN_SUPPORT,
    Block,
    Chain,
    Copy,
    Folding,
    Input,
    Output,
    find_repeats,
    folding,
)
from passes.framework.base import Pass, PassContext

P = TypeVar("P", bound=Pass)


@dataclass(frozen=True)
class FoldPass(Pass):
    """Write repeated parts once, as functions and calls.

    ``min_support``: copies that a block, and each of its variants, needs; ``min_ops``: ops (calls of blocks inside it count
    one) that it needs.
    """

    name: ClassVar[str] = "fold"
    min_support: int = MIN_SUPPORT
    min_ops: int = MIN_OPS

    def run(self, module: Module, context: PassContext) -> Module:
        """A module that is folded already is folded anew. Raises UsageError for options below 2."""
        for option, value in (("min-support", self.min_support), ("min-ops", self.min_ops)):
            if value < 2:
                raise UsageError(f"{option} is {value}, expected at least 2", where=self.name)
        module = expand(module)
        funcs = list(module.of_type(Func))
        found = [self.repeats(func, module, context) for func in funcs]
        folded = _written(module, funcs, found, self.min_support)
        context.count(
            self.name,
            ops=sum(len(func.ops) for func in funcs),
            left=sum(len(func.ops) for func in folded.of_type(Func)),
            blocks=sum(len(repeats.blocks) for repeats in found),
            bodies=sum(map(is_block, folded.of_type(Func))),
            copies=sum(len(block.copies) for repeats in found for block in repeats.blocks),
        )
        return folded

    def repeats(self, func: Func, module: Module, context: PassContext) -> Folding:
        if (self.min_support, self.min_ops) == (MIN_SUPPORT, MIN_OPS):
            return context.analyses.get(folding, func, module)
        return find_repeats(func, module, self.min_support, self.min_ops)


def fold(module: Module) -> Module:
    """``module`` as the pass ``fold`` writes it with its default options; ``expand`` undoes it."""
    module = expand(module)
    funcs = list(module.of_type(Func))
    return _written(module, funcs, [folding(func, module) for func in funcs], MIN_SUPPORT)


@collector_paused()
def _written(module: Module, funcs: Sequence[Func], found: Sequence[Folding], min_support: int) -> Module:
    """``module``, nothing of which is folded, with the repeats ``found`` of its ``funcs`` as blocks behind the last of these;
    itself where there are none."""
    taken, resources = {symbol.name for symbol in module.symbols}, module.resources
    written: dict[str, Func] = {}
    blocks: list[Func] = []
    for func, repeats in zip(funcs, found, strict=True):
        written[func.name], added = outline(repeats, resources, min_support, taken) if repeats.blocks else (func, ())
        blocks += added
    return _with_blocks(module, written, blocks)


def _with_blocks(module: Module, written: dict[str, Func], blocks: Sequence[Func]) -> Module:
    """``module`` with its functions as ``written``, and ``blocks`` behind them; itself without blocks."""
    if not blocks:
        return module
    symbols: list[Symbol] = []
    last = 0
    for symbol in module.symbols:
        symbols.append(written[symbol.name] if isinstance(symbol, Func) else symbol)
        if isinstance(symbol, Func):
            last = len(symbols)
    return Module(module.name, (*symbols[:last], *blocks, *symbols[last:]), module.attributes)


def on_expanded(run: Callable[[P, Module, PassContext], Module]) -> Callable[[P, Module, PassContext], Module]:
    """For the ``run`` of a pass that looks at ops one by one: it gets the module expanded, and what it makes of a folded
    one is folded again (with the default options; where it left the functions alone, they are as they were)."""

    @wraps(run)
    def around(self: P, module: Module, context: PassContext) -> Module:
        expanded = expand(module)
        result = _with_fitting_calls(expanded, run(self, expanded, context))
        if expanded is module:
            return result
        before, after = list(expanded.of_type(Func)), list(result.of_type(Func))
        names = {func.name for func in before}
        if [id(func) for func in before] != [id(func) for func in after]:
            return fold(result)
        own = {func.name: func for func in module.of_type(Func)}
        return _with_blocks(result, own, [func for func in own.values() if func.name not in names])

    return around


def _with_fitting_calls(before: Module, after: Module) -> Module:
    """``after`` without what calls that are left say of their copies (``marks``), where the function that they call has other
    ops than in ``before``: the lists fit the ops that were there."""
    if before is after or sum(1 for _ in after.of_type(Func)) < 2:
        return after
    had = {func.name: func for func in before.of_type(Func)}
    changed = {func.name for func in after.of_type(Func) if (old := had.get(func.name)) is None or not _same_names(old, func)}
    if not changed:
        return after

    def fitting(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(map(one, ops))

    def one(op: Op) -> Op:
        if op.regions:
            return replace(op, regions=tuple((key, replace(region, ops=fitting(region.ops))) for key, region in op.regions))
        if op.name != CALL or op.get(CALLEE) not in changed:
            return op
        return replace(op, attributes=tuple(item for item in op.attributes if item[0] not in (NAMES, GROUPS, *PLACES)))

    symbols = tuple(replace(s, ops=fitting(s.ops)) if isinstance(s, Func | Stage) else s for s in after.symbols)
    return replace(after, symbols=symbols)


def _same_names(one: Func, other: Func) -> bool:
    """Whether two functions assign the same names in the same order, in the same places."""
    return one.ops is other.ops or (
        list(assigned(one.ops)) == list(assigned(other.ops)) and list(locations(one.ops)) == list(locations(other.ops))
    )


__all__ = [
    "Block",
    "Chain",
    "Copy",
    "FoldPass",
    "Folding",
    "Input",
    "Item",
    "Output",
    "copies_of",
    "expand",
    "expanded_bodies",
    "find_repeats",
    "fold",
    "folding",
    "is_block",
    "on_expanded",
]
