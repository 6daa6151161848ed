"""What runs of units cost and hold at least on any form of mesh, by what is known before a problem is built on it.

Seconds: each op cut as suits it best, fused where it may be, its overhead whole (``speeds.Cuts``). Bytes: of weights, each
once, and in training of what ops keep for their backward pass. Nothing of it depends on the overlap of sums of gradients, so
bounds with either overlap share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ir.core.facets import Cost
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.outcomes import TIGHT
from ir.core.topology import DeviceType
from ir.layout_rules import rules
from passes.costs.learning import InFlight, recomputes
from passes.costs.memory.liveness import value_bytes
from passes.costs.op_time import (
    dtype_of,
    epilogues,
    fused_seconds,
    in_training,
    launches,
    least_seconds,
    op_seconds,
    stated_part,
)
from passes.graph.folding import Folding
from passes.meshes.mesh import DeviceMesh
from passes.partition.chain.borders import Cutter
from passes.partition.chain.chains import parts_of
from passes.partition.chain.crossings import volumes_of
from passes.partition.chain.pipeline import Held
from passes.partition.chain.units import units_of
from passes.partition.chain.workspace import Workspace
from passes.partition.layouts.mesh.speeds import Cuts
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.problem import Floats


class Least:
    """The ``units`` of a function and what runs of them need at least. ``runs_of``: runs by key; ``bytes``: of weights per
    device, on the mesh of ``base``; ``saved``: there, of what a backward pass needs of each further microbatch; ``in_flight``:
    of how many microbatches each run holds that at least, in all plans that it is a stage of."""

    def __init__(
        self,
        module: Module,
        base: ShardInput,
        folding: Folding | None,
        *,
        training: bool,
        microbatches: int,
        family: str,
        cuts: int,
    ) -> None:
        """``base``: the problem on the smallest form of mesh; the rest as of ``Bounding``."""
        self.module, self.base = module, base
        self.training, self.microbatches, self.family = training, microbatches, family
        self.recomputes = recomputes(module)
        self.units = units_of(module.entry, folding, base, cuts)
        self.unit_of = {op: unit for unit, ops in enumerate(self.units.ops) for op in ops}
        self.runs_of: dict[int, list[tuple[int, int]]] = {}
        for first, row in enumerate(self.units.keys):
            for length, key in enumerate(row):
                self.runs_of.setdefault(key, []).append((first, first + length + 1))
        self.volumes = volumes_of(base, self.units.ops)
        self.parts = parts_of(Cutter(base, self.units.constants.ops), self.units)
        self.count_kinds()
        self.in_flight = self.fewest_held()
        self.bytes, self.saved = self.memory_of(base), self.saved_of(base)
        self.workspace = Workspace(base, self.units, module.resources, training=training, microbatches=microbatches)

    def count_kinds(self) -> None:
        """``kinds``: one of the ops that cost as much on any mesh, with the sizes of its factors and the bytes of an epilogue's
        result; ``kinds_in[unit, kind]``: how many of them a unit has."""
        entry = self.module.entry
        followed = {} if self.training else epilogues(entry.ops, [value.name for value in entry.results])
        numbers, found = dict[object, int](), list[tuple[int, int]]()
        self.kinds: list[tuple[Op, frozenset[int], int | None]] = []
        for number, (op, rule) in enumerate(rules(self.module, entry)):
            sizes = frozenset(factor.size for factor in rule.shardable) if rule else frozenset[int]()
            chained = value_bytes(op.results[0]) if number in followed else None
            kind = numbers.setdefault((op.facets, op.name, dtype_of(op), chained, sizes), len(numbers))
            if kind == len(self.kinds):
                self.kinds.append((op, sizes, chained))
            if number in self.unit_of:
                found.append((self.unit_of[number], kind))
        self.kinds_in = np.zeros((self.units.count, len(self.kinds)))
        for place in found:
            self.kinds_in[place] += 1

    def fewest_held(self) -> Floats:
        """The same of each run in all plans that it is a stage of, at least: there is one stage behind it, or none. Of more
        stages each holds as many at least."""
        count = self.units.count
        fewest = np.ones((count, count + 1))
        if count:
            fewest[:, :count], fewest[:, count] = self.held(2)
            fewest[0, count] = self.held(1)[0]
        return fewest

    def held(self, stages: int) -> Held:
        """Of each of so many stages the microbatches of which it holds what their backward passes need; empty for no stages."""
        if not self.training:
            return (1,) * stages
        return InFlight.of(self.microbatches, (1,) * stages, self.family).microbatches if stages else ()

    def memory_of(self, given: ShardInput) -> Floats:
        """Bytes per device that a run needs at least: of weights, each once, and in training what its ops keep."""
        problem = given.problem
        kept = [math.fsum(float(problem.node(op).memory.min()) for op in ops) for ops in self.units.ops]
        sums = np.concatenate([[0.0], np.cumsum(kept)])
        added: Floats = np.maximum(sums[None, :] - sums[:-1, None], 0.0) * (1 - TIGHT)
        for value in problem.values:
            if value.maker[0] in given.kept:
                size = float(problem.node(value.maker[0]).memory.min())
                before = -1
                for reader in sorted({self.unit_of[node] for node, _ in value.readers if node in self.unit_of}):
                    added[before + 1 : reader + 1, reader + 1 :] += size
                    before = reader
        return added

    def saved_of(self, given: ShardInput) -> Floats:
        """Bytes per device that a run saves at least for the backward pass of each further microbatch."""
        count = self.units.count
        if not given.saved or not count:
            return np.zeros((count, count + 1))
        least = [float(saved.min(initial=math.inf)) for saved in given.saved]
        sums = np.cumsum([0.0, *(math.fsum(least[given.problem.kinds[op]] for op in ops) for ops in self.units.ops)])
        return np.asarray(np.maximum(sums[None, :] - sums[:-1, None], 0.0) * (1 - TIGHT))

    def on(self, mesh: DeviceMesh) -> tuple[Floats, Floats, Floats]:
        """The seconds of runs on a mesh, their bytes, and those saved: every op cut as suits it best, every weight divided
        evenly. A small device may have less than others: all have the room of the largest."""
        share = 1.0 / math.prod(mesh.sizes)
        room = max((member.room for member in mesh.members), default=1.0)
        types = {type_.name: type_ for type_ in mesh.types}
        cuts = Cuts(tuple(axis.shares for axis in mesh.axes), mesh.members)
        seconds = [
            min(
                max((self.divided(op, types[type_], part, chained) for type_, part in parts.items()), default=0.0)
                for parts in cuts.parts(sizes)
            )
            for op, sizes, chained in self.kinds
        ]
        with np.errstate(invalid="ignore"):
            work = np.where(self.kinds_in > 0, self.kinds_in * seconds, 0.0).sum(axis=1)
        even = min(math.prod(self.base.mesh.sizes) * share / room, 1.0)
        return table_of(work), self.bytes * even, self.saved * even

    def divided(self, op: Op, type_: DeviceType, share: float, chained: int | None) -> float:
        """Seconds of an op, forward and in training backward, of which a device does a share but pays the overhead; of an op
        that may be fused no more than then."""
        cost = op.facet(Cost)
        whole = op_seconds(op, type_)
        if cost is None:
            return whole
        if (stated := stated_part(op, type_, cost, training=self.training)) is not None:
            seconds = sum(stated) + (stated[0] if stated[1] and self.recomputes else 0.0)
            return seconds * share if cost.flops or cost.write else seconds
        type_ = in_training(type_) if self.training else type_
        alone = type_.overhead + least_seconds(op, type_, training=self.training) * share
        gradients = cost.input_grad + cost.weight_grad
        if self.training:
            alone = max(alone, launches(op, 0) * type_.launch)
        if self.training and gradients:
            back = type_.overhead + least_seconds(op, type_, gradients) * share
            alone = alone * (1 + self.recomputes) + max(back, launches(op, gradients) * type_.launch)
        return alone if chained is None else min(alone, fused_seconds(op, type_, chained) * share)


def table_of(work: Sequence[float] | Floats) -> Floats:
    """``[first, behind]``: the ``work`` of units ``first .. behind - 1`` summed, infinite where there are none."""
    sums, count = np.concatenate([[0.0], np.cumsum(work)]), len(work)
    table: Floats = np.maximum(sums[None, :] - sums[:count, None], 0.0) * (1 - TIGHT)
    table[np.arange(count + 1)[None, :] <= np.arange(count)[:, None]] = np.inf
    return table
