"""The pass ``replay``: a plan on meshes that a person or a script edited, in the place of ``shard``.

Reads what ``shard`` reads, and writes what ``shard`` writes (``written``). Nothing is searched but a bound: each op has the
stage and, per axis of its stage's mesh, the strategy that the plan states; each weight is kept, each result of the model
leaves, as stated, else as costs least. Seconds and bytes are counted by ``price``; of the numbers that the plan states only its
bound is read: where ``proof`` says that it was proven for plans like this one it stays, with its certificate. Else each stage
is searched, briefly, for what it costs at least with the ops and devices that it has.

A faulty plan raises InvalidInput with every fault found, each with its stage: ops that are unknown, listed twice or not at all;
devices that are unknown or in two stages; a mesh of another size than its devices; strategies and layouts that the op or the
tensor does not have on this mesh; values that would travel to an earlier stage. Weights that do not fit are Infeasible.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ir.diagnostics import Diagnostic, Infeasible, InvalidInput
from ir.facets import SEPARATOR, WHOLE, StageSet, Sync, sync_of, with_facet
from ir.layout_rules import LayoutRule, rules
from ir.module import Mesh, Module, Plan, Resource, Symbol
from ir.objectives import Planned
from ir.shares import Shares, equal
from ir.topology import Topology
from ir.types import Layout, Replicate, TensorType, Type
from ir.verifier.machines import MOST_SHARE
from passes.framework.base import PassContext
from passes.model.folding import expand, folding
from passes.model.graph import listing, reads, stage_members
from passes.model.learning import InFlight, avoids_sums, recomputes
from passes.model.network import Network, network
from passes.model.spmd.bill import UNSUMMED
from passes.model.spmd.cross_mesh import Crossing, Party, message_bytes
from passes.model.spmd.footprint import overfull
from passes.model.spmd.layouts import Placements
from passes.model.spmd.mesh import AXIS_NAMES, DeviceMesh, mesh_over
from passes.model.spmd.notation import read_placements, read_sync, sync_text
from passes.model.spmd.plan.proof import proven_for
from passes.model.spmd.plan.written import written
from passes.model.spmd.price import price
from passes.model.spmd.staged import Staged
from passes.model.spmd.undecided import undecided
from passes.replay.stated import SHOWN, StatedPass, shortened
from passes.shard.decide import choice_of, decisions_of, settled
from passes.shard.problem.build import OVERLAPS, ShardInput, build, possible
from passes.shard.problem.constants import constants_of
from passes.shard.problem.problem import Floats
from passes.shard.shard_pass import single_value
from passes.shard.solver.search import BOUNDING, NoPlanError, solve
from passes.shard.stages.borders import Border, Cutter

GIVEN = "given, not searched for"
"""What a certificate says of a plan that was edited."""


@dataclass(frozen=True)
class ReplayPass(StatedPass):
    """Give every op the stage and the strategies, and every stage the mesh, that a plan states.

    ``ops``, ``objective``, ``bound``, ``source`` as of ``assign``; ``devices``: ``STAGE:DEVICE``, row by row of a mesh.
    ``strategies``: of each entry of ``ops`` the names of its strategies, as in ``shard<..>``; empty on a single device.
    ``axes``: ``STAGE:SIZE:NAME``, in order, or with shares ``STAGE:3,1:NAME``; none for a single device. ``weights`` and
    ``outputs``: ``STAGE:LAYOUT:NAME``, a layout like ``S(0), R``. ``syncs``: ``STAGE:METHOD:NAME`` of weights whose gradients
    are not summed by all-reduce, a method like ``ps(1)``; where there is one, all other weights' are. ``uneven``, ``memory``,
    ``microbatches`` (of a training step) as of ``shard``. ``value`` and ``certificate``, ``KEY=TEXT``: what the plan states.
    """

    name: ClassVar[str] = "replay"
    strategies: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    syncs: tuple[str, ...] = ()
    uneven: bool = False
    memory: int = 0
    microbatches: int = 1
    value: float = 0.0
    certificate: tuple[str, ...] = ()

    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for a plan that does not fit the model or the topology, Infeasible where a stage needs more
        memory than there is."""
        topology = module.first(Topology)
        if topology is None:
            raise InvalidInput("the module has no topology", where=module.name, hint="give one with -t")
        self._check_options()
        module, net = self._synced(undecided(expand(module))), context.analyses.get(network, topology)
        stated = self._stated(module, topology, net)
        line = _Line(self, module, topology, context, stated)
        staged = line.staged()
        if line.unsharded:
            context.sink.warn(f"no layout rule for {', '.join(line.unsharded)}: replicated", where=self.name)
        context.count(self.name, ops=len(module.entry.ops), stages=len(stated))
        times = self.microbatches
        single = single_value(module, topology, net, training=self.training, memory=self.memory, microbatches=times)
        plan = Plan(
            name="@plan",
            objective=self.objective,
            comm="sum",
            value=math.inf,
            port_value=math.inf,
            bound=0.0,
            status="feasible",
            single=single * self.microbatches,
            stages=(),
            microbatches=self.microbatches,
        )

        def proven(plan: Plan) -> Plan:
            found = self._proven(module, stated, plan)
            if found is None:
                times = self.microbatches + len(stated) - 1 if self.training else 1
                how = "search of each stage, for these stages on these meshes"
                found = times * line.bound(), {"bound": how, "plan": GIVEN}
            return replace(plan, bound=found[0], certificate=tuple(sorted(found[1].items())))

        found = written(module, staged, plan, proven, memory=self.memory)
        self._check_synced(found)
        over, index, text = overfull(found, topology, self.memory)
        if over > 0:
            hint = "split more weights, or move ops to a stage with more devices"
            raise Infeasible(text, where=self._where(index), hint=hint)
        return found

    def _check_options(self) -> None:
        """Raises InvalidInput for what no plan on meshes states."""
        self._check_objective(Planned.MESHES)
        if self.microbatches < 1 or (self.microbatches > 1 and not self.training):
            raise InvalidInput(f"microbatches is {self.microbatches}; a step of training has 1 or more", where=self.source)
        if len(self.strategies) != len(self.ops):
            found = f"{len(self.strategies)} strategies found for {len(self.ops)} ops"
            raise InvalidInput(found, where=self.source)

    def _proven(self, module: Module, stated: Sequence[Stated], plan: Plan) -> tuple[float, dict[str, str]] | None:
        """The bound that was stated and its certificate, None where it was proven for something else than ``plan``."""
        certificate = dict(text.partition("=")[::2] for text in self.certificate)
        stages = [(stage.ops, stage.mesh) for stage in stated]
        digest = proven_for(module, stages, replace(plan, bound=self.bound), uneven=self.uneven, memory=self.memory)
        if certificate.pop("problem", "") != digest:
            return None
        if plan.value != self.value:  # another plan than the one that was found
            certificate.pop("strategy", None)
            certificate["plan"] = GIVEN
        return self.bound, certificate

    # -- synchronisation -----------------------------------------------------------------------------------------------

    def _asked(self) -> dict[str, tuple[int, Sync]]:
        """The stage and the method of each weight that the plan states one of."""
        found = {}
        for text in self.syncs:
            index, rest = self._split(text)
            method, _, name = rest.partition(":")
            found[f"@{name}"] = index, read_sync(method)
        return found

    def _synced(self, module: Module) -> Module:
        """The module with the stated methods on its weights, in the place of others."""
        asked = self._asked()
        if not asked:
            return module
        symbols: list[Symbol] = []
        for symbol in module.symbols:
            if isinstance(symbol, Resource):
                others = tuple(facet for facet in symbol.facets if not isinstance(facet, Sync))
                stated = asked.get(symbol.name)
                symbol = replace(symbol, facets=others if stated is None else with_facet(others, stated[1]))
            symbols.append(symbol)
        return replace(module, symbols=tuple(symbols))

    def _check_synced(self, module: Module) -> None:
        """Raises InvalidInput for weights whose gradients cannot be synchronised as stated."""
        faults = []
        for name, (index, sync) in self._asked().items():
            resource, method = module.resources.get(name), sync_text(sync)
            done = sync_of(resource.facets) if resource is not None else None
            if done is not None and done.method == sync.method and sync.server in (-1, done.server):
                continue
            why = "members do not hold terms of it along an axis of that many"
            if done is None:
                why = "no weight is called so"
            elif not self.training:
                why = "the plan trains nothing"
            elif sync.method == "sfb":
                why = "it is no product of what members have rows of"
            message = f"the gradient of '{name[1:]}' cannot be synchronised by '{method}': {why}"
            faults.append(Diagnostic(message, self._where(index), hint="remove its line: all-reduce sums it"))
        if faults:
            raise InvalidInput(shortened(faults, "more weights cannot be"))

    # -- what is stated ------------------------------------------------------------------------------------------------

    def _stated(self, module: Module, topology: Topology, net: Network) -> list[Stated]:
        """The stages, as far as they can be told without looking at strategies and layouts. Raises InvalidInput."""
        func = module.entry
        problems: list[Diagnostic] = []
        members = self._stages(func, problems)
        texts = dict(zip(map(self._split, self.ops), self.strategies, strict=True))
        listed, _ = self._listed(func)
        strategies: dict[int, dict[str, str]] = {}
        for index, name, op in listed:
            strategies.setdefault(index, {})[op.id] = texts[index, name]
        count = 1 + max((index for of_op in members.values() for index in of_op), default=0)
        meshes = self._meshes(topology, net, count, problems)
        weights, outputs = (self._layouts(found, problems) for found in (self.weights, self.outputs))
        if problems:
            raise InvalidInput(problems)
        assigned = replace(func, ops=tuple(op.with_facets(StageSet(members[op.id])) for op in func.ops))
        stage_members(assigned)
        return [
            Stated(
                tuple(i for i, op in enumerate(func.ops) if index in members[op.id]),
                meshes[index],
                strategies[index],
                weights.get(index, {}),
                outputs.get(index, {}),
                self._where(index),
            )
            for index in range(count)
        ]

    def _meshes(self, topology: Topology, net: Network, count: int, problems: list[Diagnostic]) -> dict[int, DeviceMesh]:
        """The mesh of each stage."""
        known = [device.name for device in topology.devices]
        devices: dict[int, list[str]] = {index: [] for index in range(count)}
        holder: dict[str, int] = {}
        for text in self.devices:
            index, name = self._split(text)
            where = self._where(index)
            if index not in devices:
                problems.append(Diagnostic(f"device '{name}' is in a stage that has no op", where, hint="remove the stage"))
            elif name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"{topology.name} has {listing(known)}"
                problems.append(Diagnostic(f"no device is called '{name}'", where, hint=hint))
            elif holder.setdefault(name, index) != index or name in devices[index]:
                what = "is listed twice" if name in devices[index] else f"already runs stage {holder[name]}"
                problems.append(Diagnostic(f"device '{name}' {what}", where, hint="no device is in two places of meshes"))
            else:
                devices[index].append(name)
        axes: dict[int, list[tuple[str, Shares]]] = {}
        for text in self.axes:
            index, rest = self._split(text)
            size, _, name = rest.partition(":")
            axes.setdefault(index, []).append((name, _shares(size, len(known))))
        if problems:
            return {}
        found = {}
        for index, names in devices.items():
            fault = _shape_fault(axes.get(index, []), names)
            if fault:
                problems.append(Diagnostic(fault, self._where(index), hint="axes multiply to the number of devices"))
                continue
            named = axes.get(index, [(AXIS_NAMES[0], (1,))])
            shares = tuple(shares for _, shares in named)
            told = shares if any(max(along) > 1 for along in shares) else ()
            mesh = Mesh(f"@mesh{index}", tuple((name, len(along)) for name, along in named), tuple(names), told)
            try:
                found[index] = mesh_over(topology, net, mesh).limited(self.memory)
            except InvalidInput as error:
                problems += [replace(fault, where=self._where(index)) for fault in error.diagnostics]
        return found

    def _layouts(self, texts: Sequence[str], problems: list[Diagnostic]) -> dict[int, dict[str, Placements]]:
        """Layouts by stage and name."""
        found: dict[int, dict[str, Placements]] = {}
        for text in texts:
            index, rest = self._split(text)
            layout, _, name = rest.partition(":")
            try:
                found.setdefault(index, {})[name] = read_placements(layout)
            except InvalidInput as error:
                problems += [replace(fault, where=f"{self._where(index)}: {name}") for fault in error.diagnostics]
        return found


