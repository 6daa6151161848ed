"""Joint search: where to cut a model into stages, on how many devices each, as which mesh, and how each is sharded.

A stage costs the sharded time of its run of units on its mesh, with what it receives and sends; a plan its slowest stage (the
period of a stream). The search is lazy: every (run, form of mesh) has a bound, at first the compute that no sharding avoids;
the dynamic programme of ``pipeline`` finds the best plan under these, the runs in it are solved (``borders``, ``search``) and
their bounds replaced, until all stages that decide the value are solved. Runs with equal keys are solved once, and what holds
more costs more: a bound of a run is one of every run around it.

What is exact and what is a relaxation:
- a run's bound lets values enter in the layout that suits it best, and leave as suits it, with the transfers of parts over the
  best link: less than what any plan pays. So the programme's optimum is a lower bound of all plans over these cuts and blocks;
- the plan itself is then solved stage by stage, each given the layouts that the stages before it really send, and priced with
  the real links. The distance of the two is the gap. ``optimal`` is said where they meet only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ir.module import Func, Module
from ir.topology import Topology
from ir.types import Layout, Replicate, TensorType
from passes.analyses.network import Network
from passes.fold import Folding
from passes.shard.borders import Border, Cutter, StageInput
from passes.shard.build import ShardInput, build
from passes.shard.decide import decisions_of
from passes.shard.layouts import Placements
from passes.shard.mesh import DeviceMesh
from passes.shard.pipeline import Sequenced, StageRun, least, shortest
from passes.shard.price import Decisions, price
from passes.shard.problem import Floats
from passes.shard.search import NoPlanError, ShardPlan, solve
from passes.shard.submeshes import Submeshes
from passes.shard.units import Units, units_of
from passes.shard.written import Staged
from passes.sharded import Crossing, Party, message_bytes

Progress = Callable[[str, float | None], None]
TIGHT = 1e-9
"""Relative: values that count as equal."""
SHARE = 0.8
"""Of the time: what the bound may take; the rest is for the plan."""


@dataclass(frozen=True, slots=True)
class StagesPlan:
    """``value`` and ``bound`` in seconds per sample of the slowest stage; ``stages`` as decided. Statistics: ``units`` of the
    function, ``forms`` of meshes, distinct ``keys`` of runs, runs that were ``solved``, ``rounds`` of the programme."""

    stages: tuple[Staged, ...]
    value: float
    bound: float
    units: int
    forms: int
    keys: int
    solved: int
    rounds: int


@dataclass(slots=True)
class _Form:
    """One form of mesh: the problem on it and what is known of its runs. ``bounds[i, j]``; ``plans[key]``."""

    mesh: DeviceMesh
    given: ShardInput
    cutter: Cutter
    bounds: Floats
    plans: dict[int, float] = field(default_factory=dict)


class StageSearch:
    """The search over one module and one set of blocks."""

    def __init__(
        self,
        module: Module,
        topology: Topology,
        net: Network,
        folding: Folding | None,
        meshes: Submeshes,
        *,
        memory: int = 0,
        uneven: bool = False,
        progress: Progress = lambda label, fraction: None,
    ) -> None:
        """``memory``: bytes of weights per device at most; 0: those of the devices; -1: no limit."""
        self.module, self.meshes, self.memory, self.uneven = module, meshes, memory, uneven
        self.crossing = Crossing(topology, net)
        self.progress = progress
        self.func: Func = module.entry
        self.solved = self.rounds = 0
        self.forms: list[_Form] = []
        self.units: Units | None = None
        for number, mesh in enumerate(meshes.forms):
            progress(f"mesh {mesh}", number / len(meshes.forms))
            given = build(module, self.func, mesh, folding, uneven=uneven)
            if self.units is None:
                self.units = units_of(self.func, folding, given)
            self.forms.append(_Form(mesh, given, Cutter(given), self.at_least(given, self.units, mesh)))

    def limit(self, mesh: DeviceMesh) -> int | None:
        return None if self.memory < 0 else self.memory or mesh.memory

    def at_least(self, given: ShardInput, units: Units, mesh: DeviceMesh) -> Floats:
        """Compute alone of every run, each op as quick as it can be; inf where the weights fit in no layout."""
        problem = given.problem
        quick = [float(kind.seconds.min(initial=math.inf)) for kind in problem.node_kinds]
        work = [math.fsum(quick[problem.kinds[op]] for op in ops) for ops in units.ops]
        sums = np.concatenate([[0.0], np.cumsum(work)])
        count = len(work)
        table: Floats = np.maximum(sums[None, :] - sums[:count, None], 0.0) * (1 - TIGHT)
        limit = self.limit(mesh)
        if limit is not None:
            table[self.least_memory(given, units) > limit] = np.inf
        table[np.arange(count + 1)[None, :] <= np.arange(count)[:, None]] = np.inf
        return table

    def least_memory(self, given: ShardInput, units: Units) -> Floats:
        """Bytes of weights per device that a run needs at least; a weight of several units counts once."""
        unit_of = {op: unit for unit, ops in enumerate(units.ops) for op in ops}
        problem = given.problem
        added = np.zeros((units.count, units.count + 1))
        for value in problem.values:
            if value.maker[0] in given.kept:
                size = float(problem.node(value.maker[0]).memory.min())
                readers = sorted({unit_of[node] for node, _ in value.readers})
                # Runs i .. j - 1 with i <= r < j for a reader r: counted at the first reader that is not before i.
                before = -1
                for reader in readers:
                    added[before + 1 : reader + 1, reader + 1 :] += size
                    before = reader
        return added

    # -- bounds --------------------------------------------------------------------------------------------------------

    def search(self, stages: int, seconds: float) -> StagesPlan | None:
        """The plan; None where nothing fits. ``stages``: exactly so many; 0: any number."""
        ends = time.perf_counter() + seconds
        bounding = time.perf_counter() + SHARE * seconds
        assert self.units is not None
        bound = 0.0
        while True:
            self.rounds += 1
            found = least([form.bounds for form in self.forms], self.meshes, stages)
            if not found.runs:
                return None
            bound = max(bound, found.value)
            self.progress("stages", None)
            if not self.refine(found) or time.perf_counter() > bounding:
                break
        candidates = [found]
        second = shortest([form.bounds for form in self.forms], self.meshes, found.value * (1 + TIGHT), stages)
        if second.runs:
            candidates.insert(0, second)
        best: tuple[float, tuple[Staged, ...]] | None = None
        for candidate in candidates:
            if best is not None and time.perf_counter() > ends:
                break
            made = self.evaluate(candidate.runs)
            if made is not None and (best is None or made[0] < best[0]):
                best = made
        if best is None:
            return None
        keys = len({key for row in self.units.keys for key in row})
        return StagesPlan(
            best[1], best[0], min(bound, best[0]), self.units.count, len(self.forms), keys, self.solved, self.rounds
        )

    def refine(self, found: Sequenced) -> bool:
        """Solves the runs of a plan, the dearest first, until one turns out dearer than the plan; whether one did."""
        assert self.units is not None
        known = sorted(found.runs, key=lambda run: -self.forms[run.block.form].bounds[run.first, run.behind])
        for run in known:
            form = self.forms[run.block.form]
            key = self.units.key(run.first, run.behind)
            if key in form.plans:
                continue
            bound = form.plans[key] = self.bound_of(form, run)
            self.raise_bounds(form, key, bound)
            if bound > found.value * (1 + TIGHT):
                return True
        return False

    def bound_of(self, form: _Form, run: StageRun) -> float:
        """The least seconds of a run on a form of mesh, whatever is around it."""
        assert self.units is not None
        self.solved += 1
        stage = form.cutter.cut(self.units.run(run.first, run.behind), Border())
        try:
            return solve(stage.given.problem, memory=self.limit(form.mesh), seconds=10.0, progress=self.progress).bound
        except NoPlanError:
            return math.inf

    def raise_bounds(self, form: _Form, key: int, bound: float) -> None:
        """Notes the bound of all runs of a key, and of the runs around them."""
        assert self.units is not None
        for first, row in enumerate(self.units.keys):
            for length, other in enumerate(row):
                if other == key:
                    around = form.bounds[: first + 1, first + length + 1 :]
                    np.maximum(around, bound, out=around)

    # -- the plan ------------------------------------------------------------------------------------------------------

    def evaluate(self, runs: Sequence[StageRun]) -> tuple[float, tuple[Staged, ...]] | None:
        """The stages solved one after the other, each given what the ones before it send; the slowest's seconds."""
        assert self.units is not None
        parties = [
            Party(run.block.mesh.devices, run.block.mesh.sizes if len(run.block.mesh.devices) > 1 else ()) for run in runs
        ]
        own = [self.units.run(run.first, run.behind) for run in runs]
        home = {op: number for number, ops in enumerate(own) for op in ops}
        lies: dict[str, tuple[int, Placements]] = {}
        receive, send, work = [0.0] * len(runs), [0.0] * len(runs), [0.0] * len(runs)
        stages = []
        for number, (run, ops) in enumerate(zip(runs, own, strict=True)):
            form = self.forms[run.block.form]
            entering, leaving = form.cutter.crossing(ops)
            given = {}
            for name in entering:
                maker, placements = lies[name]
                alike = parties[maker].matches(parties[number])
                arrives = placements if alike else (Replicate(),) * len(run.block.mesh.axes)
                given[name] = form.given.layouts[name].number(arrives)
            readers = {name: self.readers(name, home, number) for name in leaving}
            whole = frozenset(n for n in leaving if any(not parties[number].matches(parties[r]) for r in readers[n]))
            charged = {name: self.sending(form, name, parties, number, readers[name]) for name in leaving}
            stage = form.cutter.cut(ops, Border(send=charged, given=given, whole=whole))
            try:
                plan = solve(stage.given.problem, memory=self.limit(form.mesh), seconds=10.0, progress=self.progress)
            except NoPlanError:
                return None
            made = self.decided(stage, plan, run.block.mesh, ops, whole)
            for name in leaving:
                lies[name] = number, made.bill.lies[name]
                for reader in readers[name]:
                    size = self.size(form, name, made.bill.lies[name], parties[number], parties[reader])
                    send[number] += self.crossing.send(size, parties[number], parties[reader])
                    receive[reader] += self.crossing.receive(size, parties[number], parties[reader])
            work[number] = made.bill.total
            stages.append(made)
        return max(map(sum, zip(work, receive, send, strict=True))), tuple(stages)

    def readers(self, name: str, home: dict[int, int], number: int) -> list[int]:
        """The other stages that read a value."""
        cutter = self.forms[0].cutter
        nodes = cutter.whole.problem.values[cutter.number[name]].readers
        return sorted({home[node] for node, _ in nodes if node in home} - {number})

    def sending(self, form: _Form, name: str, parties: Sequence[Party], number: int, readers: Sequence[int]) -> Floats:
        """Seconds that a stage spends on sending a value, by layout."""
        total = np.zeros(len(form.given.layouts[name].placements))
        for position, placements in enumerate(form.given.layouts[name].placements):
            for reader in readers:
                size = self.size(form, name, placements, parties[number], parties[reader])
                total[position] += self.crossing.send(size, parties[number], parties[reader])
        return total

    def size(self, form: _Form, name: str, placements: Placements, maker: Party, reader: Party) -> int:
        type_ = form.cutter.types[name].type
        if isinstance(type_, TensorType) and maker.sizes:
            type_ = replace(type_, layout=Layout("@mesh", placements))
        return message_bytes(type_, maker, reader)

    def decided(
        self, stage: StageInput, plan: ShardPlan, mesh: DeviceMesh, ops: tuple[int, ...], whole: frozenset[str]
    ) -> Staged:
        """What a plan of a stage says, counted a second time."""
        given = stage.given
        decisions = decisions_of(given, plan.choices)
        arrived = {
            name: given.layouts[name].placements[given.problem.node(node).makes[0][plan.choices[node]]]
            for node, name in stage.entering.items()
        }
        everywhere: Placements = (Replicate(),) * len(mesh.axes)
        told = Decisions(
            decisions.strategies, decisions.kept, decisions.outputs, arrived, {name: everywhere for name in sorted(whole)}
        )
        bill = price(self.module, given.func, mesh, told, uneven=self.uneven)
        return Staged(ops, mesh, told, bill)


__all__ = ["StageSearch", "StagesPlan"]
