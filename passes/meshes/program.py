"""What one device runs, read from the ``program`` symbol that it shares with others.

A ``LocalProgram`` is straight-line code on local tensors: ordinary ops, and collectives (``comm.all_reduce``, ``all_gather``,
``reduce_scatter``, ``all_to_all``) that the device runs together with the members of its group. All members of a stage have the
same collectives in the same order, by channel; the ops between may differ (parts of other lengths, terms that one member
holds).

Invariants: every operand is an argument, a received value, a resource or the result of an op before; types are local and have
no layout; ``parts``, ``outputs``, ``sends`` and ``receives`` say of each value which box of the whole tensor it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ir.core.attributes import Attribute, AttrKind, Dense
from ir.core.diagnostics import InvalidInput
from ir.core.module import Mesh, Module, Program, Resource, Stage
from ir.core.ops import Op, Value
from ir.core.types import Partial, TensorType, Type, without_layout
from ir.ops.boxes import Box, box, coordinates, delivers, placements_of, reduction_of
from passes.graph.faults import NoProgram
from passes.graph.graph import reads, renamed


@dataclass(frozen=True, slots=True)
class Part:
    """A member's part of a value.

    ``name`` in the program; ``type`` local; ``box`` in the whole tensor, which is of type ``whole`` (no layout).
    ``reduction``: ``sum`` or ``max`` where the part is a term: the whole is the reduction over all members that deliver this
    box, and ``term`` the number of its term. ``delivers``: False where another member hands the same part on. ``channel``: on
    which it crosses to or from another stage, -1 for what does not."""

    name: str
    type: Type
    whole: Type
    box: Box
    reduction: str = ""
    delivers: bool = True
    channel: int = -1
    term: int = 0


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """The program of member ``member`` of stage ``stage``, on ``device``.

    ``args``: inputs of the model that it reads, whole. ``receives``: what arrives from other stages, by channel. ``parts``: of
    each resource that it reads, the part that it holds, under the resource's name (an op's operand ``@w`` is that part).
    ``ops``: in order, collectives among them. ``outputs``: results of the model, under the entry's names, in the entry's order;
    ``sends``: by channel; its value may be an argument's or a resource's part too. ``results``: names of all values that
    leave, each once."""

    stage: int
    member: int
    device: str
    args: tuple[Value, ...]
    receives: tuple[Part, ...]
    parts: tuple[Part, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Part, ...]
    sends: tuple[Part, ...]

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.name for part in (*self.outputs, *self.sends)))


def local_programs(module: Module, stage: Stage) -> tuple[LocalProgram, ...]:
    """What each member of ``stage`` runs, by its place in the mesh; of a stage without a mesh, the one that all its replicas
    run. Raises InvalidInput where ``localize`` did not run."""
    mesh = next((mesh for mesh in module.of_type(Mesh) if mesh.name == stage.mesh), Mesh("", (), stage.devices[:1]))
    programs = [program for program in module.of_type(Program) if program.stage == stage.name]
    held = {device: (program, place) for program in programs for place, device in enumerate(program.devices)}
    if not all(device in held for device in mesh.devices) or not programs:
        raise InvalidInput(NoProgram(stage.name), where=module.name)
    resources = {resource.name: without_layout(resource.type) for resource in module.of_type(Resource)}
    if not mesh.devices:
        return (_member(programs[0], 0, stage.index, mesh, 0, resources),)
    return tuple(_member(*held[device], stage.index, mesh, member, resources) for member, device in enumerate(mesh.devices))


def _member(program: Program, place: int, stage: int, mesh: Mesh, member: int, resources: Mapping[str, Type]) -> LocalProgram:
    """What the device at ``place`` of ``program``, member ``member`` of ``mesh``, runs."""

    def part(name: str, local: Type, of: Type, channel: int = -1) -> Part:
        lies = placements_of(of, mesh)
        whole = without_layout(of)
        here = box(whole, lies, mesh, member)
        term = max((place for place, placement in zip(places, lies, strict=True) if isinstance(placement, Partial)), default=0)
        return Part(name, local, whole, here, reduction_of(lies), delivers(lies, mesh, member), channel, term)

    places = coordinates(mesh, member)
    types: dict[str, Type] = {**resources, **{arg.name: arg.type for arg in program.args}}
    types.update((value.name, value.type) for op in program.ops for value in op.results)
    parts: dict[str, Part] = {}
    receives, sends = [], []
    ops: list[Op] = []
    held: dict[str, str] = {}
    for op in program.ops:
        if op.name == "comm.part":
            name, local = op.operands[0], op.results[0]
            parts[name], held[local.name] = part(name, local.type, op.get("of")), name
        elif op.name == "comm.recv":
            local = op.results[0]
            receives.append(part(local.name, local.type, op.get("of", local.type), op.get("channel")))
        elif op.name == "comm.send":
            name = op.operands[0]
            sends.append(part(held.get(name, name), types[name], op.get("of", types[name]), op.get("channel")))
        else:
            ops.append(_constant(op, place) if op.name == "comm.member" else op)
    for name in dict.fromkeys(name for op in ops for name in reads(op) if name in resources and name not in parts):
        parts[name] = part(name, resources[name], resources[name])
    outputs = []
    for value in program.results:
        local_type = parts[value.name].type if value.name in parts else types[value.name]
        outputs.append(part(value.name, local_type, value.type))
        if value.name in resources:
            parts.setdefault(value.name, outputs[-1])
    return LocalProgram(
        stage,
        member,
        mesh.devices[member] if mesh.devices else "",
        program.args,
        tuple(sorted(receives, key=lambda part: part.channel)),
        tuple(parts.values()),
        renamed(ops, held) if held else tuple(ops),
        tuple(outputs),
        tuple(sorted(sends, key=lambda part: part.channel)),
    )


def _constant(op: Op, place: int) -> Op:
    """The constant that a ``comm.member`` is for the device at ``place``."""
    values: Dense = op.get("values")
    type_ = op.results[0].type
    assert isinstance(type_, TensorType)
    assert isinstance(values.data, bytes)
    size = len(values.data) // (values.type.shape or (1,))[0]  # type: ignore[operator]
    value = Dense(TensorType(type_.dtype, type_.shape), values.data[place * size : (place + 1) * size])
    return Op("onnx.Constant", (), op.results, (("value", Attribute(AttrKind.TENSOR, value)),), location=op.location)
