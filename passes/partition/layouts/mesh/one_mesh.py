"""The cheapest plan of a function on one mesh, of several meshes (``candidates``), and a bound of all of them.

Meshes are searched in order, each only for a plan that is better than the best so far: one whose bound is not below that is
left as soon as it is known, before a problem is built if its compute alone says so. In training each mesh has two problems
(``OVERLAPS`` of ``build``), and the one that bounded the mesh before better is solved first; then come problems between these
two where they may raise the bound. Where ``sync`` may avoid sums of gradients, a problem without sums comes first, which alone
bounds all plans. A plan by name (the option ``strategy``) is made on every mesh; the search beside it is for the bound alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ir.core.diagnostics import Infeasible, InvalidInput
from ir.core.module import Module
from ir.core.outcomes import TIGHT
from ir.core.topology import Device, Topology
from passes.costs.learning import avoids_sums, samples_of
from passes.costs.memory.footprint import Footprint
from passes.costs.network import network
from passes.framework.base import NoBetterPlan, PassContext
from passes.graph.folding import folding
from passes.meshes.costs.bill import UNSUMMED
from passes.meshes.mesh import DeviceMesh, mesh_of
from passes.meshes.notation import Along
from passes.partition.layouts.decide import truthful_plan
from passes.partition.layouts.faults import MeshOverMemory, NamedPlanMisfit, WeightsOverMesh
from passes.partition.layouts.mesh.candidates import Candidate, Candidates
from passes.partition.layouts.mesh.fitting import Fitter
from passes.partition.layouts.mesh.named import DATA, UnfitError, named_plan
from passes.partition.layouts.mesh.speeds import dealt_evenly
from passes.partition.layouts.problem.build import OVERLAPS, Builder, overlaps_on
from passes.partition.layouts.solver.search import BOUNDING, NoPlanError, ShardPlan, solve
from passes.partition.options import MeshOptions
from passes.solvers.anytime import Anytime, Limits
from passes.solvers.work import now
from passes.stages.load import handover

NAME = "partition"
"""The pass that counts this work."""
MOST_BETWEEN = 3
"""Problems with overlaps between those of ``OVERLAPS`` that are solved on one mesh."""
BETTER = 2e-3
"""Relative: such a problem is solved where it may better the bound by more."""


@dataclass(frozen=True, slots=True)
class OnOneMesh:
    """The plan with what counts it; its ``value`` and a ``bound`` of all meshes, seconds of a run with its hand-over, the bound
    0 where some were not searched; how many were ``searched``; ``sets``: of each set of devices, seconds that no plan on them
    is below."""

    fitter: Fitter
    plan: ShardPlan
    value: float
    bound: float
    searched: int
    sets: dict[tuple[Device, ...], float]


@dataclass(slots=True)
class _Problems:
    """The problems of one mesh that were solved, their plans, what bounds all plans there, and seconds that are left for this
    mesh."""

    mesh: DeviceMesh
    fitters: list[Fitter] = field(default_factory=list)
    plans: list[ShardPlan] = field(default_factory=list)
    least: float = 0.0
    began: float = 0.0
    seconds: float = 0.0

    @property
    def left(self) -> float:
        return max(0.1, self.seconds - (now() - self.began))


class MeshSearch(Anytime[tuple[Fitter, ShardPlan]]):
    """One search over the candidates ``among``; its value is of a run of the function."""

    def __init__(
        self,
        module: Module,
        topology: Topology,
        among: Candidates,
        asked: MeshOptions,
        limits: Limits,
        context: PassContext,
    ) -> None:
        super().__init__(limits, context.progress)
        self.module, self.topology, self.among, self.asked, self.context = module, topology, among, asked, context
        self.builder = Builder(
            module,
            module.entry,
            context.analyses.get(folding, module.entry, module),
            training=asked.training,
            microbatches=asked.step_microbatches,
        )
        self.sets: dict[tuple[Device, ...], float] = {}
        self.without: list[tuple[float, float, str, str]] = []  # meshes without a plan: bytes, limit, mesh, whose
        self.missing: list[tuple[float, Footprint, DeviceMesh]] = []
        self.unfit: list[UnfitError] = []
        self.unsummed = asked.training and avoids_sums(module)
        self.took, self.tightest, self.searched = 0.0, OVERLAPS[0], len(among.searched)
        self.fewer = False  # whether the mesh that is looked at has fewer devices than the best plan
        self.handover = 0.0  # of the mesh that is looked at

    def run(self) -> OnOneMesh:
        """All meshes but those that an interrupt from the keyboard left, once there was a plan. Raises NoBetterPlan, and
        Infeasible or InvalidInput where no mesh has a plan. The bound counts meshes that a plan by name does not fit."""
        self.search(self._every)
        every = self.searched == len(self.among.searched)
        bound = min([self.among.bound, *self.sets.values()]) if every else 0.0
        if self.context.incumbent is not None and (self.best is None or self.value >= self.limits.beaten):
            self.context.count(NAME, interrupted=int(self.interrupted))
            raise NoBetterPlan(0.0 if self.unfit and not self.sets else bound, NAME)
        if self.best is None:
            error = self.refusal()
            if isinstance(error, Infeasible):
                error.proven, error.bound = bound == math.inf and not self.missing, bound
            raise error
        fitter, plan = self.best[0], truthful_plan(self.best[0].given, self.best[1])
        plan = replace(plan, interrupted=self.interrupted)
        return OnOneMesh(fitter, plan, self.value, min(bound, self.value), self.searched, self.sets)

    def _every(self) -> None:
        for number, candidate in enumerate(self.among.searched):
            self.searched = number
            if self.best is not None and self.left() < 0:
                self.bounded(candidate, candidate.least)
            else:
                self.look(number, candidate)
            self.searched = number + 1
            if self.interrupted:
                return

    def bounded(self, candidate: Candidate, bound: float) -> None:
        """Notes that no plan on this mesh is below ``bound`` and its hand-over."""
        bound += self.handed(candidate.devices)
        self.sets[candidate.devices] = min(bound, self.sets.get(candidate.devices, math.inf))

    def handed(self, devices: Sequence[Device]) -> float:
        """Seconds of a run that the slowest of these devices spends on hand-over, which no problem counts."""
        types = [self.topology.type(device.type) for device in devices]
        return handover(types, 1, len(devices), training=self.asked.training)

    @property
    def beaten(self) -> float:
        """Seconds of a run, without hand-over, below which a plan is worth finding. Beside a plan by name the search bounds all
        plans."""
        return self.worth if self.best is not None and not self.asked.strategy else self.limits.beaten - self.handover

    @property
    def worth(self) -> float:
        """The same below which it is better than the best; one on fewer devices is better where it takes as long."""
        return (self.value * (1 + TIGHT) if self.fewer else self.value) - self.handover

    def look(self, number: int, candidate: Candidate) -> None:
        """Searches one mesh and keeps its plan where that is better."""
        self.fewer = self.best is not None and len(candidate.devices) < len(self.best[0].given.mesh.devices)
        self.handover = self.handed(candidate.devices)
        if candidate.least >= self.beaten < math.inf:
            self.bounded(candidate, candidate.least)
            return
        self.context.progress(f"mesh {'x'.join(map(str, candidate.sizes))}", number / len(self.among.searched))
        net = self.context.analyses.get(network, self.topology)
        mesh = mesh_of(self.topology, net, candidate.sizes, shares=candidate.shares, devices=candidate.devices)
        mesh = mesh.limited(self.asked.device_memory)
        found, began = _Problems(mesh, began=now()), time.perf_counter()
        found.seconds = max(0.1, self.left() / (len(self.among.searched) - number))
        try:
            self.solve(found)
            if found.least >= self.beaten < math.inf and not found.plans[-1].interrupted:
                self.bounded(candidate, found.least)
                return
            plan = self.settle(candidate, found)
        except UnfitError as error:
            self.unfit.append(UnfitError(f"mesh {mesh}: {error}"))
            return
        except NoPlanError as error:
            whose = f" of the plan '{self.asked.strategy}'" if self.asked.strategy and found.plans else ""
            self.without.append((error.least, float(mesh.memory or 0), str(mesh), whose))
            return
        finally:
            self.took += time.perf_counter() - began
            self.context.count(NAME, seconds=self.took)
        if plan is not None:
            self.bounded(candidate, plan.bound)

    def overlaps(self, mesh: DeviceMesh) -> list[float | None]:
        """Those of the problems to solve, in order."""
        if not self.asked.training or len(mesh.devices) == 1:
            return [None]
        in_order = sorted(overlaps_on(mesh.types), key=lambda overlap: overlap != self.tightest)
        return [UNSUMMED, *in_order] if self.unsummed else [*in_order]

    def evenly(self, sizes: tuple[int, ...]) -> Along:
        """The shares of data parallelism."""
        return dealt_evenly(samples_of(self.module.entry), sizes) if self.asked.training else ()

    def solve(self, found: _Problems) -> None:
        """Builds and solves the problems of a mesh, until one says that no plan there is worth finding."""
        overlaps = self.overlaps(found.mesh)
        each = found.seconds / len(overlaps)
        for overlap in overlaps:
            self.solve_one(found, overlap, each)
            if found.plans[-1].interrupted or found.least >= self.beaten:
                return
        if len(overlaps) == 2 and not self.unsummed and not self.asked.strategy:
            self.between(found)

    def solve_one(self, found: _Problems, overlap: float | None, seconds: float) -> None:
        """Builds and solves the problem of a mesh with this ``overlap``."""
        asked, building = self.asked, now()
        given = self.builder.build(found.mesh, overlap=overlap)
        found.began += now() - building  # building is no search
        plan = solve(
            given.problem,
            memory=found.mesh.memory,
            seconds=min(seconds, BOUNDING) if asked.strategy else seconds,
            gap=self.limits.gap,
            beaten=self.beaten,
            anytime=not asked.strategy,
            progress=self.context.progress,
        )
        limit, training = found.mesh.memory, asked.training
        fitter = Fitter(self.module, given, limit, training=training, microbatches=asked.step_microbatches)
        found.fitters.append(fitter)
        found.plans.append(plan)
        if (overlap in (None, UNSUMMED) or not self.unsummed) and plan.bound >= found.least:
            found.least = plan.bound
            if overlap in (None, *OVERLAPS):
                self.tightest = overlap or 0.0

    def between(self, found: _Problems) -> None:
        """Solves problems with overlaps between those of ``OVERLAPS``. The seconds that a problem counts of one plan are linear
        in its overlap, and the bound, the least of all plans, is concave: it is highest at most where the lines of a plan of
        few sums and one of many meet. That is the next overlap, until no plan is found below both lines."""
        lines = [self.line(fitter, plan) for fitter, plan in zip(found.fitters, found.plans, strict=True)]
        few, many = sorted(lines, key=lambda line: line[1])
        for _ in range(MOST_BETWEEN):
            if not many[1] > few[1]:
                return
            overlap = (few[0] - many[0]) / (many[1] - few[1])
            most = few[0] + overlap * few[1]
            if not 0 < overlap < 1 or most <= found.least * (1 + max(self.limits.gap, BETTER)):
                return
            self.solve_one(found, overlap, found.left / 2)
            plan = found.plans[-1]
            if plan.interrupted or found.least >= self.beaten or plan.value >= most * (1 - TIGHT):
                return
            line = self.line(found.fitters[-1], plan)
            few, many = (line, many) if line[1] < 0 else (few, line)

    def line(self, fitter: Fitter, plan: ShardPlan) -> tuple[float, float]:
        """What a problem without overlap counts of a plan, and how much more for each part of overlap."""
        bill = fitter.staged(plan.choices).bill
        least, most = (bill.relaxed(overlap, self.asked.step_microbatches) for overlap in (0.0, 1.0))
        return least, most - least

    def settle(self, candidate: Candidate, found: _Problems) -> ShardPlan | None:
        """Prices the plan of a mesh, or the one by name, in full and keeps it where it is the best so far; the plan, None where
        none fits."""
        asked, least, limit, fitters = self.asked, found.least, found.mesh.memory, found.fitters
        named = partial(named_plan, self.module, name=asked.strategy, memory=limit)
        if asked.strategy:
            self.bounded(candidate, least)
            if asked.strategy == DATA and not asked.shares and candidate.shares != self.evenly(candidate.sizes):
                raise UnfitError("it has equal shares unless others are given")
            plans = [named(given=fitter.given) for fitter in fitters]
        else:
            plans = found.plans
            if not plans[-1].interrupted and least < self.beaten:
                try:
                    plans = [fitter.improved(plan, self.limits.gap) for fitter, plan in zip(fitters, plans, strict=True)]
                except KeyboardInterrupt:
                    plans[-1] = replace(plans[-1], interrupted=True)
        ranked = self.ranked(fitters, plans, least)
        fitter, plan = ranked[0]
        if self.best is not None and plan.value >= self.worth:
            self.note(fitter, plan)
            return plan
        fitted = self.fitted(ranked, found, least)
        if fitted is None:
            assert limit is not None
            assert fitter.nearest is not None
            self.missing.append((fitter.nearest.total - limit, fitter.nearest, found.mesh))
            self.bounded(candidate, plan.bound)
            if plan.interrupted:
                raise KeyboardInterrupt
            return None
        self.note(*fitted)
        return fitted[1]

    def note(self, fitter: Fitter, plan: ShardPlan) -> None:
        """Keeps a plan that fits where it is the best, and in any case that the search was interrupted."""
        if self.best is None or plan.value < self.worth:
            self.best, self.value = (fitter, plan), plan.value + self.handover
        self.interrupted |= plan.interrupted

    def ranked(self, fitters: Sequence[Fitter], plans: Sequence[ShardPlan], bound: float) -> list[tuple[Fitter, ShardPlan]]:
        """The plans of some problems, the quickest first, marked as interrupted where one of them was; ``bound``: of all
        plans."""
        found = list[tuple[Fitter, ShardPlan]]()
        interrupted = any(plan.interrupted for plan in plans)
        for fitter, plan in zip(fitters, plans, strict=True):
            if found:  # the same plan is priced once
                fitter.last, fitter.after = found[-1][0].last, found[-1][0].after
            found.append((fitter, replace(fitter.counted(plan, bound), interrupted=interrupted)))
        return sorted(found, key=lambda row: row[1].value)

    def fitted(
        self, ranked: Sequence[tuple[Fitter, ShardPlan]], found: _Problems, least: float
    ) -> tuple[Fitter, ShardPlan] | None:
        """The first plan that fits with all that it needs, or another like the first; None where none was found, or another
        was not asked for."""
        counting = now()
        fits = next(((fitter, plan) for fitter, plan in ranked if fitter.fits(plan.choices)), None)
        found.began += now() - counting  # a count is no search
        if fits is not None or self.asked.strategy:
            return fits
        fitter, plan = ranked[0]
        other = fitter.fitting(plan, self.limits.gap, seconds=found.left)
        if other is None:
            return None
        return fitter, replace(fitter.counted(other, least), interrupted=other.interrupted or plan.interrupted)

    def refusal(self) -> Infeasible | InvalidInput:
        """What says best why no mesh has a plan."""
        strategy, name = self.asked.strategy, self.topology.name
        if self.missing:
            over, bytes_, mesh = min(self.missing, key=lambda found: found[0])
            what = f"the plan '{strategy}'" if strategy else "the nearest that was found"
            smallest = _smallest(mesh, self.topology)
            fault = MeshOverMemory(str(mesh), what, bytes_.total, smallest, str(bytes_), math.ceil(over))
            return Infeasible(fault, where=name)
        if not self.without:
            return unfit(self.unfit[0], strategy, self.module)
        least, limit, shape, whose = min(self.without)
        over = math.ceil(least - limit)
        kept = "weights and what a backward pass needs" if self.asked.training else "weights"
        return Infeasible(WeightsOverMesh(f"{kept}{whose}", math.ceil(least), str(shape), over), where=name)


def unfit(error: UnfitError, strategy: str, module: Module) -> InvalidInput:
    """What tells a person that a plan by name does not fit the model."""
    return InvalidInput(NamedPlanMisfit(strategy, str(error)), where=module.name)


def _smallest(mesh: DeviceMesh, topology: Topology) -> str:
    """The device with the least memory."""
    devices = [topology.device(name) for name in mesh.devices]
    return min(devices, key=lambda device: math.inf if (limit := topology.memory(device)) is None else limit).name
