"""Why the verifier refuses a module. Codes E23..; each invariant has a number of its own, ``INV01`` to ``INV25``."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class BrokenInvariant(Fault, code="E2301"):
    """A module breaks one of the invariants that ir/README.md lists by number."""

    message = "{invariant}: {reason}"
    hint = "{advice}"
    invariant: str
    reason: str
    advice: str = ""


class MoreBrokenInvariants(Fault, code="E2302"):
    """A module breaks invariants in more places than are listed one by one."""

    message = "{count} more broken invariants"
    count: int
