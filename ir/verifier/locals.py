"""INV23: programs are what the devices of a stage run, on the parts that the types of whole tensors say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ir.core.attributes import Dense
from ir.core.module import Mesh, Program, Resource, Stage
from ir.core.ops import Op
from ir.core.types import TensorType, Type, without_layout
from ir.ops.boxes import box, placements_of
from ir.ops.opdefs import OPDEFS, RESHARD, SEGMENT, is_collective
from ir.verifier.collectives import between_replicas, bucket_faults
from ir.verifier.findings import Findings
from ir.verifier.values import type_faults

BORDER = ("comm.part", "comm.recv", "comm.send")
"""Ops at which a part of a whole tensor comes into a program or leaves it."""


def check_locals(findings: Findings) -> None:
    """Every program of the module."""
    stages = {stage.name: stage for stage in findings.stages}
    of_stage: dict[str, list[Program]] = {}
    for program in findings.module.of_type(Program):
        stage = stages.get(program.stage)
        if stage is None:
            message = f"{program.name} is of {program.stage}, which is not a stage of the module"
            findings.add("INV06", message, program, about=program.stage)
            continue
        others = of_stage.setdefault(stage.name, [])
        for fault in _device_faults(program, stage, others):
            findings.add("INV23", f"in {program.name}: {fault}", program)
        others.append(program)
        mesh = findings.meshes.get(stage.mesh, Mesh("", (), ()))
        members = [mesh.devices.index(device) for device in program.devices if device in mesh.devices] or [0]
        if mesh.name not in findings.unsound:
            for op, fault in _part_faults(program, mesh, members, findings):
                findings.add("INV23", f"in {program.name}: {fault}", program, op)
        for op in program.ops:
            for fault in _op_faults(op, program, stage, mesh, findings):
                findings.add("INV23", f"in {program.name}: {fault}", program, op)
        for op, fault in bucket_faults(program.ops):
            findings.add("INV23", f"in {program.name}: {fault}", program, op)
        one = others[0] if others[0] is not program else stage
        if one.ops and (fault := _unlike(one, program)):
            findings.add("INV23", f"in {program.name}: {fault}", program)
    for name, programs in of_stage.items():
        run = {device for program in programs for device in program.devices}
        if left := [device for device in stages[name].devices if device not in run]:
            findings.add("INV23", f"no program of {name} is for {left[0]}", programs[0])


def _device_faults(program: Program, stage: Stage, others: Iterable[Program]) -> Iterator[str]:
    if not program.devices:
        yield "it is for no device"
    for device in dict.fromkeys(program.devices):
        if device not in stage.devices:
            yield f"'{device}' is not a device of {stage.name}"
        if program.devices.count(device) > 1 or any(device in other.devices for other in others):
            yield f"'{device}' runs a second program of {stage.name}"


def _part_faults(program: Program, mesh: Mesh, members: list[int], findings: Findings) -> Iterator[tuple[Op | None, str]]:
    """Local types that are not those of the parts that they are said to be."""
    types: dict[str, Type] = {value.name: value.type for value in program.args}
    for op in program.ops:
        types.update((value.name, value.type) for value in op.results)
        for value in op.results:
            if isinstance(value.type, TensorType) and value.type.layout is not None:
                yield op, f"{value.name} has the layout {value.type.layout}; a program has local types"
        if op.name in BORDER and isinstance(of := op.get("of"), Type):
            faults = type_faults(of, findings.meshes)
            yield from ((op, f"of {op.id}: {fault}") for fault in faults)
            for name in () if faults else [value.name for value in op.results] or op.operands:
                if name in types and (fault := _part_fault(name, types[name], of, mesh, members)):
                    yield op, fault
    for value in program.results:
        resource = findings.symbols.get(value.name)
        if isinstance(resource, Resource):  # whole, or the part that the program has of it
            types[value.name] = without_layout(resource.type)
            types.update((value.name, op.results[0].type) for op in program.ops if _is_part(op, value.name))
        if value.name in types and (fault := _part_fault(value.name, types[value.name], value.type, mesh, members)):
            yield None, f"result {fault}"


def _is_part(op: Op, name: str) -> bool:
    return op.name == "comm.part" and op.operands == (name,) and len(op.results) == 1


def _op_faults(op: Op, program: Program, stage: Stage, mesh: Mesh, findings: Findings) -> Iterator[str]:
    """What is wrong with an op of ``comm`` in a program, other than with the types of parts."""
    definition = OPDEFS.get(op.name)
    if op.name == RESHARD or (definition and definition.step and not definition.step.moves):
        yield f"{op.name} has no place in a program, which has ordinary ops on local tensors instead"
    elif is_collective(op) and not mesh.name and between_replicas(op, stage.devices, findings.meshes):
        return
    elif is_collective(op) and (op.get("mesh") != mesh.name or op.get("axis") not in dict(mesh.axes)):
        yield f"{op.id} is along axis '{op.get('axis')}' of {op.get('mesh')}, which is no axis of {mesh.name or 'its stage'}"
    elif op.name == "comm.part" and op.operands:
        resource = findings.symbols.get(op.operands[0])
        whole, of = without_layout(resource.type) if isinstance(resource, Resource) else None, op.get("of")
        if op.operands[0][:1] == "%":
            yield f"{op.id} is a part of {op.operands[0]}; expected a resource"
        elif whole is not None and isinstance(of, Type) and without_layout(of) != whole:
            yield f"{op.id} is a part of {of}, but {op.operands[0]} is {whole}"
    elif op.name == "comm.member" and isinstance(values := op.get("values"), Dense) and op.results:
        made, number = op.results[0].type, len(program.devices)
        listed = TensorType(made.dtype, (number, *(made.shape or ()))) if isinstance(made, TensorType) else None
        if values.type != listed or getattr(made, "shape", None) is None:
            yield f"{op.id} has values {values.type} for the {number} devices of the program, but is {made}"
        elif not isinstance(values.data, bytes) or values.type.dtype.bits % 8:
            yield f"{op.id} has elements of type {values.type.dtype.value}; expected one of whole bytes"


def _part_fault(name: str, local: Type, of: Type, mesh: Mesh, members: list[int]) -> str:
    """What is wrong with the type of a part of a tensor of type ``of``; empty where nothing is."""
    layout = of.layout if isinstance(of, TensorType) else None
    if layout is None:
        return "" if local == of or not isinstance(of, TensorType) else f"{name} is {local}, but is to be all of {of}"
    if layout.mesh != mesh.name or len(layout.placements) != len(mesh.axes):
        return f"{name} is a part of {of}, but its stage is on {mesh.name or 'no mesh'}"
    whole = without_layout(of)
    for member in members:
        here = box(whole, placements_of(of, mesh), mesh, member)
        shape = tuple(length for _, length in here)
        part = replace(whole, shape=shape) if here and isinstance(whole, TensorType) else whole
        if local != part:
            return f"{name} is {local}, but the part of {of} on {mesh.devices[member]} is {part}"
    return ""


def _unlike(one: Program | Stage, other: Program) -> str:
    """How the messages and collectives of a program and its stage, or two programs of one, differ; empty where they do not."""
    both = [[op for op in program.ops if op.name in BORDER[1:] or is_collective(op)] for program in (one, other)]
    of_stage = isinstance(one, Stage)
    if of_stage and any(op.name == SEGMENT for op in other.ops):  # segments stand between collectives in an order of their own
        both = [sorted(ops, key=lambda op: (op.name, op.get("channel"))) for ops in both]
    for a, b in zip(*both, strict=False):
        expected = [(key, value) for key, value in b.attributes if key != "of" or not of_stage]  # a stage has whole types
        if a.name != b.name or [*a.attributes] != expected:
            return f"{_described(b)} stands where {one.name} has {_described(a)}; all members communicate alike, in one order"
    if len(both[0]) != len(both[1]):
        return f"{len(both[1])} messages and collectives, but {one.name} has {len(both[0])}"
    return ""


def _described(op: Op) -> str:
    fields = ", ".join(
        f"{key} = {attribute.value}" for key, attribute in op.attributes if key in ("axis", "channel", "reduction")
    )
    return f"{op.name} {{{fields}}}"
