"""Seconds of an op on a device type: what a workload or profile states, else a roofline over the op's facts.

Roofline (Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009), per execution:

    seconds = max(flops / (rate[dtype] * efficiency[kind]), (read + write) / memory_bandwidth) + overhead

``rate``, ``efficiency``, ``memory_bandwidth``, ``overhead`` are the device type's; flops, bytes and kind the ``Cost`` facet's.

``memory_bandwidth`` counts as far as the efficiency for ``memory`` says, 1.0 without one. On a type with ``units`` a product of
matrices costs what its sizes ask for (``products``), and so do the two products that its gradients are.

*Scalar steps.* Where a device type states a ``scalar_rate``, ``scalar / scalar_rate`` is added to the time of the flops: what
ONNX Runtime's CPU kernels do element by element (``passes.prepare.cost.scalar``).

*Training* runs PyTorch's kernels, one by one, without scalar steps. Their efficiency is that of the classes ``KIND-training``
and ``KIND-backward``, where the device type has them, else that of ``KIND``. The backward pass moves operands and results
twice. On CPUs it also adds the gradient of the weights that the op reads to those of earlier microbatches: it reads and writes
sums as large as these weights, at memory bandwidth. The host starts each kernel (``launch``): on CPUs before it computes,
elsewhere while the kernel before runs.

*Weights on a core.* On device types of kind ``cpu`` the bytes of weights do not hide behind arithmetic: they come from main
memory once per execution, and one core waits for them. Measured (``tests/bench/calibrate_cpu.py``) on ResNet-50, whose late
convolutions take a fifth longer than their flops say, and on BERT:

    seconds = max(flops / (rate[dtype] * efficiency[kind]), (read + write - weight) / memory_bandwidth)
              + weight / memory_bandwidth + overhead

Where they state a ``cache``, what an op moves besides weights is there, if it fits, and moves at ``cache_bandwidth``.

*Epilogues.* Runtimes fuse what follows a convolution or matrix product element by element (batch norm, bias, activation,
residual sum) into it, so its data never leave the registers. Where a device type has an efficiency for ``epilogue``, such an op
costs the further operands it reads, but for weights, at memory bandwidth and its flops at that efficiency, and no overhead.
It is an epilogue when it alone reads the result of a convolution, a matrix product or another epilogue, in the same body, and
makes a result of the same shape. That is inference: what a backward pass reads is written, so in training nothing is fused.

*Regions.* An ``If``, ``Loop`` or ``Scan`` takes its overhead and what is inside, each op as often as it ran on given inputs
(``Measured``); where nothing was run, the dearer branch, or the body as often as the ``Cost`` of the op counts it.

Seconds add up over any set of ops, but for epilogues that the set parts from the beginning of their chain: those are not fused
there (``chain_heads``). ``body_seconds`` of the ops of a stage says what they take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ir.core.facets import BackwardTime, Cost, Measured, Time
from ir.core.ops import Op, all_reads
from ir.core.topology import DeviceType
from ir.core.types import DType, TensorType, Type, type_bytes
from ir.ops import operators
from passes.costs.products import BITS, MEMORY, memory_seconds, product_of, product_seconds
from passes.graph.graph import COST_PARTS, total_cost
from passes.graph.sizes import sized_results

EPILOGUE = "epilogue"
"""The class of ops, in ``DeviceType.efficiency``, that are fused into what they follow."""
TRAINING, BACKWARD = "-training", "-backward"
"""Behind the name of a class: its kernels in the forward and in the backward pass of training."""
_SUMS = 2
"""How often an accumulated gradient is moved: read and written. The term that is added was just made."""


def op_seconds(op: Op, device_type: DeviceType) -> float:
    """Seconds of one execution of ``op`` alone, without looking at its neighbours; inf where its ``Time`` facet lacks the type.

    An op without any facet costs its overhead."""
    time = op.facet(Time)
    return _derived(op, device_type, op.facet(Cost)) if time is None else stated_seconds(time, device_type)


def stated_part(op: Op, device_type: DeviceType, part: Cost, *, training: bool = False) -> tuple[float, float] | None:
    """Seconds of the forward and, in ``training``, of the backward pass of a part of an op whose seconds are stated, None where
    they are not. ``part``: what the part works and moves.

    The stated seconds are divided as those of the roofline are: a part with half of the flops that reads all weights, or pays
    the overhead, takes more than half. Where the roofline says nothing, and on types with ``units``, they are divided as the
    flops are; of an op without any, as the bytes that it writes."""
    time, whole = op.facet(Time), op.facet(Cost)
    if time is None:
        return None
    seconds = stated_seconds(time, device_type)
    back = op.facet(BackwardTime) if training else None
    after = stated_seconds(back, device_type) if back is not None else 0.0
    if whole is None or not (whole.flops or whole.write) or math.isinf(seconds + after):
        return seconds, after
    here = part.flops / whole.flops if whole.flops else part.write / whole.write
    modelled = 0.0 if device_type.units else _derived(op, device_type, whole)
    if modelled > 0:
        here = _derived(op, device_type, part) / modelled
    return seconds * here, after * here


def stated_seconds(time: Time | BackwardTime, device_type: DeviceType) -> float:
    """Seconds that a facet states for a device type; inf where it states none."""
    for name, seconds in time.seconds:
        if name[1:] == device_type.name:
            return seconds
    return math.inf


def _derived(op: Op, device_type: DeviceType, cost: Cost | None, pass_: str = "") -> float:
    """By the roofline, where the op has this cost; ``pass_``: of training, whose kernels run."""
    if cost is None:
        return device_type.overhead
    if op.regions:
        return _inside(op, device_type, cost) + device_type.overhead
    rate = rate_of(op, cost.kind, device_type, pass_)
    product = product_of(op, cost) if device_type.units and rate else None
    if product is not None:
        return product_seconds(product, device_type, rate)
    arithmetic = cost.flops / rate if cost.flops and rate else 0.0
    if cost.scalar and device_type.scalar_rate and not pass_:
        arithmetic += cost.scalar / device_type.scalar_rate
    bandwidth = bandwidth_of(device_type) or math.inf
    if device_type.kind != "cpu":
        return max(arithmetic, (cost.read + cost.write) / bandwidth) + device_type.overhead
    moved = memory_seconds(cost.read + cost.write - cost.weight, 0, device_type)
    return max(arithmetic, moved) + cost.weight / bandwidth + device_type.overhead


def _inside(op: Op, device_type: DeviceType, cost: Cost) -> float:
    """Seconds of the regions of an op that has this cost."""
    bodies = [(region.ops, body_seconds(region.ops, device_type, region.results)) for _, region in op.regions]
    measured = op.facet(Measured)
    if measured is not None:
        taken = (ran(inner) * seconds for ops, each in bodies for inner, seconds in zip(ops, each, strict=True))
        return math.fsum(taken) / max(1, measured.runs)
    if op.name == "onnx.If":
        return max(math.fsum(each) for _, each in bodies)
    body = total_cost(inner for ops, _ in bodies for inner in ops)
    trips = next((getattr(cost, name) / once for name in COST_PARTS if (once := getattr(body, name))), 1.0)
    return trips * math.fsum(seconds for _, each in bodies for seconds in each)


def ran(op: Op) -> int:
    """How often an op in a region ran on given inputs; once where no run told."""
    measured = op.facet(Measured)
    return measured.runs if measured is not None else 1


def gradient_seconds(op: Op, device_type: DeviceType, flops: int) -> float:
    """Seconds of the gradients of an op, of so many flops; 0 for none. They move its operands and results, twice, and what
    they are added to."""
    return _backward_seconds(op, device_type, flops, 2, lambda cost: slice(max(1, round(flops / cost.flops))))


def weight_gradient_seconds(op: Op, device_type: DeviceType, flops: int) -> float:
    """Seconds of the gradient of an op's weight alone, of so many flops: it moves as much as the op does, and what it is added
    to."""
    return _backward_seconds(op, device_type, flops, 1, lambda _: slice(1, 2))


def _backward_seconds(op: Op, device_type: DeviceType, flops: int, moves: int, wanted: Callable[[Cost], slice]) -> float:
    """Seconds of gradients of an op, of so many flops, that move its operands and results ``moves`` times; ``wanted``: which of
    the gradients of a product they are."""
    cost = op.facet(Cost)
    if cost is None or not flops:
        return 0.0
    if op.facet(Time) is not None:
        return op_seconds(op, device_type)
    rate = rate_of(op, cost.kind, device_type, BACKWARD)
    product = product_of(op, cost) if device_type.units and rate else None
    if product is None:
        work = replace(cost, flops=flops, scalar=0, read=moves * cost.read, write=moves * cost.write)
        return _derived(op, device_type, work, BACKWARD) + sums_seconds(cost, device_type)
    return math.fsum(product_seconds(one, device_type, rate) for one in product.gradients[wanted(cost)])


def sums_seconds(cost: Cost, device_type: DeviceType) -> float:
    """Seconds in which a CPU adds the gradient of an op's weights to the sum over the microbatches."""
    bandwidth = bandwidth_of(device_type)
    return _SUMS * cost.weight / bandwidth if device_type.kind == "cpu" and bandwidth and cost.weight_grad else 0.0


