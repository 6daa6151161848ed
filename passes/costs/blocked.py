"""Values that onnxruntime keeps in blocks of channels, and what it takes to bring them from one layout to another.

On a CPU its convolutions of images in f32 read and write blocks of channels (NCHWc), and hand them on to neighbours that do so
too. Programs take and give plain tensors (NCHW): where a collective or a slice comes between, one kernel writes the value out
of its blocks and another into them again. Each reads and writes what a member holds there, at memory bandwidth, because
another process has written it or will read it. On ResNet-50 on a mesh of two cores of an AMD EPYC, 95 such kernels moved 86 MB
in 2.4 ms, 36 GB/s, where weights came at 29.
"""

from __future__ import annotations

from ir.core.module import Func
from ir.core.ops import Op
from ir.core.topology import DeviceType
from ir.core.types import DType, TensorType
from passes.costs.op_time import bandwidth_of, fuses, may_fuse

_CONV = "onnx.Conv"
_POOLS = {"onnx.MaxPool", "onnx.AveragePool", "onnx.GlobalAveragePool", "onnx.GlobalMaxPool"}


def blocked_values(func: Func) -> frozenset[str]:
    """The values that are made and read in blocks."""
    made: set[str] = set()
    read: set[str] = set()
    for op in func.ops:
        follows = (op.name in _POOLS or may_fuse(op)) and not made.isdisjoint(op.operands)
        if (op.name == _CONV or follows) and _is_image(op):
            made.add(op.results[0].name)
            read.update(op.operands)
    return frozenset(made & read)


def reorder_seconds(before: float, after: float, device_type: DeviceType) -> float:
    """Seconds to write ``before`` bytes out of blocks and ``after`` bytes into them; 0 on a type that computes otherwise."""
    bandwidth = bandwidth_of(device_type) if fuses(device_type) else 0.0
    return 2 * (before + after) / bandwidth if bandwidth else 0.0


def _is_image(op: Op) -> bool:
    type_ = op.results[0].type if op.results else None
    return isinstance(type_, TensorType) and type_.dtype is DType.F32 and type_.shape is not None and len(type_.shape) == 4
