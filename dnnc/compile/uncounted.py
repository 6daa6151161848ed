"""What a plan's seconds leave out: the inputs and outputs of a model that its stages read and make off the CPU, what it
costs to start a stage on devices whose type states no hand-over, and how PyTorch multiplies narrow types on a CPU.

Tensors between devices are charged to the links between them. What the caller gives, and gets, lies in the host's memory, and
no plan counts how it comes to another processor and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ir.core.facets import Cost, StageSet
from ir.core.module import Module, Plan
from ir.core.topology import Link, Topology
from ir.core.types import DType, TensorType, type_bytes
from ir.text.units import bytes_text, rate_text, seconds_text

SHORT = 100e-6
"""Seconds of a microbatch on a device below which it matters that starting it is not counted: the hand-over of a stage took 30
to 370 us on CPUs (``python -m tests.bench.handover``)."""

PRODUCTS = ("matmul", "conv", "attention")
"""Kinds of ops that multiply matrices."""


def with_uncounted(plan: Plan, module: Module, topology: Topology) -> Plan:
    """The plan, whose certificate states what its seconds leave out."""
    if plan.minimises.trains:
        told = [_narrow_products(plan, module, topology)]
    else:
        told = [_inputs_and_outputs(plan, module, topology), _starts(plan, topology)]
    if not (texts := [text for text in told if text]):
        return plan
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), "uncounted": "; ".join(texts)}.items())))


def _narrow_products(plan: Plan, module: Module, topology: Topology) -> str:
    """That a CPU's rate of f16 may be far from PyTorch's, where a training step multiplies in it there. A core with 110 GFLOP/s
    of f32 had 487 of bf16 and 1.2 of f16 with PyTorch, and 213 of f16 with ONNX Runtime, by which that rate is measured
    (``python -m tests.bench.narrow_products``)."""
    on_cpu = {
        s.index for s in plan.stages if any(topology.type(topology.device(name).type).kind == "cpu" for name in s.devices)
    }
    multiplied = any(
        isinstance(value.type, TensorType) and value.type.dtype is DType.F16
        for op in module.entry.ops
        if op.facet(Cost, Cost()).kind in PRODUCTS and not on_cpu.isdisjoint(op.facet(StageSet, StageSet(())).stages)
        for value in op.results
    )
    told = "how PyTorch multiplies f16 on a CPU: rates are measured with ONNX Runtime, and may be far off"
    return told if multiplied else ""


def _starts(plan: Plan, topology: Topology) -> str:
    """That starting the stages is not counted, where no stage takes long and some device states no hand-over."""
    devices = {device for stage in plan.stages for device in stage.devices}
    stated = all(topology.type(topology.device(device).type).handover for device in devices)
    short = max((stage.working for stage in plan.stages), default=math.inf) < SHORT
    return "what starting each run of a stage costs" if short and not stated else ""


def _inputs_and_outputs(plan: Plan, module: Module, topology: Topology) -> str:
    """The bytes of a microbatch's inputs and outputs that go to and come from devices of other kinds than ``cpu``, and their
    seconds where a link joins the first of these to its host; empty where there are none."""
    off = {stage.index: devices for stage in plan.stages if (devices := _off(stage.devices, topology))}
    if not off:
        return ""
    func = module.entry
    there = [op for op in func.ops if not off.keys().isdisjoint(op.facet(StageSet, StageSet(())).stages)]
    read = {name for op in there for name in op.operands}
    made = {value.name for op in there for value in op.results}
    size = sum(type_bytes(value.type) or 0 for value in func.args if value.name in read)
    stay = {f"%{state.result}" for state in module.states.values()}
    size += sum(type_bytes(value.type) or 0 for value in func.results if value.name in made - stay)
    if not size:
        return ""
    link = _host_link(topology, next(iter(off.values()))[0])
    told = f": {seconds_text(size / link.bandwidth)} at {rate_text(link.bandwidth, 'B/s')}" if link else ""
    return f"inputs and outputs to and from the host's memory, {bytes_text(size)}{told}"


def _off(devices: Sequence[str], topology: Topology) -> list[str]:
    """Those of the devices that are no CPUs."""
    return [name for name in devices if topology.type(topology.device(name).type).kind != "cpu"]


def _host_link(topology: Topology, name: str) -> Link | None:
    """The link between a device and its host."""
    ends = {name, topology.device(name).host}
    return next((link for link in topology.links if ends <= set(link.ends)), None)
