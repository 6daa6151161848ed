"""The pass: from groups and a topology to stages, a plan and its proof.

Reads the ``Group`` facets of ``contract`` (without them, or where a cut, a pin or a number of stages splits them, it goes back
to the classes of ``colocation``), and the topology. When ``contract`` gave something up, the bound is that of the graph before
it did. Writes a ``StageSet`` facet on every op of the entry function (stages numbered in pipeline order) and a ``Plan``. A
stage that holds pinned ops has its device filled in, the others are for ``place``. With ``split=any`` data may flow back and
forth between devices: each device has the stages that ``pieces`` makes of its set, and is filled in too. The plan's certificate
says how the bound was reached, what was searched, and what the user asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Module, Plan, Program, Schedule, Stage
from ir.core.names import unique
from ir.core.objectives import (
    ANY,
    CONTIGUOUS,
    LATENCY,
    THROUGHPUT,
    TRAINING,
    Objective,
    Planned,
    names,
    objective_of,
    offered,
)
from ir.core.topology import Topology
from passes.framework.base import NoBetterPlan, Pass, PassContext, needed
from passes.framework.expanded import on_expanded
from passes.model.digest import problem_digest
from passes.model.faults import NotAChoice, NotInRange
from passes.model.learning import step_text
from passes.model.liveness import own_bytes, states_bytes
from passes.model.network import Network, network
from passes.model.spmd.undecided import undecided
from passes.model.stages.bounds import best_bound
from passes.model.stages.colocation import colocation
from passes.model.stages.from_ir import problem_of
from passes.model.stages.fusing import streamed_problem_of, with_borders
from passes.model.stages.lattice.dp import Stages
from passes.model.stages.load import COMM
from passes.model.stages.problem import Problem, pools
from passes.model.stages.reduce import Groups, memory_can_bind, ordered, quotient, reduce
from passes.model.symbols import insert_symbols
from passes.model.work import now
from passes.partition.bridge.chunks import check_chunks, chunked, on_devices
from passes.partition.bridge.explain import Overfull, at_least_a_plan, explain
from passes.partition.bridge.handover import common, counting, one_stage, whole_model, with_handover
from passes.partition.bridge.memory import against, bounded, within_memory
from passes.partition.bridge.pins import check_cuts, check_order, check_separable
from passes.partition.bridge.plan import (
    Asked,
    Parts,
    boundaries_text,
    contracted_groups,
    contracted_inexactly,
    plan_stages,
    uncut,
    with_stages,
)
from passes.partition.bridge.requests import read_cuts, read_pins
from passes.partition.faults import ChunksSayStages, FreeTransfers, NoDevice, NoSplit, NotAnOption, WithoutFlush
from passes.partition.objective import AnySolution, Budget, Solution
from passes.partition.search.replicas import MOST_REPLICAS, replicate
from passes.partition.search.throughput import solve

if TYPE_CHECKING:
    from passes.partition.bridge.steps import Steps

Solver: TypeAlias = Callable[..., Solution]
"""A function of (problem, budget, progress); that of latency takes ``pieces`` as well, that of training a graph of its own."""
FIRST_SHARE = 0.6
"""Of the time of any split where memory may bind: the rest is for a bound of all plans."""
HARDLY = 5e-2
"""Relative: how much better than the incumbent a training step has to be at least by its compute alone, spread over all devices
and with nothing sent. Where it is not, and the incumbent has no better bound, none is looked for."""


def _solve_any(*arguments: Any, **options: Any) -> AnySolution:
    """``assignment.solver.solve_any``, imported where it is asked for, as all that most plans do not need."""
    from passes.reference.assignment import solver

    return solver.solve_any(*arguments, **options)


def _solve_pieces(*arguments: Any, **options: Any) -> Solution:
    from passes.reference.latency.build import solve_pieces

    return solve_pieces(*arguments, **options)


SOLVERS: dict[tuple[str, str], Solver] = {
    (THROUGHPUT.name, CONTIGUOUS): solve,
    (THROUGHPUT.name, ANY): _solve_any,
    (LATENCY.name, CONTIGUOUS): _solve_pieces,
}
"""How to solve for a stream or a sample, by objective and split; ``_training`` solves the rest."""
SPLITS = (CONTIGUOUS, ANY)
MICROBATCHES = 8
"""Of a training step unless it is told."""


@dataclass(frozen=True)
class PartitionPass(Pass):
    """Split the model into stages, one per device, by dynamic programming over the lattice of ideals.

    ``objective``: ``throughput`` (least largest load per sample), ``latency`` (least time of one sample alone; a device runs up
    to ``pieces`` stages, one after another) or ``training`` (least time of a step; of a profile: least largest load of forward
    and backward nodes, a colour on one device, which runs a stage forward and one backward). ``split``: ``contiguous`` (data
    flows forward only between devices) or ``any`` (back and forth; several stages on a device). ``comm``: how compute and
    transfers of a device add up (``sum``, ``overlap``, ``duplex``). ``cuts``: tensors whose maker and readers must lie in
    different stages. ``pins``: ``NODE=DEVICE``. ``stages``: exactly so many (0: at most one per device). ``replicas``: most
    devices that a stage may run on, each handling every so-many-th sample (0: as many as there are, where the objective has a
    use for them). ``microbatches``: of a training step (0: 8; those of a profile are a stream), ordered as ``family`` does
    (empty: as 1F1B; ``passes.model.timeline.families``). ``chunks``: stages on each device of a training step, put there in
    ``chunk_order``, ``loop`` or ``v`` (1: one, on any). ``max_ideals``, ``max_pairs``: ideals walked over and pairs of them
    tested before the search turns to those near a good order. ``memory``: MiB that the search may hold. ``time_limit``:
    seconds of counted work. ``anytime``: an interrupt from the keyboard ends the search with its best plan instead of the run.
    ``hosts``: look for plans that are better where links between hosts are slower than inside.
    """

    name: ClassVar[str] = "partition"
    objective: str = THROUGHPUT.name
    split: str = CONTIGUOUS
    pieces: int = 1
    comm: str = "sum"
    cuts: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    stages: int = 0
    replicas: int = 1
    microbatches: int = 0
    family: str = ""
    chunks: int = 1
    chunk_order: str = "loop"
    max_ideals: int = 5_000_000
    max_pairs: int = 60_000_000
    memory: int = 512
    time_limit: float = 10.0
    anytime: bool = False
    hosts: bool = True

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for an option that names nothing, Infeasible when no plan fits."""
        topology = needed(module, Topology)
        module = undecided(module)
        planned = Planned.PROFILE if states_bytes(module.entry) else Planned.OPS
        if self.objective != TRAINING.name or planned is Planned.PROFILE:
            self._check(topology, planned)
            return self._planned(module, topology, context, beaten=_worth(context) if self._pipeline else math.inf)
        return self._steps(module, topology, context)

    def _steps(self, module: Module, topology: Topology, context: PassContext) -> Module:
        """The module with a plan for training steps."""
        from passes.partition.bridge.steps import Steps

        if self.split not in self._minimises.splits_of(Planned.OPS):
            raise UsageError(NoSplit(self.split, "training", " for a model"), where=self.name)
        self._refuse({f"--comm {self.comm}": self.comm != "sum", "--pieces": self.pieces != 1}, "objective=training")
        stream = replace(self, objective=THROUGHPUT.name, hosts=False)
        stream._check(topology, Planned.OPS)
        if self.microbatches < 0:
            raise InvalidInput(NotInRange("microbatches", self.microbatches, "a number above 0"), where="--microbatches")
        every, most = len(topology.devices), self.replicas or MOST_REPLICAS
        net = context.analyses.get(network, topology)
        steps = Steps(module, topology, net, self.microbatches or MICROBATCHES, self.family, most)
        if not steps.flush and (self.replicas != 1 or self.chunks > 1 or self.split == ANY):
            raise UsageError(WithoutFlush(), where=self.name)

        beaten = _worth(context)
        any_devices = range(min(self.stages or 1, every), every + 1)
        least, worth = steps.least(0.0, any_devices), steps.longest(beaten, any_devices)
        if worth <= 0.0 or (context.incumbent and least >= max(context.incumbent.bound, beaten / (1 + HARDLY))):
            raise NoBetterPlan(least, self.name)

        def devices(stages: int) -> range:
            return range(stages, min(every, stages * most) + 1)

        def plan_of(stages: int) -> tuple[Module, Plan, float]:
            found = replace(stream, stages=stages)._planned(module, topology, context, steps, beaten=worth)
            plan = found.first(Plan)
            assert plan is not None
            shared = self.chunks > 1 or self.split == ANY
            told = steps.told(plan, None if shared else devices(stages) if stages else range(1, every + 1))
            return found.replace(plan, told), told, plan.bound

        if self.chunks > 1:
            return self._in_chunks(topology, plan_of)
        try:
            if self.stages or self.split == ANY or not steps.flush:
                return plan_of(self.stages)[0]
            return steps.quickest(plan_of, devices, beaten)
        except NoBetterPlan as error:  # a bound on periods
            raise NoBetterPlan(steps.least(error.bound, any_devices), self.name) from None
        except Overfull as error:  # likewise
            error.bound = steps.least(error.bound, any_devices)
            raise

    def _in_chunks(self, topology: Topology, plan_of: Callable[[int], tuple[Module, Plan, float]]) -> Module:
        """The module with a plan of ``chunks`` stages on each device."""
        check_chunks(topology, self.chunks, self.chunk_order)
        if self.stages or self.replicas > 1 or self.split == ANY:
            raise UsageError(ChunksSayStages(self.chunks), where=self.name)
        module, plan, _ = plan_of(self.chunks * len(topology.devices))
        return module.replace(plan, on_devices(plan, topology, self.chunk_order))

    def _planned(
        self, module: Module, topology: Topology, context: PassContext, steps: Steps | None = None, beaten: float = math.inf
    ) -> Module:
        """The module with a plan; with ``steps`` that of a stream with their costs. Raises NoBetterPlan where the search ended
        without a plan, for its bound is not below ``beaten``."""
        started = time.perf_counter()
        asked = self._asked(module, topology, context, steps)
        check_separable(asked.fine, asked.groups, asked.pins)
        if self.chunks == self.pieces == 1:
            check_cuts(asked.fine, asked.groups, asked.pins, ordered=self.split == CONTIGUOUS)
            if self.split == CONTIGUOUS:
                check_order(asked.fine, asked.groups, asked.pins)
        built, ends = time.perf_counter(), now() + self.time_limit
        asked, solution = self._solved(asked, context, ends, beaten)
        if solution.interrupted and not self.anytime:
            raise KeyboardInterrupt
        if isinstance(solution, AnySolution) and steps is None:
            from passes.partition.bridge.on_links import worth_its_boundaries

            solution = worth_its_boundaries(asked, solution, ends)
        searched = time.perf_counter()
        solution = self._on_machines(asked, solution, ends - now())
        parts = asked.parts(solution)
        plan = self._plan(asked, solution, parts)
        statistics = solution.statistics
        context.count(
            self.name,
            nodes=asked.problem.size,
            ideals=statistics.ideals,
            stored=statistics.stored,
            tested=statistics.tested,
            transitions=statistics.transitions,
            stages=len(plan.stages),
            interrupted=int(solution.interrupted),
            build=built - started,
            search=searched - built,
            seconds=time.perf_counter() - started,
            **statistics.seconds,
        )
        placed = with_stages(module, asked.members(parts))
        # What was made of a former plan does not describe this one.
        return insert_symbols(placed.without(Plan, Schedule, Stage, Program), (plan,))

    def _asked(self, module: Module, topology: Topology, context: PassContext, steps: Steps | None) -> Asked:
        """The problem of the options."""
        net = context.analyses.get(network, topology)
        cuts = read_cuts(module.entry, self.cuts, context.gone)
        pins = read_pins(module.entry, topology, self.pins, context.gone)
        fused = self._pipeline and self.comm == "sum" and steps is None  # in training nothing is
        stages = self.stages if self.chunks == 1 else 0
        if pins or cuts:
            safe = problem_of(module, topology, net, comm=self.comm, pins=pins, cuts=cuts, stages=stages or None)
            safe = with_borders(safe, module, topology) if fused else safe
        else:
            stated = streamed_problem_of if fused else problem_of
            safe = replace(context.analyses.get(stated, module, topology, net), comm=self.comm, stages=stages or None)
        if self.chunks > 1:
            safe = chunked(safe, self.chunks, self.stages)
        stream, replicas = safe, min(self.replicas or MOST_REPLICAS, len(topology.devices))
        if steps is not None:
            safe = steps.problem(stream, replicas)
        fine = safe
        if self._pipeline and not states_bytes(module.entry) and memory_can_bind(safe):
            least = steps.problem(stream, replicas, least=True) if steps is not None else safe
            fine = replace(least, live=np.array(own_bytes(module.entry), np.int64))
        groups, problem = self._groups(module, fine, frozenset(pins), context, steps)
        apart = self.split == ANY or self._minimises.trains
        return Asked(module, topology, net, fine, safe, groups, problem, pins, steps, apart)

    def _solved(self, asked: Asked, context: PassContext, ends: float, beaten: float) -> tuple[Asked, Solution]:
        """A solution whose stages fit their devices, with a bound of all plans; and what it is of, with the workspaces of
        ``safe``, and more than was asked where ``contract`` left no plan. Raises Infeasible and NoBetterPlan."""
        overcounts = self.split == ANY and self._minimises.streams and memory_can_bind(asked.fine)
        seconds = self.time_limit * (FIRST_SHARE if overcounts else 1.0)
        budget = Budget(self.max_ideals, self.memory << 20, self.max_pairs, seconds, beaten)
        solver = self._solver(asked.module, asked.topology, asked.net, asked.groups)
        counts = self._pipeline and asked.steps is None

        def search(problem: Problem, limits: Budget) -> Solution:
            return solver(counting(problem, asked.topology) if counts else problem, limits, context.progress)

        def solve_within(problem: Problem, limits: Budget) -> Solution:
            return at_least_a_plan(lambda given: search(problem, given), limits)

        solution = solve_within(asked.problem, budget)
        if asked.steps is None and contracted_inexactly(asked.module.entry):
            groups, whole = self._whole(asked.fine, asked.module, context)
            if asked.problem.size < whole.size and solution.stages is None:  # what is asked for here may need groups apart
                asked = replace(asked, groups=groups, problem=whole)
                solution = solve_within(whole, replace(budget, seconds=max(0.5, ends - now())))
            elif asked.problem.size < whole.size:
                solution = against(solution, whole, best_bound, "the graph was contracted for a quick search")
        if solution.stages is None and solution.bound >= beaten < math.inf:
            solution = self._below(asked, solution, beaten)
        if solution.stages is None:
            raise explain(asked.problem, solution, asked.topology, training=asked.steps is not None)
        if overcounts:
            solution = bounded(solution, asked, budget, ends, context.progress)
        held = asked.problem if asked.safe is asked.fine else self._over(asked.safe, asked.groups, asked.steps)[1]

        def again(tightened: Problem) -> Solution:
            return search(tightened, replace(budget, seconds=max(0.5, ends - now())))

        # What a workload states is what either counts; of a sample alone an edge needs no more buffers.
        if not states_bytes(asked.module.entry) and not self._minimises.alone:
            solution = within_memory(asked, held, solution, again, self.chunks)
        return replace(asked, fine=asked.safe, problem=held), solution

    def _below(self, asked: Asked, solution: Solution, beaten: float) -> Solution:
        """The model as one stage where that is below ``beaten``, for the search counts hand-over in every stage (``handover``).
        Raises NoBetterPlan where it is not."""
        if asked.steps is not None:
            raise NoBetterPlan(solution.bound, self.name)
        single = one_stage(asked, solution)
        if single is None or single.value >= beaten:
            least = solution.bound + common(asked.problem, asked.topology)
            raise NoBetterPlan(least if single is None else min(least, single.value), self.name)
        return single

    def _on_machines(self, asked: Asked, solution: Solution, seconds: float) -> Solution:
        """The solution, or a better one for links of two speeds; with the seconds of handing microbatches over."""
        topology = asked.topology
        if self.hosts and self._pipeline and len({device.host for device in topology.devices}) > 1:
            from passes.partition.bridge.on_links import best_on_links

            def members(stages: Stages) -> list[tuple[int, ...]]:
                return asked.members(uncut(stages))

            solution = best_on_links(asked.module, topology, asked.net, asked.problem, solution, members, seconds)
        if asked.steps is not None:
            return solution
        return with_handover(asked, solution, self.pieces if self._minimises.alone else 0)

    @property
    def _minimises(self) -> Objective:
        return objective_of(self.objective)

    @property
    def _pipeline(self) -> bool:
        """Whether samples stream through stages that data leaves forward only: what most options are of."""
        return self._minimises.streams and self.split == CONTIGUOUS

    def _check(self, topology: Topology, planned: Planned) -> None:
        known = offered(planned)
        if self.objective not in (objective.name for objective in known):
            raise InvalidInput(NotAChoice("objective", self.objective, names(known)), where=self.name)
        if self.split not in SPLITS:
            raise InvalidInput(NotAChoice("split", self.split, ", ".join(SPLITS)), where=self.name)
        if self.split not in self._minimises.splits_of(planned):
            raise UsageError(NoSplit(self.split, self.objective), where=self.name)
        self._check_together()
        if self.comm not in COMM:
            raise InvalidInput(NotAChoice("comm", self.comm, ", ".join(COMM)), where=self.name)
        if self.stages < 0:
            raise InvalidInput(NotInRange("stages", self.stages, "a number above 0"), where="--stages")
        if not 0 <= self.replicas <= MOST_REPLICAS:
            raise InvalidInput(NotInRange("replicas", self.replicas, f"at most {MOST_REPLICAS}, 0 for any"), where="--replicas")
        if not (0 <= self.time_limit < math.inf):
            raise InvalidInput(NotInRange("time-limit", self.time_limit, "seconds, at least 0"), where=self.name)
        if not topology.devices:
            raise InvalidInput(NoDevice(), where=topology.name)

    def _check_together(self) -> None:
        """Raises UsageError for options that the objective or the split has no use for."""
        latency, training, pipeline = self._minimises.alone, self._minimises.trains, self._pipeline
        refused = {
            "--stages": self.stages > 0 and not pipeline,
            "--replicas": self.replicas > 1 and not pipeline,
            "--cut": bool(self.cuts) and (latency or training),
            "--pin": bool(self.pins) and training,
            "--comm": self.comm != "sum" and (latency or training),
            "--pieces": self.pieces != 1 and not latency,
        }
        by_objective = latency or training or refused["--pieces"]
        self._refuse(refused, f"objective={self.objective}" if by_objective else f"split={self.split}")
        if self.pieces < 1:
            raise InvalidInput(NotInRange("pieces", self.pieces, "a number above 0"), where="--pieces")

    def _refuse(self, flags: Mapping[str, bool], chosen: str) -> None:
        """Raises UsageError for flags that were given and are none of what was chosen."""
        if given := [flag for flag, wrong in flags.items() if wrong]:
            raise UsageError(NotAnOption(", ".join(given), chosen), where=self.name)

    def _solver(self, module: Module, topology: Topology, net: Network, groups: Groups) -> Solver:
        if self._minimises.trains:
            return self._training(module, topology, net)
        func, solver = module.entry, SOLVERS[self.objective, self.split]
        if not self._minimises.alone:
            return solver
        free = sorted({device.type for device in topology.devices if topology.type(device.type).free_transfers})
        if free:
            raise UsageError(FreeTransfers(", ".join(free)), where=self.name)
        from passes.reference.latency.liveness import liveness

        alive = None if states_bytes(func) else liveness(func, groups)
        return partial(solver, pieces=self.pieces, liveness=alive)

    def _training(self, module: Module, topology: Topology, net: Network) -> Solver:
        """For training; imported here, since most plans are for inference."""
        from passes.reference.assignment.training import solve_any_training
        from passes.reference.from_workload import training_graph_of
        from passes.reference.training import solve_training

        graph = training_graph_of(module, topology, net)
        solver: Solver = solve_training if self.split == CONTIGUOUS else solve_any_training
        return lambda problem, budget, progress: solver(graph, "sum", budget, progress)

    def _groups(
        self, module: Module, fine: Problem, pinned: frozenset[int], context: PassContext, steps: Steps | None
    ) -> tuple[Groups, Problem]:
        """Nodes of the search, and the problem over them. A group of ``contract`` stands for what some best plan keeps together
        when nothing else is asked; where more is asked inside it, its classes stand instead."""
        classes = context.analyses.get(colocation, module)
        if self._minimises.trains:  # its reductions are of the training graph
            return self._over(fine, tuple((op,) for op in range(fine.size)))
        # What contract joins is for throughput and contiguous splits; others have reductions of their own.
        if self.stages or not self._pipeline:
            return self._over(fine, ordered(fine, classes), steps)
        joined = contracted_groups(module.entry, self.comm)
        # Groups that are exact by one count of workspaces need not be by another.
        otherwise = memory_can_bind(fine) and not contracted_inexactly(module.entry)
        if steps is not None or joined is None or otherwise:
            return self._whole(fine, module, context, steps)
        forced = [{int(fine.producer[h]), *fine.consumers[h]} for h in fine.forced]
        result: list[tuple[int, ...]] = []
        for members in joined:
            inside = set(members)
            if inside & pinned or any(len(inside & ends) > 1 for ends in forced):
                result += [c for c in classes if c[0] in inside]
            else:
                result.append(members)
        return self._over(fine, ordered(fine, result))

    def _over(self, fine: Problem, groups: Groups, steps: Steps | None = None) -> tuple[Groups, Problem]:
        return groups, self._wide(quotient(fine, groups), groups, steps)

    def _whole(self, fine: Problem, module: Module, context: PassContext, steps: Steps | None = None) -> tuple[Groups, Problem]:
        """The problem with nothing given up, and its groups."""
        base = ordered(fine, context.analyses.get(colocation, module))
        joined = quotient(fine, base)
        merged = reduce(joined)
        if len(merged) == len(base):
            return base, self._wide(joined, base, steps)
        groups = ordered(fine, [[op for node in nodes for op in base[node]] for nodes in merged])
        return self._over(fine, groups, steps)

    def _wide(self, problem: Problem, groups: Groups, steps: Steps | None) -> Problem:
        """The problem with the replicas that its stages may have."""
        if self.replicas == 1 or not self._pipeline:
            return problem
        left = sum(problem.kinds[k].count for k in set(pools(problem.kinds))) - max(self.stages - 1, 0)  # one for each other
        most = min(self.replicas or MOST_REPLICAS, left)
        if most < 2:
            return problem
        return replicate(problem, most) if steps is None else steps.replicated(problem, groups, most)

    def _plan(self, asked: Asked, solution: Solution, parts: Parts) -> Plan:
        """The plan, its stages in pipeline order, and its certificate."""
        pinned = set(asked.pins.values())
        stages = plan_stages(asked.problem, solution, parts, asked.members(parts), pinned, name_all=self._minimises.alone)
        taken = {symbol.name for symbol in asked.module.symbols if not isinstance(symbol, Plan)}
        free = asked.fine
        if asked.pins:
            free = problem_of(asked.module, asked.topology, asked.net, comm=self.comm)
        return Plan(
            name=unique("@plan", taken),
            objective=self.objective,
            comm=self.comm,
            value=solution.value,
            port_value=solution.value,
            bound=solution.bound,
            status=solution.status,
            single=whole_model(free)[0],
            stages=stages,
            certificate=tuple(sorted(self._certificate(asked, solution, parts).items())),
            microbatches=0 if self._minimises.trains else 1,
        )

    def _certificate(self, asked: Asked, solution: Solution, parts: Parts) -> dict[str, str]:
        """How the bound was reached, what was searched, and what the user asked for."""
        problem, counts = asked.problem, solution.statistics
        certificate = {
            "bound": solution.reason,
            "search": f"{problem.size} nodes, {counts.ideals} ideals, {counts.transitions} transitions",
        }
        asked_for = {
            "cuts": ", ".join(self.cuts),
            "pins": ", ".join(self.pins),
            "stages": str(self.stages) if self.stages else "",
            "replicas": str(self.replicas) if self.replicas > 1 else "",
        }
        certificate |= {name: text for name, text in asked_for.items() if text}
        if self.split != CONTIGUOUS:
            certificate["split"] = self.split
            certificate["boundaries"] = boundaries_text(problem, parts)
        if self._minimises.alone:
            certificate["pieces"] = str(self.pieces)
        prescribed = self.cuts or self.pins or self.stages or self.replicas > 1 or not self._pipeline
        if not prescribed:  # the bound holds for every plan of this problem
            told = self.comm + (step_text(asked.module, asked.steps.microbatches) if asked.steps is not None else "")
            replicated = any(kind.replicas > 1 for kind in problem.kinds)
            certificate["problem"] = problem_digest(asked.module, told, replicas=replicated)
        return certificate


def _worth(context: PassContext) -> float:
    """Seconds below which a plan is better than that of another kind; inf where there is none."""
    return context.incumbent.value if context.incumbent is not None else math.inf


__all__ = ["PartitionPass"]