def _shares(text: str, most: int) -> Shares:
    """Shares of the members of an axis, in lowest terms, from its size or a list of them; empty where the text is neither, or
    is of more than ``most`` members."""
    numbers = [int(part) if part.isdecimal() and part.isascii() and len(part) < 10 else 0 for part in text.split(",")]
    if len(numbers) == 1:
        return equal(numbers[0]) if numbers[0] <= most else ()
    least = math.gcd(*numbers)
    return tuple(number // least for number in numbers) if min(numbers) > 0 else ()


def _shape_fault(axes: Sequence[tuple[str, Shares]], devices: Sequence[str]) -> str:
    """What is wrong with a mesh; empty where nothing is."""
    if not devices:
        return "it has no device; stages of a plan on meshes name theirs"
    if not axes:
        return f"it has {len(devices)} devices, but no mesh" if len(devices) > 1 else ""
    if len(axes) > len(AXIS_NAMES):
        return f"its mesh has {len(axes)} axes, expected at most {len(AXIS_NAMES)}"
    for name, shares in axes:
        if not name or len(shares) < 2:
            return f"axis '{name}' of its mesh: expected a name, and from 2 members on to as many as there are devices"
        if max(shares) > MOST_SHARE:
            return f"axis '{name}' of its mesh has a share of {max(shares)}, expected at most {MOST_SHARE}"
    if len({name for name, _ in axes}) < len(axes):
        return f"two axes of its mesh are called {listing(sorted({name for name, _ in axes}))}"
    shape = "x".join(str(len(shares)) for _, shares in axes)
    places = math.prod(len(shares) for _, shares in axes)
    return f"its mesh {shape} has {places} places for {len(devices)} devices" if places != len(devices) else ""


@dataclass(frozen=True, slots=True)
class Stated:
    """A stage as stated: positions of its ops, ascending, its mesh, of each op (by id) the text of its strategies, layouts of
    weights and outputs by name; ``where`` it stands, for messages."""

    ops: tuple[int, ...]
    mesh: DeviceMesh
    strategies: Mapping[str, str]
    weights: Mapping[str, Placements]
    outputs: Mapping[str, Placements]
    where: str

    @property
    def party(self) -> Party:
        single = len(self.mesh.devices) == 1
        return Party(self.mesh.devices, () if single else self.mesh.sizes, () if single else self.mesh.shares)


@dataclass(slots=True)
class _Form:
    """The problem of the whole function on one form of mesh, and choices of ops by kind and strategies."""

    given: ShardInput
    cutter: Cutter
    choices: dict[tuple[int, str], int | None] = field(default_factory=dict)


class _Line:
    """Stages in a row, decided one after another: what a stage makes is what later ones get."""

    def __init__(
        self, asked: ReplayPass, module: Module, topology: Topology, context: PassContext, stated: Sequence[Stated]
    ) -> None:
        self.asked, self.module, self.stated = asked, module, stated
        self.training = asked.training
        self.folding = context.analyses.get(folding, module.entry, module)
        self.progress = context.progress
        net = context.analyses.get(network, topology)
        self.crossing = Crossing(topology, net)
        self.rules: list[LayoutRule | None] = [rule for _, rule in rules(module, module.entry)]
        self.types: dict[str, Type] = {name: resource.type for name, resource in module.resources.items()}
        self.types.update((value.name, value.type) for value in module.entry.args)
        self.types.update((value.name, value.type) for op in module.entry.ops for value in op.results)
        self.homes: dict[int, list[int]] = {}
        for number, stage in enumerate(stated):
            for op in stage.ops:
                self.homes.setdefault(op, []).append(number)
        alone = self.training and len(stated) == 1 and len(stated[0].mesh.devices) > 1
        self.overlaps: tuple[float | None, ...] = OVERLAPS if alone else (None,)
        if self.training and avoids_sums(module):
            self.overlaps = (UNSUMMED,)
        self.forms: dict[tuple[DeviceMesh, float | None], _Form] = {}
        # Of values that leave the stage that makes them: how they lie there, and which stage it is.
        self.lies: dict[str, Placements] = {}
        self.home: dict[str, int] = {}
        self.borders: list[Border] = []
        self._check_copies()

    @property
    def unsharded(self) -> tuple[str, ...]:
        return next(iter(self.forms.values())).given.unsharded

    def _check_copies(self) -> None:
        """Ops of several stages: each stage that reads one has its own, and it is the same wherever it is computed. Raises
        InvalidInput."""
        func = self.module.entry
        given = self.form(self.stated[0].mesh).given
        constants = constants_of(func, frozenset(given.kept.values()) - given.filled)
        made = {value.name: op for op in self.homes for value in func.ops[op].results if len(self.homes[op]) > 1}
        problems = []
        for op, homes in self.homes.items():
            name = func.ops[op].id[1:]
            if len(homes) > 1 and op not in constants:
                hint = "only what is computed of constants may be in several"
                problems.append(
                    Diagnostic(f"op '{name}' is in stages {listing(map(str, homes))}", self._where(homes), hint=hint)
                )
            for maker in {made[name] for name in reads(func.ops[op]) if name in made}:
                lacking = [home for home in homes if home not in self.homes[maker]]
                if lacking:
                    others = listing(map(str, self.homes[maker]))
                    what = f"op '{name}' reads '{func.ops[maker].id[1:]}', which stages {others} compute for themselves"
                    problems.append(Diagnostic(what, self._where(lacking), hint="list that op in this stage too"))
        if problems:
            raise InvalidInput(shortened(problems, "more such ops"))

    def _where(self, stages: Sequence[int]) -> str:
        return self.stated[stages[-1]].where

    def form(self, mesh: DeviceMesh, overlap: float | None = None) -> _Form:
        """The problem on a mesh like this one; ``overlap`` as of ``build``."""
        key = replace(mesh, devices=()), overlap
        if key not in self.forms:
            self.progress(f"mesh {mesh}", None)
            given = build(
                self.module,
                self.module.entry,
                mesh,
                self.folding,
                training=self.training,
                uneven=self.asked.uneven,
                microbatches=self.asked.microbatches,
                overlap=overlap,
            )
            copied = [op for op, homes in self.homes.items() if len(homes) > 1]
            self.forms[key] = _Form(given, Cutter(given, copied))
        return self.forms[key]

    # -- decisions -----------------------------------------------------------------------------------------------------

    def staged(self) -> list[Staged]:
        """The stages as they were decided, priced. Raises InvalidInput."""
        problems: list[Diagnostic] = []
        chosen = [self.chosen(stage, problems) for stage in self.stated]
        if problems:
            raise InvalidInput(problems)
        found = [self.decided(number, choices, problems) for number, choices in enumerate(chosen)]
        if problems:
            raise InvalidInput(problems)
        return found

    def chosen(self, stage: Stated, problems: list[Diagnostic]) -> list[int]:
        """The choice of each op of a stage; what cannot be is among the problems."""
        form, func = self.form(stage.mesh), self.module.entry
        found, faults = [], []
        for op in stage.ops:
            text = stage.strategies[func.ops[op].id]
            key = (form.given.problem.kinds[op], text)
            if key not in form.choices:
                form.choices[key] = self.choice(form.given, op, self.names(stage, text))
            choice = form.choices[key]
            if choice is None:
                faults.append(self.no_strategy(form.given, stage, op, text))
            found.append(choice or 0)
        problems += shortened(faults, "more ops cannot be split as stated")
        return found

    @staticmethod
    def names(stage: Stated, text: str) -> tuple[str, ...]:
        """Strategies per axis; whole on a single device."""
        return tuple(text.split(SEPARATOR)) if text or len(stage.mesh.devices) > 1 else (WHOLE,)

    def choice(self, given: ShardInput, op: int, names: tuple[str, ...]) -> int | None:
        rule, axes = self.rules[op], given.mesh.axes
        if len(names) != len(axes):
            return None
        if rule is None:
            return 0 if all(name == WHOLE for name in names) else None
        taken = [
            next((s for s in rule.strategies(a.size) if s.name == name), None) for name, a in zip(names, axes, strict=True)
        ]
        picked = [strategy for strategy in taken if strategy is not None]
        cuts = [axis.shares for axis in axes]
        if len(picked) < len(taken) or not possible(picked, cuts, self.types_of(op), self.asked.uneven):
            return None
        return choice_of(given, op, rule, names)

    def types_of(self, op: int) -> list[Type | None]:
        known = self.module.entry.ops[op]
        return [*(self.types.get(name) for name in known.operands), *(value.type for value in known.results)]

    def no_strategy(self, given: ShardInput, stage: Stated, op: int, text: str) -> Diagnostic:
        """What is wrong with the strategies of an op, and which it has."""
        rule, known = self.rules[op], self.module.entry.ops[op]
        names, axes = self.names(stage, text), given.mesh.axes
        what = f"op '{known.id[1:]}' ({known.name})"
        if len(names) != len(axes):
            return Diagnostic(f"{what} has {len(names)} strategies for {len(axes)} axes", stage.where)
        if rule is None:
            return Diagnostic(f"{what} cannot be split", stage.where, hint=f"no layout rule is known for it: {WHOLE}")
        for name, axis in zip(names, axes, strict=True):
            alone = [
                s.name for s in rule.strategies(axis.size) if possible([s], [axis.shares], self.types_of(op), self.asked.uneven)
            ]
            if name not in alone:
                where = f"along {axis.name}, an axis of {axis.size}"
                return Diagnostic(f"{what} has no strategy '{name}' {where}", stage.where, hint=f"it has {', '.join(alone)}")
        labels = sorted(
            given.problem.node(op).labels,
            key=lambda label: -sum(one == two for one, two in zip(label.split(SEPARATOR), names, strict=True)),
        )
        told = " | ".join(labels[:SHOWN]) + (f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else "")
        return Diagnostic(
            f"{what} cannot be split by '{text}' on a mesh of {given.mesh}", stage.where, hint=f"together it has {told}"
        )

    def decided(self, number: int, ops: Sequence[int], problems: list[Diagnostic]) -> Staged:
        """A stage, given the choices of its ops and how values of earlier stages lie."""
        stage, func = self.stated[number], self.module.entry
        cutter, everywhere = self.form(stage.mesh).cutter, (Replicate(),) * len(stage.mesh.axes)
        entering, leaving = cutter.crossing(stage.ops)
        arrives = {name: self.lies[name] if self.alike(self.home[name], number) else everywhere for name in entering}
        numbers = {name: cutter.whole.layouts[name].number(lies) for name, lies in arrives.items()}
        readers = {name: self.readers(cutter, name, number) for name in leaving}
        whole = frozenset(name for name in leaving if not all(self.alike(number, reader) for reader in readers[name]))
        foreign = {name: layout for name, layout in numbers.items() if not self.alike(self.home[name], number)}
        self.borders.append(Border(given=foreign, whole=whole))
        given = cutter.cut(stage.ops, Border(given=numbers, whole=whole)).given
        choices = settled(given, ops, self.held(stage, given, problems))
        for node, op in enumerate(stage.ops):
            for result, value in enumerate(func.ops[op].results):
                if value.name in readers:
                    made = given.made(value.name, int(given.problem.node(node).makes[result][choices[node]]))
                    self.lies[value.name], self.home[value.name] = given.layouts[value.name].placements[made], number
        told = replace(
            decisions_of(given, choices),
            strategies={func.ops[op].id: self.names(stage, stage.strategies[func.ops[op].id]) for op in stage.ops},
            entering=arrives,
            leaving={name: everywhere if name in whole else self.lies[name] for name in sorted(leaving)},
            learning=given.trained & arrives.keys(),
        )
        bill = price(
            self.module,
            given.func,
            stage.mesh,
            told,
            training=self.training,
            uneven=self.asked.uneven,
            microbatches=self.asked.microbatches,
            in_flight=self.in_flight(number),
        )
        return Staged(stage.ops, stage.mesh, told, bill)

    def in_flight(self, number: int) -> int:
        if not self.training or recomputes(self.module):
            return 1
        return InFlight.of(self.asked.microbatches, [1] * len(self.stated)).microbatches[number]

    def alike(self, one: int, other: int) -> bool:
        """Whether values cross between two stages as they lie."""
        return self.stated[one].party.matches(self.stated[other].party)

    def readers(self, cutter: Cutter, name: str, number: int) -> list[int]:
        """The other stages that read a value of stage ``number``."""
        nodes = cutter.whole.problem.values[cutter.number[name]].readers
        return sorted({home for node, _ in nodes for home in self.homes.get(node, ())} - {number})

    def held(self, stage: Stated, given: ShardInput, problems: list[Diagnostic]) -> dict[int, int]:
        """Choices of the weights and outputs that the stage states layouts of."""
        found: dict[int, int] = {}
        faults = []
        for what, sigil, nodes, layouts in (
            ("weight", "@", given.kept, stage.weights),
            ("output", "%", given.outputs, stage.outputs),
        ):
            by_name = {name: node for node, name in nodes.items()}
            for name, placements in layouts.items():
                node = by_name.get(sigil + name)
                text = ", ".join(map(str, placements))
                if node is None:
                    faults += self.not_held(stage, what, sigil + name, placements, by_name)
                    continue
                labels = given.problem.node(node).labels
                if text in labels:
                    found[node] = labels.index(text)
                else:
                    told = " | ".join(labels[: 2 * SHOWN])
                    message = f"{what} '{name}' cannot lie as '{text}' on a mesh of {stage.mesh}"
                    faults.append(Diagnostic(message, stage.where, hint=f"it can lie as {told}"))
        problems += shortened(faults, "more layouts cannot be")
        return found

    def not_held(
        self, stage: Stated, what: str, name: str, placements: Placements, known: Mapping[str, int]
    ) -> list[Diagnostic]:
        """The fault of a name that has no layout of its own in a stage: none where a small constant is said to be whole."""
        func = self.module.entry
        read = {name for op in stage.ops for name in reads(func.ops[op])}
        if what == "weight" and name in read and name in self.module.resources:
            if all(isinstance(placement, Replicate) for placement in placements):
                return []
            return [Diagnostic(f"{what} '{name[1:]}' is small and stands whole on every device", stage.where)]
        near = difflib.get_close_matches(name, known, n=1)
        has = "reads no" if what == "weight" else "makes no"
        hint = f"did you mean '{near[0][1:]}'?" if near else f"leave it out, or list it where the {what} is"
        return [Diagnostic(f"the stage {has} {what} '{name[1:]}'", stage.where, hint=hint)]

    # -- bound ---------------------------------------------------------------------------------------------------------

    def bound(self) -> float:
        """Seconds of a sample (of a microbatch in training) that no plan with these stages on these meshes is below."""
        best = 0.0
        rows = list(enumerate(zip(self.stated, self.borders, strict=True)))
        for overlap, (number, (stage, border)) in itertools.product(self.overlaps, rows):
            cutter = self.form(stage.mesh, overlap).cutter
            entering, leaving = cutter.crossing(stage.ops)
            receive = {name: self.spent(cutter, name, self.home[name], number, number) for name in entering}
            send: dict[str, Floats] = {}
            for name in leaving:
                each = [self.spent(cutter, name, number, reader, number) for reader in self.readers(cutter, name, number)]
                send[name] = np.sum(each, axis=0)
            cut = cutter.cut(stage.ops, replace(border, receive=receive, send=send))
            problem = cut.given.keeping(self.in_flight(number)).problem
            try:
                seconds = BOUNDING / len(self.stated) / len(self.overlaps)
                best = max(best, solve(problem, memory=stage.mesh.memory, seconds=seconds, progress=self.progress).bound)
            except NoPlanError:  # the plan at hand fits by less than the rounding of sums
                continue
        return best

    def spent(self, cutter: Cutter, name: str, maker: int, reader: int, payer: int) -> Floats:
        """Seconds that ``payer``, one of the two, spends on a value that crosses, by its layout on the mesh of ``payer``."""
        one, two = self.stated[maker].party, self.stated[reader].party
        cost = self.crossing.at_maker if payer == maker else self.crossing.at_reader
        returns = name in cutter.whole.trained
        rows = []
        for placements in cutter.whole.layouts[name].placements:
            type_ = self.types[name]
            if isinstance(type_, TensorType) and one.sizes and one.matches(two):
                type_ = replace(type_, layout=Layout("@mesh", placements))
            rows.append(cost(message_bytes(type_, one, two), one, two, returns=returns))
        return np.array(rows)


__all__ = ["ReplayPass"]
