"""Fold: repeated parts of a function become one function and its calls; and expand, which undoes it exactly.

``expand(fold(m)) == m``: structure, names, locations, facets, layouts, order. What repeats, and how a folded module is written
down, is ``passes/graph/folding``'s to say. Fold reads functions and resources, and writes ``dnnc.call`` ops and block functions
behind the functions of the module. Expand drops the blocks that nothing calls any more; calls of other functions stay. What a
pass decided about a call (a stage, a group) it decided about the ops of that copy: they get the call's decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.core.module import Func, Module
from passes.framework.base import Pass, PassContext
from passes.graph.folding import expand, folded, folding, is_block


@dataclass(frozen=True)
class FoldPass(Pass):
    """Write repeated parts once, as functions and calls."""

    name: ClassVar[str] = "fold"

    def run(self, module: Module, context: PassContext) -> Module:
        """A module that is folded already is folded anew."""
        module = expand(module)
        funcs = list(module.of_type(Func))
        found = [context.analyses.get(folding, func, module) for func in funcs]
        written = folded(module, funcs, found)
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
