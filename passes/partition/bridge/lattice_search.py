"""The search over the lattice: from costs and a topology to stages on single devices and replicas, a plan and its proof.

Writes a ``StageSet`` facet on every op of the entry function (stages numbered in pipeline order) and a ``Plan``. A
stage that holds pinned ops has its device filled in, the others are for ``place``. The plan's certificate says how the bound
was reached, what was searched, and what the user asked for.

Other passes may search for other objectives by the same steps, and replace some of these.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ir.core.diagnostics import Infeasible, InvalidInput, UsageError
from ir.core.module import Module, Plan, Program, Schedule, Stage
from ir.core.names import unique
from ir.core.objectives import THROUGHPUT, TRAINING, Objective, Planned, names
from ir.core.topology import Topology
from ir.text.witness import DEVICES, REPLICAS
from passes.costs.learning import periods_behind, step_text
from passes.costs.memory.liveness import own_bytes, states_bytes
from passes.costs.network import network
from passes.framework.base import NoBetterPlan, Pass, PassContext, needed
from passes.framework.expanded import on_expanded
from passes.graph.digest import Among, of_objective, problem_digests
from passes.graph.faults import NotAChoice, NotInRange
from passes.graph.serving import shared_evenly
from passes.graph.symbols import insert_symbols
from passes.meshes.undecided import undecided
from passes.partition.bridge.chunks import check_chunks, chunked, on_devices
from passes.partition.bridge.copies import is_enough, on_copies
from passes.partition.bridge.explain import Overfull, at_least_a_plan, explain, held_in
from passes.partition.bridge.handover import common, counting, in_steps, one_stage, with_handover
from passes.partition.bridge.memory import within_memory
from passes.partition.bridge.pins import check_cuts, check_order, check_separable, on_two_sides
from passes.partition.bridge.plan import Asked, plan_stages, with_stages
from passes.partition.bridge.requests import read_cuts, read_pins
from passes.partition.bridge.total_memory import check_total_memory
from passes.partition.faults import ChunksSayStages, NoDevice, NotAnOption, WithoutFlush
from passes.partition.lattice.objective import Budget, Solution
from passes.partition.lattice.search.replicas import MOST_REPLICAS, replicate
from passes.partition.lattice.search.throughput import solve
from passes.partition.options import MICROBATCHES, PlanOptions
from passes.solvers.work import is_over, now, sufficient_gap
from passes.stages.colocation import colocation
from passes.stages.from_ir import problem_of, serving
from passes.stages.fusing import streamed_problem_of, with_borders
from passes.stages.load import COMM
from passes.stages.placement_from_ir import on_one_device
from passes.stages.problem import Problem
from passes.stages.reduce import Groups, memory_can_bind, ordered, quotient, reduce

if TYPE_CHECKING:
    from passes.partition.bridge.steps import Steps

Counts: TypeAlias = tuple[int, int] | None
"""The most devices of a training plan, and the least of each of its stages; None: any."""
Search: TypeAlias = Callable[[Problem, Budget], Solution]
SECONDS = 10.0
"""Of counted work, of a search over the lattice that is given no limit."""


@dataclass(frozen=True)
class LatticeSearch(PlanOptions, Pass):
    """Split the model into stages on single devices and replicas, by dynamic programming over the lattice of ideals. Options as
    of ``partition``."""

    comm: str = "sum"
    cuts: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    chunks: int = 1
    chunk_order: str = "loop"
    hosts: bool = True

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for an option that names nothing, UsageError for options that exclude each other, Infeasible when
        no plan fits, and NoBetterPlan when none is better than the incumbent."""
        self.check_options()
        self._check_memory(module, needed(module, Topology), context)
        with context.limited(self.name):
            return self._found(module, context)

    def _check_memory(self, module: Module, topology: Topology, context: PassContext) -> None:
        """Raises Infeasible where all devices together have less memory than any plan holds."""
        if not states_bytes(module.entry):
            check_total_memory(undecided(module), topology, self._step_microbatches if self.training else 0)

    @property
    def _step_microbatches(self) -> int:
        """Of a training step."""
        return self.microbatches or MICROBATCHES

    def _found(self, module: Module, context: PassContext) -> Module:
        """The expanded module with its plan. Raises as ``run``."""
        return self.searched(module, context)

    @property
    def form(self) -> str:
        """The form of the plans that are searched (``ir.text.witness``)."""
        return DEVICES if self.replicas == 1 else REPLICAS

    @property
    def _seconds(self) -> float:
        return SECONDS if self.time_limit is None else self.time_limit

    def searched(self, module: Module, context: PassContext, made: list[Module] | None = None) -> Module:
        """As ``run``, of an expanded module. ``made`` is given the module with each plan that was made on the way, of other
        numbers of stages and replicas."""
        topology = needed(module, Topology)
        module = undecided(module)
        planned = Planned.PROFILE if states_bytes(module.entry) else Planned.OPS
        steps = self.objective == TRAINING.name and planned is Planned.OPS
        if steps:
            found = self._trained(module, topology, context, made)
        else:
            self._check(topology, planned)
            found = self._planned(module, topology, context, beaten=_worth(context))
        plan = needed(found, Plan)
        single = on_one_device(module, topology, plan.microbatches if steps else 0)
        return found.replace(plan, replace(plan, single=single))

    def _steps(self, module: Module, topology: Topology, context: PassContext) -> Steps:
        """The training steps that the options ask for. Raises UsageError, InvalidInput."""
        from passes.partition.bridge.steps import Steps

        self.check_comm()
        replace(self, objective=THROUGHPUT.name)._check(topology, Planned.OPS)
        if self.microbatches < 0:
            raise InvalidInput(NotInRange("microbatches", self.microbatches, "a number above 0"), where=self.name)
        net, most = context.analyses.get(network, topology), self.replicas or MOST_REPLICAS
        order = self.chunk_order if self.chunks > 1 else ""
        steps = Steps(module, topology, net, self.microbatches or MICROBATCHES, self.family, most, order)
        if not steps.flush and (self.replicas != 1 or self.chunks > 1):
            raise UsageError(WithoutFlush(), where=self.name)
        return steps

    def check_comm(self) -> None:
        """Raises UsageError where compute and transfers add up in another way than that of training steps."""
        if self.comm != "sum":
            raise UsageError(NotAnOption(f"--comm {self.comm}", "objective=training"), where=self.name)

    def _trained(self, module: Module, topology: Topology, context: PassContext, others: list[Module] | None) -> Module:
        """The module with a plan for training steps; ``others`` is given all that were found, and with ``hosts`` those of which
        each stage is counted as if it sent to another host."""
        steps, made = self._steps(module, topology, context), [] if others is None else others
        stream = replace(self, objective=THROUGHPUT.name, hosts=False)
        every, most, beaten = len(topology.devices), steps.replicas, _worth(context)
        any_number = steps.flush and not self.stages and self.chunks == 1
        quickest = any_number or (self.stages > 1 and self.replicas != 1 and steps.flush)  # of several numbers of devices
        any_devices = range(steps.fewest if any_number else min(self.stages or 1, every), every + 1)
        enough = 1 + sufficient_gap(len(module.entry.ops), every)
        least = max(steps.least(0.0, any_devices), steps.least_of_any if any_number else 0.0)
        if least * enough >= beaten or steps.longest(beaten, any_devices) <= 0.0:
            raise NoBetterPlan(least, self.name)

        def interrupted() -> bool:
            return bool(context.statistics.get(self.name, {}).get("interrupted"))

        def plan_of(
            stages: int, replicas: int = self.replicas, devices: int = 0, below: float = beaten, steps: Steps = steps
        ) -> tuple[Module, Plan, float]:
            among = range(stages, min(every, stages * most) + 1) if stages else any_devices
            if devices:
                worth, search = below / (devices + periods_behind(steps.microbatches, replicas)), stream
            else:
                worth, search = steps.longest(below, any_devices), replace(stream, stages=stages, replicas=replicas)
            counts = (devices, replicas) if devices else None
            try:
                found = search._planned(module, topology, context, steps, worth, counts)
            except KeyboardInterrupt:  # before this search had a plan
                if not made:
                    raise
                context.count(self.name, interrupted=1)
                raise NoBetterPlan(0.0, self.name) from None
            plan = found.first(Plan)
            assert plan is not None
            told = steps.told(plan, None if self.chunks > 1 else among)
            if quickest:  # the bound becomes one of all numbers of devices
                told = replace(told, certificate=self._of_any_number(told, module, steps))
            made.append(found.replace(plan, told))
            return made[-1], told, plan.bound

        if self.chunks > 1:
            return self._in_chunks(topology, plan_of)
        try:
            if not quickest:
                return plan_of(self.stages)[0]
            found = steps.quickest(plan_of, self.stages, beaten, enough, self._seconds, interrupted)
        except (NoBetterPlan, Overfull) as error:
            error.bound = error.bound if quickest else steps.least(error.bound, any_devices)  # else one on periods
            if isinstance(error, NoBetterPlan):
                raise NoBetterPlan(error.bound, self.name) from None
            raise
        if others is not None and self.hosts and steps.hosts.are_far and steps.replicates and not (interrupted() or is_over()):
            from passes.partition.bridge.steps import FOR_FEWER

            apart, seconds = replace(steps, apart=True), self._seconds / FOR_FEWER
            with suppress(Infeasible):
                apart.quickest(partial(plan_of, steps=apart), self.stages, beaten, enough, seconds, interrupted)
        return found

    def _in_chunks(self, topology: Topology, plan_of: Callable[[int], tuple[Module, Plan, float]]) -> Module:
        """The module with a plan of ``chunks`` stages on each device."""
        check_chunks(topology, self.chunks, self.chunk_order)
        if self.stages or self.replicas > 1:
            raise UsageError(ChunksSayStages(self.chunks), where=self.name)
        module, plan, _ = plan_of(self.chunks * len(topology.devices))
        return module.replace(plan, on_devices(plan, topology, self.chunk_order))

    def _planned(
        self,
        module: Module,
        topology: Topology,
        context: PassContext,
        steps: Steps | None = None,
        beaten: float = math.inf,
        counts: Counts = None,
    ) -> Module:
        """The module with a plan; with ``steps`` that of a stream with their costs. Raises NoBetterPlan where the search ended
        without a plan, for its bound is not below ``beaten``."""
        started = time.perf_counter()
        asked = self._asked(module, topology, context, steps, counts)
        self._check_demands(asked)
        built, ends = time.perf_counter(), now() + self._seconds
        asked, solution, copied = self._solved(asked, context, ends, beaten)
        searched = time.perf_counter()
        solution = self._on_machines(asked, solution, copied, ends - now(), context)
        plan = self._plan(asked, solution)
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
        placed = with_stages(module, asked.members(solution.parts))
        # What was made of a former plan does not describe this one.
        return insert_symbols(placed.without(Plan, Schedule, Stage, Program), (plan,))

    def _asked(self, module: Module, topology: Topology, context: PassContext, steps: Steps | None, counts: Counts) -> Asked:
        """The problem of the options."""
        net = context.analyses.get(network, topology)
        cuts = read_cuts(module.entry, self.cuts, context.gone)
        pins = read_pins(module.entry, topology, self.pins, context.gone)
        fused = self.comm == "sum" and steps is None  # in training nothing is
        stages = self.stages if self.chunks == 1 else 0
        if pins or cuts:
            enough = None if steps is None else steps.enough
            safe = problem_of(module, topology, net, comm=self.comm, pins=pins, cuts=cuts, enough=enough)
            safe = replace(safe, stages=stages or None)
            safe = with_borders(safe, module, topology) if fused else safe
        elif steps is not None:
            safe = replace(steps.stream, stages=stages or None)
        else:
            stated = streamed_problem_of if fused else problem_of
            safe = replace(context.analyses.get(stated, module, topology, net), comm=self.comm, stages=stages or None)
        if self.chunks > 1:
            safe = chunked(safe, self.chunks, self.stages)
        safe = safe if counts is None else replace(safe, most=counts[0], replicas=counts[1])
        stream, replicas = safe, min(self.replicas or MOST_REPLICAS, len(topology.devices))
        if steps is not None:
            safe = steps.problem(stream, replicas)
        fine = safe
        if not states_bytes(module.entry) and memory_can_bind(safe):
            least = (
                steps.problem(stream, replicas, least=True) if steps is not None else self._least_states(module, safe, replicas)
            )
            fine = replace(least, live=np.array(own_bytes(module.entry), np.int64))
        groups, problem = self._groups(module, fine, context, steps)
        if cuts and 2 in (self.stages, len(topology.devices)) and self.chunks == 1:
            groups, problem = self._over(fine, on_two_sides(fine, groups), steps)
        return Asked(module, topology, net, fine, safe, groups, problem, pins, steps)

    def _least_states(self, module: Module, problem: Problem, replicas: int) -> Problem:
        """The problem with the least states that a device may hold: those of the groups that it serves where all devices are
        replicas of its stage."""
        shares = [r for r in range(1, replicas + 1) if shared_evenly(problem.sequences, r)]
        return serving(problem, module, problem.sequences // max(shares)) if max(shares) > 1 and problem.sequences else problem

    def _check_demands(self, asked: Asked) -> None:
        """Raises Infeasible for cuts and pins that contradict each other or the graph."""
        check_separable(asked.fine, asked.groups, asked.pins)
        if self.chunks == 1:
            check_cuts(asked.fine, asked.groups, asked.pins, ordered=True)
            check_order(asked.fine, asked.groups, asked.pins)

    def _solved(
        self, asked: Asked, context: PassContext, ends: float, beaten: float
    ) -> tuple[Asked, Solution, Solution | None]:
        """A solution whose stages fit their devices, with a bound of all plans; what it is of, with the workspaces of ``safe``;
        and the solution of ``on_copies``, the same where that is enough. Raises Infeasible and NoBetterPlan."""
        budget = self._budget(self._seconds, beaten)
        search = self._search(asked, context)
        held = asked.problem if asked.safe is asked.fine else self._over(asked.safe, asked.groups, asked.steps)[1]
        copied = self._on_copies(asked, held, search, budget)
        if copied is not None and (copied.interrupted or is_enough(asked, copied)):
            return replace(asked, fine=asked.safe, problem=held), copied, copied
        solution = self._first(asked, search, budget, context, ends)

        def again(tightened: Problem) -> Solution:
            return search(tightened, replace(budget, seconds=max(0.5, ends - now())))

        if not self._counts_exactly(asked):
            solution = within_memory(asked, held, solution, again, self.chunks)
        return replace(asked, fine=asked.safe, problem=held), solution, copied

    def _budget(self, seconds: float, beaten: float) -> Budget:
        return Budget(seconds=seconds, beaten=beaten)

    def _on_copies(self, asked: Asked, held: Problem, search: Search, budget: Budget) -> Solution | None:
        """The solution of a few hosts, on all in turn; None in training, whose replicas add up gradients, of a decoder, whose
        groups each stay where they are, or without hosts that are alike."""
        if not self.hosts or asked.steps is not None or asked.problem.sequences:
            return None
        return on_copies(asked, held, lambda problem: search(problem, budget))

    def _search(self, asked: Asked, context: PassContext) -> Search:
        """The search that one problem after another is given to."""

        def search(problem: Problem, budget: Budget) -> Solution:
            counted = counting if asked.steps is None else in_steps
            return solve(counted(problem, asked.topology), budget, context.progress)

        return search

    def _first(self, asked: Asked, search: Search, budget: Budget, context: PassContext, ends: float) -> Solution:
        """The first solution, of which the memory is not looked at again. Raises as ``_solved``."""
        solution = at_least_a_plan(lambda limits: search(asked.problem, limits), budget)
        if solution.stages is None and solution.bound >= budget.beaten < math.inf:
            solution = self._below(asked, solution, budget.beaten)
        if solution.stages is None:
            held, advice = held_in(asked.module, training=asked.steps is not None, saved=True)
            error = explain(asked.problem, solution, asked.topology, held=held, advice=advice)
            error.bound = solution.bound if asked.steps is None else 0.0  # that is of a period, no step
            raise error
        return solution

    def _counts_exactly(self, asked: Asked) -> bool:
        """Whether a search counts the memory of stages as ``place`` does: the bytes that a workload states."""
        return bool(states_bytes(asked.module.entry))

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

    def _on_machines(
        self, asked: Asked, solution: Solution, copied: Solution | None, seconds: float, context: PassContext
    ) -> Solution:
        """The solution, or a better one for links of two speeds, such as ``copied``; with the seconds of handing microbatches
        over."""
        topology = asked.topology
        if (
            self.hosts
            and not asked.problem.sequences
            and not solution.interrupted
            and solution is not copied
            and len({device.host for device in topology.devices}) > 1
        ):
            from passes.partition.bridge.on_links import best_on_links

            solution = best_on_links(asked, solution, seconds, copied)
        return with_handover(asked, solution)

    def _objectives(self, planned: Planned) -> tuple[Objective, ...]:
        """The objectives that there is a search for."""
        return (THROUGHPUT, TRAINING) if planned is Planned.OPS else (THROUGHPUT,)

    def _check(self, topology: Topology, planned: Planned) -> None:
        known = self._objectives(planned)
        if self.objective not in (objective.name for objective in known):
            raise InvalidInput(NotAChoice("objective", self.objective, names(known)), where=self.name)
        if self.comm not in COMM:
            raise InvalidInput(NotAChoice("comm", self.comm, ", ".join(COMM)), where=self.name)
        if self.stages < 0:
            raise InvalidInput(NotInRange("stages", self.stages, "a number above 0"), where=self.name)
        if not 0 <= self.replicas <= MOST_REPLICAS:
            raise InvalidInput(NotInRange("replicas", self.replicas, f"at most {MOST_REPLICAS}, 0 for any"), where=self.name)
        if not (0 <= self._seconds < math.inf):
            raise InvalidInput(NotInRange("time-limit", self._seconds, "seconds, at least 0"), where=self.name)
        if not topology.devices:
            raise InvalidInput(NoDevice(), where=topology.name)

    def _groups(self, module: Module, fine: Problem, context: PassContext, steps: Steps | None) -> tuple[Groups, Problem]:
        """Nodes of the search, and the problem over them: the classes of ``colocation``, joined, where any number of stages
        will do, to what some best plan keeps together."""
        base = ordered(fine, context.analyses.get(colocation, module))
        joined = quotient(fine, base)
        wide = self._wide(joined, base, steps)
        # Each node of a stream costs a replica its part, but sums of gradients only replicas.
        merged = tuple((node,) for node in range(joined.size)) if self.stages else reduce(joined if steps is None else wide)
        if len(merged) == len(base):
            return base, wide
        groups = ordered(fine, [[op for node in nodes for op in base[node]] for nodes in merged])
        return self._over(fine, groups, steps)

    def _over(self, fine: Problem, groups: Groups, steps: Steps | None = None) -> tuple[Groups, Problem]:
        return groups, self._wide(quotient(fine, groups), groups, steps)

    def _wide(self, problem: Problem, groups: Groups, steps: Steps | None) -> Problem:
        """The problem with the replicas that its stages may have."""
        if self.replicas == 1:
            return problem
        several = problem.most is not None  # a training step on up to so many devices, of two stages or more
        left = problem.devices - max(self.stages - 1, int(several))  # one for each other stage
        most = min(self.replicas or MOST_REPLICAS, left)
        if most < 2:
            return problem
        return replicate(problem, most) if steps is None else steps.replicated(problem, groups, most)

    def _plan(self, asked: Asked, solution: Solution) -> Plan:
        """The plan, its stages in pipeline order, and its certificate."""
        stages = plan_stages(asked.problem, solution, asked.members(solution.parts), set(asked.pins.values()))
        taken = {symbol.name for symbol in asked.module.symbols if not isinstance(symbol, Plan)}
        return Plan(
            name=unique("@plan", taken),
            objective=self.objective,
            comm=self.comm,
            value=solution.value,
            port_value=solution.value,
            bound=solution.bound,
            status=solution.status,
            single=math.inf,  # ``searched`` fills it in
            stages=stages,
            certificate=tuple(sorted(self._certificate(asked, solution).items())),
            microbatches=1,
        )

    def _certificate(self, asked: Asked, solution: Solution) -> dict[str, str]:
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
        if not self._prescribed():
            replicated = any(kind.replicas > 1 for kind in problem.kinds)
            certificate["problem"] = self._problem(asked.module, asked.steps, replicated=replicated)
        return certificate

    def _problem(self, module: Module, steps: Steps | None, *, replicated: bool) -> str:
        """The digest of the problem, for every plan of which the bound holds."""
        told = self.comm + (step_text(module, steps.microbatches) if steps is not None else of_objective(self.objective))
        return problem_digests(module, told, [Among(self.stages, self.replicas if replicated else 1)])[0]

    def _of_any_number(self, plan: Plan, module: Module, steps: Steps) -> tuple[tuple[str, str], ...]:
        """The certificate of a plan of so many devices, stages and replicas, as that of the best of all that the options
        allow."""
        certificate = {key: text for key, text in plan.certificate if key not in ("stages", "replicas")}
        if self.stages:
            certificate["stages"] = str(self.stages)
        if self.replicas > 1:
            certificate["replicas"] = str(self.replicas)
        if not self._prescribed():
            certificate["problem"] = self._problem(module, steps, replicated=steps.replicates)
        return tuple(sorted(certificate.items()))

    def _prescribed(self) -> bool:
        """Whether options leave plans out that the objective is of."""
        return bool(self.cuts or self.pins)


def _worth(context: PassContext) -> float:
    """Seconds below which a plan is better than that of another kind; inf where there is none."""
    return context.incumbent.value if context.incumbent is not None else math.inf
