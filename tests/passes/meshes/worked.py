"""What the members of lowered stages compute, counted from what each runs: the oracle of the compute that a plan was charged.

It reads the program of each member (``local``) with its local types, counts every op anew (``cost``) and prices the body as any
other (``passes.costs.op_time``): nothing of the search, of layouts or of shares. A weight that was brought to another layout is
still a weight.

``Worked.seconds`` are those of the ops of the model, what a plan is charged for, and of values in blocks of channels that are
written out of them to be converted and into them again. ``added`` are the ops that lowering puts
beside them: indices shifted into the part of a table, masks, means scaled, slices, zeros in the place of terms. A plan takes
them as free. It divides all flops of a product over the members that share its sum, though each of them adds the whole bias:
of a sum over ``k`` that ``n`` members share ``n - 1`` flops in ``2 k`` more than charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.module import Func, Module, Resource, Stage
from ir.core.ops import Op, Value
from ir.core.topology import DeviceType, Topology
from ir.core.types import type_bytes
from ir.ops.opdefs import RESHARD
from passes.costs.blocked import blocked_values, reorder_seconds
from passes.costs.op_time import body_seconds
from passes.framework.base import PassContext
from passes.graph.faults import NoStages, NoTopology
from passes.graph.graph import renamed
from passes.meshes.program import LocalProgram
from passes.prepare.cost import CostPass
from tests.passes.meshes.members import local_programs


@dataclass(frozen=True, slots=True)
class Worked:
    """Seconds of one member: ``seconds`` of the ops of the model, ``work`` of each by its id in the stage, ``added`` of what
    lowering put beside them."""

    stage: int
    member: int
    device: str
    seconds: float
    added: float
    work: dict[str, float]


def worked(module: Module) -> tuple[Worked, ...]:
    """Every member of every lowered stage, in order. Raises InvalidInput for a module that is not lowered or without a
    topology."""
    topology = module.first(Topology)
    if topology is None:
        raise InvalidInput(NoTopology(), where=module.name)
    if module.first(Stage) is None:
        raise InvalidInput(NoStages(), where=module.name)
    return tuple(
        _of_member(module, topology, stage, program)
        for stage in module.of_type(Stage)
        for program in local_programs(module, stage)
    )


def _of_member(module: Module, topology: Topology, stage: Stage, program: LocalProgram) -> Worked:
    device = program.device or stage.devices[0]
    local, ops = _costed(module, stage, program)
    type_ = topology.type(topology.device(device).type)
    seconds = body_seconds(ops, type_, [value.name for value in local.results])
    own = _of_model(stage, ops)
    work = {name: seconds[i] for i, name in own.items()}
    for name, spent in _reordered(stage, ops, type_).items():
        work[name] += spent
    added = [seconds[i] for i, op in enumerate(ops) if op.dialect != "comm" and i not in own]
    return Worked(program.stage, program.member, device, math.fsum(work.values()), math.fsum(added), work)


def _costed(module: Module, stage: Stage, program: LocalProgram) -> tuple[Func, tuple[Op, ...]]:
    """A member's program as a function, and its ops with costs by their local types."""
    held = {resource.name: resource for resource in module.of_type(Resource)}
    weights = _brought(stage, list(held))
    resources = [replace(held[part.name], type=part.type) for part in program.parts]
    known = {value.name: value for op in program.ops for value in op.results}
    args = [*program.args, *(Value(part.name, part.type) for part in program.receives)]
    known.update((value.name, value) for value in (*args, *(Value(part.name, part.type) for part in program.parts)))
    results = tuple(known[name] for name in program.results)
    ops = renamed(program.ops, {name: f"@{name[1:]}" for name in weights})
    func = Func("@member", tuple(args), results, ops)
    opset = attributes({key: attribute.value for key, attribute in module.attributes if key.startswith("opset.")})
    costed = CostPass().run(Module("@local", (*resources, func), opset), PassContext())
    return func, costed.entry.ops


def _brought(stage: Stage, weights: Sequence[str]) -> set[str]:
    """What conversions make of weights."""
    found: set[str] = set()
    for op in stage.ops:
        if op.dialect == "comm" and op.operands and op.results and (op.operands[0] in found or op.operands[0] in weights):
            found.add(op.results[0].name)
    return found


def _of_model(stage: Stage, ops: Sequence[Op]) -> dict[int, str]:
    """Positions of the ops of a member's program that are ops of the model, not put beside them, with the op's id there."""
    found = {}
    places = iter(range(len(ops)))
    for op in stage.ops:
        if op.name not in ("comm.recv", "comm.send", RESHARD):
            group = list(_until_made(op, ops, places))
            if op.dialect != "comm":
                named = [i for i in group if ops[i].name == op.name]
                found[(named or group)[-1]] = op.id
    return found


def _reordered(stage: Stage, ops: Sequence[Op], type_: DeviceType) -> dict[str, float]:
    """Seconds of a member for values in blocks of channels that leave these to be converted, by the id of the op that makes
    each: once for each layout in which one is read."""
    origin: dict[str, str] = {}
    plain, read = [], {value.name for value in stage.results}
    for op in stage.ops:
        if op.dialect != "comm":
            read.update(op.operands)
            plain.append(replace(op, operands=tuple(origin.get(name, name) for name in op.operands)))
        elif op.operands and op.results:
            origin[op.results[0].name] = origin.get(op.operands[0], op.operands[0])
    blocked = blocked_values(Func("@plain", (), (), tuple(plain)))
    held = {value.name: type_bytes(value.type) or 0 for op in ops for value in op.results}
    maker = {value.name: op.id for op in plain for value in op.results}
    found: dict[str, float] = {}
    for name, source in origin.items():
        if name in read and source in blocked:
            seconds = reorder_seconds(held[source], held[name], type_)
            found[maker[source]] = found.get(maker[source], 0.0) + seconds
    return found


def _until_made(op: Op, ops: Sequence[Op], places: Iterator[int]) -> Iterator[int]:
    """The ops of a member that stand for ``op``: up to the one that makes the last of what it makes."""
    missing = {value.name.lstrip("%@") for value in op.results if value.name}
    for i in places:
        yield i
        missing -= {value.name.lstrip("%@") for value in ops[i].results}
        if not missing:
            return


__all__ = ["Worked", "worked"]
