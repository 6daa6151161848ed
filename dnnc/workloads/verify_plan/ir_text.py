"""Reads a workload in IR text with the parser of the language, and takes only numbers from its ops.

Each op is a node. Its name is its ``id`` or, without one, the name of its value.
"""

from __future__ import annotations

from fractions import Fraction

from dnnc.workloads.verify_plan.numbers import Malformed, need
from dnnc.workloads.verify_plan.workload import Id, Node, Workload
from ir import load_module
from ir.core.facets import BackwardTime, Color, Direction, Time, Transfer
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.core.types import BytesType

_MS = 1000


def read_ir(text: str, where: str) -> tuple[Workload, Topology | None]:
    """The workload of a module, and its topology. Raises Malformed, and InvalidInput for text that is no IR."""
    module = load_module(text, where)
    nodes: dict[Id, Node] = {}
    called: dict[str, Id] = {}
    output: dict[Id, Fraction] = {}
    stated: dict[Id, Fraction] = {}
    ops = module.entry.ops
    for op in ops:
        if op.name != "dnnc.work" or len(op.results) != 1:
            raise Malformed(f"{op.id} is {op.name}, expected dnnc.work with one result: calls are not looked into")
        id_ = op.get("id", op.id[1:])
        if isinstance(id_, bool) or not isinstance(id_, int | str) or id_ in nodes:
            raise Malformed(f"the id of {op.id} is {str(id_)[:40]}, expected a number or a text that no other node has")
        called[op.id] = id_
        weight = Fraction(op.get("weight", 0))
        color, direction, back = op.facet(Color), op.facet(Direction), op.facet(BackwardTime)
        nodes[id_] = Node(
            _milliseconds(op, Time) or {},
            Fraction(op.get("size", 0)) + weight,
            None if color is None else color.color,
            direction is not None and direction.direction == "bw",
            None if back is None else _milliseconds(op, BackwardTime),
            weight,
        )
        (value,) = op.results
        output[id_] = Fraction(value.type.size if isinstance(value.type, BytesType) else 0)
        moved = op.facet(Transfer)
        if moved is not None:
            stated[id_] = need(moved.seconds[0], f"the transfer of {op.id}") * _MS
    readers: dict[Id, set[Id]] = {id_: set() for id_ in nodes}
    for op in ops:
        for name in op.operands:
            if name in called:
                readers[called[name]].add(called[op.id])
    return Workload(nodes, readers, {}, None, 0, None, output=output, stated=stated), module.first(Topology)


def _milliseconds(op: Op, kind: type[Time] | type[BackwardTime]) -> dict[str, Fraction] | None:
    """Milliseconds that a facet states, by device type; None without the facet."""
    stated = op.facet(kind)
    return None if stated is None else {name[1:]: need(s, f"a time of {op.id}") * _MS for name, s in stated.seconds}
