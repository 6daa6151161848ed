"""Runs a lowered module: every member's local program on onnxruntime, collectives and messages on arrays.

Members run in step: what each does up to the next collective is one graph, all members beside each other, since what takes time
is to make a session. Every value that a member makes must have its local type; every output must be delivered exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
from numpy.typing import NDArray

from dnnc.engines.onnxruntime.write.export import export_func
from dnnc.onnx.weights import read_resource
from ir.core.module import Func, Mesh, Module, Resource, Stage
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType, Type
from ir.ops.boxes import Box, members_along, shape_of
from passes.graph.graph import reads, renamed
from passes.meshes import LocalProgram, Part
from passes.meshes.reshard_ops import same_shape
from tests.passes.meshes.members import local_programs, localized

Array = NDArray[Any]
Values = dict[str, Array]


@dataclass
class Member:
    """A member while it runs: its segments (ops between collectives) and its values."""

    program: LocalProgram
    values: Values = field(default_factory=dict)

    @cached_property
    def declared(self) -> dict[str, Type]:
        received = {part.name: part.type for part in self.program.receives}
        return received | {value.name: value.type for op in self.program.ops for value in op.results}

    def segments(self) -> list[list[Op]]:
        found: list[list[Op]] = [[]]
        for op in self.program.ops:
            if op.dialect == "comm":
                found.append([])
            else:
                found[-1].append(op)
        return found


def run_lowered(module: Module, inputs: Mapping[str, Array], folder: Path | None = None) -> Values:
    """Outputs by the entry's names."""
    module = localized(module)
    meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    on = {stage.index: meshes.get(stage.mesh, Mesh("", (), ())) for stage in module.of_type(Stage)}
    peers = {op.get("channel"): op.get("peer") for s in module.of_type(Stage) for op in s.ops if op.name == "comm.recv"}
    weights = {r.name: read_resource(r, folder or Path()) for r in module.of_type(Resource)}
    wires: dict[tuple[int, int], Array] = {}
    outputs: Values = {}
    delivered: dict[str, Array] = {}
    for stage in module.of_type(Stage):
        members = [Member(program) for program in local_programs(module, stage)]
        for member in members:
            program = member.program
            member.values.update((arg.name, inputs[arg.name[1:]]) for arg in program.args)
            for part in program.parts:
                member.values[part.name] = np.asarray(weights[part.name][_index(part.box)])
            for part in program.receives:
                source = on[peers[part.channel]]
                as_it_lies = same_shape(source, on[stage.index])
                sender = program.member if as_it_lies else program.member % max(1, len(source.devices))
                member.values[part.name] = wires[part.channel, sender]
            for part in (*program.parts, *program.receives):
                check_type(part.name, member.values[part.name], part.type)
        run_members(module, on[stage.index], members)
        for member in members:
            for part in member.program.outputs:
                assemble(part, member.values[part.name], outputs, delivered)
            for part in member.program.sends:
                assert (part.channel, member.program.member) not in wires
                wires[part.channel, member.program.member] = member.values[part.name]
    for name, times in delivered.items():
        assert (times == 1).all(), f"{name}: elements delivered {times.min()} to {times.max()} times"
    return {value.name: outputs[value.name] for value in module.entry.results}


def assemble(part: Part, array: Array, outputs: Values, delivered: dict[str, Array]) -> None:
    if not part.delivers:
        return
    assert not part.reduction, "results never leave as terms"
    check_type(part.name, array, part.type)
    shape = shape_of(part.whole)
    if shape is None:
        assert part.name not in outputs, "delivered twice"
        outputs[part.name] = array
        return
    whole = outputs.setdefault(part.name, np.empty(shape, array.dtype))
    times = delivered.setdefault(part.name, np.zeros(shape, int))
    whole[_index(part.box)] = array
    times[_index(part.box)] += 1


def check_type(name: str, array: Array, type_: Type) -> None:
    if isinstance(type_, TensorType) and type_.shape is not None:
        same = [length == dim for length, dim in zip(array.shape, type_.shape, strict=True) if isinstance(dim, int)]
        assert all(same), f"{name} is {array.shape}, declared {type_}"


def run_members(module: Module, mesh: Mesh, members: list[Member]) -> None:
    """The segments, and between them the collectives."""
    segments = [member.segments() for member in members]
    collectives = [[op for op in member.program.ops if op.dialect == "comm"] for member in members]
    count = len(collectives[0])
    assert {len(found) for found in segments} == {count + 1}, "all members have the same collectives"
    for number in range(count + 1):
        run_ops(module, members, [found[number] for found in segments])
        if number < count:
            exchange(mesh, members, [ops[number] for ops in collectives])


