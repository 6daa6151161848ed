"""Finds the member of a mesh that goes wrong first, in a stage whose result diverges.

After a collective, an error of one member is in the values of all. So the stage runs once more on the values of the unsplit
model, and every value that members hold between segments is compared with the unsplit model, level by level: parts member by
member, terms by their sum. The stage program in ``plan.ir`` has the layout of each value and its name in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dnnc.build.build import Build, StageProgram
from dnnc.check.compare import EXACT, Difference, Precision, compare, compare_part, roundings_of
from dnnc.check.lockstep import Values, fed, run_members
from dnnc.check.reference import references
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from ir.core.module import Mesh, Module, Stage
from ir.core.types import DType, Partial, Placement, Replicate, TensorType, Type
from ir.system.scratch import scratch_folder


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first difference inside a stage: the value, the segment that computed it, and the members whose part is wrong, or
    whose terms have a wrong sum."""

    value: str
    level: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """A value that members hold. ``origin``: its name in the unsplit model; ``type``, ``placements``: of the whole value."""

    name: str
    origin: str
    type: Type
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class _Tolerance:
    """The difference that passes: the one that precision and roundings allow, and at least ``allowed``."""

    precision: Precision
    roundings: int
    allowed: float

    def passes(self, difference: Difference) -> bool:
        return difference.ok or difference.value <= self.allowed


def first_wrong(
    build: Build,
    module: Module,
    stage: StageProgram,
    feeds: Mapping[str, Any],
    expected: Mapping[str, Any],
    precisions: Mapping[str, Precision],
    allowed: float,
    threads: int,
) -> FirstDifference | None:
    """The first difference inside ``stage``, given the model's inputs and the values of the unsplit model at the cuts. None if
    no value with a name in the unsplit model differs, or if the unsplit model does not run again. ``allowed``: of the tensor
    that diverges at the end of the stage; values inside may differ by as much."""
    program = next((s for s in module.of_type(Stage) if s.index == stage.index), None)
    mesh = next((m for m in module.of_type(Mesh) if program is not None and m.name == program.mesh), None)
    if program is None or mesh is None:
        return None
    held = _held(module, program, mesh)
    wanted = [h for h in held.values() if h.origin not in expected]
    right = {**feeds, **_reference(build, wanted, feeds, threads), **expected}
    cases = [[fed(member, right) for member in stage.members]]
    values = run_members(build, stage, cases, threads=threads)[0]
    for level, names in _levels(stage):
        for name in names:
            one = held.get(name)
            if one is None or not isinstance(right.get(one.origin), Raw):
                continue
            precision, rounded = precisions.get(one.origin, EXACT), roundings_of(stage.collectives)
            wrong = _wrong(one, mesh, right[one.origin], values, _Tolerance(precision, rounded, allowed))
            if wrong:
                return FirstDifference(one.origin, level, wrong)
    return None


def _levels(stage: StageProgram) -> list[tuple[int, list[str]]]:
    """Names of the values that segments compute, by level."""
    names_of: dict[int, dict[str, None]] = {}
    for member in stage.members:
        for segment in member.segments:
            names_of.setdefault(segment.level, {}).update((value.name, None) for value in segment.outputs)
    return [(level, list(names)) for level, names in sorted(names_of.items())]


def _held(module: Module, program: Stage, mesh: Mesh) -> dict[str, _Held]:
    """Tensors of the stage program by name (without its sigil), each with its name in the model."""
    from ir.ops.boxes import placements_of
    from passes.model.graph import origins

    names = origins(module.entry)
    entry = {value.name for op in module.entry.ops for value in op.results}
    of: dict[str, str] = {}
    types: dict[str, Type] = {}
    for op in program.ops:
        for value in op.results:
            if value.name in entry:
                of[value.name] = names.get(value.name, value.name)
            elif op.dialect == "comm" and op.operands[0] in of:  # between the layouts of a reshard
                of[value.name] = of[op.operands[0]]
            types[value.name] = value.type
    held = {}
    for name, origin in of.items():
        if origin[:1] == "%" and isinstance(types[name], TensorType):
            held[name[1:]] = _Held(name[1:], origin[1:], types[name], placements_of(types[name], mesh))
    return held


def _reference(build: Build, wanted: Iterable[_Held], feeds: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Values of the unsplit model inside the stage."""
    specs = {h.origin: ValueSpec(h.origin, _element(h.type)) for h in wanted}
    with scratch_folder() as scratch:
        for reference in references(build, specs, scratch):
            try:
                outputs = tuple(spec for name, spec in specs.items() if name in reference.present)
                program = Program(reference.model, outputs, Settings(threads), reference.weights)
                return program.run({name: feeds[name] for name in program.input_names})
            except Exception:  # of onnxruntime: only the message gets less precise, and the next reference may run
                continue
    return {}


def _element(type_: Type) -> int:
    return type_.dtype.onnx_number if isinstance(type_, TensorType) and type_.dtype is not DType.STRING else 0


def _wrong(held: _Held, mesh: Mesh, expected: Raw, values: list[Values], tolerance: _Tolerance) -> tuple[int, ...]:
    """Members whose part differs from ``expected``, or whose terms do not add up to it."""
    from dnnc.build.members import Part
    from dnnc.engines.onnxruntime.transport.parts import assemble
    from ir.ops.boxes import box, coordinates

    members = range(len(values))
    boxes = [box(held.type, held.placements, mesh, member) for member in members]
    if any(held.name not in values[member] for member in members):
        return ()
    reduction = next((p.reduction for p in held.placements if isinstance(p, Partial)), "")
    if not reduction:
        differences = (
            (m, compare_part(expected, boxes[m], values[m][held.name], tolerance.precision, tolerance.roundings))
            for m in members
        )
        return tuple(member for member, difference in differences if not tolerance.passes(difference))
    copies = [i for i, placement in enumerate(held.placements) if isinstance(placement, Replicate)]
    wrong: set[int] = set()
    for copy in dict.fromkeys(tuple(coordinates(mesh, member)[i] for i in copies) for member in members):
        group = [member for member in members if tuple(coordinates(mesh, member)[i] for i in copies) == copy]
        parts = [(Part(held.name, held.name, boxes[m], reduction), values[m][held.name]) for m in group]
        whole = assemble(expected.shape, parts)
        if not tolerance.passes(compare(expected, whole, tolerance.precision, tolerance.roundings)):
            wrong.update(group)
    return tuple(sorted(wrong))


__all__ = ["FirstDifference", "first_wrong"]
