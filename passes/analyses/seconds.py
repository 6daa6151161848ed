"""Seconds of an op on a device type: what a workload or profile states, else a roofline over the op's facts.

Roofline (Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009), per execution:

    seconds = max(flops / (rate[dtype] * efficiency[kind]), (read + write) / memory_bandwidth) + overhead

``rate``, ``efficiency``, ``memory_bandwidth``, ``overhead`` are the device type's; flops, bytes and kind the ``Cost`` facet's.

*Weights on a core.* On device types of kind ``cpu`` the bytes of weights do not hide behind arithmetic: they come from main
memory once per execution, and one core waits for them. Measured (``tests/bench/calibrate_cpu.py``) on ResNet-50, whose late
convolutions take a fifth longer than their flops say, and on BERT:

    seconds = max(flops / (rate[dtype] * efficiency[kind]), (read + write - weight) / memory_bandwidth)
              + weight / memory_bandwidth + overhead

*Epilogues.* Runtimes fuse what follows a convolution or matrix product element by element (batch norm, bias, activation,
residual sum) into it, so its data never leave the registers. Where a device type has an efficiency for ``epilogue``, such an op
costs the extra operand it reads at memory bandwidth and its flops at that efficiency, and no overhead. It is an epilogue
when it alone reads the result of a convolution, a matrix product or another epilogue, in the same body.

Invariant: nothing here depends on where an op is placed, so that seconds add up over any set of ops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ir.facets import Cost, Time
from ir.module import Func, Stage
from ir.ops import Op
from ir.topology import DeviceType
from ir.types import TensorType, type_bytes

EPILOGUE = "epilogue"
"""The class of ops, in ``DeviceType.efficiency``, that are fused into what they follow."""
HEADS = ("Conv", "FusedConv", "Gemm", "MatMul")
FUSED = (
    "Add",
    "BatchNormalization",
    "Clip",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mul",
    "Relu",
    "Sigmoid",
    "Tanh",
)
"""ONNX operators that ONNX Runtime and TensorRT fuse into the convolution or product before them."""


def op_seconds(op: Op, device_type: DeviceType) -> float:
    """Seconds of one execution of ``op`` alone, without looking at its neighbours; inf where its ``Time`` facet lacks the type.

    An op without any facet costs its overhead."""
    time = op.facet(Time)
    return _derived(op, device_type) if time is None else _stated(time, f"@{device_type.name}")


def _stated(time: Time, type_name: str) -> float:
    for name, seconds in time.seconds:
        if name == type_name:
            return seconds
    return math.inf


def _derived(op: Op, device_type: DeviceType) -> float:
    cost = op.facet(Cost)
    if cost is None:
        return device_type.overhead
    rate = rate_of(op, device_type) * efficiency_of(cost.kind, device_type)
    arithmetic = cost.flops / rate if cost.flops and rate else 0.0
    waited = cost.weight if device_type.kind == "cpu" else 0
    moved = cost.read + cost.write - waited
    bandwidth = device_type.memory_bandwidth or math.inf
    return max(arithmetic, moved / bandwidth) + waited / bandwidth + device_type.overhead


def body_seconds(ops: Iterable[Op], device_type: DeviceType, outputs: Iterable[str] = ()) -> list[float]:
    """Seconds of each op of a body, in order; epilogues at what they add to the op they are fused into. ``outputs``: values
    that are written in any case, as results of the whole."""
    ops = tuple(ops)
    name = f"@{device_type.name}"
    times = [op.facet(Time) for op in ops]
    seconds = [_derived(op, device_type) if time is None else _stated(time, name) for op, time in zip(ops, times, strict=True)]
    if not any(kind == EPILOGUE for kind, _ in device_type.efficiency):
        return seconds
    for index, fused_bytes in epilogues(ops, outputs).items():
        op = ops[index]
        cost = op.facet(Cost)
        if cost is None or op.facet(Time) is not None:
            continue
        rate = rate_of(op, device_type) * efficiency_of(EPILOGUE, device_type)
        extra = fused_bytes / device_type.memory_bandwidth if device_type.memory_bandwidth else 0.0
        seconds[index] = min(seconds[index], max(cost.flops / rate if rate else 0.0, extra))
    return seconds


def func_seconds(func: Func | Stage, device_type: DeviceType) -> dict[str, float]:
    """``body_seconds`` of a function or stage by op id."""
    seconds = body_seconds(func.ops, device_type, [value.name for value in func.results])
    return {op.id: value for op, value in zip(func.ops, seconds, strict=True)}


def epilogues(ops: tuple[Op, ...], outputs: Iterable[str] = ()) -> dict[int, int]:
    """Index of each epilogue, with the bytes it reads besides the chain it belongs to (0 for an activation or a batch norm,
    the other operand for a residual sum)."""
    readers = dict.fromkeys(outputs, 1)
    for op in ops:
        for name in _reads(op):
            readers[name] = readers.get(name, 0) + 1
    types = {value.name: value.type for op in ops for value in op.results}
    chains: set[str] = set()  # results that an epilogue may be fused into
    found: dict[int, int] = {}
    for index, op in enumerate(ops):
        dialect, _, name = op.name.partition(".")
        if dialect != "onnx" or len(op.results) == 0:
            continue
        if name in HEADS:
            chains.add(op.results[0].name)
        elif name in FUSED and len(op.results) == 1:
            # The chain's result must be read once only: else it is written to memory anyway.
            joined = [operand for operand in op.operands if operand in chains and readers[operand] == 1]
            if not joined:
                continue
            # A sum of two chains is fused into the one computed last.
            others = [operand for operand in op.operands if operand in types and operand != joined[-1]]
            found[index] = sum(type_bytes(types[operand]) or 0 for operand in others)
            chains.add(op.results[0].name)
    return found


def _reads(op: Op) -> list[str]:
    """Values that an op reads, those its regions capture included."""
    names = list(op.operands)
    for _, region in op.regions:
        names += region.results
        for inner in region.ops:
            names += _reads(inner)
    return names


def rate_of(op: Op, device_type: DeviceType) -> float:
    """Peak flop/s for the element type of the op's first tensor result; 0 where the type states no rate at all."""
    rates: Mapping[str, float] = dict(device_type.rates)
    for value in op.results:
        if isinstance(value.type, TensorType):
            found = rates.get(value.type.dtype.value)
            if found:
                return found
            break
    return rates.get("f32") or max(rates.values(), default=0.0)


def efficiency_of(kind: str, device_type: DeviceType) -> float:
    """Fraction of the peak that ops of this class reach; ``default``'s where the class is not listed, 1.0 without one.

    A class may refine another by a suffix: ``conv-depthwise`` falls back to ``conv``."""
    table = dict(device_type.efficiency)
    while True:
        if kind in table:
            return table[kind]
        kind, dash, _ = kind.rpartition("-")
        if not dash:
            return table.get("default", 1.0)
