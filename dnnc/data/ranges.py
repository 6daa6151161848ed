"""Ranges of inputs whose elements are indices: classes, rows of a table.

An index out of range would end a rank in the middle of a step with PyTorch's IndexError, which names no input. No valid input
is refused: an input is followed only through ops that return each of its elements unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnc.data.generate import table_size
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.types import TensorType, Type
from ir.ops.operators import SHAPE_ONLY, has
from passes.meshes.reshard_ops import without_reshards

_FROM_THE_END = frozenset({"onnx.Gather", "onnx.GatherElements", "onnx.Scatter", "onnx.ScatterElements"})
"""Ops whose negative indices count from the end."""
_LOSSES = frozenset({"onnx.NegativeLogLikelihoodLoss", "onnx.SoftmaxCrossEntropyLoss"})
_HAND_ON = frozenset({"onnx.Expand", "onnx.Transpose"})
"""Ops that hand on each element at least once, beside those of another shape alone."""


@dataclass(frozen=True, slots=True)
class Range:
    """Integers from ``low`` to ``high``, both included, and ``ignored``, the label that does not count."""

    low: int
    high: int
    ignored: int | None = None

    def __and__(self, other: Range) -> Range:
        ignored = self.ignored if self.ignored == other.ignored else None
        return Range(max(self.low, other.low), min(self.high, other.high), ignored)

    def wrong(self, array: Any) -> tuple[int, ...] | None:
        """The place of the first element that is out of range; None where there is none."""
        if not array.size or (array.min() >= self.low and array.max() <= self.high):
            return None
        wrong = (array < self.low) | (array > self.high)
        if self.ignored is not None:
            wrong &= array != self.ignored
        return tuple(map(int, np.argwhere(wrong)[0])) if wrong.any() else None


def index_ranges(module: Module) -> dict[str, Range]:
    """The ranges of those arguments of the entry function that are indices, by ONNX name."""
    ops = without_reshards(module.entry).func.ops
    types: dict[str, Type] = {value.name: value.type for value in module.entry.args}
    types |= {resource.name: resource.type for resource in module.resources.values()}
    types |= {value.name: value.type for op in ops for value in op.results}
    ranges: dict[str, Range] = {}
    for op in reversed(ops):
        for index, name in enumerate(op.operands):
            allowed = _range(op, index, types)
            if index == 0 and _hands_on(op, types) and op.results[0].name in ranges:
                allowed = ranges[op.results[0].name]
            if name and allowed is not None:
                ranges[name] = ranges[name] & allowed if name in ranges else allowed
    return {value.name[1:]: ranges[value.name] for value in module.entry.args if value.name in ranges}


def _range(op: Op, index: int, types: Mapping[str, Type]) -> Range | None:
    """What an op that uses its operand ``index`` as indices takes."""
    if index != 1 or op.name not in _FROM_THE_END | _LOSSES:
        return None
    size = table_size(op, index, types)
    if size is None:
        return None
    return Range(0, size - 1, op.get("ignore_index")) if op.name in _LOSSES else Range(-size, size - 1)


def _hands_on(op: Op, types: Mapping[str, Type]) -> bool:
    """Whether each element of the first operand is one of the first result."""
    if op.name == "onnx.Cast":
        after, before = op.results[0].type, types.get(op.operands[0])
        return all(isinstance(type_, TensorType) and type_.dtype.is_integer for type_ in (after, before))
    return has(op, SHAPE_ONLY) or op.name in _HAND_ON
