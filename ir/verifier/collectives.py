"""INV21: what collectives do to layouts, and that a stage on a mesh is all on that mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ir.core.facets import UPDATE, ShardRule, phase_of
from ir.core.module import Mesh, Resource, Stage
from ir.core.ops import Op, all_reads
from ir.core.types import DType, Placement, Replicate, Shard, TensorType, Type
from ir.ops.boxes import placements_of
from ir.ops.opdefs import OPDEFS, RESHARD, ReshardStep
from ir.verifier.findings import Findings

_NOT_REDUCED = ((DType.STRING, "sum"), (DType.STRING, "max"), (DType.BOOL, "sum"))


def check_collectives(findings: Findings) -> None:
    """Every stage that is on a mesh of the module."""
    resources = {r.name: r.type for r in findings.module.of_type(Resource)}
    for stage in findings.stages:
        mesh = findings.meshes.get(stage.mesh) if stage.mesh else None
        for op in stage.ops:
            for fault in _misplaced(op, stage, findings):
                findings.add("INV21", f"in {stage.name}: {fault}", stage, op, about=op.name)
        for op, fault in bucket_faults(stage.ops):
            findings.add("INV21", f"in {stage.name}: {fault}", stage, op, about="bucket")
        if mesh is None:
            continue
        for value in stage.args:
            if isinstance(value.type, TensorType) and value.type.layout is not None:
                message = f"in {stage.name}: {value.name} is {value.type}, but every member gets an input of the model whole"
                findings.add("INV21", message, stage, about=value.name)
        types: dict[str, Type] = {value.name: value.type for value in stage.args}
        for where, name, message in _kept_faults(stage, mesh, resources):
            findings.add("INV21", f"in {stage.name}: {message}", stage, where, about=name)
        for op in stage.ops:
            for fault in _faults(op, mesh, types, resources):
                findings.add("INV21", f"in {stage.name}: {fault}", stage, op, about=op.name)
            types.update((value.name, value.type) for value in op.results)


def bucket_faults(ops: Sequence[Op]) -> Iterator[tuple[Op, str]]:
    """Ops of one ``bucket`` that cannot travel in one message."""
    types = {value.name: value.type for op in ops for value in op.results}
    first: dict[int, tuple[Op, int, set[str]]] = {}
    for at, op in enumerate(ops):
        bucket = op.get("bucket")
        if not isinstance(bucket, int) or not op.operands:
            continue
        head, last, made = first.get(bucket, (op, at - 1, set[str]()))
        one, other = (types.get(each.operands[0]) for each in (head, op))
        alike = not (isinstance(one, TensorType) and isinstance(other, TensorType)) or one.dtype is other.dtype
        if last != at - 1:
            yield op, f"{op.id} is of bucket {bucket}, but does not stand beside {head.id}"
        elif any(op.get(key) != head.get(key) for key in ("mesh", "axis", "reduction", "through")) or not alike:
            yield op, f"{op.id} is of bucket {bucket}, but is no sum like {head.id}: of that axis, reduction and element type"
        elif op.operands[0] in made:
            yield op, f"{op.id} is of bucket {bucket}, and reads what that makes"
        first[bucket] = head, at, made | {value.name for value in op.results}


def between_replicas(op: Op, devices: Sequence[str], meshes: Mapping[str, Mesh]) -> bool:
    """Whether ``op`` is a sum over ``devices``, replicas of one stage without a mesh, in the update."""
    mesh = meshes.get(op.get("mesh", ""))
    if mesh is None or mesh.devices != tuple(devices) or [name for name, _ in mesh.axes] != [op.get("axis")]:
        return False
    return op.name == "comm.all_reduce" and phase_of(op.facets) == UPDATE


def _kept_faults(stage: Stage, mesh: Mesh, resources: dict[str, Type]) -> Iterator[tuple[Op | None, str, str]]:
    """Where a stage keeps a resource in several ways: ``comm.reshard`` says one, else its type does. The op, what to point at
    and the message."""
    kept: dict[str, Op] = {}
    for op in stage.ops:
        if op.name == RESHARD and op.operands and op.results:
            first = kept.setdefault(op.operands[0], op)
            if first.results[0].type != op.results[0].type:
                message = f"{op.id} keeps {op.operands[0]} as {op.results[0].type}, {first.id} as {first.results[0].type}"
                yield op, op.name, message
    lies = {name: placements_of(resources[name], mesh) for name in kept if name in resources}
    for op in stage.ops:
        for name in () if op.name == RESHARD or op.dialect == "dnnc" else dict.fromkeys(all_reads(op)):
            if name in lies and (wanted := placements_of(kept[name].results[0].type, mesh)) != lies[name]:
                yield (
                    op,
                    name,
                    f"{op.id} reads {name} as [{_text(lies[name])}], but {kept[name].id} keeps it as [{_text(wanted)}]",
                )
    for value in stage.results:
        if value.name in resources:
            wanted = placements_of(kept[value.name].results[0].type if value.name in kept else resources[value.name], mesh)
            if placements_of(value.type, mesh) != wanted:
                yield None, value.name, f"result {value.name} is {value.type}, but the stage keeps it as [{_text(wanted)}]"


def _misplaced(op: Op, stage: Stage, findings: Findings) -> Iterator[str]:
    """Ops of ``comm`` that this stage cannot have."""
    definition = OPDEFS.get(op.name)
    if op.name in ("comm.part", "comm.member"):
        yield f"{op.name} has its place in programs, not in a stage"
    elif op.name == RESHARD and op.operands and op.operands[0][:1] != "@":
        yield f"{op.id} is a {RESHARD} of {op.operands[0]}; in a stage it says how a resource is kept"
    elif definition is None or definition.step is None or stage.mesh:
        return
    elif not between_replicas(op, stage.devices, findings.meshes):
        yield f"{op.id} is along an axis of {op.get('mesh')}, but the stage is on no mesh"


def _faults(op: Op, mesh: Mesh, types: dict[str, Type], resources: dict[str, Type]) -> Iterator[str]:
    for value in op.results:
        layout = value.type.layout if isinstance(value.type, TensorType) else None
        if layout is not None and layout.mesh != mesh.name:
            yield f"{value.name} lies on {layout.mesh}, but the stage is on {mesh.name}"
            return
    rule = op.facet(ShardRule)
    if rule is not None and rule.rule.count(";") + 1 != len(mesh.axes):
        yield f"{op.id} has strategies '{rule.rule}' for the {len(mesh.axes)} axes of {mesh.name}"
    definition = OPDEFS.get(op.name)
    if definition is None or definition.step is None or op.get("axis") is None or not (op.operands and op.results):
        return
    axes = [name for name, _ in mesh.axes]
    if op.get("mesh") != mesh.name or op.get("axis") not in axes:
        yield f"{op.id} is along axis '{op.get('axis')}' of {op.get('mesh')}, which is no axis of {mesh.name}"
        return
    if (size := dict(mesh.axes)[op.get("axis")]) <= op.get("through", 0):
        yield f"{op.id} goes through member {op.get('through')} of axis '{op.get('axis')}', which has {size}"
    operand = types.get(op.operands[0], resources.get(op.operands[0]))
    result = op.results[0].type
    if not isinstance(operand, TensorType) or not isinstance(result, TensorType):
        yield f"{op.id} converts {operand or op.operands[0]} to {result}; both must be tensors"
        return
    if (operand.dtype, operand.shape) != (result.dtype, result.shape):
        yield f"{op.id} makes {result} of {operand}; only the layout may change"
    if (operand.dtype, op.get("reduction")) in _NOT_REDUCED:
        yield f"{op.id} reduces {operand}; elements of type {operand.dtype.value} have no {op.get('reduction')}"
    beyond = [
        key
        for key in dict.fromkeys((definition.step.join, definition.step.split))
        if key and result.shape is not None and op.get(key, -1) >= len(result.shape)
    ]
    if beyond:
        yield f"{op.id} has {beyond[0]} {op.get(beyond[0])}, but {result} has {len(result.shape or ())} dimensions"
    axis, placements = axes.index(op.get("axis")), _placements(operand, mesh)
    yield from _layout_faults(op, definition.step, axis, placements, _placements(result, mesh))


def _placements(type_: TensorType, mesh: Mesh) -> tuple[Placement, ...]:
    """On this mesh; a resource that lies on another is whole here."""
    if type_.layout is None or type_.layout.mesh != mesh.name:
        return (Replicate(),) * len(mesh.axes)
    return type_.layout.placements


def _layout_faults(
    op: Op, step: ReshardStep, axis: int, operands: tuple[Placement, ...], results: tuple[Placement, ...]
) -> Iterator[str]:
    kind = op.name.removeprefix("comm.")
    before, after = step.placements(op)
    if len(operands) != len(results) or axis >= len(results):
        return  # INV07 tells
    expected = (*operands[:axis], after, *operands[axis + 1 :])
    if operands[axis] != before or results != expected:
        changed = f"[{_text(operands)}] to [{_text(results)}]"
        yield f"{op.id} is {kind} of {changed}; on its axis it makes {after} of {before}, no more"
    moved = [p for p in (before, after) if isinstance(p, Shard) and p in results[axis + 1 :]]
    if moved:
        yield f"{op.id} changes dimension {moved[0].dim} along an axis whose parts a later axis cuts further"


def _text(placements: tuple[Placement, ...]) -> str:
    return ", ".join(map(str, placements))
