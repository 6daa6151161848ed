"""Faults of the pass ``canonicalize``. Codes 37.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoBinding(Fault, code="E3701"):
    """An item of the option ``dims`` does not say which dimension has which size."""

    message = "'{text}' binds no dimension"
    hint = "write it as batch=8 or s70=seq"
    text: str
