"""A sequence of stages as it really is: every stage solved with the layouts that the stages before it send, over its own links.

A stage's plan is the cheapest way through the tables of its units (``chains``); where that is not near its bound, the search's.

The seconds of a plan's sharding are counted a second time by ``price``; transfers are those of
``passes.model.spmd.cross_mesh``. A stage leaves a value that crosses in the layout that is cheapest for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.topology import Topology
from ir.types import Layout, Replicate, TensorType
from passes.model.learning import InFlight
from passes.model.network import Network
from passes.model.spmd.cross_mesh import Crossing, Party, message_bytes
from passes.model.spmd.layouts import Placements
from passes.model.spmd.mesh import DeviceMesh
from passes.model.spmd.plan.written import AGREE
from passes.model.spmd.price import Decisions, price
from passes.model.spmd.staged import Staged
from passes.model.work import now
from passes.shard.decide import decisions_of, truthful_plan
from passes.shard.problem.problem import TIGHT, Floats
from passes.shard.solver.descent import descend
from passes.shard.solver.search import NoPlanError, ShardPlan, solve
from passes.shard.stages.borders import Border, Cutter, StageInput
from passes.shard.stages.bounding import Bounding, Form
from passes.shard.stages.chains import Chain
from passes.shard.stages.pipeline import StageRun

SECONDS = 10.0
"""Of the search of one stage."""
LEAST = 0.1
"""Of it, where nothing is known that fits."""
SHARE = 0.2
"""Of the time that is left: what searches of the stages of one plan take."""
NEAR = 1e-3
"""Relative gap at which the tables of units will do for the plan of a stage."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A stage as it was solved: ``work`` seconds without what crosses; ``leaving``: how values leave for other stages;
    ``in_flight``: of how many microbatches it holds what their backward passes need."""

    ops: tuple[int, ...]
    mesh: DeviceMesh
    stage: StageInput
    plan: ShardPlan
    work: float
    leaving: Mapping[str, Placements]
    in_flight: int


@dataclass(frozen=True, slots=True)
class Settled:
    """``seconds`` of each of the ``drafts``; ``sends``: of each value that crosses, what its maker spends on sending it;
    ``staged``: the stages as decided, of training, where ``value`` is that of the plan as it is written."""

    seconds: tuple[float, ...]
    drafts: tuple[Draft, ...]
    sends: Mapping[str, float]
    staged: tuple[Staged, ...] = ()
    value: float = math.inf


@dataclass(frozen=True, slots=True)
class _Line:
    """Stages in a row: what each holds and where."""

    runs: tuple[StageRun, ...]
    own: tuple[tuple[int, ...], ...]
    parties: tuple[Party, ...]
    home: Mapping[int, int]


class Settler:
    """Solves stages of plans; equal stages with equal borders once."""

    def __init__(self, bounding: Bounding, topology: Topology, net: Network) -> None:
        self.bounding = bounding
        self.crossing = Crossing(topology, net)
        self.known: dict[object, ShardPlan | None] = {}
        self.until = math.inf

    def settle(self, runs: Sequence[StageRun], ends: float) -> Settled | int:
        """The stages; the number of one that does not fit, if there is one. Searches of all of them take a part of the time
        until ``ends`` (of ``now``)."""
        bounding = self.bounding
        start = now()
        self.until = start + SHARE * (ends - start)
        own = tuple(bounding.units.run(run.first, run.behind) for run in runs)
        parties = tuple(
            Party(run.block.mesh.devices, run.block.mesh.sizes if len(run.block.mesh.devices) > 1 else ()) for run in runs
        )
        line = _Line(tuple(runs), own, parties, {op: number for number, ops in enumerate(own) for op in ops})
        return self.solved(line)

    def in_flight(self, line: _Line, number: int) -> int:
        if not self.bounding.training or self.bounding.recomputes:
            return 1
        stages = [1] * len(line.runs)
        return InFlight.of(self.bounding.microbatches, stages, self.bounding.family).microbatches[number]

    def cut(self, line: _Line, number: int, border: Border) -> StageInput:
        stage = self.bounding.cutter(self.form(line, number)).cut(line.own[number], border)
        return replace(stage, given=stage.given.keeping(self.in_flight(line, number)))

    def solved(self, line: _Line) -> Settled | int:
        count = len(line.runs)
        lies: dict[str, tuple[int, Placements]] = {}
        seconds, sends = [0.0] * count, dict[str, float]()
        drafts = []
        for number in range(count):
            form, mesh = self.form(line, number), line.runs[number].block.mesh
            cutter = self.bounding.cutter(form)
            entering, leaving = cutter.crossing(line.own[number])
            arriving = {name: self.arrives(line, cutter, number, name, lies[name]) for name in entering}
            readers = {name: self.readers(line, cutter, name, number) for name in leaving}
            whole = frozenset(
                name for name in leaving if any(not line.parties[number].matches(line.parties[r]) for r in readers[name])
            )
            send = {name: self.sending(line, cutter, name, number, readers[name]) for name in leaving}
            border = Border(send=send, arriving=arriving, whole=whole)
            stage = self.cut(line, number, border)
            plan = self.plan_of(line, number, stage, border)
            if plan is None:
                return number
            made = {name: self.made(cutter, line.own[number], stage, plan, name) for name in leaving}
            work = plan.value - math.fsum(float(send[name][made[name]]) for name in leaving)
            seconds[number] += work
            for name in leaving:
                placements = cutter.given.layouts[name].placements[made[name]]
                lies[name] = number, placements
                for reader in readers[name]:
                    one, two = line.parties[number], line.parties[reader]
                    size = self.size(cutter, name, placements, one, two)
                    returns = name in self.bounding.base.trained
                    sent = self.crossing.at_maker(size, one, two, returns=returns)
                    seconds[number] += sent
                    sends[name] = sends.get(name, 0.0) + sent
                    seconds[reader] += self.crossing.at_reader(size, one, two, returns=returns)
            everywhere: Placements = (Replicate(),) * len(mesh.axes)
            leaves = {name: everywhere if name in whole else lies[name][1] for name in sorted(leaving)}
            drafts.append(Draft(line.own[number], mesh, stage, plan, work, leaves, self.in_flight(line, number)))
        return Settled(tuple(seconds), tuple(drafts), sends)

    @staticmethod
    def made(cutter: Cutter, ops: tuple[int, ...], stage: StageInput, plan: ShardPlan, name: str) -> int:
        """The number of the layout in which a stage makes a value."""
        maker, result = cutter.given.problem.values[cutter.number[name]].maker
        node = ops.index(maker)
        return stage.given.made(name, int(stage.given.problem.node(node).makes[result][plan.choices[node]]))

    def form(self, line: _Line, number: int) -> Form:
        return self.bounding.forms[line.runs[number].block.form]

    def arrives(self, line: _Line, cutter: Cutter, number: int, name: str, made: tuple[int, Placements]) -> int:
        """The number of the layout in which a value comes to a stage."""
        maker, lies = made
        if not line.parties[maker].matches(line.parties[number]):
            lies = (Replicate(),) * len(cutter.given.mesh.axes)
        return cutter.given.layouts[name].number(lies)

    def plan_of(self, line: _Line, number: int, stage: StageInput, border: Border) -> ShardPlan | None:
        """The stage's plan, None where it does not fit."""
        run = line.runs[number]
        key = (
            self.bounding.units.key(run.first, run.behind),
            run.block.form,
            self.in_flight(line, number),
            tuple(border.arriving.values()),
            tuple(tuple(row.tolist()) for row in border.send.values()),
            tuple(name in border.whole for name in border.send),
        )
        if key not in self.known:
            found = self.found(run, self.form(line, number), stage, border, self.in_flight(line, number))
            self.known[key] = found and truthful_plan(stage.given, found)
        return self.known[key]

    def found(self, run: StageRun, form: Form, stage: StageInput, border: Border, in_flight: int) -> ShardPlan | None:
        """A stage's plan by the tables of its units, those that bound it or, where that does not fit, those of as many
        microbatches in flight; searched where that is not near its bound."""
        problem, limit = stage.given.problem, self.bounding.limit(form.mesh)
        chained: ShardPlan | None = None
        for several in sorted({1, in_flight}):
            chained = chained or self.chained(run, form, form.keeping(several), stage, border, limit)
        if chained is not None and chained.gap <= NEAR:
            return chained
        seconds = min(SECONDS, self.until - now())
        if chained is not None and seconds <= 0:
            return chained
        try:
            plan = solve(problem, memory=limit, seconds=max(LEAST, seconds), progress=self.bounding.progress)
        except NoPlanError:
            return chained
        return plan if chained is None or plan.value < chained.value else chained

    def chained(
        self, run: StageRun, form: Form, chain: Chain, stage: StageInput, border: Border, limit: int | None
    ) -> ShardPlan | None:
        """The cheapest way through a stage's units as a plan, then bettered node by node; None where none fits."""
        problem = stage.given.problem
        entering, leaving = chain.name(run.first), chain.name(run.behind)
        before = chain.arriving(run.first, border.receive.get(entering))
        after = np.zeros(chain.states(run.behind))
        if entering in border.arriving:
            before = np.where(np.arange(len(before)) == border.arriving[entering], 0.0, np.inf)
        if leaving in border.send:
            after = np.resize(border.send[leaving], len(after))
            if leaving in border.whole:
                after = after + chain.gathered(run.behind)
        found = chain.within(run.first, run.behind, before, after, limit, form.prices, until=self.until)
        if found.fits is None:
            return None
        price, way = found.fits
        chosen = chain.choices(price, run.first, run.behind, way.states)
        picked = [chosen[node] for node in stage.nodes] + [0] * (problem.size - len(stage.nodes))
        for node, name in stage.entering.items():
            if name == entering and name not in border.arriving:
                picked[node] = way.states[0]
        choices, value, memory = tuple(picked), problem.cost(picked), problem.memory(picked)
        if limit is not None and memory > limit:
            return None
        if value > found.bound * (1 + TIGHT):
            choices, value = descend(problem, choices, value, limit, min(self.until, now() + SECONDS))
        return ShardPlan(choices, value, 0.0, problem.memory(choices), "feasible").bounded(found.bound, "width")

    def readers(self, line: _Line, cutter: Cutter, name: str, number: int) -> list[int]:
        """The other stages that read a value."""
        nodes = cutter.given.problem.values[cutter.number[name]].readers
        return sorted({line.home[node] for node, _ in nodes if node in line.home} - {number})

    def sending(self, line: _Line, cutter: Cutter, name: str, number: int, readers: Sequence[int]) -> Floats:
        """Seconds that a stage spends on sending a value, by layout."""
        placements = cutter.given.layouts[name].placements
        total, returns = np.zeros(len(placements)), name in self.bounding.base.trained
        for position, lies in enumerate(placements):
            for reader in readers:
                one, two = line.parties[number], line.parties[reader]
                total[position] += self.crossing.at_maker(self.size(cutter, name, lies, one, two), one, two, returns=returns)
        return total

    def size(self, cutter: Cutter, name: str, placements: Placements, maker: Party, reader: Party) -> int:
        type_ = cutter.types[name]
        if isinstance(type_, TensorType) and maker.sizes:
            type_ = replace(type_, layout=Layout("@mesh", placements))
        return message_bytes(type_, maker, reader)

    def decided(self, draft: Draft) -> Staged:
        """What a plan of a stage says, counted a second time."""
        stage, plan, mesh = draft.stage, draft.plan, draft.mesh.limited(self.bounding.memory)
        given = stage.given
        decisions = decisions_of(given, plan.choices)
        entering = arrived(stage, plan)
        learning = given.trained & entering.keys()
        told = Decisions(decisions.strategies, decisions.kept, decisions.outputs, entering, draft.leaving, learning)
        bounding = self.bounding
        bill = price(
            bounding.module,
            given.func,
            mesh,
            told,
            training=bounding.training,
            uneven=bounding.uneven,
            microbatches=bounding.microbatches,
            in_flight=draft.in_flight,
        )
        assert math.isclose(bill.total, draft.work, rel_tol=AGREE, abs_tol=1e-12), (bill.total, draft.work)
        return Staged(tuple(sorted(draft.ops)), mesh, told, bill)


def arrived(stage: StageInput, plan: ShardPlan) -> dict[str, Placements]:
    """The layouts in which a stage has what enters it."""
    given = stage.given
    return {
        name: given.layouts[name].placements[given.problem.node(node).makes[0][plan.choices[node]]]
        for node, name in stage.entering.items()
    }


__all__ = ["Settled", "Settler"]
