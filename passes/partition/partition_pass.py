"""The pass ``partition``: stages, devices and layouts, chosen together.

Reads costs and the topology. Writes the stage of each op, and where stages are on
meshes these, strategies, layouts and reshards (``passes.plan``); and a ``Plan`` with its proof. It asks up to four searches:

- stages on single devices and replicas, between any two ideals of the lattice (``bridge.lattice_search``);
- stages each on devices of unlike speed, which take turns in proportion to it, between places where the function may be cut
  (``decoding.turns``): of a stream of samples on unlike devices;
- stages on meshes, beside which may be single devices and replicas, between places where the function may be cut
  (``on_meshes``, ``chain``);
- one mesh of all or some devices (``on_meshes``, ``layouts``): in a training step, for it is quickly found and hard to beat,
  and where devices differ in type, of which one mesh may leave some out.

Of several searches ``best`` takes the best plan. One mesh is searched first; else, and under a limit by the clock, single
devices and replicas, because they are found quickly and on equal devices hard to beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ir.core.diagnostics import DiagnosticSink, Infeasible, UsageError
from ir.core.module import Module, Plan
from ir.core.objectives import THROUGHPUT, objective_of
from ir.core.outcomes import TIGHT
from ir.core.topology import Topology
from ir.text.witness import DEVICES, MESH, MESHES, REPLICAS, TURNS
from passes.costs.learning import ASYNCHRONOUS
from passes.costs.memory.liveness import states_bytes
from passes.costs.network import network
from passes.costs.parts import ordered
from passes.framework.base import NoBetterPlan, PassContext, needed
from passes.framework.registry import ANY_FORM, ANY_MESH, BOUND, NO_MESH, PASSES
from passes.graph.serving import tokens_of
from passes.graph.sizes import assessed
from passes.meshes.undecided import undecided
from passes.partition.best import Search, best_of, log_plan
from passes.partition.bridge.lattice_search import LatticeSearch
from passes.partition.bridge.on_links import among, narrower, shifted
from passes.partition.bridge.plan import with_stages
from passes.partition.faults import NotAnOption
from passes.partition.options import MICROBATCHES, MeshOptions
from passes.partition.place import PlacePass, stage_ops
from passes.solvers.work import clock_left, did, is_over, now
from passes.stages.colocation import colocation
from passes.timeline.families import SHARING

if TYPE_CHECKING:
    from passes.partition.on_meshes import MeshesSearch

KINDS = {
    DEVICES: "stages of single devices",
    REPLICAS: "stages that may have replicas",
    TURNS: "stages that unlike devices share",
    MESHES: "stages on meshes",
}
"""Forms of plans in words."""
MIXED = "stages that may be meshes"
_NEAR = 0.05
"""Relative: a plan of a training step on single devices that is so near its bound is not looked for again on meshes."""
_FEWER_STAGES = 2
"""Numbers of stages below that of a training plan that are tried on the real links, beside one. Of 84 random steps one became
25 % faster; the searches took 5 % longer. They come last: before the others they took time that these use better (BERT with 4
layers on TAG's testbed: 35.2 ms, else 37.1)."""
_NEAR_ON_LINKS = 0.01
"""Relative: a plan of a training step that is so near its bound is not looked for again on the real links, which takes about as
long again. Of 700 random steps real links cost 25 up to 5 % more than ports; looking again improved three of these, by 44, 1
and 0.7 %. Seven of the 25 were within 1 % of their bound: the last of the three, and six that had no better plan."""
_FAR = 2.0
_FOR_FAR = 0.05
"""Part of the time left in which borders are moved of a plan that is so many times the best. BERT with 6 layers on two hosts of
four GPUs: four fifths of the search moved those of a plan of 3.3 times the best, in vain."""
_FOR_LINKS = 0.2
"""Part of a stated time limit that is kept for plans on the real links."""


@dataclass(frozen=True)
class PartitionPass(LatticeSearch, MeshOptions):
    """Split the model into stages on devices, replicas and meshes, at least modelled time.

    ``mesh``: which plans are searched: ``none`` (stages on single devices and replicas), ``any`` (those, and stages on meshes,
    unless a cut, a pin, another ``comm``, ``chunks`` or an order without a flush needs single devices), ``auto`` (stages on
    meshes), or the sizes of the axes of a mesh (``8``, ``2x4``), on which each stage is then. ``objective``: ``throughput``
    (least largest load per sample), ``training`` (least time of a step of a model), ``tokens`` (of a decoder, least time per
    token of all sequences in flight) or ``token-latency`` (least time from a token to the next of one group alone).
    ``stages``: exactly so many (0: as many as are best). ``replicas``: most devices that a stage may run on, each handling
    every so-many-th sample (0: as many as there are). ``microbatches``: of a training step (0: 8, and 1 where one stage on a
    mesh is asked for), ordered as ``family`` does (empty: as 1F1B; ``passes.timeline.families``). ``time_limit``: seconds of
    counted work of each search (none: 10, on meshes 60); where it is stated, that of single devices keeps a fifth for plans on
    the real links.

    On single devices: ``comm``: how compute and transfers of a device add up (``sum``, ``overlap``, ``duplex``). ``cuts``:
    tensors whose maker and readers must lie in different stages. ``pins``: ``NODE=DEVICE``. ``chunks``: stages on each device
    of a training step, put there in ``chunk_order``, ``loop`` or ``v`` (1: one, on any). ``hosts``: look for plans that
    are better where links between hosts are slower than inside. An interrupt from the keyboard ends the search with its best
    plan.

    On meshes: ``strategy``: a plan by its name (``data``, ``megatron``, ``expert``, ``replicate``), not the one
    found; in stages ops are split as in that plan of the whole function, and cut where the slowest stage is quickest, on meshes
    of one shape. ``shares``: of the members
    along each axis in what is cut (``3,1``, ``3,1x1,1``; ``equal``); empty: the best of a few, by the devices' speeds.
    ``device_memory``: bytes per device at most, for weights, activations and buffers; 0: those of the topology; -1: no limit.
    ``gap``: relative, between value and bound, at which a search ends (that for a training step in stages after a while at a
    larger one, unless less than the default is asked for; none: 0.001); 0: only an optimal plan or the time limit ends it.
    """

    name: ClassVar[str] = "partition"

    def _found(self, module: Module, context: PassContext) -> Module:
        topology, decodes = needed(module, Topology), objective_of(self.objective).decodes
        turns = self._in_turns(module, topology)
        least = turns[0].least if turns else lambda: 0.0  # one device has one turn
        own = Search(KINDS[self.form], self.form, lambda inside, seconds: self._placed(module, inside, seconds), least)
        if self.mesh == NO_MESH or (self.mesh == ANY_FORM and not self._meshes_beside(module, topology)):
            return best_of([*turns, own], context, self.name) if turns else self._on_single_devices(module, context)
        meshes = self.on_meshes(topology)
        searches = [self.search_on(one, module) for one in meshes]
        if self.mesh != ANY_FORM:
            if len(searches) == 1:
                return self._on_one_form(searches[0], context)
            return best_of(searches, context, self.name)
        ahead = 0  # searches that come before it
        if any(one.stages == 1 for one in meshes) and clock_left() == math.inf and not decodes:
            # Of a training step, stages on meshes of unlike devices take longest; the other plans rule most of them out.
            ahead = 1 if self.training else len(searches)
        return best_of([*turns, *searches[:ahead], own, *searches[ahead:]], context, self.name)

    def check_options(self) -> None:
        """Raises UsageError for options that exclude each other, whatever the model."""
        if options := self.without_effect:
            raise UsageError(NotAnOption(", ".join(options), f"mesh={self.mesh}"), where=self.name)
        flags, objective = self.without_mesh, objective_of(self.objective)
        if flags and objective.decodes:
            raise UsageError(NotAnOption(", ".join(flags), f"objective={self.objective}"), where=self.name)
        if flags and self.mesh not in (NO_MESH, ANY_FORM):
            raise UsageError(NotAnOption(", ".join(flags), f"mesh={self.mesh}"), where=self.name)
        if objective.trains:
            self.check_comm()

    def _check_memory(self, module: Module, topology: Topology, context: PassContext) -> None:
        if self.device_memory:
            return
        try:
            super()._check_memory(module, topology, context)
        except Infeasible:
            # Taken apart, projections may hold less.
            super()._check_memory(self._for_meshes(module, context), topology, context)
            raise

    @property
    def _step_microbatches(self) -> int:
        return super()._step_microbatches if self.mesh == ANY_FORM else self.step_microbatches

    def searched(self, module: Module, context: PassContext, made: list[Module] | None = None) -> Module:
        """The module with a plan on single devices and replicas, not placed yet. Raises as ``run``."""
        if not objective_of(self.objective).decodes:
            return super().searched(module, context, made)
        from passes.partition.decoding.planned import Wanted, planned

        module, topology = undecided(module), needed(module, Topology)
        wanted = Wanted(self.objective, self.stages, self.replicas, self._seconds)
        found = planned(module, topology, wanted, context, self.name)
        if found is None:  # the search over the lattice cuts anywhere: it has a plan without replicas, or says what is missing
            found = replace(self, objective=THROUGHPUT.name, replicas=1).searched(module, context)
            plan, tokens = needed(found, Plan), tokens_of(module, self.objective)
            rates = {key: getattr(plan, key) / tokens for key in ("value", "port_value", "bound", "single")}
            found = found.replace(plan, replace(plan, objective=self.objective, tokens=tokens, status="within-gap", **rates))
        return found

    def _on_single_devices(self, module: Module, context: PassContext) -> Module:
        """The module with a plan on single devices and replicas. The search between any two ideals takes all stages of a
        training step to hold as many microbatches; stages later in the step hold fewer, and the search on meshes counts so.
        Where memory leaves the first without a plan, or far from its bound, the second is asked for stages of one device
        each. Raises as ``run``."""
        found, failure = module, None
        try:
            found = self._within_limit(module, context)
            plan = needed(found, Plan)
            bound, enough = plan.bound, plan.gap <= _NEAR or _is_interrupted(context)
        except Infeasible as error:
            failure, bound, enough = error, error.bound, error.proven
        if not enough and self.training and not self.without_mesh and not states_bytes(module.entry):
            alone = replace(self.on_meshes(needed(module, Topology))[-1], mesh="1", whole=True)
            with suppress(Infeasible, NoBetterPlan), self._beside_a_plan(context, failure is None) as inside:
                other = alone.run(module, inside)
                better = needed(other, Plan)
                if failure is not None or better.value < needed(found, Plan).value:
                    found, failure = other, None
                    found = found.replace(better, assessed(better, found.entry, better.value, min(bound, better.value)))
        if failure is not None:
            raise failure
        module = found
        log_plan(KINDS[self.form], module)
        return module

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The options, other than their defaults, that no search reads which ``mesh`` asks for; and those that one of several
        searches would not keep to."""
        of_meshes = ("strategy", "device_memory")
        if self.mesh == NO_MESH:
            names: tuple[str, ...] = (*of_meshes, "shares", "gap")
        elif self.mesh == ANY_FORM:
            names = of_meshes
        else:
            names = ("hosts",)
        default = {option.name: option.default for option in fields(self)}
        return tuple(name.replace("_", "-") for name in names if getattr(self, name) != default[name])

    @property
    def without_mesh(self) -> tuple[str, ...]:
        """The options that need single devices, as a person gives them."""
        asked = {
            "--cut": self.cuts,
            "--pin": self.pins,
            f"--comm {self.comm}": self.comm != "sum",
            f"--schedule {self.family}": self.family in (*ASYNCHRONOUS, *SHARING),
            f"--chunks {self.chunks}": self.chunks > 1 and self.family not in SHARING,
        }
        return tuple(flag for flag, given in asked.items() if given)

    def sets_of_devices(self, topology: Topology) -> str:
        """The sets of devices on which stages on meshes are searched; empty if all sets are, or none."""
        from passes.meshes.mesh import IN_FEW_SHAPES, few

        beside = self.mesh == ANY_FORM
        if self.mesh not in (ANY_FORM, ANY_MESH) or (beside and not self.allows_meshes(topology)):
            return ""
        searches = self.on_meshes(topology)
        if all(search.stages == 1 for search in searches):
            if beside and len(topology.devices) > 2:
                shapes = f", {IN_FEW_SHAPES}" if few(topology) else ""
                return f"of all devices, or all of some types on some hosts{shapes} (no others are searched)"
            if len(topology.devices) > 3 and searches[0].tries_fewer(topology):
                shapes = f", {IN_FEW_SHAPES}" if few(topology) else ""
                return f"of all devices, or the first half, quarter, .. of them{shapes} (no others are searched)"
            return (
                f"of all devices, {IN_FEW_SHAPES} (no other shapes are searched)" if not self.shares and few(topology) else ""
            )
        from passes.partition.chain.submeshes import searched_sizes
        from passes.partition.on_meshes import halves

        net, sizes, left_out = network(topology), set[int](), dict[str, None]()
        for search in searches:
            if search.stages == 1 and search.tries_fewer(topology):
                sizes.update(halves(len(topology.devices)))
            elif search.stages != 1:
                own, limits = searched_sizes(
                    topology,
                    net,
                    stages=search.stages,
                    replicas=search.most_replicas(topology),
                    one_kind=search.of_one_kind(topology),
                )
                sizes.update(own)
                left_out |= dict.fromkeys([limits] if limits else [])
        every = len(sizes) == len(topology.devices)
        *most, last = map(str, sorted(sizes))
        told = [*([] if every else [f"of {', '.join(most)} or {last} devices"]), *left_out]
        what = "others" if len(told) > 1 else "other orders" if every else "other sizes"
        return f"{', '.join(told)} (no {what} are searched)" if told else ""

    def allows_meshes(self, topology: Topology) -> bool:
        """Whether devices and options allow stages on meshes beside others; without, ``mesh=any`` searches none."""
        return 1 < len(topology.devices) > self.stages and not self.without_mesh

    def _meshes_beside(self, module: Module, topology: Topology) -> bool:
        """Whether stages on meshes are searched beside others: of a model, not of a profile."""
        return self.allows_meshes(topology) and not states_bytes(module.entry)

    def on_meshes(self, topology: Topology) -> tuple[MeshesSearch, ...]:
        """The searches of stages on meshes: one mesh first, then several stages. The second leaves out one stage on all
        devices, which the first has searched; with a stated shape it does not, since that may need all devices. Where every
        mesh of the first may be a stage (``_covers``), both are ``whole``: the bound of the second holds for the first too."""
        from passes.partition.on_meshes import MeshesSearch

        search = MeshesSearch(**{field.name: getattr(self, field.name) for field in fields(MeshOptions)})
        if search.training and self.mesh == ANY_FORM:
            search = replace(search, microbatches=self.microbatches or MICROBATCHES)
        unlike = len({device.type for device in topology.devices}) > 1
        alone = search.stages or search.strategy or search.shares or len(topology.devices) == 1
        alone = alone or search.of_one_kind(topology)
        if alone or not (unlike or search.training or objective_of(search.objective).alone):
            return (search,)
        # As many microbatches as in stages, because the values are compared.
        microbatches = search.step_microbatches if search.training else 0
        covers = self._covers(search, topology)
        one = replace(search, stages=1, microbatches=microbatches, whole=covers)
        return one, replace(search, whole=covers or bool(search.shape))

    def _covers(self, search: MeshesSearch, topology: Topology) -> bool:
        """Whether each of the meshes that are searched for one sample alone may be a stage, so that the bound of the search in
        stages holds for them: of devices of one type in the order of stages, on part of one host or on whole hosts."""
        from passes.partition.chain.submeshes import searched_sizes
        from passes.partition.on_meshes import halves

        if not objective_of(search.objective).alone or len({device.type for device in topology.devices}) > 1:
            return False
        net, devices = network(topology), topology.devices
        if devices != ordered(topology, net):
            return False
        sizes, _ = searched_sizes(topology, net, replicas=search.most_replicas(topology))
        for count in halves(len(devices)):
            hosts = {device.host for device in devices[:count]}
            if count not in sizes or (len(hosts) > 1 and sum(device.host in hosts for device in devices) > count):
                return False
        return True

    def _in_turns(self, module: Module, topology: Topology) -> tuple[Search, ...]:
        """The search of stages on unlike devices that take turns; none where there are no such devices, or no such plans are
        asked for."""
        unlike = len({device.type for device in topology.devices}) > 1 and self.replicas != 1
        if not unlike or self.objective != THROUGHPUT.name or self.without_mesh or states_bytes(module.entry) or module.states:
            return ()
        from passes.partition.decoding.planned import Wanted
        from passes.partition.decoding.turns import least, planned_in_turns

        def run(context: PassContext, seconds: float | None) -> Module:
            wanted = Wanted(self.objective, self.stages, self.replicas, self._seconds if seconds is None else seconds)
            return planned_in_turns(undecided(module), topology, wanted, context, self.name)

        return (Search(KINDS[TURNS], TURNS, run, lambda: least(undecided(module), topology)),)

    def search_on(self, search: MeshesSearch, module: Module) -> Search:
        """A search on meshes as one of several."""
        covered = search.stages == 1 and not self.stages and search.whole
        mixed = not (search.replicas == 1 or search.training or objective_of(self.objective).trips)

        def run(context: PassContext, seconds: float | None) -> Module:
            given = self._for_meshes(module, context) if self.mesh == ANY_FORM else module
            return (search if seconds is None else replace(search, time_limit=seconds)).run(given, context)

        def least() -> float:
            from passes.partition.layouts.mesh.speeds import Speeds

            given = self._for_meshes(module, PassContext()) if self.mesh == ANY_FORM else module
            topology = needed(module, Topology)
            seconds = Speeds(undecided(given), topology, training=search.training).spread()
            return search.step_microbatches * seconds / tokens_of(module, search.objective)

        return Search(MIXED if mixed else KINDS[MESHES], MESHES, run, least, covered)

    def _for_meshes(self, module: Module, context: PassContext) -> Module:
        """The module with fused projections taken apart, whose parts can be split; a training step has its weights as they
        are."""
        if self.training:
            return module
        inside = replace(context, statistics={}, sink=DiagnosticSink())
        apart = PASSES["unfuse"]().run(module, inside)
        return module if apart is module else PASSES["cost"]().run(apart, inside)

    def _within_limit(self, module: Module, context: PassContext) -> Module:
        """The module with the best plan on single devices and replicas, on the real links, not placed yet. A stated time limit
        is that of both searches together; without one each has its own. Raises as ``run``."""
        topology, search, clock = needed(module, Topology), self, math.inf
        tries_links = self.chunks == 1 and self.hosts and not objective_of(self.objective).decodes
        tries_links = tries_links and not (self.training and states_bytes(module.entry))
        machines = list(narrower(topology, context.analyses.get(network, topology))) if tries_links else []
        if machines and self.time_limit is not None:
            search, clock = replace(self, time_limit=(1 - _FOR_LINKS) * self.time_limit), (1 - _FOR_LINKS) * clock_left()
        made: list[Module] = []
        started = now()
        with replace(context, clock=clock).limited(self.name):
            found = search.searched(module, context, made)
        if not tries_links or _is_interrupted(context):
            return found
        ends = (now() if self.time_limit is None else started) + self._seconds
        return self._on_links(module, found, made, machines, context, ends)

    def _on_links(
        self,
        module: Module,
        found: Module,
        made: Sequence[Module],
        others: Sequence[Topology],
        context: PassContext,
        ends: float,
    ) -> Module:
        """``found``, or the plan that is better on the real links: one of ``made``, which the search made on the way, one
        without replicas, one of a single stage, which sends nothing, or one for one of ``others``: some of the devices, or
        links all as slow as the slowest (``narrower``). Borders of the first and the best are moved. Between hosts links may
        be far slower than the ports that the search counts, and several devices send over one at a time. The bound is that of
        ``found``. ``ends``: of ``now``."""
        plan, topology = needed(found, Plan), needed(module, Topology)

        def put(planned: Module, inside: PassContext, machines: Topology = topology) -> Module:
            """The module with its stages on devices of ``machines``."""
            plan = needed(planned, Plan)
            planned = planned.replace(plan, replace(plan, port_value=math.inf, bound=0.0))
            planned = planned.replace(needed(planned, Topology), machines)
            return PlacePass(family=self.family, time_limit=max(0.0, ends - now())).run(planned, inside)

        def beside(planned: Module, machines: Topology = topology) -> Module | None:
            """As ``put``; None where the plan does not fit."""
            with suppress(Infeasible), self._beside_a_plan(context) as inside:
                return put(planned, inside, machines)
            return None

        placed = beside(found)
        least = needed(placed, Plan).value if placed is not None else math.inf
        near = plan.bound * (1 + _NEAR_ON_LINKS) if self.training else 0.0
        if least <= max(plan.value * (1 + TIGHT), near):
            return found
        best, known = found, context.incumbent.value if context.incumbent is not None else math.inf

        def consider(made: Sequence[Module], machines: Topology) -> None:
            """Keeps the best of these plans for ``machines``: the quickest by their ports, and others while there is time."""
            nonlocal best, least
            within = among(topology, {device.name for device in machines.devices})
            for number, one in enumerate(sorted(made, key=lambda one: needed(one, Plan).value)):
                in_time = (number == 0 or now() < ends) and not _is_interrupted(context)
                if in_time and needed(one, Plan).value < least:
                    there = one if within is topology else beside(one, within)
                    there = beside(there) if there is not None else None
                    if there is not None and (value := needed(there, Plan).value) < least:
                        best, least = there, value

        consider([one for one in made if one.entry is not found.entry], topology)
        tried = self._further(plan, topology, others)
        for number, (machines, search) in enumerate(tried):
            left = ends - now()
            if left <= 0 or is_over() or _is_interrupted(context):
                break
            search = replace(search, time_limit=left / (len(tried) - number + 1))  # borders are moved afterwards
            also: list[Module] = []
            with suppress(Infeasible, NoBetterPlan), self._beside_a_plan(context) as inside:
                inside.incumbent = replace(plan, value=min(least, known))
                other = search.searched(module.replace(topology, machines), inside, also)
                also = also or [other]
            consider(also, machines)
        starts = [one for one in (best, placed) if one is not None and one is not found]
        for start in starts if not (self.cuts or self.pins) else ():
            far = needed(start, Plan).value > _FAR * least
            moved = self._with_moved_borders(start, put, context, now() + (ends - now()) * _FOR_FAR if far else ends)
            if (value := needed(moved, Plan).value) < least:
                best, least = moved, value
        if best is found:
            return found
        chosen, of_all = needed(best, Plan), ("bound", "problem", "stages")
        texts = [(key, text) for key, text in chosen.certificate if key not in of_all]
        texts += [(key, text) for key, text in plan.certificate if key in of_all]
        told, value = replace(chosen, single=plan.single, certificate=tuple(sorted(texts))), chosen.port_value
        return best.replace(chosen, assessed(told, best.entry, value, min(plan.bound, value)))

    def _further(self, plan: Plan, topology: Topology, others: Sequence[Topology]) -> list[tuple[Topology, PartitionPass]]:
        """The further searches for plans on the real links, where ``plan`` is the best on ports: the machines and the options
        of each."""
        pinned = {text.rpartition("=")[2] for text in self.pins}
        fewer = () if self.training and not self.stages else (1,)  # training in any number of stages looks at few by itself
        searches = [replace(self, replicas=most, hosts=False) for most in dict.fromkeys((self.replicas, *fewer))]
        machines = [topology, *(some for some in others if pinned <= {device.name for device in some.devices})]
        tried = [(some, search) for some in machines for search in searches][1:]  # the first gave ``plan``
        if not (self.stages or self.cuts or len(pinned) > 1):
            count = len(plan.stages)
            few = range(max(2, count - _FEWER_STAGES), count if self.training else 0)
            tried = [(topology, replace(searches[0], stages=1)), *tried]
            tried += [(topology, replace(searches[0], stages=number)) for number in few]
        return tried

    def _with_moved_borders(
        self, placed: Module, put: Callable[[Module, PassContext], Module], context: PassContext, ends: float
    ) -> Module:
        """What a module with a placed plan becomes by moving one border after the other for as long as that makes the plan
        better on the real links. ``put``: puts stages on devices; ``ends``: of ``now``."""
        if _is_interrupted(context):
            return placed
        with self._beside_a_plan(context) as inside:
            classes, improved = inside.analyses.get(colocation, placed), True
            while improved:
                plan, improved = needed(placed, Plan), False
                stages = tuple(replace(one, devices=() if one.device_type else one.devices) for one in plan.stages)
                free = placed.replace(plan, replace(plan, stages=stages))
                for members in shifted(stage_ops(placed, plan), classes):
                    if now() >= ends or is_over() or _is_interrupted(inside):
                        return placed
                    did("priced", len(placed.entry.ops))
                    with suppress(Infeasible):
                        moved = put(with_stages(free, members), inside)
                        if needed(moved, Plan).value < plan.value * (1 - TIGHT):
                            placed, improved = moved, True
                            break
        return placed

    @contextmanager
    def _beside_a_plan(self, context: PassContext, has_plan: bool = True) -> Iterator[PassContext]:
        """Yields the context of a further search: its counts and warnings are dropped, but an interrupt is counted in
        ``context``. With ``has_plan`` an interrupt of Python ends this search alone."""
        inside = replace(context, statistics={}, sink=DiagnosticSink())
        try:
            yield inside
        except KeyboardInterrupt:
            if not has_plan:
                raise
            inside.count(self.name, interrupted=1)
        finally:
            if _is_interrupted(inside):
                context.count(self.name, interrupted=1)

    def _placed(self, module: Module, context: PassContext, seconds: float | None) -> Module:
        """The module with the best plan on single devices and replicas, on the real links."""
        limit: dict[str, Any] = {} if seconds is None else {"time_limit": seconds}
        planned = replace(self, **limit)._within_limit(module, context)
        return PlacePass(family=self.family, **limit).run(planned, replace(context, sink=DiagnosticSink()))  # it warns later

    def _on_one_form(self, search: Search, context: PassContext) -> Module:
        """The module with the best plan of the only search, whose bound is counted."""
        module = search.run(context, None)
        plan, counted = module.first(Plan), context.statistics.get(self.name, {})
        assert plan is not None
        one = self.stages == 1 and counted.get("candidates") == 1
        context.count(self.name, **{f"{BOUND}{MESH if one else MESHES}": plan.bound})
        return module


def _is_interrupted(context: PassContext) -> bool:
    """Whether Ctrl-C ended a search that is counted in the context."""
    return any(counted.get("interrupted") for counted in context.statistics.values())
