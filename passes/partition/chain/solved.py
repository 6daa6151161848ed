"""The stages of a sequence solved one after the other, each given the layouts in which the stages before it send.

The plan of a stage is the cheapest way through the tables of its units (``chains``); where that is not near its bound, the
stage is searched as a whole. Each stage makes a value that later stages read in the layout that is cheapest for itself; the
transfer is charged to both by the links between their devices (``passes.meshes.costs.cross_mesh``). Of replicas the slowest
link counts, and a stage with r of them is worth a r-th of its seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.core.outcomes import AGREE, TIGHT
from ir.core.topology import Topology
from ir.core.types import Layout, Replicate, TensorType
from passes.costs.learning import InFlight
from passes.costs.network import Network
from passes.meshes.costs.cross_mesh import Crossing, Party, meetings, message_bytes
from passes.meshes.costs.price import Decisions, price
from passes.meshes.layouts import Placements
from passes.meshes.mesh import DeviceMesh
from passes.meshes.staged import Staged
from passes.partition.chain.borders import Border, Cutter, StageInput
from passes.partition.chain.bounding import Bounding, Form
from passes.partition.chain.chains import Chain
from passes.partition.chain.pipeline import StageRun
from passes.partition.layouts.decide import decisions_of, truthful_plan
from passes.partition.layouts.problem.problem import Floats
from passes.partition.layouts.solver.descent import descend
from passes.partition.layouts.solver.search import NoPlanError, ShardPlan, solve
from passes.solvers.work import now

LONGEST = 10.0
"""Seconds of the search of one stage, at most."""
LEAST = 0.1
"""Seconds of such a search, at least: a stage without a plan is searched even where no time is left."""
SHARE = 0.2
"""Part of the time left that all searches of the stages of one sequence take together, but for these ``LEAST``."""
NEAR = 1e-3
"""Relative gap at which a plan by the tables of units needs no search."""


@dataclass(frozen=True, slots=True)
class SolvedStage:
    """A stage with its plan. ``work``: seconds of a microbatch without transfers to and from other stages; ``leaving``: the
    layouts of the values that it sends; ``in_flight``: of how many microbatches it holds what their backward passes need;
    ``others``: the devices of further replicas."""

    ops: tuple[int, ...]
    mesh: DeviceMesh
    stage: StageInput
    plan: ShardPlan
    work: float
    leaving: Mapping[str, Placements]
    in_flight: int
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SolvedStages:
    """``seconds`` of each of the ``stages`` per microbatch, transfers and hand-over included; ``sends``: what the maker of each
    crossing value spends on sending it. ``StageSearch.valued`` adds the ``value`` of the sequence and, for a training step that
    it simulates, the stages as ``staged``."""

    seconds: tuple[float, ...]
    stages: tuple[SolvedStage, ...]
    sends: Mapping[str, float]
    staged: tuple[Staged, ...] = ()
    value: float = math.inf


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The stages to be solved: the ``ops`` and the replicas (``parties``) of each, and the stage of each op (``home``)."""

    runs: tuple[StageRun, ...]
    ops: tuple[tuple[int, ...], ...]
    parties: tuple[tuple[Party, ...], ...]
    home: Mapping[int, int]

    def alike(self, one: int, other: int) -> bool:
        """Whether values cross between two stages as they lie."""
        return self.parties[one][0].matches(self.parties[other][0])


