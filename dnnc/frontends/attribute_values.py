"""Attribute values that shape inference and onnxruntime do not check, and hang, crash or misread the graph at.

Asked for nodes of ONNX files before anything is inferred (``checks``) and for ops by the verifier (``opdefs``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TERM = r"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")
"""onnx 1.23 searches a term with any other character for its end forever."""
_SHOWN = 60


def value_faults(operator: str, inputs: int, values: Mapping[str, object]) -> list[str]:
    """What is wrong with the attributes of an operator of the default domain. ``values``: those that it has, by name."""
    equation, scanned = values.get("equation"), values.get("num_scan_inputs")
    if operator == "Einsum" and isinstance(equation, str) and not _EQUATION.fullmatch(equation):
        found = equation if len(equation) <= _SHOWN else equation[:_SHOWN] + "..."
        return [f"found the equation '{found}', expected terms of letters, each with '...' at most once, such as 'ij,jk->ik'"]
    if operator == "Scan" and isinstance(scanned, int) and not 1 <= scanned <= inputs:
        return [f"found num_scan_inputs = {scanned}, expected 1 to the number of inputs, {inputs}"]
    return []


__all__ = ["value_faults"]
