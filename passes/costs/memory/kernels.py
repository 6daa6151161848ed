"""Bytes that PyTorch's kernels work in on a processor, beside the operands and results of their op."""

from __future__ import annotations

from collections.abc import Mapping

from ir.core.ops import Op
from ir.core.types import TensorType, type_bytes


def working_bytes(op: Op, size: Mapping[str, int]) -> int:
    """What an op works in; 0 of all but the gradients of an LSTM of one direction. ``size``: bytes of values by name."""
    gates = op.results[0].type if op.results else None
    if op.name != "grad.LSTM" or not isinstance(gates, TensorType) or gates.shape is None:
        return 0
    steps, directions, batch, rows = gates.shape
    if directions != 1 or not (isinstance(steps, int) and isinstance(batch, int) and isinstance(rows, int)):
        return 0
    hidden, width = rows // 4, (type_bytes(gates) or 0) // (steps * batch * rows)
    inputs = size.get(op.operands[3], 0) // (steps * batch * width)
    counted = sum(size.get(value.name, 0) for value in op.results)
    return max(0, lstm_gradient_bytes(steps, batch, inputs, hidden, width) - counted)


def gradient_bytes(op: Op, size: Mapping[str, int]) -> int:
    """What the gradient of an op has alive where it is not written out, beside what is saved: of an LSTM of one direction the
    gradient of its states, and what ``lstm_gradients`` has; 0 of all others, which have about what the op has."""
    states = op.results[0].type if op.results else None
    if op.name != "onnx.LSTM" or not isinstance(states, TensorType) or states.shape is None or len(states.shape) != 4:
        return 0
    steps, directions, batch, hidden = states.shape
    if directions != 1 or not (isinstance(steps, int) and isinstance(batch, int) and isinstance(hidden, int)):
        return 0
    whole, own = type_bytes(states) or 0, size.get(op.results[0].name, 0)
    if not whole:
        return 0
    width = whole // (steps * batch * hidden)
    inputs = size.get(op.operands[0], 0) // (steps * batch * width)
    return own + lstm_gradient_bytes(steps, batch, inputs, hidden, width) * own // whole


def lstm_gradient_bytes(steps: int, batch: int, inputs: int, hidden: int, width: int = 4) -> int:
    """Bytes alive at once in ``lstm_gradients``, with its results: oneDNN keeps what the forward pass makes of each step, works
    in the gradients of the same, and has four copies of the weights ``[4 H, I + H]``. The factors are fitted to the peaks of
    processes for steps of 64 to 512, batches of 8 to 64 and widths of 64 to 512, within 7 %. ``width``: bytes of a number."""
    each = 11.3 * hidden + 1.33 * inputs + 2.7 * max(inputs, hidden)
    return round(width * (steps * batch * each + 4 * 4 * hidden * (inputs + hidden)))
