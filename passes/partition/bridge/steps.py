"""Training steps of a model in stages: the problem of a stream with the costs of both passes, and how many devices fill
quickest.

A stage is busy with a microbatch forward and backward, with its part of the update and of the sums of gradients that its last
backward pass of a step does not hide (``passes.costs.exchange``), and with tensors and the gradients that come back. So the
least largest load is that of throughput with these numbers. A step of M microbatches takes M - 1 and as many periods as there
are devices to fill, fewer where all stages have replicas, which begin at once (``step_seconds``). So fewer devices may be
better although each has more to do, and so may replicas of every stage: plans of the least load on up to so many devices, in
stages of so many replicas or more, are searched where their bound is least (``quickest``). Without a flush behind each step
the pipeline stays full, and the least load is the best.

A stage whose replicas could be all devices of a host is of either of two kinds (``replicated``): it fills a host, and what it
sends and receives takes the links between hosts, or it is on several, and sums of gradients do. Ports leave open which borders
of smaller stages lie between hosts; so plans are also searched as if all did (``apart``), and compared on the real links.

What is saved depends on how many microbatches a stage holds, which its place in the pipeline says. The search counts as many as
every stage holds (``InFlight``); the exact memory of its plan is looked at afterwards, as for buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ir.core.diagnostics import Infeasible
from ir.core.facets import Transfer
from ir.core.module import Module, Plan
from ir.core.objectives import TRAINING
from ir.core.outcomes import SLACK, outcome
from ir.core.topology import Topology
from passes.costs.exchange import BUCKET, LAST, Speed
from passes.costs.learning import (
    ASYNCHRONOUS,
    InFlight,
    Learning,
    learning,
    learning_seconds,
    periods_behind,
    recomputes,
    saved_values,
    step_seconds,
)
from passes.costs.memory.liveness import resource_bytes
from passes.costs.memory.stage import most_bytes
from passes.costs.network import Network
from passes.costs.op_time import bandwidth_of
from passes.framework.base import NoBetterPlan
from passes.graph.graph import reads
from passes.partition.bridge.chunks import chunk_devices
from passes.partition.bridge.hosts import Hosts, Way
from passes.partition.lattice.search.replicas import replicated_kinds
from passes.solvers.work import is_over, now
from passes.stages.bounds import StepWork, fastest, least_step, node_weights, prices
from passes.stages.from_ir import problem_of
from passes.stages.placement_from_ir import stage_memory, updates
from passes.stages.problem import Floats, Kind, Problem, pools
from passes.stages.reduce import Groups
from passes.timeline.families import stages_in_flight

MOST_TRIED = 24
"""Numbers of devices and least replicas that are tried, beside all."""
FOR_FEWER = 6.0
"""Times the limit of a search: counted seconds after which no other numbers are tried. Plans of BERT with 4 layers on TAG's
testbed got better until 2 times the limit, from 34.7 to 33.5 ms; with links as slow as the slowest until 5 times, from 39.7 to
35.7 ms."""

_HALVINGS = 30

PlanOf: TypeAlias = Callable[[int, int, int, float], tuple[Module, Plan, float]]
"""Given (stages, replicas, devices, seconds): the module with the plan of the least load among those whose step takes less than
so many seconds, the plan, and a lower bound on the periods of these. With 0 devices: plans of so many stages, each of up to so
many replicas, on any devices. Else: plans of two stages or more, or as many as are stated, each of so many replicas or more, on
up to so many devices; ``stages`` is 0."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of so many ``microbatches`` of ``module``, ordered as ``family`` does, in stages of up to so many ``replicas``;
    with a ``chunk_order`` (``chunks``) several on each device. ``apart``: counted as if each stage sent to another host, on the
    slowest link between two; bounds are then none of the steps on the real machines."""

    module: Module
    topology: Topology
    network: Network
    microbatches: int
    family: str = ""
    replicas: int = 1
    chunk_order: str = ""
    apart: bool = False

    @property
    def flush(self) -> bool:
        """Whether the pipeline is empty behind each step."""
        return self.family not in ASYNCHRONOUS

    @cached_property
    def hosts(self) -> Hosts:
        return Hosts(self.topology, self.network)

    @cached_property
    def learned(self) -> Learning:
        return learning(self.module)

    @cached_property
    def updated(self) -> Floats:
        """``[0, op]``: bytes that updates move, ``[1, op]``: bytes of gradients, ``[2, op]``: the buckets in which they
        are added up (``Speed.reduce_seconds``), or parts of one; of each weight at the first op that reads it."""
        sizes, done = resource_bytes(self.module), set[str]()
        found = np.zeros((3, len(self.module.entry.ops)))
        for i, op in enumerate(self.module.entry.ops):
            for name in reads(op):
                if name in self.learned.state and name not in done:
                    done.add(name)
                    found[:, i] += (self.learned.update[name], sizes[name], sizes[name] / max(sizes[name], BUCKET))
        return found

    @cached_property
    def enough(self) -> float:
        """Bytes on a device, more than which no stage needs."""
        return most_bytes(self.module, self.microbatches, flush=self.flush)

    @cached_property
    def stream(self) -> Problem:
        """The problem of a stream on these machines, without options."""
        return problem_of(self.module, self.topology, self.network, enough=self.enough)

    def problem(self, stream: Problem, replicas: int = 1, *, least: bool = False) -> Problem:
        """The problem of a stream, one node per op, with the costs of a step in stages of up to so many ``replicas``. A weight
        has a second gradient where microbatches add to one; not where the ``least`` bytes of a stage are asked for, which has
        either these or activations alive."""
        func, kinds = self.module.entry, stream.kinds
        rows = {type_.name: [one.both for one in learning_seconds(self.module, type_)] for type_ in self.topology.types}
        both = np.array([rows[kind.type] for kind in kinds], np.float64).reshape(stream.seconds.shape)
        seconds = np.where(np.isfinite(stream.seconds), both, np.inf)
        seconds = seconds + self.moving(kinds, self.updated) / self.microbatches
        both_ways = self.learned.values - self._stated  # stated seconds are those of both
        twice = np.array([2.0 if name in both_ways else 1.0 for name in stream.tensor_names])
        sizes = resource_bytes(self.module)
        readers: dict[str, list[int]] = {}
        for i, op in enumerate(func.ops):
            for name in reads(op):
                readers.setdefault(name, []).append(i)
        gradients = 1 if least or self.microbatches == 1 else 2
        held = list[tuple[int, tuple[int, ...]]]()
        for name, size in sizes.items():
            if name in readers and size:
                state = self.learned.state.get(name, 0)
                homes = self.homes(readers[name]) if state else ()
                held.append((self.learned.held(name, size, gradients) - state, tuple(readers[name])))
                held.append((state, homes))
        held = [(size, who) for size, who in held if size and who]
        far = [self.hosts.slowest.get(kind.type) if self.apart else None for kind in kinds]
        kept: dict[str, tuple[int, list[int]]] = {}
        for i, op in enumerate(func.ops):
            for name, size in saved_values(op, self.learned).items():
                kept.setdefault(name, (size, []))[1].append(i)
        flight = min(InFlight.of(self.microbatches, [1] * (stream.stages or 1), self.family).microbatches)
        flight = 1 if recomputes(self.module) else -(-flight // replicas)
        held += [(flight * size, tuple(who)) for size, who in kept.values() if size]
        return replace(
            stream,
            seconds=np.ascontiguousarray(seconds),
            transfer=np.ascontiguousarray(self._on_ways(stream, stream.transfer, kinds, far) * twice),
            weight_bytes=np.array([size for size, _ in held], np.int64),
            weight_readers=tuple(who for _, who in held),
        )

    def homes(self, readers: Sequence[int]) -> tuple[int, ...]:
        """The ops whose stages hold the optimizer's state of a weight with these readers, in any plan: that is the first stage
        that makes a gradient of the weight (``stage_memory``). Empty where the plan decides which one it is."""
        ops = self.module.entry.ops
        makers = [i for i in readers if any(value.name in self.learned.values for value in ops[i].results)]
        if len(makers) < 2:
            return tuple(makers or readers)
        behind = {value.name for value in ops[makers[0]].results}
        for op in ops[makers[0] + 1 : makers[-1] + 1]:
            if any(name in behind for name in reads(op)):
                behind.update(value.name for value in op.results)
        return (makers[0],) if all(any(value.name in behind for value in ops[i].results) for i in makers[1:]) else ()

    def moving(self, kinds: Sequence[Kind], updated: Floats) -> Floats:
        """Seconds of the update of each node on each kind of device, without sums of gradients."""
        bandwidths = [bandwidth_of(self.topology.type(kind.type)) for kind in kinds]
        return np.array([updated[0] / bandwidth if bandwidth else 0.0 * updated[0] for bandwidth in bandwidths])

    def summing(self, kinds: Sequence[Kind], updated: Floats) -> Floats:
        """Seconds in which the replicas of each kind of stage add up the gradients of each node, at their best."""
        found = np.zeros((len(kinds), updated.shape[1]))
        for row, kind in zip(found, kinds, strict=True):
            r = kind.replicas
            if r > 1 and not self.topology.type(kind.type).free_transfers:
                bandwidth, latency = self.hosts.best_ring(kind)
                row += 2 * (r - 1) * (updated[1] / r / bandwidth + updated[2] * latency)
        return found

    def unhidden(self, problem: Problem, groups: Groups | None) -> Floats:
        """Seconds of sums of gradients, of each node on each kind of stage of a problem: added up over the nodes of a stage no
        more than what its last backward pass does not hide. ``groups``: the ops of each node; None: each is one.

        The sums S(p) of the gradients of the ops up to p end at least S(p) - B(p) behind the pass, where B(p) is what the pass
        hides with the ops before p: the last of these sums begins no sooner than p's gradient is made. For any p this is a sum
        over the ops of a stage. Besides, a stage's last bucket has nothing to hide it but ops without weights before the first
        weight: b at most, of all that a stage may begin with. That bucket holds gradients up to ``LAST`` bytes, less the
        largest of them at most, for it holds whole gradients: so at least the part q = (LAST - largest) / all of the model's
        sums, and all of them where the model has no more than ``LAST``. So q S - b is a bound too. Each kind counts the bound,
        and the p, that is most for the whole model; ``exposed`` has what a stage really leaves."""
        ops = len(self.module.entry.ops)
        sums = self.summing(problem.kinds, self.updated)
        sizes = [size for name, size in resource_bytes(self.module).items() if name in self.learned.state]
        last = 1.0 if sum(sizes) <= LAST else max(0.0, (LAST - max(sizes)) / sum(sizes))
        weightless = self.updated[1] == 0.0
        if problem.stages == 1:  # it begins with the first op
            weightless &= np.cumsum(~weightless) == 0
        backs = {}
        for type_ in self.topology.types:
            seconds = [one.beside for one in learning_seconds(self.module, type_)]
            backs[type_.name] = np.array([one if math.isfinite(one) else 0.0 for one in seconds])
        for row, kind in zip(sums, problem.kinds, strict=True):
            back = backs[kind.type]
            until = int(np.argmax(np.cumsum(row - back) + back)) if ops else 0
            before = np.arange(ops) < until
            first = np.where(before, row - back, np.where(np.arange(ops) == until, row, 0.0))
            row[:] = max((0.0 * row, first, last * row - back * weightless), key=lambda left: float(left.sum()))
        return _of_groups(sums, groups)

    def in_flight(self, replicas: Sequence[int], own: Sequence[Sequence[int]]) -> InFlight:
        """What stages hold at most, of so many ``replicas`` and of these ops."""
        on = [tuple(f"{stage}.{r}" for r in range(count)) for stage, count in enumerate(replicas)]
        if self.chunk_order:
            on = chunk_devices(self.topology, self.chunk_order, len(own))
        return stages_in_flight(self.module, own, on, self.microbatches, self.family)

    def replicated(self, problem: Problem, groups: Groups | None, most: int) -> Problem:
        """The problem whose stages may run on up to ``most`` devices of a type: these share the microbatches, but each updates
        all weights, and they add up their gradients, of which it counts what is surely not hidden (``unhidden``). A stage that
        may fill a host is of either of two kinds: in one host, from which all that it receives and sends is far, or on several,
        which its sums of gradients cross."""
        made = list(zip(*replicated_kinds(problem.kinds, min(most, self.microbatches)), strict=True))
        filling = [(replace(kind, fills=True), k) for kind, k in made if self.hosts.may_fill(kind)]
        made = sorted([*(one for one in made if self.hosts.may_spread(one[0])), *filling], key=lambda one: one[0].replicas)
        kinds, rows = tuple(kind for kind, _ in made), [k for _, k in made]
        share = np.array([kind.replicas for kind in kinds], np.float64)[:, None]
        alone = self.moving(problem.kinds, _of_groups(self.updated, groups)) / self.microbatches
        every = alone[rows] + self.unhidden(replace(problem, kinds=kinds), groups) / self.microbatches
        seconds = np.maximum((problem.seconds - alone)[rows] / share + every, 0.0)
        far = [self.hosts.filling[kind.type].way if kind.fills and not self.apart else None for kind in kinds]
        return replace(
            problem,
            kinds=kinds,
            seconds=np.ascontiguousarray(seconds),
            transfer=np.ascontiguousarray(self._on_ways(problem, problem.transfer[rows], kinds, far) / share),
        )

    def _on_ways(self, problem: Problem, transfer: Floats, kinds: Sequence[Kind], ways: Sequence[Way | None]) -> Floats:
        """``transfer`` of tensors of the problem, by kind, on a way of this bandwidth and latency where it is slower than the
        port of the kind; seconds that the module states stay."""
        found, sizes = transfer.copy(), problem.tensor_bytes.astype(np.float64)
        stated = np.array([name in self._stated for name in problem.tensor_names], bool)
        for row, kind, way in zip(found, kinds, ways, strict=True):
            if way is not None:
                port = self.network.port(kind.devices[0])
                near = port.latency + sizes / port.bandwidth
                far = np.maximum(way[1] + sizes / way[0], near)
                row *= np.divide(far, near, out=np.ones_like(near), where=(near > 0) & ~stated)
        return found

    @cached_property
    def _stated(self) -> frozenset[str]:
        """Names of values whose transfer takes stated seconds."""
        return frozenset(value.name for op in self.module.entry.ops if op.facet(Transfer) for value in op.results)

    def exposed(
        self, problem: Problem, groups: Groups, stages: Sequence[tuple[int, Sequence[int]]], own: Sequence[Sequence[int]]
    ) -> list[float]:
        """Of each stage, given its kind and nodes, what its load has more than ``problem`` counts, in seconds per microbatch:
        of its sums of gradients, on the best ports, those that its last backward pass does not hide. ``own``: positions of each
        stage's ops."""
        shared = [problem.kinds[number].replicas > 1 for number, _ in stages]
        if not any(shared):
            return [0.0] * len(stages)
        counted = self.moving(problem.kinds, _of_groups(self.updated, groups)) + self.unhidden(problem, groups)
        found = []
        for (number, nodes), positions, update in zip(stages, own, updates(self.module, own), strict=True):
            kind = problem.kinds[number]
            type_ = self.topology.type(kind.type)
            works = learning_seconds(self.module, type_)
            speed, passes = Speed(*self.hosts.best_ring(kind)), [works[i] for i in positions]
            once = update.seconds(type_, speed, kind.replicas, passes)
            more = once - math.fsum(counted[number, list(nodes)]) if kind.replicas > 1 else 0.0
            found.append(more / self.microbatches)
        return found

    @cached_property
    def copies(self) -> tuple[float, int]:
        """The shortest step of replicas of the whole model on devices of one type that hold it, on the best ring of as many,
        and their number; infinite where none holds it."""
        if self.fewest > 1:
            return math.inf, 1
        every = range(len(self.module.entry.ops))
        problem, (update,) = self._alone[0], updates(self.module, [every])
        needed: dict[InFlight, int] = {}
        found = [(math.inf, 1)]
        for kind in problem.kinds:
            type_ = self.topology.type(kind.type)
            works = learning_seconds(self.module, type_)
            seconds = math.fsum(one.both for one in works)
            for r in range(1, min(kind.most, self.replicas, self.microbatches) + 1):
                flight = InFlight.of(self.microbatches, [r], self.family)
                if kind.memory is not None:
                    if flight not in needed:
                        needed[flight] = stage_memory(self.module, [every], (), problem.comm, flight)[0].least
                    if needed[flight] > kind.memory:
                        continue
                speed = Speed(*self.hosts.best_ring(replace(kind, replicas=r, fills=True)))
                period = seconds / r + update.seconds(type_, speed, r, works) / self.microbatches
                found.append((step_seconds(period, self.microbatches, [r]), r))
        return min(found)

    @cached_property
    def fewest(self) -> int:
        """Stages that a plan has at least: together they hold each weight, with its state, and each saved value at least once.
        All devices where these hold too little."""
        limits = sorted(
            (math.inf if (limit := self.topology.memory(device)) is None else float(limit)) for device in self.topology.devices
        )
        needed = float(self.problem(self.stream, self.replicas, least=True).weight_bytes.sum())
        room = np.cumsum(limits[::-1])
        return min(int(np.searchsorted(room, needed)) + 1, len(limits))

    @property
    def replicates(self) -> bool:
        """Whether some stage may have replicas."""
        most = max(kind.most for kind in self._alone[0].kinds)
        return min(most, self.replicas, self.microbatches) > 1

    @cached_property
    def _alone(self) -> tuple[Problem, Floats]:
        """The problem of all ops, a stage on one device each, and the prices of its devices."""
        problem = self.problem(self.stream)
        return problem, prices(problem)

    @cached_property
    def _work(self) -> StepWork:
        """All work of a step: at the best prices of all devices, and where each device has the same, best of few."""
        problem, price = self._alone
        every = np.array([price, np.full(len(price), 1.0 / problem.devices)])
        wide = self.replicated(problem, None, self.replicas)
        replicas = np.array([kind.replicas for kind in wide.kinds])
        pool = np.array(pools(wide.kinds), np.int64)
        once = self.moving(problem.kinds, self.updated) / self.microbatches
        weight = dict[int, Floats]()
        for r in range(1, int(replicas.max()) + 1):
            if not weight or periods_behind(self.microbatches, r) < periods_behind(self.microbatches, max(weight)):
                own = replicas >= r
                found = [
                    max(
                        float(node_weights(replace(problem, seconds=problem.seconds + (r - 1) * once), row).sum()),
                        float(node_weights(replace(wide, seconds=wide.seconds[own]), (row[pool] * replicas)[own]).sum()),
                    )
                    for row in every
                ]
                weight[r] = np.array(found) * (1 - SLACK)
        handover = np.array([self.topology.type(kind.type).handover for kind in problem.kinds])
        rate = np.array([np.cumsum(fastest(problem, row)) for row in every])
        return StepWork(weight, rate, (every * handover).min(axis=1))

    def least(self, period: float, devices: range) -> float:
        """A lower bound on the step of all plans in contiguous stages on so many ``devices``, of at least as many stages as its
        first says; ``period``: one on their periods."""
        if not self.flush:
            return self.microbatches * period
        return least_step(self._work, self.microbatches, period, devices, devices.start)

    def longest(self, step: float, devices: range) -> float:
        """The longest period of plans below ``step`` seconds: with any longer one ``least`` is not below. inf for an infinite
        step."""
        low, high = 0.0, step / self.microbatches
        for _ in range(_HALVINGS if step < math.inf else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if self.least(middle, devices) < step else (low, middle)
        return high if self.least(0.0, devices) < step else 0.0

    def told(self, plan: Plan, devices: range | None) -> Plan:
        """The plan of a stream with these costs as that of a step; ``devices``: how many those plans have that it is compared
        with, None where stages share devices."""
        replicas = [stage.replicas for stage in plan.stages]
        value = step_seconds(plan.value, self.microbatches, replicas, flush=self.flush)
        return replace(
            plan,
            objective=TRAINING.name,
            microbatches=self.microbatches,
            flush=self.flush,
            value=value,
            port_value=value,
            bound=min(value, self.microbatches * plan.bound if devices is None else self.least(plan.bound, devices)),
        )

    @property
    def least_of_any(self) -> float:
        """A lower bound on the step of plans of any number of stages."""
        return min(self.copies[0], self.least(0.0, self.several) if self.several else math.inf)

    @cached_property
    def several(self) -> range:
        """Numbers of devices of plans of two stages or more; the first is also how many stages these have at least."""
        return range(max(self.fewest, 2), len(self.topology.devices) + 1)

    def quickest(
        self,
        plan_of: PlanOf,
        stages: int = 0,
        beaten: float = math.inf,
        enough: float = 1.0,
        seconds: float = math.inf,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Module:
        """The module of the best plan. ``stages``: how many are stated (0: any number). ``beaten``: seconds of a step of
        another kind: only better ones are looked for. A plan of ``enough`` times a bound ends the search. ``seconds``: the
        limit of one search; ``interrupted``: whether no further one is to begin. Raises Infeasible where no number has a plan,
        NoBetterPlan where none has a better one.

        Replicas of the whole model come first: their seconds are known (``copies``), and often rule out several stages, which
        take periods to fill. Of several stages the least load on all devices comes next, if its step may be better. Each number
        of devices, and of replicas that every stage has at least, has a bound on its steps, at first that of work spread
        evenly. Those with the least bound are searched: no load on as many devices or fewer, in stages of as many replicas or
        more, is below what this proves."""
        best: tuple[Module, Plan] | None = None
        bound, copies = (math.inf, 1) if stages else self.copies
        several = range(max(self.several.start, stages), self.several.stop)
        if bound * enough < beaten:
            with suppress(Infeasible):
                module, plan, _ = plan_of(1, copies, 0, beaten)
                best, bound, beaten = (module, plan), max(bound, plan.bound), min(beaten, plan.value)
        every, ends, failure = len(self.topology.devices), math.inf, None

        def step(period: float, some: tuple[int, int]) -> float:
            counts = range(some[0], some[0] + 1)
            return least_step(self._work, self.microbatches, period, counts, several.start, some[1:])

        least = {(count, r): step(0.0, (count, r)) for count in several for r in self._work.weight}
        todo = {some for some, seconds in least.items() if seconds < math.inf}
        for number in range(1 + MOST_TRIED):
            some = min(todo, key=lambda some: (least[some], -some[0], some[1]), default=(0, 0))
            if not number and (best is None or least.get((every, 1), math.inf) * enough < beaten):
                some = every, 1
            over = is_over() or interrupted() or now() >= ends or least.get(some, math.inf) * enough >= beaten
            if over and (number or best is not None):
                break
            todo.discard(some)
            try:
                module, plan, period = plan_of(0, some[1], some[0], beaten)
            except Infeasible as error:
                failure = failure or error
                period = error.bound if isinstance(error, NoBetterPlan) or not error.proven else math.inf
            else:
                if best is None or plan.value < best[1].value:
                    best, beaten = (module, plan), min(beaten, plan.value)
            ends = ends if number else now() + FOR_FEWER * seconds
            for other in least:
                if other[0] <= some[0] and other[1] >= some[1]:
                    least[other] = max(least[other], step(period, other))
        bound = min(bound, *least.values()) if least else bound
        if best is None:
            assert failure is not None, "else there is a plan"
            failure.bound = bound
            raise failure
        module, plan = best
        return module.replace(plan, bounded(plan, bound))


def _of_groups(rows: Floats, groups: Groups | None) -> Floats:
    """``rows[.., op]`` added up by group; None: as they are."""
    if groups is None:
        return rows
    return np.array([[row[list(members)].sum() for members in groups] for row in rows]).reshape(len(rows), len(groups))


def bounded(plan: Plan, bound: float) -> Plan:
    """The plan with this bound, and the status that follows."""
    bound = min(bound, plan.value)
    return replace(plan, bound=bound, status=outcome(plan.value, bound))
