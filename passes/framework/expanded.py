"""For passes that look at ops one by one: they get a folded module expanded, and what they make of it is folded again.

Between two such passes the manager leaves a module expanded (``Pass.by_op``): folding again is for those who look at it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from ir.core.module import Module
from passes.framework.base import Pass, PassContext
from passes.graph.folding import expand, refolded

P = TypeVar("P", bound=Pass)


def on_expanded(run: Callable[[P, Module, PassContext], Module]) -> Callable[[P, Module, PassContext], Module]:
    """For the ``run`` of a pass that looks at ops one by one: it gets the module expanded, and what it makes of a folded
    one is folded again (``refolded``)."""

    @wraps(run)
    def around(self: P, module: Module, context: PassContext) -> Module:
        expanded = context.analyses.get(expand, module)
        return refolded(module, expanded, run(self, expanded, context))

    around.by_op = True  # type: ignore[attr-defined]
    return around
