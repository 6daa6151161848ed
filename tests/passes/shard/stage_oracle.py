"""The best plan in stages on meshes by brute force: every cut, every sequence of blocks, every layout at a border, and each
stage enumerated or, where it has many assignments, by the integer programme."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dnnc.compile.context import pass_context
from ir import parse_module
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.topology import Topology
from ir.core.types import Layout, Replicate, TensorType
from passes.cost import CostPass
from passes.model.folding import folding
from passes.model.network import network
from passes.model.spmd.cross_mesh import Crossing, Party, message_bytes
from passes.model.spmd.layouts import Placements
from passes.shard import build
from passes.shard.problem.problem import Graph, ShardProblem
from passes.shard.stages.borders import Border, Cutter
from passes.shard.stages.submeshes import Block, Submeshes
from passes.shard.stages.units import units_of
from tests.passes.shard.exact import brute_force, integer_programme

FEW = 3000
"""Assignments up to which a stage is enumerated; of more, the integer programme is solved."""


def costed(text: str) -> Module:
    return CostPass().run(parse_module(text), pass_context(DiagnosticSink()))


class Oracle:
    """The least value of all plans in stages, from the definition: nothing is shared with the search but the problem of a stage
    and the cost of a message."""

    def __init__(self, module: Module, meshes: Submeshes, microbatches: int = 0, memory: int | None = None) -> None:
        """``microbatches``: of a training step; 0: inference. ``memory``: bytes per device at most."""
        topology = module.first(Topology)
        assert topology is not None
        self.module, self.meshes = module, meshes
        self.crossing = Crossing(topology, network(topology))
        found = folding(module.entry, module)
        self.microbatches, self.memory = microbatches, memory
        training = {"training": True, "microbatches": microbatches} if microbatches else {}
        wholes = [build(module, module.entry, mesh, found, **training) for mesh in meshes.forms]  # type: ignore[arg-type]
        self.units = units_of(module.entry, found, wholes[0])
        self.cutters = [Cutter(whole, self.units.constants.ops) for whole in wholes]
        self.known: dict[object, float] = {}

    def best(self, stages: int = 0) -> float:
        return min((self.plan(line, 0, {}, [0.0] * len(line)) for line in self.lines(stages)), default=math.inf)

    def lines(self, stages: int) -> Iterator[list[tuple[int, int, Block]]]:
        def from_(unit: int, device: int) -> Iterator[list[tuple[int, int, Block]]]:
            if unit == self.units.count:
                yield []
                return
            for behind in range(unit + 1, self.units.count + 1):
                for block in self.meshes.blocks:
                    if block.first >= device:
                        yield from ([(unit, behind, block), *rest] for rest in from_(behind, block.behind))

        return (line for line in from_(0, 0) if not stages or len(line) == stages)

    def plan(
        self,
        line: list[tuple[int, int, Block]],
        number: int,
        lies: dict[str, tuple[int, Placements]],
        spent: list[float],
    ) -> float:
        """The least largest seconds of stages, those before ``number`` being decided."""
        if number == len(line):
            return self.worth(spent)
        first, behind, block = line[number]
        cutter, ops = self.cutters[block.form], self.units.run(first, behind)
        parties = [Party(b.mesh.devices, b.mesh.sizes if len(b.mesh.devices) > 1 else ()) for _, _, b in line]
        home = {op: k for k, (i, j, _) in enumerate(line) for op in self.units.run(i, j)}
        entering, leaving = cutter.crossing(ops)
        arrives = {}
        for name in entering:
            maker, layout = lies[name]
            alike = parties[maker].sizes == parties[number].sizes
            arrives[name] = cutter.given.layouts[name].number(layout if alike else (Replicate(),) * len(block.mesh.axes))
        readers = {
            name: sorted({home[n] for n, _ in cutter.given.problem.values[cutter.number[name]].readers if n in home} - {number})
            for name in leaving
        }
        whole = frozenset(n for n in leaving if any(parties[r].sizes != parties[number].sizes for r in readers[n]))
        best = math.inf
        for made in itertools.product(*(range(len(cutter.given.layouts[name].placements)) for name in leaving)):
            in_flight = min(self.microbatches or 1, len(line) - number)
            own = self.stage(block, ops, arrives, dict(zip(leaving, made, strict=True)), whole, in_flight)
            if not math.isfinite(own):
                continue
            after, told = list(spent), dict(lies)
            after[number] += own
            for name, choice in zip(leaving, made, strict=True):
                placements = cutter.given.layouts[name].placements[choice]
                told[name] = number, placements
                type_ = cutter.types[name]
                assert isinstance(type_, TensorType)
                if parties[number].sizes:
                    type_ = replace(type_, layout=Layout("@mesh", placements))
                for reader in readers[name]:
                    size = message_bytes(type_, parties[number], parties[reader])
                    sides, returns = (parties[number], parties[reader]), name in cutter.given.trained
                    after[number] += self.crossing.at_maker(size, *sides, returns=returns)
                    after[reader] += self.crossing.at_reader(size, *sides, returns=returns)
            if self.worth(after) < best:
                best = min(best, self.plan(line, number + 1, told, after))
        return best

    def worth(self, spent: list[float]) -> float:
        return max(spent) * (self.microbatches + len(spent) - 1 if self.microbatches else 1)

    def stage(
        self,
        block: Block,
        ops: tuple[int, ...],
        given: dict[str, int],
        made: dict[str, int],
        whole: frozenset[str],
        in_flight: int,
    ) -> float:
        """The least seconds of a stage whose borders lie so; inf where they cannot."""
        key = (block.form, ops, tuple(given.items()), tuple(made.items()), whole, in_flight)
        if key not in self.known:
            cutter = self.cutters[block.form]
            cut = cutter.cut(ops, Border(arriving=given, whole=whole)).given.keeping(in_flight)
            problem = cut.problem
            kinds, numbers = list(problem.node_kinds), list(problem.kinds)
            for name, layout in made.items():
                maker, result = cutter.given.problem.values[cutter.number[name]].maker
                node = ops.index(maker)
                kind = kinds[numbers[node]]
                lies = kind.makes[result] % len(cutter.given.layouts[name].placements)  # of a chain of epilogues or not
                fits = np.flatnonzero(lies == layout)
                kinds.append(
                    replace(
                        kind,
                        seconds=kind.seconds[fits],
                        memory=kind.memory[fits],
                        reads=tuple(row[fits] for row in kind.reads),
                        makes=tuple(row[fits] for row in kind.makes),
                    )
                )
                numbers[node] = len(kinds) - 1
            whole_problem = replace(problem, node_kinds=tuple(kinds), graph=Graph(tuple(numbers), problem.values))
            self.known[key] = least(whole_problem, self.memory)
        return self.known[key]


def least(problem: ShardProblem, memory: int | None) -> float:
    sizes = [len(problem.node_kinds[kind].seconds) for kind in problem.kinds]
    if not all(sizes) or (
        memory is not None and sum(float(problem.node_kinds[kind].memory.min()) for kind in problem.kinds) > memory
    ):
        return math.inf
    return brute_force(problem, memory) if math.prod(sizes) <= FEW else integer_programme(problem, memory, scale=1e6)[0]


__all__ = ["Oracle", "costed"]
