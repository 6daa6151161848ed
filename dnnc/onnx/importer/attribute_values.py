"""Attribute values with which shape inference hangs, crashes or misreads the graph, or every run fails.

``checks`` tests the nodes of an ONNX file before inference; the verifier tests ops by way of ``opdefs``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_TERM = r"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")
"""In a term with any other character, onnx 1.23 searches for the end of the term forever."""
_SHOWN = 60

_COUNTS = frozenset(
    {
        *("strides", "dilations", "kernel_shape", "group", "num_groups", "blocksize", "num_outputs"),
        *("hidden_size", "num_heads", "kv_num_heads", "qkv_hidden_sizes"),
    }
)
"""Attributes that are whole numbers from 1 on, in every operator that has them."""
_ZERO_IS_NONE = frozenset({"RotaryEmbedding", "MRotaryEmbedding", "Attention.kv_num_heads"})
"""Operators, or attributes of one operator, where 0 is valid and means "not given"."""
_MOST = (1 << 31) - 1
"""The largest of them: onnx makes as many results as ``num_outputs`` says before it compares."""


def value_faults(operator: str, inputs: int, values: Mapping[str, object]) -> list[str]:
    """The faults of a node's attributes, each a sentence, for operators of ONNX and of ONNX Runtime. ``values``: its attributes
    by name."""
    equation, scanned = values.get("equation"), values.get("num_scan_inputs")
    if operator == "Einsum" and isinstance(equation, str) and not _EQUATION.fullmatch(equation):
        shown = equation if len(equation) <= _SHOWN else equation[:_SHOWN] + "..."
        return [f"found the equation '{shown}', expected terms of letters, each with '...' at most once, such as 'ij,jk->ik'"]
    if operator == "Scan" and isinstance(scanned, int) and not 1 <= scanned <= inputs:
        return [f"found num_scan_inputs = {scanned}, expected 1 to the number of inputs, {inputs}"]
    faults = []
    for name in sorted(_COUNTS & values.keys()):
        least = 0 if {operator, f"{operator}.{name}"} & _ZERO_IS_NONE else 1
        if any(not least <= number <= _MOST for number in _numbers(values[name])):
            faults.append(f"found {name} = {_shortened(values[name])}, expected whole numbers from {least} to {_MOST}")
    return faults


def _numbers(value: object) -> Iterable[int]:
    numbers = value if isinstance(value, list | tuple) else (value,)
    return (number for number in numbers if isinstance(number, int))


def _shortened(value: object) -> str:
    text = str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