@lru_cache(maxsize=256)
def in_training(device_type: DeviceType) -> DeviceType:
    """The type as training runs on it: on a CPU the start of a kernel is part of an op's overhead."""
    if device_type.kind != "cpu" or not device_type.launch:
        return device_type
    return replace(device_type, overhead=max(device_type.overhead, device_type.launch), launch=0.0)


def passes_seconds(op: Op, device_type: DeviceType, gradients: int) -> tuple[float, float]:
    """Seconds of an op in the forward and in the backward pass of training, of ``gradients`` flops.

    Training runs kernel by kernel: the host takes ``launch`` seconds to start each. On a CPU they are its own; elsewhere they
    hide behind kernels that take longer, and behind none that are shorter. Stated seconds are taken as they are."""
    if op.facet(Time) is not None:
        back = op.facet(BackwardTime)
        return op_seconds(op, device_type), stated_seconds(back, device_type) if back is not None else 0.0
    device_type = in_training(device_type)
    forward = max(_derived(op, device_type, op.facet(Cost), TRAINING), launches(op, 0) * device_type.launch)
    backward = gradient_seconds(op, device_type, gradients)
    return forward, max(backward, launches(op, gradients) * device_type.launch) if gradients else backward


def launches(op: Op, gradients: int) -> int:
    """Kernels of an op, or of its gradients of so many flops: two for both operands of a product, none where nothing moves."""
    cost = op.facet(Cost)
    if cost is None or op.facet(Time) is not None or not cost.read + cost.write:
        return 0
    return min(2, max(1, round(gradients / cost.flops))) if gradients and product_of(op, cost) is not None else 1


