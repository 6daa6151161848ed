"""GroupQueryAttention that reads queries, keys and values of one operand: with a Split before it, as chains end in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ir.core.attributes import attributes
from ir.core.module import Func
from ir.core.names import ABSENT, unique
from ir.core.ops import Op, Value
from ir.core.types import TensorType

GROUP_QUERY = "onnx.com.microsoft.GroupQueryAttention"


def packed_attentions(func: Func) -> list[str]:
    """The results of attentions whose one operand holds queries, keys and values."""
    return [op.results[0].name for op in func.ops if op.name == GROUP_QUERY and _shares(op) is not None]


def with_splits(func: Func, wanted: Collection[str], names: set[str]) -> tuple[Func, dict[str, str]]:
    """The function with a Split before each attention of these results, and the queries that it makes, by these results.
    ``names``: those taken in the function."""
    ops: list[Op] = []
    queries: dict[str, str] = {}
    for op in func.ops:
        found = _shares(op) if op.results and op.results[0].name in wanted and op.name == GROUP_QUERY else None
        if found is None:
            ops.append(op)
            continue
        rows, widths = found
        parts = tuple(
            Value(unique(f"{op.operands[0]}.{part}", names), replace(rows, shape=(*(rows.shape or ())[:2], width)))
            for part, width in zip(("query", "key", "value"), widths, strict=True)
        )
        queries[op.results[0].name] = parts[0].name
        ops.append(Op("onnx.Split", (op.operands[0],), parts, _AXIS, location=op.location))
        ops.append(replace(op, operands=(*(value.name for value in parts), *op.operands[3:])))
    return replace(func, ops=tuple(ops)), queries


_AXIS = attributes({"axis": 2})


def _shares(op: Op) -> tuple[TensorType, tuple[int, int, int]] | None:
    """The type of the result, and the widths of queries, keys and values in the operand that holds all; None for any other."""
    heads, shared, type_ = op.get("num_heads", 0), op.get("kv_num_heads", 0), op.results[0].type
    if len(op.operands) < 3 or any(name != ABSENT for name in op.operands[1:3]) or not heads or not shared:
        return None
    if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) != 3:
        return None
    hidden = type_.shape[2]
    if not isinstance(hidden, int) or hidden % heads:
        return None
    width = hidden // heads
    return type_, (hidden, shared * width, shared * width)
