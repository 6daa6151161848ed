"""Expand: calls of fold's blocks become their ops again. ``expand(fold(m)) == m``: names, locations, facets and order included.

Reads what ``passes/fold/marks.py`` describes; writes functions without such calls, and drops the blocks that nothing calls any
more. Calls of other functions stay. What a pass decided about a call (a stage, a group) it decided about the ops of that copy:
they get the call's decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.module import Func, Module
from passes.fold import expand, is_block
from passes.framework.base import Pass, PassContext


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


__all__ = ["ExpandPass"]
