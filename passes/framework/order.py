"""The one judge of the order of passes: whether each pass of a pipeline finds what it needs, before any of them runs.

A property holds before a pass if the last pass before it that establishes or destroys the property establishes it, or, where
there is none, if the module has it (``properties``). So a module that comes in as text goes on from where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.core.diagnostics import Diagnostic, UsageError
from ir.core.module import Module
from passes.framework.base import Pass
from passes.framework.faults import PassOutOfOrder
from passes.framework.properties import MEANING, Property, holds
from passes.framework.registry import LISTED, Listed


def check_order(pipeline: Sequence[Pass], module: Module) -> None:
    """Raises UsageError with every property that a pass of ``pipeline`` would miss on ``module``. A pass that the registry does
    not list needs nothing."""
    if faults := order_faults([step.name for step in pipeline], module):
        raise UsageError(faults)


def order_faults(names: Sequence[str], module: Module) -> list[Diagnostic]:
    """What passes called ``names`` would miss, each property once: at the first pass that needs it."""
    touched: dict[Property, tuple[bool, str]] = {}
    faults: list[Diagnostic] = []
    for number, name in enumerate(names, start=1):
        listed = LISTED.get(name, Listed(""))
        for need in listed.needs:
            if need not in touched:
                touched[need] = holds(need, module), ""
            has, destroyer = touched[need]
            if not has:
                reason = (
                    f"which '{destroyer}' destroys" if destroyer else "which the module lacks and no pass before establishes"
                )
                fault = PassOutOfOrder(name, str(need), MEANING[need], reason, _remedy(need, name))
                faults.append(fault.at(f"pass {number} of {len(names)}"))
                touched[need] = True, ""  # told once
        touched.update(dict.fromkeys(listed.destroys, (False, name)))
        touched.update(dict.fromkeys(listed.establishes, (True, name)))
    return faults


def _remedy(need: Property, name: str) -> str:
    """What establishes the property before the pass called ``name``."""
    makers = [f"'{maker}'" for maker, listed in LISTED.items() if need in listed.establishes]
    if not makers:
        return "give one with -t"
    first = makers[0] if len(makers) == 1 else f"{', '.join(makers[:-1])} or {makers[-1]}"
    return f"run {first} before '{name}'"
