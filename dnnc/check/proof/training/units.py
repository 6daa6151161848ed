"""The programs of a training step as terms, phase by phase.

Ops run in the order of their phases (F, I, W for each microbatch, then U once a step), within a phase in that of the text. A
resource that was assigned is the assigned value for whatever reads it behind; between an optimizer's op, which works in place,
and the assignment it is nothing that is known.

The replicas of a stage without a mesh are members along one axis. In F, I and W each works on microbatches of its own: a fact
says what each has of *its* microbatch. ``grad.accumulate`` gives each a term of the mean over the microbatches of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dnnc.build.training import Step
from dnnc.check.proof.programs import Evaluation, StageText, Unit
from ir.core.facets import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, phase_of
from ir.core.module import Mesh, Program, Stage
from ir.core.ops import Op, Region, Value, all_reads
from ir.ops.grads import ACCUMULATE, ASSIGN, BATCH_NORMALIZATION, STEP
from ir.ops.loss_scale import LOSS_SCALE
from ir.ops.opdefs import is_collective, module_opsets
from ir.ops.optimizers import EMA, OPTIMIZERS, RATE, in_place

ORDER = {phase: place for place, phase in enumerate((FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, UPDATE))}
_ONCE = frozenset({ACCUMULATE, EMA, LOSS_SCALE, RATE, STEP, *OPTIMIZERS})
"""Ops that run once a step."""
_HELD = ("comm.part", "comm.member", "onnx.Constant")
"""Ops whose results are the same whenever they run."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """``grad.assign``: of the value that the program calls ``value``, in ``phase``."""

    phase: str
    value: str
    term: int


@dataclass(slots=True)
class StepUnit(Unit):
    """A unit of a training step. ``assigned``: by resource, the last assignment; ``held``: by resource, the terms that are
    parts of it; ``in_place``: resources that an optimizer's op has changed and no assignment behind it."""

    assigned: dict[str, Assignment] = field(default_factory=dict)
    held: dict[str, dict[int, None]] = field(default_factory=dict)
    in_place: dict[str, None] = field(default_factory=dict)


class _StepEvaluation(Evaluation):
    """The terms of a unit of a training step. ``now``: the term that a part of a resource is by now."""

    unit: StepUnit

    def __init__(self, unit: StepUnit, opsets: Mapping[str, int]) -> None:
        super().__init__(unit, opsets)
        self.now: dict[int, int] = {}
        self.names_read = {name for op in unit.program.ops for name in all_reads(op)}

    def part(self, name: str, of: object) -> int:
        term = super().part(name, of)  # type: ignore[arg-type]
        self.unit.held.setdefault(name, {})[term] = None
        return term

    def read(self, name: str) -> int:
        term = super().read(name)
        return self.now.get(term, term)

    def op(self, op: Op, file: str, opsets: Mapping[str, int], read: Callable[[str], int]) -> Iterable[int]:
        if op.name == ASSIGN:
            target, term = super().read(op.operands[0]), self.read(op.operands[1])
            self.now[target] = term
            resource = self.unit.parts[target][0] if target in self.unit.parts else op.operands[0]
            self.unit.in_place.pop(resource, None)
            self.unit.assigned[resource] = Assignment(phase_of(op.facets), op.operands[1], term)
            return ()
        results = super().op(op, file, opsets, super().read if takes_statistics(op, self.names_read) else read)
        for place in in_place(op):
            if op.operands[place]:
                target = super().read(op.operands[place])
                if target in self.unit.parts:
                    self.unit.in_place[self.unit.parts[target][0]] = None
                    self.now[target] = self.unit.terms.number(("in place", target, len(self.unit.lines)))
        return results


def takes_statistics(op: Op, read: Collection[str]) -> bool:
    """Whether an op is a batch normalisation that trains, of which nobody reads what its running averages become (``read``:
    all names that are read): nothing else that it makes depends on them."""
    averages = {value.name for value in op.results[1:3]}
    return op.name == BATCH_NORMALIZATION and bool(op.get("training_mode", 0)) and averages.isdisjoint(read)


