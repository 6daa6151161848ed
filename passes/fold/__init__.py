"""Fold: repeated parts of a function become one function and its calls, provably the same program.

Reads functions and resources; writes ``dnnc.call`` ops and block functions behind the functions of the module (``marks.py``
says what stands in them). ``expand`` undoes it exactly: structure, names, locations, facets, order.

The way: every op gets a key that says all but names (``program.py``); a canonical topological order puts the copies of a block
side by side whatever the order and names of the input (``order.py``); exact repeats of keys are found as in strings
(``repeats.py``) and chosen by the ops they save, with their wiring compared (``search.py``); each copy is proven against the
first and its interface told (``structure.py``, the analysis ``folding``); then it is written down (``outline.py``).

Invariants: a body holds facts only, and ops with a decision are never folded; copies agree in everything but names, resources,
locations; resources are arguments, but for constants that all copies share. What is found does not depend on names, nor on the
order of ops. Bodies of If, Loop and Scan are part of their op: two such ops fold when their bodies are the same but for names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.diagnostics import UsageError
from ir.module import Func, Module, Symbol
from passes.base import Pass, PassContext
from passes.fold.marks import is_block
from passes.fold.outline import outline
from passes.fold.restore import expand
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


@dataclass(frozen=True)
class FoldPass(Pass):
    """Write repeated parts once, as functions and calls.

    ``min_support``: copies that a block needs; ``min_ops``: ops (calls of blocks inside it count one) that it needs.
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
        taken = {symbol.name for symbol in module.symbols}
        symbols: list[Symbol] = []
        last, blocks = 0, list[Func]()
        counts = {"ops": 0, "left": 0, "blocks": 0, "copies": 0}
        for symbol in module.symbols:
            if isinstance(symbol, Func):
                found = self.repeats(symbol, module, context)
                func, added = outline(found, taken) if found.blocks else (symbol, ())
                counts["ops"] += len(symbol.ops)
                counts["left"] += len(func.ops) + sum(len(block.ops) for block in added)
                counts["blocks"] += len(added)
                counts["copies"] += sum(len(block.copies) for block in found.blocks)
                blocks += added
                symbols.append(func)
                last = len(symbols)
            else:
                symbols.append(symbol)
        context.count(self.name, **counts)
        if not blocks:
            return module
        return Module(module.name, (*symbols[:last], *blocks, *symbols[last:]), module.attributes)

    def repeats(self, func: Func, module: Module, context: PassContext) -> Folding:
        if (self.min_support, self.min_ops) == (MIN_SUPPORT, MIN_OPS):
            return context.analyses.get(folding, func, module)
        return find_repeats(func, module, self.min_support, self.min_ops)


__all__ = [
    "Block",
    "Chain",
    "Copy",
    "FoldPass",
    "Folding",
    "Input",
    "Item",
    "Output",
    "expand",
    "find_repeats",
    "folding",
    "is_block",
]
