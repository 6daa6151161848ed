"""Every plan that a test compiles is counted twice: what its stages cost, and what the programs of their devices do; of a
training step, what it was planned by, and what its backward ops do and keep.

The count reads local types, the ops of programs and the topology, and nothing of the search. A plan says the seconds of the
slowest member of each op, so the seconds of any one member are at most those; those of a stage on one device, or on one for
each sample in turn, are what is counted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ir.core.diagnostics import InvalidInput
from ir.core.facets import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, BackwardTime, Cost, Measured, Time, phase_of
from ir.core.module import Module, Plan
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.core.types import type_bytes
from passes.costs.learning import Learning, is_float, learning, recomputes, saved_values
from passes.costs.views import bases
from passes.differentiate import DifferentiatePass
from passes.framework.base import PassContext
from passes.graph.folding import expand
from passes.graph.graph import origins, reads, stage_members
from passes.meshes import count
from passes.meshes.reshard_ops import without_reshards
from passes.prepare.cost import CostPass
from passes.programs.localize import LocalizePass
from tests.passes.meshes.worked import worked

NEAR = 1e-6
ROUNDING = 0.02
"""Of saved bytes: what is not a tensor of floats, such as a mask, counts on one side alone."""
SMALL = 512
"""Bytes that neither side counts alike: plans count integers (labels, indices), which weigh in small models only."""
BACKWARD = (INPUT_GRADIENT, WEIGHT_GRADIENT)
ABOVE = 1e-2
"""Relative: of a Gemm the bias is added in one of its terms alone, which the plan spreads."""


def check_counts(module: Module) -> int:
    """Asserts that the plan of a module with programs costs what its programs do; returns how many stages were compared. Stages
    whose seconds were given or measured say nothing of programs. Of stages on meshes, scalar steps are not compared: a plan
    spreads them as it does flops, but the kernel of a shard may take others (a convolution of 21 channels has no blocks)."""
    plan, topology = module.first(Plan), module.first(Topology)
    timed = any(isinstance(facet, Time | BackwardTime | Measured) for op in module.entry.ops for facet in op.facets)
    if plan is None or topology is None or timed or plan.minimises.trains:
        return 0
    try:
        members, collectives = worked(module), count(module)
        vectors = worked(module.replace(topology, _without_scalar_steps(topology)))
    except InvalidInput:  # a size that nobody knows
        return 0
    compared, several = 0, len({device for stage in plan.stages for device in stage.devices}) > 1
    for stage in plan.stages:
        own = [member.seconds for member in members if member.stage == stage.index]
        exchanged = math.fsum(one.seconds for one in collectives if one.stage == stage.index)
        if not own or not stage.devices:
            continue
        if stage.steps and stage.receive + stage.send:
            continue  # of unlike replicas the plan tells computing and transfers of the slowest alone
        compute = stage.steps[0] if stage.steps else stage.compute
        told = f"stage {stage.index} of {plan.name}: {compute:.6g} s of compute, its programs {max(own):.6g} s"
        types = {device.name: topology.type(device.type) for device in topology.devices}
        of_devices = stage.devices[:1] if stage.steps else stage.devices  # the program of a stage is counted on the first
        woken = max((types[device].handover for device in of_devices if several), default=0.0)
        counted = max(own) + woken
        if stage.mesh:
            least = max(member.seconds for member in vectors if member.stage == stage.index)
            assert least + woken <= stage.compute * (1 + ABOVE), told
            assert math.isclose(exchanged, stage.collectives, rel_tol=NEAR, abs_tol=1e-15), (
                f"stage {stage.index} of {plan.name}: {stage.collectives:.6g} s of collectives, counted {exchanged:.6g} s"
            )
        else:
            assert math.isclose(compute, counted, rel_tol=NEAR), told
        compared += 1
    return compared


def _without_scalar_steps(topology: Topology) -> Topology:
    return replace(topology, types=tuple(replace(type_, scalar_rate=0.0) for type_ in topology.types))


def check_step(planned: Module, whole: Module) -> int:
    """Asserts that the backward ops of a training step do what the facts of its forward ops say: the flops of products and
    convolutions to the last one, and what each stage keeps of a microbatch within ``ROUNDING`` of its bytes, and ``SMALL``.
    Returns how many stages were compared. ``whole``: the differentiated step, without recomputation, with costs."""
    learned = learning(planned)
    told = _flops((op, _gradients(op, learned)) for op in planned.entry.ops)
    backward = [op for op in whole.entry.ops if phase_of(op.facets) in BACKWARD]
    counted = _flops((op, op.facet(Cost, Cost()).flops) for op in backward)
    for place in told:
        assert told[place] == counted.get(place, 0), f"{place}: planned with {told[place]} flops of gradients, of {counted}"
    made = {value.name: value for value in whole.entry.args}
    made.update((value.name, value) for op in whole.entry.ops if phase_of(op.facets) == FORWARD for value in op.results)
    entry = without_reshards(planned.entry).func
    on, called, lies, base = stage_members(entry), origins(whole.entry), bases(whole.entry.ops), bases(entry.ops)
    learned = replace(learned, base=base)
    stages = {stage for members in on for stage in members}
    for stage in stages:
        facts: dict[str, int] = {}
        for op, members in zip(entry.ops, on, strict=True):
            if stage in members:
                facts.update(saved_values(op, learned))
        kept = {}  # once, however it lies
        for op, members in zip(whole.entry.ops, stage_members(whole.entry), strict=True):
            for name in reads(op) if stage in members and phase_of(op.facets) in BACKWARD else ():
                memory = lies.get(name, name)
                first = called.get(memory, memory)
                first = base.get(first, first)
                if memory in made and is_float(made[memory].type) and first[:1] != "@":
                    kept[first] = type_bytes(made.get(first, made[memory]).type) or 0
        one, other = sum(facts.values()), sum(kept.values())
        assert abs(one - other) <= SMALL + ROUNDING * max(one, other), (
            f"stage {stage}: planned to keep {one} bytes, its ops {other}"
        )
    return len(stages)


def _gradients(op: Op, learned: Learning) -> int:
    """What the gradients of a product are planned with, but for that of a bias: a sum is no product."""
    cost = op.facet(Cost, Cost())
    trains = any(
        name in learned.state or name in learned.values for name in op.operands[2:3]
    )  # or is the cast of one that does
    bias = (getattr(op.results[0].type, "elements", 0) or 0) if trains else 0
    return cost.input_grad + cost.weight_grad - bias


def _flops(counted: Iterable[tuple[Op, int]]) -> dict[str, int]:
    """Of products and convolutions, by location."""
    found: dict[str, int] = defaultdict(int)
    for op, flops in counted:
        if op.facet(Cost, Cost()).kind in ("matmul", "conv"):
            found[str(op.location)] += flops
    return found


def differentiated_and_counted(self: DifferentiatePass, module: Module, context: PassContext) -> Module:
    """The pass ``differentiate``, with the check behind it where a search made the plan."""
    result = _DIFFERENTIATE(self, module, context)
    if {"partition", "reference"} & context.statistics.keys() and self.recompute != "stage" and not recomputes(module):
        check_step(expand(module), CostPass().run(expand(result), PassContext(dialects=context.dialects)))
    return result


def localized_and_counted(self: LocalizePass, module: Module, context: PassContext) -> Module:
    """The pass ``localize``, with the check behind it where a search made the plan."""
    result = _LOCALIZE(self, module, context)
    if {"partition", "reference"} & context.statistics.keys():
        check_counts(expand(result))
    return result


_LOCALIZE = LocalizePass.run
_DIFFERENTIATE = DifferentiatePass.run
