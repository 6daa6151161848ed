"""Fold: repeated parts of a function become one function and its calls; and expand, which undoes it exactly.

``expand(fold(m)) == m``: structure, names, locations, facets, layouts, order. What repeats, and how a folded module is written
down, is ``passes/graph/folding``'s to say. Fold reads functions and resources, and writes ``dnnc.call`` ops and block functions
behind the functions of the module. Expand drops the blocks that nothing calls any more; calls of other functions stay. What a
pass decided about a call (a stage, a group) it decided about the ops of that copy: they get the call's decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.core.diagnostics import UsageError
from ir.core.module import Func, Module
from passes.framework.base import Pass, PassContext
from passes.graph.faults import NotInRange
from passes.graph.folding import MIN_OPS, MIN_SUPPORT, Folding, expand, find_repeats, folded, folding, is_block


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
                raise UsageError(NotInRange(option, value, "at least 2"), where=self.name)
        module = expand(module)
        funcs = list(module.of_type(Func))
        found = [self.repeats(func, module, context) for func in funcs]
        written = folded(module, funcs, found, self.min_support)
        context.analyses.put(module, expand, written)
        context.count(
            self.name,
            ops=sum(len(func.ops) for func in funcs),
            left=sum(len(func.ops) for func in written.of_type(Func)),
            blocks=sum(len(repeats.blocks) for repeats in found),
            bodies=sum(map(is_block, written.of_type(Func))),
            copies=sum(len(block.copies) for repeats in found for block in repeats.blocks),
        )
        return written

    def repeats(self, func: Func, module: Module, context: PassContext) -> Folding:
        if (self.min_support, self.min_ops) == (MIN_SUPPORT, MIN_OPS):
            return context.analyses.get(folding, func, module)
        return find_repeats(func, module, self.min_support, self.min_ops)


@dataclass(frozen=True)
class ExpandPass(Pass):
    """Put the ops of folded blocks back in place of their calls."""

    name: ClassVar[str] = "expand"

    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput where what fold recorded does not fit the block that a call names."""
        expanded = expand(module)
        count = sum(len(func.ops) for func in expanded.of_type(Func))
        context.count(self.name, ops=count, blocks=sum(map(is_block, module.of_type(Func))))
        return expanded