def least_seconds(op: Op, device_type: DeviceType, gradients: int = 0, *, training: bool = False) -> float:
    """Seconds beside the overhead that all parts of an op take together at least, however it is cut, or of its ``gradients`` of
    so many flops: its arithmetic at the best rate, or its bytes at the best bandwidth, for parts may fit a cache where the
    whole does not. ``training``: of its forward pass there (``passes_seconds``). Stated seconds are taken as they are."""
    cost, time = op.facet(Cost), op.facet(Time)
    if time is not None:
        stated = op.facet(BackwardTime) if gradients else time
        return stated_seconds(stated, device_type) if stated is not None else 0.0
    if cost is None or not device_type.units:
        if device_type.cache and device_type.cache_bandwidth and (bandwidth := bandwidth_of(device_type)):
            bandwidth = max(bandwidth, device_type.cache_bandwidth)
            efficiency = tuple(item for item in device_type.efficiency if item[0] != MEMORY)
            device_type = replace(device_type, memory_bandwidth=bandwidth, efficiency=efficiency, cache=0)
        if gradients:
            whole = gradient_seconds(op, device_type, gradients)
        else:
            whole = _derived(op, device_type, cost, TRAINING if training else "")
        return max(0.0, whole - device_type.overhead)
    rate = rate_of(op, cost.kind, device_type, BACKWARD if gradients else TRAINING if training else "")
    bandwidth = max(bandwidth_of(device_type), device_type.cache_bandwidth)
    arithmetic = (gradients or cost.flops) / rate if rate else 0.0
    return max(arithmetic, (cost.read + cost.write) / bandwidth if bandwidth else 0.0)


def bandwidth_of(device_type: DeviceType) -> float:
    """Bytes per second of memory that ops reach; 0 where the type states none."""
    return device_type.memory_bandwidth * dict(device_type.efficiency).get(MEMORY, 1.0)


def body_seconds(
    ops: Iterable[Op],
    device_type: DeviceType,
    outputs: Iterable[str] = (),
    *,
    fused: bool = True,
    followed: Mapping[int, tuple[int, ...]] | None = None,
) -> list[float]:
    """Seconds of each op of a body, in order; epilogues at what they add to the op they are fused into, if they are ``fused``.
    ``outputs``: values that are written in any case, as results of the whole; ``followed``: the ``epilogues`` of both, where
    they are known."""
    ops = tuple(ops)
    known: dict[object, float] = {}  # of ops that are alike: ``cost`` gives the copies of a block one and the same facet
    seconds = []
    for op in ops:
        time = op.facet(Time)
        if time is None:
            alike = id(op.facet(Cost)), dtype_of(op), id(op) if op.regions else 0
            if alike not in known:
                known[alike] = _derived(op, device_type, op.facet(Cost))
            seconds.append(known[alike])
        else:
            seconds.append(stated_seconds(time, device_type))
    if not fused or not fuses(device_type):
        return seconds
    types = {value.name: value.type for op in ops for value in sized_results(op)}
    for index, ports in (epilogues(ops, outputs) if followed is None else followed).items():
        op = ops[index]
        chained = type_bytes(types[op.operands[ports[0]]]) or 0
        likeness = id(op.facet(Cost)), dtype_of(op), chained, op.facet(Time) is None
        if likeness not in known:
            known[likeness] = fused_seconds(op, device_type, chained)
        seconds[index] = min(seconds[index], known[likeness])
    return seconds


