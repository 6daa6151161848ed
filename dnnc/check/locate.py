"""Finds the member of a mesh that goes wrong first, in a stage whose result diverges.

After a collective, an error of one member is in the values of all. So the stage runs once more on the values of the unsplit
model, and every value that members hold between segments is compared with the unsplit model, level by level: parts (of a
sharded or replicated value) member by member, terms (of a partial value) after their reduction. The stage program in
``plan.ir`` has the layout of each value and its name in the model.
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
    """The first difference inside a stage: the value, by its name in the unsplit model; the level of the segments that computed
    it; the members whose part is wrong, or whose terms reduce to a wrong value."""

    value: str
    level: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """A value of the stage program. ``name``: there; ``origin``: in the unsplit model; ``type``: of the whole value;
    ``placements``: how the members hold it, one per axis of the mesh."""

    name: str
    origin: str
    type: Type
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class _Tolerance:
    """The difference that passes: the larger of ``allowed`` and of what ``precision`` and ``roundings`` allow."""

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
    """The first difference inside ``stage``, None where none is found. ``feeds``: the model's inputs; ``expected``: values of
    the unsplit model at the cuts, both by name; ``precisions``: of its values, by name; ``allowed``: the difference allowed at
    the end of the stage, by which values inside may differ too. Only values with a name in the unsplit model are compared, and
    where that does not run again, only those of ``expected``. Raises MemberError."""
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
    """By name the tensors of the stage program that have a name in the unsplit model; names are without ``%``."""
    from ir.ops.boxes import placements_of
    from passes.graph.graph import origins

    names = origins(module.entry)
    entry = {value.name for op in module.entry.ops for value in op.results}
    origin_of: dict[str, str] = {}
    types: dict[str, Type] = {}
    for op in program.ops:
        for value in op.results:
            if value.name in entry:
                origin_of[value.name] = names.get(value.name, value.name)
            elif op.dialect == "comm" and op.operands[0] in origin_of:  # between the layouts of a reshard
                origin_of[value.name] = origin_of[op.operands[0]]
            types[value.name] = value.type
    held = {}
    for name, origin in origin_of.items():
        if origin[:1] == "%" and isinstance(types[name], TensorType):
            held[name[1:]] = _Held(name[1:], origin[1:], types[name], placements_of(types[name], mesh))
    return held


def _reference(build: Build, wanted: Iterable[_Held], feeds: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """The values ``wanted``, computed by the unsplit model, by name; empty where it does not run."""
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
    """Members whose part differs from that of ``expected``, or whose terms do not reduce to it. ``values``: by member."""
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
