"""Measures what CPU devices of this host do in training, where PyTorch runs the kernels, and adds it to their types.

The forward and the backward pass of the ops of zoo models run alone, on all devices of a type at once, as functions of the
kernels that ``dnnc train`` calls (``profile``). Their operands come from memory, as in a step of a whole model.

- *efficiency*, of the classes ``KIND-training`` and ``KIND-backward``: ``flops / (rate * efficiency)`` of all passes of a class
  adds up to the seconds that they took, each as often as its model has it, without those in which weights come from memory and
  gradients are added up (``passes.costs.op_time``). Passes that wait for memory are left out.
- *launch*: the time of an op in a long chain of small ones.
- *rate* of bf16, where the type states none, as ONNX Runtime multiplies none on CPUs: a product of square matrices, at the
  efficiency of ``matmul-training``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dnnc.machines.probes import NotRun, Probes, probes
from dnnc.machines.profile import Segment, run_on_torch, training_segments
from dnnc.machines.samples import CHAIN, FLOPS, ZOO, chained, product, training_step
from dnnc.machines.topology.writer import Notes
from ir.core.facets import Cost
from ir.core.module import Module
from ir.core.topology import DeviceType, Topology
from ir.system.scratch import scratch_folder
from passes.costs.op_time import BACKWARD, TRAINING, bandwidth_of, in_training, sums_seconds
from passes.costs.products import memory_seconds

ROUNDS = 5
"""Runs of each pass that count."""
TIMED = ("conv", "matmul", "norm", "pool", "softmax", "elementwise")
"""Classes of kernels that are measured."""
NARROW, SIDE = "bf16", 1024
"""The element type whose products are timed here, and the side of their matrices."""
_LARGEST = 1 << 29
"""Most bytes of a pass that is measured."""


def measured_training(
    topology: Topology,
    names: Sequence[str],
    cores: Sequence[Sequence[int]],
    seed: int,
    progress: Callable[[str, float | None], None],
) -> tuple[Topology, Notes]:
    """The topology with what torch does on the types of devices ``names``, which are measured and run on so many ``cores``
    each, and notes on it."""
    types, notes = list(topology.types), dict[tuple[str, str], str]()
    modules = [training_step(spec) for spec in ZOO]
    for number, type_ in enumerate(types):
        own = [cores[place] for place, name in enumerate(names) if topology.device(name).type == type_.name]
        if own:
            with scratch_folder() as scratch, probes(own, Path(scratch), seed, type_.cores) as running:
                types[number], told = of_torch(running, type_, modules, progress)
            notes |= told
    return replace(topology, types=tuple(types)), notes


@dataclass(slots=True)
class _Class:
    """Of the passes of a class: how many, their seconds of arithmetic, and those at the rate of products."""

    count: int = 0
    seconds: float = 0.0
    least: float = 0.0


def of_torch(
    running: Probes, type_: DeviceType, modules: Sequence[Module], progress: Callable[[str, float | None], None]
) -> tuple[DeviceType, Notes]:
    """A type with ``launch``, the efficiencies of training, and a rate of bf16; and notes on what is measured."""
    chains = [_seconds(running, segment) for segment in map(_chain, (1, CHAIN + 1))]
    launch = max(0.0, chains[1] - chains[0]) / CHAIN
    type_ = replace(type_, launch=float(f"{launch:.3g}"))
    classes: dict[str, _Class] = defaultdict(_Class)
    found = list(_timed(modules, type_))
    for number, (kind, segment, waited, moved, least) in enumerate(found):
        progress(f"run {segment.operator} of torch", number / len(found))
        try:
            taken = _seconds(running, segment)
        except NotRun:
            continue
        if moved < taken / 2:
            one = classes[kind]
            one.count += 1
            one.seconds += segment.copies * max(taken - waited, taken / 10)
            one.least += segment.copies * least
    efficiency = {kind: float(f"{min(1.0, one.least / one.seconds):.3g}") for kind, one in classes.items() if one.seconds}
    table = tuple(sorted((dict(type_.efficiency) | efficiency).items()))
    told = ", ".join(f"{one.count} {kind}" for kind, one in sorted(classes.items()))
    notes = {
        (f"types.{type_.name}", "launch"): f"measured: a kernel of torch in a chain of {CHAIN}",
        (f"types.{type_.name}", "efficiency"): f"in training: {told} of torch",
    }
    type_ = replace(type_, efficiency=table)
    if NARROW not in dict(type_.rates) and (rate := _rate(running, dict(table).get(f"matmul{TRAINING}", 1.0))):
        type_ = replace(type_, rates=tuple(sorted((*type_.rates, (NARROW, rate)))))
        notes[f"types.{type_.name}", "rates"] = f"{NARROW}: products of torch"
    return type_, notes


def _rate(running: Probes, efficiency: float) -> float:
    """Flop/s of ``NARROW`` of which products reach ``efficiency``; 0 where torch multiplies none."""
    work = product(NARROW, SIDE)
    try:
        seconds = _seconds(running, Segment("product", work.module, work.module.entry, 1, 0.0, 0, work.op.name, ""))
    except NotRun:
        return 0.0
    return float(f"{work.cost.flops / seconds / efficiency:.3g}")


def _timed(modules: Sequence[Module], type_: DeviceType) -> Iterator[tuple[str, Segment, float, float, float]]:
    """The passes to measure: class, segment, seconds that their arithmetic does not hide, those that moving values takes, and
    those of the arithmetic at the rate of products."""
    (peak,) = (rate for dtype, rate in type_.rates if dtype == "f32")
    bandwidth = bandwidth_of(type_)
    for segment in training_segments(modules, type_)[0]:
        cost = segment.op.facet(Cost, Cost()) if segment.op is not None else Cost()
        flops = cost.input_grad + cost.weight_grad if segment.backward else cost.flops
        wanted = (1 + segment.backward) * FLOPS[1] >= flops >= FLOPS[0]
        if cost.kind not in TIMED or not wanted or segment.size > _LARGEST:
            continue
        waited = in_training(type_).overhead + cost.weight / bandwidth
        waited += sums_seconds(cost, type_) if segment.backward else 0.0
        moved = (1 + segment.backward) * (cost.read + cost.write) - cost.weight
        yield (
            cost.kind + (BACKWARD if segment.backward else TRAINING),
            segment,
            waited,
            memory_seconds(moved, 0, type_),
            flops / peak,
        )


def _seconds(running: Probes, segment: Segment) -> float:
    """Raises NotRun."""
    return run_on_torch(running, segment, ROUNDS).seconds


def _chain(length: int) -> Segment:
    """A function of so many ops that compute nearly nothing."""
    module = chained(length)
    return Segment("chain", module, module.entry, 1, 0.0, 0, "chain", "")