def run_ops(module: Module, members: list[Member], bodies: list[list[Op]]) -> None:
    """The ops of all members as one graph; adds all results to their values."""
    args: dict[str, Value] = {}
    feeds: Values = {}
    ops: list[Op] = []
    results: list[tuple[Member, Value]] = []
    for member, body in zip(members, bodies, strict=True):
        made = {value.name for op in body for value in op.results}
        names = _prefixed(body, f"%m{member.program.member}:")
        for name in dict.fromkeys(name for op in body for name in reads(op) if name not in made):
            array = member.values[name]
            is_array = isinstance(array, np.ndarray)
            args[names[name]] = Value(names[name], _type(array) if is_array else member.declared[name])
            feeds[names[name][1:]] = array
        ops += renamed(body, names)
        results += [(member, value) for op in body for value in op.results if value.name]
    if not ops:
        return
    wanted = [Value(f"%m{member.program.member}:{value.name}", value.type) for member, value in results]
    func = Func("@segment", tuple(args.values()), tuple(wanted), tuple(ops))
    model = export_func(Module(module.name, (func,), module.attributes), func)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data = onnx_ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    for (member, value), array in zip(results, session.run(None, feeds), strict=True):
        if isinstance(array, np.ndarray | np.generic):
            check_type(value.name, np.asarray(array), value.type)
        member.values[value.name] = array


def _prefixed(body: Iterable[Op], prefix: str) -> dict[str, str]:
    names: dict[str, str] = {}

    def visit(ops: Iterable[Op]) -> None:
        for op in ops:
            for name in (*op.operands, *(value.name for value in op.results)):
                if name:
                    names[name] = prefix + name
            for _, region in op.regions:
                visit(region.ops)
                names.update((name, prefix + name) for name in region.results)

    visit(body)
    return names


def exchange(mesh: Mesh, members: list[Member], ops: list[Op]) -> None:
    """One collective, of all groups: who passes what on follows from the shapes that the members hold."""
    made: list[Array] = []
    for number, op in enumerate(ops):
        group = members_along(mesh, number, op.get("axis"))
        operands = [members[other].values[ops[other].operands[0]] for other in group]
        shapes = [shape_of(ops[other].results[0].type) or () for other in group]
        made.append(np.asarray(collective(op, operands, shapes, group.index(number))))
    for member, op, array in zip(members, ops, made, strict=True):
        member.values[op.results[0].name] = np.asarray(array)
        check_type(op.results[0].name, array, op.results[0].type)


def collective(op: Op, operands: list[Array], shapes: list[tuple[int, ...]], place: int) -> Array:
    """What the member at ``place`` gets of the operands of its group, whose results are of these shapes."""
    if op.name in ("comm.all_reduce", "comm.reduce_scatter"):
        total = operands[0].copy()
        for operand in operands[1:]:
            total = np.maximum(total, operand) if op.get("reduction") == "max" else total + operand
        return total if op.name == "comm.all_reduce" else _piece(total, op.get("dim"), shapes, place)
    if op.name == "comm.all_to_all":
        operands = [_piece(operand, op.get("split_dim"), shapes, place) for operand in operands]
        return np.concatenate(operands, axis=op.get("concat_dim"))
    return np.concatenate(operands, axis=op.get("dim"))


def _piece(array: Array, dim: int, shapes: list[tuple[int, ...]], place: int) -> Array:
    """Of an array that is cut along ``dim`` into pieces of these shapes, the one at ``place``."""
    lengths = [shape[dim] for shape in shapes]
    assert sum(lengths) == array.shape[dim], "pieces join in order"
    return _range(array, dim, (sum(lengths[:place]), lengths[place]))


def _range(array: Array, dim: int, piece: tuple[int, int]) -> Array:
    return array[(slice(None),) * dim + (slice(piece[0], sum(piece)),)]


def _type(array: Array) -> TensorType:
    return TensorType(_DTYPES[array.dtype.name], array.shape)


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in box)


_DTYPES = {
    "float32": DType.F32, "float64": DType.F64, "float16": DType.F16, "int64": DType.I64, "int32": DType.I32, "int8": DType.I8,
    "uint8": DType.U8, "uint32": DType.U32, "bool": DType.BOOL,
}  # fmt: skip

__all__ = ["run_lowered"]