def read_step_stages(step: Step) -> Iterator[StageText]:
    """The stages of a step, those with replicas on the mesh of these. Raises Unreadable."""
    opsets = module_opsets(step.module)
    for stage in step.stages:
        programs = [program for program in step.module.of_type(Program) if program.stage == stage.name]
        mesh = mesh_of(step, stage, programs)
        units: list[Unit] = []
        for program in programs:
            ordered = replace(program, ops=tuple(sorted(program.ops, key=lambda op: ORDER[phase_of(op.facets)])))
            members = [mesh.devices.index(device) for device in program.devices] if mesh.axes else [0]
            unit = StepUnit(tuple(members), ordered)
            _StepEvaluation(unit, opsets).run()
            units.append(unit)
        yield StageText(stage, mesh, units)


def is_replicated(stage: Stage) -> bool:
    """Whether the devices of a stage are replicas, which take microbatches in turn."""
    return not stage.mesh and len(stage.devices) > 1


def mesh_of(step: Step, stage: Stage, programs: Sequence[Program]) -> Mesh:
    """The mesh of a stage: its own, or that over which its replicas sum; without axes where it has one device."""
    if stage.mesh:
        return step.meshes[stage.mesh]
    if len(stage.devices) < 2:
        return Mesh("", (), ())
    named = {op.get("mesh") for program in programs for op in program.ops if is_collective(op)}
    for mesh in step.meshes.values():
        if mesh.name in named and mesh.devices == stage.devices and len(mesh.axes) == 1:
            return mesh
    return Mesh("", (("replicas", len(stage.devices)),), stage.devices)


def phase_faults(ops: Sequence[Op], args: Iterable[str], results: Iterable[str], replicated: bool = False) -> Iterator[str]:
    """What the phases of a program's ops do not allow: a phase reads what earlier ones made, or itself before; of phase U alone
    ``grad.accumulate`` reads what was made for a microbatch; what phase F assigns it reads alone, since the next microbatch
    assigns it again. Runs of a phase on replicas exchange nothing."""
    made = dict.fromkeys(args, FORWARD)
    phase_by_name = {value.name: phase_of(op.facets) for op in ops for value in op.results if value.name}
    held: set[str] = set()
    now: dict[str, str] = {}
    resource_of = {op.results[0].name: op.operands[0] for op in ops if op.name == "comm.part"}
    names_read = {name for op in ops for name in all_reads(op)}
    for op in sorted(ops, key=lambda op: ORDER[phase_of(op.facets)]):
        phase = phase_of(op.facets)
        told = f"{op.name} of phase {phase}" + (f", which makes {op.id}," if op.results else "")
        if op.name in _ONCE and phase != UPDATE:
            yield f"{told} is to run once a step, in phase {UPDATE}"
        if op.name == ASSIGN and phase not in (FORWARD, UPDATE):
            yield f"{told} assigns {op.operands[0]} neither for the next microbatch nor for the next step"
        if replicated and phase != UPDATE and is_collective(op):
            yield f"{told} exchanges values of different microbatches"
        for name in op.operands[1:] if op.name == ASSIGN else all_reads(op):
            of = now.get(resource_of.get(name, name), made.get(name))
            if name in phase_by_name and name not in made and name not in held:
                yield f"{told} reads {name}, which phase {phase_by_name[name]} makes behind it"
            if of is not None and op.name != ACCUMULATE and phase == UPDATE != of:
                yield f"{told} reads {name}, which phase {of} makes anew for each microbatch"
            moved = now.get(resource_of.get(name, name)) == FORWARD and phase in (INPUT_GRADIENT, WEIGHT_GRADIENT)
            if moved and not takes_statistics(op, names_read):
                yield f"{told} reads {name}, which phase {FORWARD} of later microbatches may have assigned by then"
            if of == UPDATE and op.name == ACCUMULATE:
                yield f"{told} takes the mean over microbatches of {name}, which is made once a step"
        if op.name == ASSIGN:
            now[resource_of.get(op.operands[0], op.operands[0])] = phase
        names = {value.name for value in (*op.results, *(value for _, region in op.regions for value in _inside(region)))}
        made.update(dict.fromkeys(names - {""}, phase) if op.name not in _HELD else {})
        held |= names if op.name in _HELD else set()
    for name in results:
        if name[:1] == "%" and name not in held and made.get(name) in (None, UPDATE):
            yield f"it returns {name}, which is not made for each microbatch"


def _inside(region: Region) -> Iterator[Value]:
    """The values of a region, and of those in it."""
    yield from region.args
    for op in region.ops:
        yield from op.results
        for _, inner in op.regions:
            yield from _inside(inner)
