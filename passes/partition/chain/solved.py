"""The stages of a sequence solved one after the other, each given the layouts in which the stages before it send.

The plan of a stage is that of a search of its problem. It fits its devices with all that the written plan counts: weights,
workspace and buffers. Each stage makes a value that later stages read in the layout that is cheapest for itself; the transfer
is charged to both by the links between their devices (``passes.meshes.costs.cross_mesh``). Of replicas the slowest link counts,
and a stage with r of them is worth a r-th of its seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ir.core.module import Func
from ir.core.outcomes import AGREE, TIGHT
from ir.core.topology import Topology
from ir.core.types import Replicate
from passes.costs.memory.footprint import Footprint, buffer_bytes, lacking
from passes.costs.network import Network
from passes.meshes.costs.bill import Decisions
from passes.meshes.costs.cross_mesh import Crossing, Party, laid_bytes
from passes.meshes.costs.price import price
from passes.meshes.layouts import Placements
from passes.meshes.mesh import DeviceMesh
from passes.meshes.staged import Staged
from passes.partition.chain.borders import Border, Cutter, StageInput
from passes.partition.chain.bounding import Bounding, Form
from passes.partition.chain.pipeline import StageRun, alike
from passes.partition.layouts.decide import decisions_of, truthful, truthful_plan
from passes.partition.layouts.mesh.alive import Alive
from passes.partition.layouts.mesh.fitting import MOST_TRIES, Fitter
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.problem import Floats
from passes.partition.layouts.solver.search import NoPlanError, ShardPlan, solve
from passes.solvers.work import now

LONGEST = 10.0
"""Seconds of the search of one stage, at most."""
LEAST = 0.1
"""Seconds of such a search, at least: a stage without a plan is searched even where no time is left."""
SHARE = 0.2
"""Part of the time left that all searches of the stages of one sequence take together, but for these ``LEAST``."""
NEVER = 1e6
"""Seconds that a stage is told to spend on a value in another layout than the stated one."""


@dataclass(frozen=True, slots=True)
class StageTask:
    """A stage that is to be solved: the ``run`` and its ``ops``, its ``problem``, cut from that of ``form``, its ``border``;
    ``in_flight``: of how many microbatches it holds what their backward passes need; ``buffers``: bytes of those for what it
    receives of stages before it; ``returned``: of those for gradients of what it makes, by name and layout."""

    run: StageRun
    ops: tuple[int, ...]
    form: Form
    problem: StageInput
    border: Border
    in_flight: int
    buffers: int = 0
    returned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def given(self) -> ShardInput:
        return self.problem.given

    @property
    def cutter(self) -> Cutter:
        assert self.form.cutter is not None
        return self.form.cutter

    def made(self, choices: Sequence[int], name: str) -> int:
        """The number of the layout in which the stage makes a value."""
        maker, result = self.cutter.given.problem.values[self.cutter.number[name]].maker
        kind = self.given.problem.node(node := self.ops.index(maker))
        return self.given.layout_number(name, int(kind.makes[result][choices[node]]))

    def decisions(self, choices: Sequence[int]) -> Decisions:
        """A plan by names, with the layouts in which values arrive and leave."""
        inside, given = decisions_of(self.given, choices), self.given
        entering = {
            name: given.layouts[name].placements[given.problem.node(node).makes[0][choices[node]]]
            for node, name in self.problem.entering.items()
        }
        whole: Placements = (Replicate(),) * len(given.mesh.axes)
        leaving = {
            name: whole if name in self.border.whole else given.layouts[name].placements[self.made(choices, name)]
            for name in sorted(self.border.send)
        }
        learning = given.trained & entering.keys()
        return Decisions(inside.strategies, inside.kept, inside.outputs, entering, leaving, learning)


@dataclass(frozen=True, slots=True)
class SolvedStage:
    """A stage with its plan. ``work``: seconds of a microbatch, as its problem counts them, without transfers to and from other
    stages."""

    stage: StageTask
    plan: ShardPlan
    work: float

    @property
    def ops(self) -> tuple[int, ...]:
        return self.stage.ops

    @property
    def mesh(self) -> DeviceMesh:
        return self.stage.run.block.mesh


@dataclass(frozen=True, slots=True)
class SolvedStages:
    """``seconds`` of each of the ``stages`` per microbatch, transfers and hand-over included. ``StageSearch.valued`` adds
    the ``value`` of the sequence and, for a training step that it simulates, the stages as ``staged``."""

    seconds: tuple[float, ...]
    stages: tuple[SolvedStage, ...]
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

    def __init__(
        self,
        bounding: Bounding,
        topology: Topology,
        net: Network,
        worth: Callable[[Sequence[float]], float] | None = None,
    ) -> None:
        self.bounding, self.worth = bounding, worth
        self.crossing = Crossing(topology, net)
        self.plans: dict[object, ShardPlan | None] = {}
        self.beyond: dict[int, float] = {}
        self.until = math.inf
        self.nearest = ""
        """What the last stage lacks for which no plan was found that fits."""

    def solve(self, runs: Sequence[StageRun], ends: float) -> SolvedStages | int:
        """The stages of ``runs``, or the number of the first one that does not fit; ``ends``: when (of ``now``) the search that
        asks for them ends."""
        start = now()
        self.until = start + SHARE * (ends - start)
        ops = tuple(self.bounding.units.run(run.first, run.behind) for run in runs)
        parties = tuple(run.block.parties for run in runs)
        home = {op: number for number, own in enumerate(ops) for op in own}
        sequence = _Sequence(tuple(runs), ops, parties, home)
        found = self.solved(sequence, {})
        if self.worth is None or isinstance(found, int):
            return found
        return self.with_better_borders(sequence, found, self.worth)

    def with_better_borders(
        self, sequence: _Sequence, found: SolvedStages, worth: Callable[[Sequence[float]], float]
    ) -> SolvedStages:
        """The stages with each value that crosses in the layout that is best for the whole plan, looked for value by value:
        what is cheapest to make may be dear to read."""
        stated: dict[str, int] = {}
        crossing = [(number, *item) for number, one in enumerate(found.stages) for item in one.stage.border.send.items()]
        for number, name, seconds in crossing:
            for layout in range(len(seconds)):
                if now() >= self.until:
                    return found
                maker = found.stages[number]
                if layout == maker.stage.made(maker.plan.choices, name):
                    continue
                other = self.solved(sequence, {**stated, name: layout})
                if not isinstance(other, int) and worth(other.seconds) < worth(found.seconds) * (1 - TIGHT):
                    found, stated = other, {**stated, name: layout}
        return found

    def solved(self, sequence: _Sequence, stated: Mapping[str, int]) -> SolvedStages | int:
        """``stated``: the layout in which a value crosses; else that which is cheapest for the stage that makes it."""
        made_in: dict[str, tuple[int, Placements]] = {}  # the stage that makes a value, and the layout there
        seconds = [0.0] * len(sequence.runs)
        stages = []
        sides, held = alike(sequence.runs), self.bounding.least.held(len(sequence.runs))
        for number, (run, ops) in enumerate(zip(sequence.runs, sequence.ops, strict=True)):
            form = self.bounding.nearer(run, sides[number])
            cutter = self.bounding.cutter(form)
            everywhere: Placements = (Replicate(),) * len(run.block.mesh.axes)
            entering, leaving = cutter.crossing(ops)
            arriving = {}
            for name in entering:
                maker, layout = made_in[name]
                layout = layout if sequence.alike(maker, number) else everywhere
                arriving[name] = cutter.given.layouts[name].number(layout)
            readers = {name: self.readers(sequence, cutter, name, number) for name in leaving}
            whole = frozenset(name for name in leaving if not all(sequence.alike(number, r) for r in readers[name]))
            send = {name: self.send_seconds(sequence, cutter, name, number, readers[name]) for name in leaving}
            for name in stated.keys() & send.keys():
                send[name] = np.where(np.arange(len(send[name])) == stated[name], send[name], NEVER)
            border, in_flight = Border(send=send, arriving=arriving, whole=whole), held[number]
            problem = cutter.cut(ops, border)
            problem = replace(problem, given=problem.given.keeping(in_flight))
            buffers = 0
            for name in entering:
                maker, layout = made_in[name]
                size = laid_bytes(cutter.types[name], layout, sequence.parties[maker][0], sequence.parties[number][0])
                buffers += buffer_bytes("sum", maker, number, size)
            returned = {name: self.returned(sequence, cutter, name, number, readers[name]) for name in leaving}
            stage = StageTask(run, ops, form, problem, border, in_flight, buffers, returned)
            plan = self.plan_of(stage)
            if plan is None or (stated and plan.value >= NEVER):
                return number
            made = {name: stage.made(plan.choices, name) for name in leaving}
            work = plan.value - math.fsum(float(send[name][made[name]]) for name in leaving)
            seconds[number] += work
            for name in leaving:
                layout = cutter.given.layouts[name].placements[made[name]]
                made_in[name] = number, layout
                for reader in readers[name]:
                    sent, received = self.spent(sequence, cutter, name, layout, (number, reader))
                    seconds[number] += sent
                    seconds[reader] += received
            stages.append(SolvedStage(stage, plan, work))
            seconds[number] += self.exposed(stages[-1])
        alone, handover = len(stages) == 1, self.bounding.handover
        each = (
            (own + handover(run.block, alone)) / run.block.replicas for own, run in zip(seconds, sequence.runs, strict=True)
        )
        return SolvedStages(tuple(each), tuple(stages))

    def exposed(self, solved: SolvedStage) -> float:
        """Seconds of a microbatch that a stage spends beyond its ``work``: on sums of gradients that its problem takes for
        hidden, and its last backward pass does not hide."""
        if not self.bounding.training:
            return 0.0
        key = id(solved.plan)  # ``plans`` keeps the plan
        if key not in self.beyond:
            self.beyond[key] = self.decided(solved).bill.overlapped - solved.work
        return self.beyond[key]

    def plan_of(self, stage: StageTask) -> ShardPlan | None:
        """The stage's plan, None where none was found that fits."""
        run, border = stage.run, stage.border
        key = (
            self.bounding.units.key(run.first, run.behind),
            run.block.form,
            stage.given.overlap,
            stage.in_flight,
            tuple(border.arriving.values()),
            tuple(tuple(row.tolist()) for row in border.send.values()),
            tuple(name in border.whole for name in border.send),
            stage.buffers,
            tuple(stage.returned.values()),
        )
        if key not in self.plans:
            plan = self.fitting(stage)
            self.plans[key] = plan and truthful_plan(stage.given, plan)
        return self.plans[key]

    def fitting(self, stage: StageTask) -> ShardPlan | None:
        """The quickest plan that was found whose weights, workspace and buffers are within the limit."""
        limit = self.bounding.limit(stage.run.block.mesh)
        if limit is None:
            return self.new_plan(stage, None)
        fitter, run = _StageFitter(self, stage, limit - stage.buffers), stage.run
        least = self.bounding.workspace.inside(run.block.mesh, stage.cutter.given)[run.first, run.behind]
        first = self.new_plan(stage, limit - stage.buffers - float(least))
        if first is None or fitter.fits(first.choices):
            return first
        ends = now() + max(LEAST * MOST_TRIES, min(LONGEST, self.until - now()))
        found = min(fitter.lowered(first, ends), key=lambda one: one.value, default=None)
        if found is None and fitter.nearest is not None:
            needs = replace(fitter.nearest, buffers=fitter.nearest.buffers + stage.buffers)
            self.nearest = lacking("a stage of the nearest needs", needs, run.block.mesh.devices[0], limit)
        return found

    def new_plan(self, stage: StageTask, limit: float | None) -> ShardPlan | None:
        """The plan of a search of the stage, None where it found none. ``limit``: bytes of what adds up over nodes."""
        seconds = max(LEAST, min(LONGEST, self.until - now()))
        try:
            return solve(stage.given.problem, memory=limit, seconds=seconds, progress=self.bounding.progress)
        except NoPlanError:
            return None

    def readers(self, sequence: _Sequence, cutter: Cutter, name: str, number: int) -> list[int]:
        """The stages that read a value, other than the one that makes it."""
        nodes = cutter.given.problem.values[cutter.number[name]].readers
        return sorted({sequence.home[node] for node, _ in nodes if node in sequence.home} - {number})

    def returned(self, sequence: _Sequence, cutter: Cutter, name: str, number: int, readers: Sequence[int]) -> tuple[int, ...]:
        """Bytes of buffers of the gradients of a value that come back from its readers, by the layout in which it is made."""
        layouts, parties = cutter.given.layouts[name].placements, sequence.parties
        if not self.bounding.training or name not in self.bounding.base.trained:
            return (0,) * len(layouts)
        type_, here, others = cutter.types[name], parties[number][0], [(reader, parties[reader][0]) for reader in readers]
        sizes = [[(reader, laid_bytes(type_, lies, here, there)) for reader, there in others] for lies in layouts]
        return tuple(sum(buffer_bytes("sum", reader, number, size, returns=True) for reader, size in row) for row in sizes)

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
        size = laid_bytes(cutter.types[name], layout, makers[0], readers[0])
        return self.crossing.ends(size, makers, readers, returns=name in self.bounding.base.trained)

    def decided(self, solved: SolvedStage) -> Staged:
        """The decisions of a stage's plan, with their costs counted a second time, by ``price``."""
        staged = self.staged(solved.stage, solved.plan.choices)
        counted = staged.bill.relaxed(solved.stage.given.overlap, self.bounding.microbatches)
        if not math.isclose(counted, solved.work, rel_tol=AGREE, abs_tol=1e-12):
            raise AssertionError(f"the search counts {solved.work} s of a stage, its second count {counted} s")
        return staged

    def staged(self, stage: StageTask, choices: Sequence[int]) -> Staged:
        """A plan of a stage with its bill."""
        bounding, block, decisions = self.bounding, stage.run.block, stage.decisions(choices)
        mesh = block.mesh.limited(bounding.memory)
        bill = price(
            bounding.module,
            stage.given.func,
            mesh,
            decisions,
            training=bounding.training,
            microbatches=bounding.microbatches,
            in_flight=stage.in_flight,
        )
        return Staged(tuple(sorted(stage.ops)), mesh, decisions, bill, block.others)


class _StageFitter(Fitter):
    """Counts plans of one stage whole; ``limit``: bytes without its buffers."""

    def __init__(self, solver: StageSolver, stage: StageTask, limit: float) -> None:
        bounding = solver.bounding
        super().__init__(
            bounding.module,
            stage.given,
            limit,
            training=bounding.training,
            microbatches=bounding.microbatches,
        )
        self.solver, self.stage = solver, stage

    @cached_property
    def alive(self) -> Alive:
        order = sorted(range(len(self.stage.ops)), key=self.stage.ops.__getitem__)
        return Alive(self.module, self.given, entering=self.stage.problem.entering, order=order)

    def staged(self, choices: Sequence[int]) -> Staged:
        return self.solver.staged(self.stage, truthful(self.given, choices))

    def footprint(self, choices: Sequence[int]) -> Footprint:
        found, stage = super().footprint(choices), self.stage
        returned = sum(sizes[stage.made(choices, name)] for name, sizes in stage.returned.items() if any(sizes))
        return replace(found, buffers=returned)

    @property
    def func(self) -> Func:
        return self.module.entry