class StageSolver:
    """Solves the stages of sequences; stages that are alike, with borders that are alike, once."""

    def __init__(self, bounding: Bounding, topology: Topology, net: Network) -> None:
        self.bounding = bounding
        self.crossing = Crossing(topology, net)
        self.plans: dict[object, ShardPlan | None] = {}
        self.until = math.inf

    def solve(self, runs: Sequence[StageRun], ends: float) -> SolvedStages | int:
        """The stages of ``runs``, or the number of the first one that does not fit; ``ends``: when (of ``now``) the search that
        asks for them ends."""
        start = now()
        self.until = start + SHARE * (ends - start)
        ops = tuple(self.bounding.units.run(run.first, run.behind) for run in runs)
        parties = tuple(run.block.parties for run in runs)
        home = {op: number for number, own in enumerate(ops) for op in own}
        return self.solved(_Sequence(tuple(runs), ops, parties, home))

    def solved(self, sequence: _Sequence) -> SolvedStages | int:
        made_in: dict[str, tuple[int, Placements]] = {}  # the stage that makes a value, and the layout there
        seconds, sends = [0.0] * len(sequence.runs), dict[str, float]()
        stages = []
        for number, (run, ops) in enumerate(zip(sequence.runs, sequence.ops, strict=True)):
            cutter, mesh = self.bounding.cutter(self.bounding.forms[run.block.form]), run.block.mesh
            everywhere: Placements = (Replicate(),) * len(mesh.axes)
            entering, leaving = cutter.crossing(ops)
            arriving = {}
            for name in entering:
                maker, layout = made_in[name]
                layout = layout if sequence.alike(maker, number) else everywhere
                arriving[name] = cutter.given.layouts[name].number(layout)
            readers = {name: self.readers(sequence, cutter, name, number) for name in leaving}
            whole = frozenset(name for name in leaving if not all(sequence.alike(number, r) for r in readers[name]))
            send = {name: self.send_seconds(sequence, cutter, name, number, readers[name]) for name in leaving}
            border, in_flight = Border(send=send, arriving=arriving, whole=whole), self.in_flight(sequence, number)
            stage = cutter.cut(ops, border)
            stage = replace(stage, given=stage.given.keeping(in_flight))
            plan = self.plan_of(run, stage, border, in_flight)
            if plan is None:
                return number
            made = {name: self.layout_made(cutter, ops, stage, plan, name) for name in leaving}
            work = plan.value - math.fsum(float(send[name][made[name]]) for name in leaving)
            seconds[number] += work
            for name in leaving:
                layout = cutter.given.layouts[name].placements[made[name]]
                made_in[name] = number, layout
                for reader in readers[name]:
                    sent, received = self.spent(sequence, cutter, name, layout, (number, reader))
                    seconds[number] += sent
                    sends[name] = sends.get(name, 0.0) + sent
                    seconds[reader] += received
            leaves = {name: everywhere if name in whole else made_in[name][1] for name in sorted(leaving)}
            stages.append(SolvedStage(ops, mesh, stage, plan, work, leaves, in_flight, run.block.others))
        if sum(run.block.size for run in sequence.runs) > 1:
            seconds = [own + self.bounding.handover(run.block) for own, run in zip(seconds, sequence.runs, strict=True)]
        each = (own / run.block.replicas for own, run in zip(seconds, sequence.runs, strict=True))
        return SolvedStages(tuple(each), tuple(stages), sends)

    def in_flight(self, sequence: _Sequence, number: int) -> int:
        """Of how many microbatches a stage holds what their backward passes need."""
        if not self.bounding.training or self.bounding.recomputes:
            return 1
        stages = [1] * len(sequence.runs)
        return InFlight.of(self.bounding.microbatches, stages, self.bounding.family).microbatches[number]

    @staticmethod
    def layout_made(cutter: Cutter, ops: tuple[int, ...], stage: StageInput, plan: ShardPlan, name: str) -> int:
        """The number of the layout in which a stage makes a value."""
        maker, result = cutter.given.problem.values[cutter.number[name]].maker
        node = ops.index(maker)
        return stage.given.layout_number(name, int(stage.given.problem.node(node).makes[result][plan.choices[node]]))

    def plan_of(self, run: StageRun, stage: StageInput, border: Border, in_flight: int) -> ShardPlan | None:
        """The stage's plan, None where it does not fit."""
        key = (
            self.bounding.units.key(run.first, run.behind),
            run.block.form,
            in_flight,
            tuple(border.arriving.values()),
            tuple(tuple(row.tolist()) for row in border.send.values()),
            tuple(name in border.whole for name in border.send),
        )
        if key not in self.plans:
            plan = self.new_plan(run, stage, border, in_flight)
            self.plans[key] = plan and truthful_plan(stage.given, plan)
        return self.plans[key]

    def new_plan(self, run: StageRun, stage: StageInput, border: Border, in_flight: int) -> ShardPlan | None:
        """By the tables of the units that bound the stage or, where no way through these fits, by those of ``in_flight``
        microbatches; by a search where that is not near its bound."""
        form = self.bounding.forms[run.block.form]
        limit = self.bounding.limit(form.mesh)
        by_tables: ShardPlan | None = None
        for microbatches in sorted({1, in_flight}):
            by_tables = by_tables or self.plan_by_tables(run, form, form.keeping(microbatches), stage, border, limit)
        if by_tables is not None and by_tables.gap <= NEAR:
            return by_tables
        seconds = min(LONGEST, self.until - now())
        if by_tables is not None and seconds <= 0:
            return by_tables
        try:
            plan = solve(stage.given.problem, memory=limit, seconds=max(LEAST, seconds), progress=self.bounding.progress)
        except NoPlanError:
            return by_tables
        return plan if by_tables is None or plan.value < by_tables.value else by_tables

    def plan_by_tables(
        self, run: StageRun, form: Form, chain: Chain, stage: StageInput, border: Border, limit: int | None
    ) -> ShardPlan | None:
        """The cheapest way through the tables of a stage's units as a plan, which ``descend`` improves node by node; None where
        none fits."""
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
        within = chain.within(run.first, run.behind, before, after, limit, form.prices, until=self.until)
        if within.fits is None:
            return None
        price, way = within.fits
        choice_of = chain.choices(price, run.first, run.behind, way.states)
        picked = [choice_of[node] for node in stage.nodes] + [0] * (problem.size - len(stage.nodes))
        for node, name in stage.entering.items():
            if name == entering and name not in border.arriving:
                picked[node] = way.states[0]
        choices, value, memory = tuple(picked), problem.cost(picked), problem.memory(picked)
        if limit is not None and memory > limit:
            return None
        if value > within.bound * (1 + TIGHT):
            choices, value = descend(problem, choices, value, limit, min(self.until, now() + LONGEST))
        return ShardPlan(choices, value, 0.0, problem.memory(choices), "within-gap").bounded(within.bound, "width")

    def readers(self, sequence: _Sequence, cutter: Cutter, name: str, number: int) -> list[int]:
        """The stages that read a value, other than the one that makes it."""
        nodes = cutter.given.problem.values[cutter.number[name]].readers
        return sorted({sequence.home[node] for node, _ in nodes if node in sequence.home} - {number})

    def send_seconds(self, sequence: _Sequence, cutter: Cutter, name: str, number: int, readers: Sequence[int]) -> Floats:
        """Seconds that a stage spends on sending a value to all its readers, by the layout in which it makes it."""
        placements = cutter.given.layouts[name].placements
        total = np.zeros(len(placements))
        for position, layout in enumerate(placements):
            for reader in readers:
                total[position] += self.spent(sequence, cutter, name, layout, (number, reader))[0]
        return total

    def spent(
        self, sequence: _Sequence, cutter: Cutter, name: str, layout: Placements, ends: tuple[int, int]
    ) -> tuple[float, float]:
        """Seconds that the maker and the reader of a value (``ends``) spend on it, each the slowest of its replicas."""
        makers, readers = (sequence.parties[end] for end in ends)
        returns = name in self.bounding.base.trained
        size = self.size(cutter, name, layout, makers[0], readers[0])
        pairs = meetings(makers, readers)
        return (
            max(self.crossing.at_maker(size, *pair, returns=returns) for pair in pairs),
            max(self.crossing.at_reader(size, *pair, returns=returns) for pair in pairs),
        )

    def size(self, cutter: Cutter, name: str, placements: Placements, maker: Party, reader: Party) -> int:
        """Bytes of one message of a value."""
        type_ = cutter.types[name]
        if isinstance(type_, TensorType) and maker.sizes:
            type_ = replace(type_, layout=Layout("@mesh", placements))
        return message_bytes(type_, maker, reader)

    def decided(self, solved: SolvedStage) -> Staged:
        """The decisions of a stage's plan, with their costs counted a second time, by ``price``."""
        given, plan, mesh, bounding = solved.stage.given, solved.plan, solved.mesh.limited(self.bounding.memory), self.bounding
        inside = decisions_of(given, plan.choices)
        entering = {
            name: given.layouts[name].placements[given.problem.node(node).makes[0][plan.choices[node]]]
            for node, name in solved.stage.entering.items()
        }
        learning = given.trained & entering.keys()
        decisions = Decisions(inside.strategies, inside.kept, inside.outputs, entering, solved.leaving, learning)
        bill = price(
            bounding.module,
            given.func,
            mesh,
            decisions,
            training=bounding.training,
            uneven=bounding.uneven,
            microbatches=bounding.microbatches,
            in_flight=solved.in_flight,
        )
        if not math.isclose(bill.total, solved.work, rel_tol=AGREE, abs_tol=1e-12):
            raise AssertionError(f"the search counts {solved.work} s of a stage, its second count {bill.total} s")
        return Staged(tuple(sorted(solved.ops)), mesh, decisions, bill, solved.others)


__all__ = ["SolvedStages", "StageSolver"]
