"""A profiled workload on the machines of a topology: what ``dnnc compile`` plans of one.

A profile states seconds of two device types, ``accelerator`` and ``cpu``, and does not say of which machines. ``fitted``
assigns them to the device types of a topology, and rewrites the workload for the objective:

- *Types.* Seconds of a type that the topology defines stay. Those of ``accelerator`` go to every accelerator type: each
  whose kind is not ``cpu``, or, where there is none, each that pays for its transfers (the worker processes of ``cpu-N``).
  Those of ``cpu`` go to the other types.
- *Inference* leaves the backward pass out.
- *Training* reads explicit backward nodes. A node that states the seconds of both passes gets one, of its colour. It follows
  the node and the backward nodes of all that read the node, sends a gradient of the size of each input back to the input's
  backward node, and holds the gradient of its parameters and one output, kept from the forward pass.
- *Transfers* that state their seconds take these over every link; those that state bytes alone cross the topology's links.
  ``by_bytes`` takes the bytes of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dnnc.data.workloads.device_placement import FORMAT
from dnnc.data.workloads.faults import (
    BackwardLeftOut,
    ModelOpInProfile,
    NoBackwardTimes,
    NoNodes,
    NoTypeWithSeconds,
    TransferWithoutBytes,
)
from dnnc.data.workloads.pipedream import FORMAT as PIPEDREAM
from dnnc.data.workloads.profile import ACCELERATOR, CPU
from ir.core.attributes import attributes
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.facets import BackwardTime, Color, Direction, Facet, Time, Transfer
from ir.core.module import Func, Module
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.topology import DeviceType, Topology
from ir.core.types import BytesType

WORK = "dnnc.work"
_FW, _BW = Direction("fw"), Direction("bw")


def is_profile(module: Module) -> bool:
    """Whether the program of the module is a profiled workload, which has seconds in place of operators."""
    func = module.first(Func)
    if func is None or func.ops:
        return func is not None and any(op.name == WORK for op in func.ops)
    return any(key == "producer" and attribute.value in (FORMAT, PIPEDREAM) for key, attribute in module.attributes)


def has_backward(module: Module) -> bool:
    """Whether the workload states a backward pass: of its own nodes, or as backward nodes."""
    return any(op.facet(BackwardTime) is not None or op.facet(Direction) == _BW for op in module.entry.ops)


def fitted(
    module: Module, topology: Topology, *, training: bool, sink: DiagnosticSink, where: str, by_bytes: bool = False
) -> tuple[Module, str]:
    """The workload for the devices of ``topology``, and a sentence on whose seconds these have. Raises InvalidInput where no
    type has seconds, for training without a backward pass, and for transfers without bytes where bytes are asked for."""
    entry = module.entry
    if not entry.ops:
        raise InvalidInput(NoNodes(), where=where)
    odd = next((op for op in entry.ops if op.name != WORK), None)
    if odd is not None:
        raise InvalidInput(ModelOpInProfile(odd.name, WORK), where=f"{where}: {odd.id}")
    if training and not has_backward(module):
        raise InvalidInput(NoBackwardTimes(), where=where)
    ops: Sequence[Op] = _with_bytes_alone(entry.ops, where) if by_bytes else entry.ops
    if training:
        ops = _with_backward_nodes(ops)
    elif dropped := sum(op.facet(Direction) == _BW for op in ops):
        sink.warn(BackwardLeftOut(dropped), where=where)
        ops = [op for op in ops if op.facet(Direction) != _BW]
    ops = [_without(op, BackwardTime, *(() if training else (Direction,))) for op in ops]
    types, sentence = _types(ops, topology, where)
    ops = tuple(op.with_facets(Time(_renamed(time, types))) if (time := op.facet(Time)) else op for op in ops)
    defined = {value.name for op in ops for value in op.results}
    results = tuple(value for value in entry.results if value.name in defined)
    return module.replace(entry, replace(entry, ops=ops, results=results)), sentence


def _types(ops: Sequence[Op], topology: Topology, where: str) -> tuple[dict[str, tuple[str, ...]], str]:
    """The device types that each name of the profile stands for, and a sentence that says so. Raises InvalidInput."""
    stated = sorted({name[1:] for op in ops if (time := op.facet(Time)) for name, _ in time.seconds})
    defined = [type_ for type_ in topology.types if any(device.type == type_.name for device in topology.devices)]
    own = {type_.name for type_ in defined} & set(stated)
    if own:
        return {name: (name,) for name in own}, "device types at their own seconds"
    fast = _accelerators(defined)
    named = {ACCELERATOR: fast, CPU: tuple(type_.name for type_ in defined if type_.name not in fast)}
    names = {name: named[name] for name in stated if named.get(name)}
    if not names:
        fault = NoTypeWithSeconds(", ".join(stated) or "no device", tuple(type_.name for type_ in defined))
        raise InvalidInput(fault, where=where)
    return names, "; ".join(f"{', '.join(given)} at the seconds of {name}" for name, given in names.items())


def _accelerators(types: Sequence[DeviceType]) -> tuple[str, ...]:
    """Names of the types that a profile means by ``accelerator``."""
    types_ = [type_ for type_ in types if type_.kind != CPU] or [type_ for type_ in types if not type_.free_transfers]
    return tuple(type_.name for type_ in types_)


def _with_bytes_alone(ops: Sequence[Op], where: str) -> list[Op]:
    """The ops without the seconds of their transfers. Raises InvalidInput where one states seconds and no bytes."""
    read = {name for op in ops for name in op.operands}
    for op in ops:
        moved = op.facet(Transfer)
        if moved is not None and any(moved.seconds) and not _sent(op) and any(value.name in read for value in op.results):
            raise InvalidInput(TransferWithoutBytes(), where=f"{where}: {op.id}")
    return [_without(op, Transfer) for op in ops]


def _renamed(time: Time, types: Mapping[str, Sequence[str]]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((f"@{name}", seconds) for old, seconds in time.seconds for name in types.get(old[1:], ())))


def _with_backward_nodes(ops: Sequence[Op]) -> list[Op]:
    """The ops, and behind them a backward node of each that states the seconds of both passes."""
    both = [op for op in ops if op.facet(BackwardTime) is not None]
    if not both:
        return list(ops)
    colors = _colors(ops)
    taken = {value.name for op in ops for value in op.results}
    of = {value.name: op for op in ops for value in op.results}
    gradients: dict[str, list[str]] = {op.id: [] for op in ops}  # by the op that they are of
    behind: list[Op] = []
    for op in reversed(both):
        color, stated = colors[op.id], op.facet(BackwardTime)
        assert stated is not None
        inputs = [of[name] for name in dict.fromkeys(op.operands) if name in of and of[name].facet(BackwardTime) is not None]
        base = unique(f"{op.id}.grad", taken)
        time = Time(stated.seconds)
        read = [*[value.name for value in op.results], *gradients[op.id]]
        held = attributes(size=_sent(op) + sum(int(a.value) for key, a in op.attributes if key == "weight"))
        if len(inputs) == 1:
            behind.append(replace(_gradient(op, base, read, time, inputs[0], color), attributes=held))
            gradients[inputs[0].id].append(base)
            continue
        node = Op(WORK, tuple(read), (Value(base, BytesType(0)),), held, location=op.location)
        behind.append(node.with_facets(time, Color(color), _BW))
        free = Time(tuple((name, 0.0) for name, _ in time.seconds))
        for maker in inputs:
            name = unique(f"{base}.{maker.id[1:]}", taken)
            behind.append(_gradient(op, name, [base], free, maker, color))
            gradients[maker.id].append(name)
    forward = [op.with_facets(Color(colors[op.id]), op.facet(Direction, _FW)) for op in ops]
    return [*forward, *behind]


def _gradient(op: Op, name: str, reads: Sequence[str], time: Time, maker: Op, color: int) -> Op:
    """The node of ``op``'s backward pass that makes the gradient of what ``maker`` sent."""
    moved = maker.facet(Transfer)
    node = Op(WORK, tuple(reads), (Value(name, BytesType(_sent(maker))),), location=op.location)
    return node.with_facets(time, Color(color), _BW, *(() if moved is None else (moved,)))


def _sent(op: Op) -> int:
    """Bytes of what the op sends."""
    return sum(value.type.size for value in op.results if isinstance(value.type, BytesType))


def _colors(ops: Sequence[Op]) -> dict[str, int]:
    """A colour for each op: its own, or one that no other has."""
    stated = {op.id: color.color for op in ops if (color := op.facet(Color)) is not None}
    free = 1 + max(stated.values(), default=-1)
    colors = {}
    for op in ops:
        if op.id not in stated:
            free += 1
        colors[op.id] = stated.get(op.id, free)
    return colors


def _without(op: Op, *kinds: type[Facet]) -> Op:
    return replace(op, facets=tuple(facet for facet in op.facets if not isinstance(facet, kinds)))
