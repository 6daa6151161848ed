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

from dnnc.backend.export import export_func
from dnnc.frontends.weights import read_resource
from ir.module import Func, Module, Resource, Stage
from ir.ops import Op, Value
from ir.types import DType, TensorType, Type
from passes.model.graph import reads, renamed
from passes.model.spmd import Box, Exchange, LocalProgram, Part, local_programs
from passes.model.spmd.boxes import shape_of

Array = NDArray[Any]
Values = dict[str, Array]


@dataclass
class Member:
    """A member while it runs: its segments (ops between collectives) and its values."""

    program: LocalProgram
    values: Values = field(default_factory=dict)

    @cached_property
    def declared(self) -> dict[str, Type]:
        received = {message.part.name: message.part.type for message in self.program.receives}
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
            for message in program.receives:
                member.values[message.part.name] = wires.pop((message.channel, program.member))
            for part in (*program.parts, *(message.part for message in program.receives)):
                check_type(part.name, member.values[part.name], part.type)
        run_members(module, members)
        for member in members:
            for part in member.program.outputs:
                assemble(part, member.values[part.name], outputs, delivered)
            for message in member.program.sends:
                for target in message.members:
                    assert (message.channel, target) not in wires
                    wires[message.channel, target] = member.values[message.part.name]
    assert not wires, f"sent and never received: {sorted(wires)}"
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


def run_members(module: Module, members: list[Member]) -> None:
    """The segments, and between them the collectives."""
    segments = [member.segments() for member in members]
    count = len(members[0].program.exchanges)
    assert {len(found) for found in segments} == {count + 1}, "all members have the same collectives"
    for number in range(count + 1):
        run_ops(module, members, [found[number] for found in segments])
        if number < count:
            exchange(members, [member.program.exchanges[number] for member in members])


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


def exchange(members: list[Member], exchanges: list[Exchange]) -> None:
    """One collective, of all groups."""
    made: list[Array] = []
    for mine in exchanges:
        operands = [members[other].values[mine.operand] for other in mine.group]
        assert members[mine.group[mine.place]].program.member == mine.group[mine.place]
        made.append(np.asarray(collective(mine, operands)))
    for member, mine, array in zip(members, exchanges, made, strict=True):
        member.values[mine.result] = np.asarray(array)
        declared = next(op.results[0].type for op in member.program.ops if op.results and op.results[0].name == mine.result)
        check_type(mine.result, array, declared)


def collective(mine: Exchange, operands: list[Array]) -> Array:
    """What one member gets of the operands of its group, by place."""
    if mine.kind in ("all_reduce", "reduce_scatter"):
        total = operands[0].copy()
        for operand in operands[1:]:
            total = np.maximum(total, operand) if mine.reduction == "max" else total + operand
        return total if mine.kind == "all_reduce" else _range(total, mine.dim, mine.pieces[mine.place])
    if mine.kind == "all_to_all":
        operands = [_range(operand, mine.split_dim, mine.split[mine.place]) for operand in operands]
    for operand, (_, length) in zip(operands, mine.pieces, strict=True):
        assert operand.shape[mine.dim] == length
    starts = [start for start, _ in mine.pieces]
    assert starts == [sum(length for _, length in mine.pieces[:i]) for i in range(len(starts))], "pieces join in order"
    return np.concatenate(operands, axis=mine.dim)


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
