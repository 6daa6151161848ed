"""The pass: a model or a workload split for the problems of the literature, to stages, a plan and its proof.

It is the pass ``partition`` with other searches: for one sample alone (``latency``), for any assignment of ops to devices
(``assignment``), and for the forward and backward nodes of a profile (``training``). A device may run several stages of its
plans, which names their devices then. For one sample alone of a model, one mesh is searched first and stages on meshes last, as
``partition`` does: all devices of a mesh work at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.module import Module, Plan
from ir.core.objectives import ANY, CONTIGUOUS, THROUGHPUT, Objective, Planned, objective_of, offered
from ir.core.topology import Topology
from ir.text.witness import DEVICES
from passes.costs.memory.liveness import states_bytes
from passes.costs.network import network
from passes.framework.base import PassContext, needed
from passes.framework.registry import ANY_FORM, NO_MESH
from passes.graph.faults import NotAChoice, NotInRange
from passes.partition.best import Search, best_of
from passes.partition.bridge.handover import slowest, with_handover
from passes.partition.bridge.lattice_search import Counts, LatticeSearch
from passes.partition.bridge.lattice_search import Search as SearchOfProblem
from passes.partition.bridge.pins import check_cuts, check_separable
from passes.partition.bridge.plan import Asked
from passes.partition.bridge.requests import read_cuts, read_pins
from passes.partition.bridge.steps import Steps
from passes.partition.faults import ChunksSayStages, NotAnOption, WithoutFlush
from passes.partition.lattice.objective import Budget, Solution
from passes.partition.lattice.search.replicas import MOST_REPLICAS
from passes.partition.partition_pass import KINDS, PartitionPass
from passes.partition.place import PlacePass
from passes.reference.assignment.solver import AnySolution, solve_any
from passes.reference.assignment.training import solve_any_training
from passes.reference.faults import FreeTransfers, NoSplit
from passes.reference.from_workload import training_graph_of
from passes.reference.latency.build import latency_problem, solve_pieces
from passes.reference.latency.liveness import liveness
from passes.reference.latency.problem import Piece, schedule
from passes.reference.several_stages import (
    boundaries_text,
    bounded,
    in_pieces,
    own_devices,
    soonest_on_links,
    worth_its_boundaries,
)
from passes.reference.training import solve_training
from passes.solvers.work import now
from passes.stages.colocation import colocation
from passes.stages.from_ir import problem_of
from passes.stages.problem import Problem
from passes.stages.reduce import Groups, memory_can_bind, ordered, quotient

SPLITS = (CONTIGUOUS, ANY)
FIRST_SHARE = 0.6
"""Of the time of any split where memory may bind: the rest is for a bound of all plans."""


@dataclass(frozen=True)
class ReferencePass(LatticeSearch):
    """Split the model by a problem of the literature: latency in pieces, any assignment, forward and backward nodes.

    The options are those of ``partition``, and: ``objective`` may also be ``latency`` (least time of one sample alone; a device
    runs up to ``pieces`` stages, one after another), and ``training`` of a profile (least largest load of forward and backward
    nodes, a colour on one device, which runs a stage forward and one backward). ``mesh``: of latency ``any`` (stages on single
    devices or on meshes; with pins on devices alone) or ``none``. ``split``: ``contiguous`` (data flows forward only between
    devices) or ``any`` (back and forth; several stages on a device).
    """

    name: ClassVar[str] = "reference"
    split: str = CONTIGUOUS
    pieces: int = 1
    mesh: str = NO_MESH

    @property
    def _minimises(self) -> Objective:
        return objective_of(self.objective)

    @property
    def _pipeline(self) -> bool:
        """Whether the problem is that of ``partition``: samples stream through stages that data leaves forward only."""
        return self._minimises.streams and self.split == CONTIGUOUS

    def _objectives(self, planned: Planned) -> tuple[Objective, ...]:
        return offered(planned)

    def _check(self, topology: Topology, planned: Planned) -> None:
        super()._check(topology, planned)
        if self.mesh not in (ANY_FORM, NO_MESH):
            raise InvalidInput(NotAChoice("mesh", self.mesh, f"{ANY_FORM}, {NO_MESH}"), where=self.name)
        if self.split not in SPLITS:
            raise InvalidInput(NotAChoice("split", self.split, ", ".join(SPLITS)), where=self.name)
        if self.split not in self._minimises.splits_of(planned):
            raise UsageError(NoSplit(self.split, self.objective), where=self.name)
        alone, trains = self._minimises.alone, self._minimises.trains
        refused = {
            "--stages": self.stages > 0 and not self._pipeline,
            "--replicas": self.replicas > 1 and not self._pipeline,
            "--cut": bool(self.cuts) and (alone or trains),
            "--pin": bool(self.pins) and trains,
            "--comm": self.comm != "sum" and (alone or trains),
            "--pieces": self.pieces != 1 and not alone,
        }
        by_objective = alone or trains or refused["--pieces"]
        self._refuse(refused, f"objective={self.objective}" if by_objective else f"split={self.split}")
        if self.pieces < 1:
            raise InvalidInput(NotInRange("pieces", self.pieces, "a number above 0"), where=self.name)

    def _refuse(self, flags: Mapping[str, bool], chosen: str) -> None:
        """Raises UsageError for flags that were given and are none of what was chosen."""
        if given := [flag for flag, wrong in flags.items() if wrong]:
            raise UsageError(NotAnOption(", ".join(given), chosen), where=self.name)

    def _found(self, module: Module, context: PassContext) -> Module:
        topology = needed(module, Topology)
        if not self._has_meshes(topology) or states_bytes(module.entry):
            return super()._found(module, context)

        def devices(context: PassContext, seconds: float | None) -> Module:
            """The module with the best plan on single devices, placed."""
            limit: dict[str, Any] = {} if seconds is None else {"time_limit": seconds}
            planned = replace(self, **limit).searched(module, context)
            return PlacePass(**limit).run(planned, replace(context, sink=DiagnosticSink()))  # it warns later

        *one, stages = [self._on_meshes.search_on(search, module) for search in self._on_meshes.on_meshes(topology)]
        # One mesh is quickly found, and rules out most of the others.
        if self._free_types(topology) and self.pieces == 1:
            return best_of([*one, stages], context, self.name)
        return best_of([*one, Search(KINDS[DEVICES], DEVICES, devices, stages.least), stages], context, self.name)

    def _has_meshes(self, topology: Topology) -> bool:
        """Whether stages on meshes are searched for a model."""
        return self._minimises.alone and self.mesh == ANY_FORM and not self.pins and len(topology.devices) > 1

    @property
    def _on_meshes(self) -> PartitionPass:
        """The pass whose search on meshes is asked."""
        return PartitionPass(objective=self.objective, mesh=ANY_FORM, replicas=1, time_limit=self.time_limit)

    def sets_of_devices(self, topology: Topology) -> str:
        """As of ``partition``."""
        return self._on_meshes.sets_of_devices(topology) if self._has_meshes(topology) else ""

    def _trained(self, module: Module, topology: Topology, context: PassContext, others: list[Module] | None) -> Module:
        """The module with a plan for training steps of a model."""
        self._refuse({"--pieces": self.pieces != 1}, "objective=training")
        if self.split == CONTIGUOUS:
            return super()._trained(module, topology, context, others)
        steps = self._steps(module, topology, context)
        if not steps.flush:
            raise UsageError(WithoutFlush(), where=self.name)
        if self.chunks > 1:
            raise UsageError(ChunksSayStages(self.chunks), where=self.name)
        module = replace(self, objective=THROUGHPUT.name)._planned(module, topology, context, steps)
        plan = module.first(Plan)
        assert plan is not None
        return module.replace(plan, steps.told(plan, None))

    def _asked(self, module: Module, topology: Topology, context: PassContext, steps: Steps | None, counts: Counts) -> Asked:
        """The problem of the options: of a training graph every node, else the classes of nodes that share a stage. Reductions
        are for throughput and contiguous splits."""
        if self._pipeline:
            return super()._asked(module, topology, context, steps, counts)
        net = context.analyses.get(network, topology)
        cuts = read_cuts(module.entry, self.cuts, context.gone)
        pins = read_pins(module.entry, topology, self.pins, context.gone)
        if pins or cuts:
            fine = problem_of(module, topology, net, comm=self.comm, pins=pins, cuts=cuts)
        else:
            fine = replace(context.analyses.get(problem_of, module, topology, net), comm=self.comm)
        if steps is not None:
            fine = steps.problem(fine, min(self.replicas or MOST_REPLICAS, len(topology.devices)))
        groups: Groups = tuple((op,) for op in range(fine.size))
        if not self._minimises.trains:
            groups = ordered(fine, context.analyses.get(colocation, module))
        return Asked(module, topology, net, fine, fine, groups, quotient(fine, groups), pins, steps)

    def _check_demands(self, asked: Asked) -> None:
        if self.split == CONTIGUOUS and self.pieces == 1:
            super()._check_demands(asked)
            return
        check_separable(asked.fine, asked.groups, asked.pins)
        if self.split == ANY:
            check_cuts(asked.fine, asked.groups, asked.pins, ordered=False)

    def _search(self, asked: Asked, context: PassContext) -> SearchOfProblem:
        if self._pipeline:
            return super()._search(asked, context)
        if self._minimises.alone:
            return self._latency(asked, context)
        search = self._training(asked, context) if self._minimises.trains else self._assignment(context)
        return lambda problem, budget: in_pieces(asked.problem, search(problem, budget))

    def _latency(self, asked: Asked, context: PassContext) -> SearchOfProblem:
        if free := self._free_types(asked.topology):
            raise UsageError(FreeTransfers(", ".join(free)), where=self.name)
        func = asked.module.entry
        alive = None if states_bytes(func) else liveness(func, asked.groups)
        return lambda problem, budget: solve_pieces(problem, budget, context.progress, self.pieces, alive)

    def _free_types(self, topology: Topology) -> list[str]:
        """Types of devices that transfer for free, on which the time of one sample alone is searched on meshes only."""
        return sorted({device.type for device in topology.devices if topology.type(device.type).free_transfers})

    def _assignment(self, context: PassContext) -> SearchOfProblem:
        return lambda problem, budget: solve_any(problem, budget, context.progress)

    def _training(self, asked: Asked, context: PassContext) -> SearchOfProblem:
        graph = training_graph_of(asked.module, asked.topology, asked.net)
        solver = solve_training if self.split == CONTIGUOUS else solve_any_training
        return lambda problem, budget: solver(graph, "sum", budget, context.progress)

    def _first(self, asked: Asked, search: SearchOfProblem, budget: Budget, context: PassContext, ends: float) -> Solution:
        if self.split == CONTIGUOUS or not self._minimises.streams or not memory_can_bind(asked.fine):
            return super()._first(asked, search, budget, context, ends)
        part = replace(budget, seconds=FIRST_SHARE * budget.seconds)
        solution = super()._first(asked, search, part, context, ends)
        return bounded(solution, asked, budget, ends, context.progress)

    def _counts_exactly(self, asked: Asked) -> bool:
        """For one sample alone an edge needs no more buffers than the search counts."""
        return self._minimises.alone or super()._counts_exactly(asked)

    def _on_copies(self, asked: Asked, held: Problem, search: SearchOfProblem, budget: Budget) -> Solution | None:
        return super()._on_copies(asked, held, search, budget) if self._pipeline else None

    def _on_machines(
        self, asked: Asked, solution: Solution, copied: Solution | None, seconds: float, context: PassContext
    ) -> Solution:
        if self._pipeline:
            return super()._on_machines(asked, solution, copied, seconds, context)
        if asked.steps is None:
            if isinstance(solution, AnySolution):
                solution = worth_its_boundaries(asked, solution, now() + seconds)
            if self._minimises.alone:
                search = self._latency(asked, context)

                def within(problem: Problem, seconds: float) -> Solution:
                    return search(problem, self._budget(seconds, math.inf))

                solution = soonest_on_links(asked, solution, within, self._latency_of, now() + seconds)
            solution = with_handover(asked, solution, self._latency_of if self._minimises.alone else slowest)
        if self._minimises.alone or len(solution.parts) > len(solution.stages or ()):
            return replace(solution, devices=solution.devices or own_devices(asked.problem, solution))
        return solution

    def _latency_of(self, problem: Problem, solution: Solution) -> float:
        """The time of one sample alone."""
        stages = solution.stages or ()
        built = latency_problem(problem, [False] * len(problem.kinds), (), self.pieces)
        plan = [Piece(stages[owner][0], owner, nodes) for owner, nodes in solution.parts]
        return schedule(built.problem, plan).latency

    def _plan(self, asked: Asked, solution: Solution) -> Plan:
        plan = super()._plan(asked, solution)
        return replace(plan, microbatches=0) if self._minimises.trains else plan

    def _certificate(self, asked: Asked, solution: Solution) -> dict[str, str]:
        certificate = super()._certificate(asked, solution)
        if self.split != CONTIGUOUS:
            certificate["split"] = self.split
            certificate["boundaries"] = boundaries_text(asked.problem, solution.parts)
        if self._minimises.alone:
            certificate["pieces"] = str(self.pieces)
        return certificate

    def _prescribed(self) -> bool:
        return not self._pipeline or super()._prescribed()
