"""What a stage needs of its devices' memory: weights, activations that are alive at once, buffers between stages.

The stage is walked as lowering writes it (``passes.programs.lower.sharded``): each value in the layout in which it is made,
what brings it to another layout before the first op that reads it there, step by step, each step's result until its last
reader; arguments are whole, and parts are cut from them. Alive is what ``passes.costs.memory`` says; what is received lies in
its buffer. In training that is the forward pass, beside what is saved; a backward pass has gradients of what is alive in their
place, what its kernels work in, or those of weights that wait until they are added to the sums of other microbatches
(``Bill.waiting``), whichever is most.

Bytes are those of the fullest member, in bytes of the smallest device (``build``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ir.core.module import Func
from ir.core.ops import Op, Value
from ir.core.types import BytesType, Replicate, Type, type_bytes
from passes.costs.memory.footprint import Footprint
from passes.costs.memory.kernels import gradient_bytes
from passes.costs.memory.liveness import live_bytes
from passes.graph.graph import renamed
from passes.meshes.layouts import Placements, Ways, part
from passes.meshes.staged import Staged


def footprint(func: Func, resources: Mapping[str, Type], stage: Staged) -> Footprint:
    """Of a stage of ``func``, without its buffers; ``resources``: types by name."""
    bill = stage.bill
    places = {(member.place, member.room): None for member in stage.mesh.members} or {(stage.mesh.foremost, 1.0): None}
    walk = _Walk(func, resources, stage)
    most, alive = max((walk.peak(place, room) for place, room in places), key=lambda found: found[0])
    weights = math.ceil(bill.memory - bill.saved + bill.constants)
    return Footprint(weights, max(most, math.ceil(bill.waiting)) + math.ceil(bill.saved), alive=alive)


class _Walk:
    """A stage's program, values by their layouts: ``(name, layout)``, and steps on the way to one."""

    def __init__(self, func: Func, resources: Mapping[str, Type], stage: Staged) -> None:
        self.stage, self.bill = stage, stage.bill
        self.ways = Ways(stage.mesh)
        self.whole: Placements = (Replicate(),) * len(stage.mesh.axes)
        self.types: dict[str, Type] = {**resources, **{arg.name: arg.type for arg in func.args}}
        self.types.update((value.name, value.type) for op in func.ops for value in op.results)
        self.args = func.args
        self.called: dict[tuple[str, Placements], str] = {}
        self.made: dict[str, tuple[Type, Placements]] = {arg.name: (arg.type, self.whole) for arg in func.args}
        self.origin: dict[str, str] = {}
        self.ops: list[Op] = []
        results = {value.name for value in func.results}
        for op in [func.ops[i] for i in stage.ops]:
            self.read(op)
            for name in [value.name for value in op.results]:
                if name in results and name in stage.decisions.outputs:
                    self.bring(name, stage.decisions.outputs[name])
                if name in stage.decisions.leaving:
                    self.bring(name, stage.decisions.leaving[name])

    def read(self, op: Op) -> None:
        """The op behind what brings to it what it reads."""
        reads = [(name, self.bring(name, lies)) for name, lies in self.bill.reads[op.id] if name not in self.bill.learned]
        if op.regions:
            op = renamed((op,), {name: new for name, new in reads if new != name})[0]
        else:
            op = replace(op, operands=tuple(new for _, new in reads))
        results = tuple([value for value in op.results if value.name])
        self.made.update((value.name, (value.type, self.bill.lies.get(value.name, self.whole))) for value in results)
        self.ops.append(replace(op, results=results, attributes=(), facets=()))

    def bring(self, name: str, target: Placements) -> str:
        """What a value is called in a layout; writes the steps to it where nothing has yet."""
        source = self.bill.lies.get(name, self.whole)
        if source == target or math.prod(self.stage.mesh.sizes) == 1:
            return name
        if (name, target) not in self.called:
            current = name
            for step in self.ways.way(self.types[name], source, target):
                result = f"{name} #{len(self.made)}"
                self.made[result], self.origin[result] = (self.types[name], step.after), name
                self.ops.append(Op("comm.step", (current,), (Value(result, self.types[name]),)))
                current = result
            self.called[name, target] = current
        return self.called[name, target]

    def peak(self, place: Sequence[int], room: float) -> tuple[int, frozenset[str]]:
        """The most bytes that are alive at once on the member at ``place``, and which values are then."""

        def local(value: Value) -> Value:
            type_, lies = self.made[value.name]
            here = part(type_, lies, self.stage.mesh, place) / room
            return Value(value.name, BytesType(math.ceil((type_bytes(type_) or 0) * here)))

        ops = [replace(op, results=tuple(local(value) for value in op.results)) for op in self.ops]
        bytes_ = live_bytes(Func("@stage", tuple(map(local, self.args)), (), tuple(ops)))
        if not bytes_:
            return 0, frozenset()
        most = max(bytes_)
        at = bytes_.index(most)
        read = {name for op in ops[at:] for name in op.operands}
        there = {value.name for op in ops[: at + 1] for value in op.results} & read
        there |= {value.name for value in ops[at].results}
        if self.bill.saved:  # of training
            size = {
                value.name: type_bytes(value.type) or 0
                for value in (*map(local, self.args), *(v for op in ops for v in op.results))
            }
            most = max(most, *(gradient_bytes(op, size) for op in self.ops))
        return most, frozenset(self.origin.get(name, name) for name in there)
