"""What each layer of a sharded plan costs, and what one block does op by op.

All is read from a module with the decisions of ``partition`` in it (``parts``) and priced anew by ``price``; nothing is
remembered from the search. A *layer* is a copy of a repeated part of the function, named after the scope that its ops share,
or what lies between two of these, by scope.

A collective is told at the op that makes the value it works on; one on a weight at the first op that reads the weight. So a sum
that a layer leaves to the next is the layer's own. Bytes are those of the formulas of ``mesh``: the tensor as the other axes
leave it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ir.core.module import Func, Module
from ir.core.ops import Op
from ir.core.types import Replicate
from passes.graph.folding import Folding, folding
from passes.graph.graph import reads
from passes.meshes.costs.bill import Bill, Collective
from passes.meshes.costs.price import price
from passes.meshes.layouts import Placements
from passes.meshes.undecided import undecided, undifferentiated
from passes.plan.parts import StagePart, priced_under, sharded_plan, stage_parts

_NUMBERED = re.compile(r"(?:^|[./])(\d+)(?=[./]|$)")
"""A part of a scope that is a number: layers are called by what stands up to it."""


@dataclass(frozen=True, slots=True)
class OpRow:
    """One op: its strategy's name per axis, the layouts in which it reads and makes values, how its weights are kept, seconds
    of compute, and what is told at it of collectives."""

    op: Op
    strategies: tuple[str, ...]
    operands: tuple[tuple[str, Placements], ...]
    results: tuple[tuple[str, Placements], ...]
    kept: tuple[tuple[str, Placements], ...]
    compute: float
    collectives: tuple[Collective, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """Ops of one layer on one stage, in order. ``block``: the number of the repeated part that it is a copy of, -1 for none."""

    name: str
    stage: int
    block: int
    rows: tuple[OpRow, ...]

    @property
    def compute(self) -> float:
        return sum(row.compute for row in self.rows)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(one for row in self.rows for one in row.collectives)

    @property
    def communication(self) -> float:
        return sum(one.seconds for one in self.collectives)

    def totals(self) -> dict[str, tuple[int, float, float]]:
        """By kind of collective: how many, bytes, seconds."""
        found: dict[str, tuple[int, float, float]] = {}
        for one in self.collectives:
            count, size, seconds = found.get(one.kind, (0, 0.0, 0.0))
            found[one.kind] = (count + 1, size + one.size, seconds + one.seconds)
        return dict(sorted(found.items()))


def layers(module: Module) -> tuple[Layer, ...]:
    """The layers of a sharded module, stage by stage, in order; in training in stages, of one microbatch. Raises ValueError
    where the module has no sharded plan."""
    module = undifferentiated(module)
    training, options = sharded_plan(module).minimises.trains, priced_under(module)
    bare = undecided(module, copies=True)
    found = folding(bare.entry, bare)
    told: list[Layer] = []
    for part in stage_parts(module):
        bill = price(bare, part.func, part.mesh, part.decisions, training=training, **options)
        rows = _rows(part, bill)
        held = {op.id for op in part.func.ops}
        for name, block, ops in groups(bare.entry, found):
            mine = tuple(rows[op.id] for op in ops if op.id in held)
            if mine:
                told.append(Layer(name, part.index, block, mine))
    return tuple(told)


def typical_block(told: Sequence[Layer]) -> Layer | None:
    """The layer to show in full: of the repeated part that takes most time the middle copy, of those that no stage ends in;
    None where nothing repeats."""
    seconds: Counter[int] = Counter()
    for layer in told:
        if layer.block >= 0:
            seconds[layer.block] += int(1e12 * (layer.compute + layer.communication))
    if not seconds:
        return None
    block = max(seconds, key=lambda number: (seconds[number], -number))
    copies = [layer for layer in told if layer.block == block]
    whole = max(len(layer.rows) for layer in copies)
    copies = [layer for layer in copies if len(layer.rows) == whole]
    return copies[len(copies) // 2]


def _rows(part: StagePart, bill: Bill) -> dict[str, OpRow]:
    """A row for each op of a stage."""
    whole: Placements = (Replicate(),) * len(part.mesh.axes)
    first: dict[str, str] = {}
    for op in part.func.ops:
        for name in reads(op):
            if name in bill.lies:
                first.setdefault(name, op.id)
        first.update((value.name, op.id) for value in op.results)
    # A value of another stage is converted where it is read first.
    told: dict[str, list[Collective]] = {}
    for one in bill.collectives:
        told.setdefault(first[one.value], []).append(one)
    return {
        op.id: OpRow(
            op,
            part.decisions.strategies[op.id],
            tuple(zip(op.operands, bill.wanted(op, whole), strict=True)),
            tuple((value.name, bill.lies.get(value.name, whole)) for value in op.results),
            tuple((name, bill.lies[name]) for name in op.operands if name in part.decisions.kept and name in bill.lies),
            bill.work.get(op.id, 0.0),
            tuple(told.get(op.id, ())),
        )
        for op in part.func.ops
    }


def groups(func: Func, found: Folding) -> list[tuple[str, int, list[Op]]]:
    """The ops of a function by layer: name, block (-1: none), ops in order. Layers are in the order of their first ops."""
    of: dict[int, tuple[int, int]] = {}
    for number, block in enumerate(found.blocks):
        for copy in sorted({copy for chain in block.chains for copy in chain.copies}):
            if block.copies[copy].parent is None:
                of.update(dict.fromkeys(block.copies[copy].ops, (number, copy)))
    members: dict[tuple[int, int, str], list[Op]] = {}
    for position, op in enumerate(func.ops):
        key = (*of[position], "") if position in of else (-1, 0, _head(op))
        members.setdefault(key, []).append(op)
    groups = []
    for (number, copy, head), ops in members.items():
        common = head or Counter(map(_layer, ops)).most_common(1)[0][0]
        groups.append((common or f"block {number}, copy {copy}", number, ops))
    return groups


def _layer(op: Op) -> str:
    """The scope up to its first number, empty where it has none."""
    scope = op.location.scope or op.location.node.strip("/").replace("/", ".")
    match = _NUMBERED.search(scope)
    return scope[: match.end()] if match else ""


def _head(op: Op) -> str:
    """The name of an op that is in no copy: its layer, or the first part of its scope."""
    scope = op.location.scope or op.location.node.strip("/").rpartition("/")[0].replace("/", ".")
    return _layer(op) or scope.split(".")[0] or "model"