def fuses(device_type: DeviceType) -> bool:
    """Whether epilogues are fused there."""
    return any(kind == EPILOGUE for kind, _ in device_type.efficiency)


def fused_seconds(op: Op, device_type: DeviceType, chained: int) -> float:
    """Seconds that an epilogue adds to what it is fused into; ``chained``: bytes of the operand that stays in the registers.
    inf where nothing is fused, or the op's seconds are stated."""
    cost = op.facet(Cost)
    if cost is None or op.facet(Time) is not None or not fuses(device_type):
        return math.inf
    rate = rate_of(op, EPILOGUE, device_type)
    extra = max(cost.read - cost.weight - chained, 0)
    return max(cost.flops / rate if rate else 0.0, extra / bandwidth_of(device_type) if device_type.memory_bandwidth else 0.0)


def epilogues(ops: Sequence[Op], outputs: Iterable[str] = ()) -> dict[int, tuple[int, ...]]:
    """Index of each epilogue, with the operands by which it follows a chain: one, or both of a sum of two chains."""
    readers = dict.fromkeys(outputs, 1)
    for op in ops:
        for name in all_reads(op):
            readers[name] = readers.get(name, 0) + 1
    chains: dict[str, Type] = {}  # results that an epilogue may be fused into
    found: dict[int, tuple[int, ...]] = {}
    for index, op in enumerate(ops):
        if is_head(op):
            chains[op.results[0].name] = op.results[0].type
        elif may_fuse(op):
            # The chain's result must be read once only: else it is written to memory anyway.
            made = op.results[0].type
            ports = [i for i, o in enumerate(op.operands) if o in chains and readers[o] == 1 and as_much(chains[o], made)]
            if ports:
                found[index] = tuple(ports)
                chains[op.results[0].name] = made
    return found


def chain_heads(ops: Sequence[Op], outputs: Iterable[str] = ()) -> dict[int, tuple[int, ...]]:
    """Of each epilogue the positions where the chains that it follows begin, ascending: several for a sum of chains."""
    found: dict[int, tuple[int, ...]] = {}
    maker = {op.results[0].name: index for index, op in enumerate(ops) if op.results}
    for index, ports in epilogues(ops, outputs).items():
        makers = [maker[ops[index].operands[port]] for port in ports]
        found[index] = tuple(sorted({head for i in makers for head in found.get(i, (i,))}))
    return found


def is_head(op: Op) -> bool:
    """Whether epilogues may be fused into the op's first result."""
    return operators.has(op, operators.FUSES) and len(op.results) > 0


def may_fuse(op: Op) -> bool:
    """Whether the op is an epilogue behind a chain."""
    return operators.has(op, operators.EPILOGUE) and len(op.results) == 1


def as_much(one: Type, other: Type) -> bool:
    """Whether two values are of one shape."""
    return isinstance(one, TensorType) and isinstance(other, TensorType) and one.shape == other.shape


def rate_of(op: Op, kind: str, device_type: DeviceType, pass_: str = "") -> float:
    """Flop/s that ops of a class reach with the element type of the op's first tensor result; 0 where the type states no rate
    at all. ``pass_``: of training, whose kernels run."""
    rates: Mapping[str, float] = dict(device_type.rates)
    made = dtype_of(op)
    dtype = made.value if made is not None else ""
    if kind.endswith(BITS):
        kind, dtype = kind.removesuffix(BITS), BITS.removeprefix("-")
    peak = rates.get(dtype) or rates.get("f32") or max(rates.values(), default=0.0)
    return peak * efficiency_of(f"{kind}{pass_}-{dtype}", device_type)


def efficiency_of(kind: str, device_type: DeviceType) -> float:
    """Fraction of the peak that ops of this class reach; ``default``'s where the class is not listed, 1.0 without one.

    A class may refine another by a suffix: ``conv-depthwise`` falls back to ``conv``, ``matmul-f32`` to ``matmul``."""
    table = dict(device_type.efficiency)
    while True:
        if kind in table:
            return table[kind]
        kind, dash, _ = kind.rpartition("-")
        if not dash:
            return table.get("default", 1.0)


def dtype_of(op: Op) -> DType | None:
    """The element type of the op's first tensor result, by which ``rate_of`` goes; None where it has none."""
    return next((value.type.dtype for value in op.results if isinstance(value.type, TensorType)), None)
