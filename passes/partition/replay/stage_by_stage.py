"""Stages of a stated plan, decided one after another: what a stage makes is what later ones get.

Each op has the strategies that the plan states, each weight and result the stated layout, else the one that costs least; a
stage is priced as it is decided. What each stage costs at least, with the ops and devices that it has, is searched for.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.facets import SEPARATOR, WHOLE
from ir.core.module import Module
from ir.core.topology import Topology
from ir.core.types import Replicate, Type
from ir.layout_rules import LayoutRule, rules
from passes.costs.constants import constants_of
from passes.costs.learning import InFlight, avoids_sums
from passes.costs.network import network
from passes.framework.base import PassContext
from passes.graph.folding import folding
from passes.graph.graph import listing, reads
from passes.graph.positional import positional
from passes.meshes.costs.bill import UNSUMMED
from passes.meshes.costs.cross_mesh import Crossing, Party, alone, laid_bytes
from passes.meshes.costs.price import price
from passes.meshes.layouts import Placements, can_be_split
from passes.meshes.mesh import DeviceMesh
from passes.meshes.staged import Staged
from passes.partition.chain.borders import Border, Cutter
from passes.partition.layouts.decide import choice_of, decisions_of, settled
from passes.partition.layouts.problem.build import ShardInput, build, overlaps_on
from passes.partition.layouts.problem.problem import Floats
from passes.partition.layouts.solver.search import BOUNDING, NoPlanError, solve
from passes.partition.replay.faults import (
    CopyMissing,
    NoLayout,
    NoLayoutRule,
    NoStrategy,
    NotOfStage,
    OpInStages,
    SmallWeight,
    StrategiesTogether,
    StrategyCount,
)
from passes.partition.replay.stated import SHOWN, shortened


@dataclass(frozen=True, slots=True)
class Stated:
    """A stage as stated: positions of its ops, ascending, its mesh, of each op (by id) the text of its strategies, layouts of
    weights and outputs by name; ``where`` it stands, for messages; ``others``: as of ``Staged``."""

    ops: tuple[int, ...]
    mesh: DeviceMesh
    strategies: Mapping[str, str]
    weights: Mapping[str, Placements]
    outputs: Mapping[str, Placements]
    where: str
    others: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Those of all replicas."""
        return (*self.mesh.devices, *self.others)

    @property
    def replicas(self) -> tuple[Party, ...]:
        if len(self.mesh.devices) > 1:
            return (Party(self.mesh.devices, self.mesh.sizes, self.mesh.shares),)
        return tuple(map(alone, self.devices))


@dataclass(slots=True)
class _Form:
    """The problem of the whole function on one form of mesh, and choices of ops by kind and strategies."""

    given: ShardInput
    cutter: Cutter
    choices: dict[tuple[int, str], int | None] = field(default_factory=dict)


class StageByStage:
    """Stages in a row, decided one after another: what a stage makes is what later ones get."""

    def __init__(
        self,
        module: Module,
        topology: Topology,
        context: PassContext,
        stated: Sequence[Stated],
        *,
        training: bool,
        memory: int,
        microbatches: int,
        family: str = "",
    ) -> None:
        """Options as of ``replay``."""
        self.module, self.stated = module, stated
        self.training, self.memory = training, memory
        self.microbatches, self.family = microbatches, family
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
        sums = self.training and any(len(stage.mesh.devices) > 1 for stage in stated)
        types = [type_ for stage in stated for type_ in stage.mesh.types]
        self.overlaps: tuple[float | None, ...] = overlaps_on(types) if sums else (None,)
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
        constants = constants_of(func, given.one_home)
        constants |= positional(self.module)
        made = {value.name: op for op in self.homes for value in func.ops[op].results if len(self.homes[op]) > 1}
        problems = []
        for op, homes in self.homes.items():
            name = func.ops[op].id[1:]
            if len(homes) > 1 and op not in constants:
                problems.append(OpInStages(name, listing(map(str, homes))).at(self._where(homes)))
            for maker in {made[name] for name in reads(func.ops[op]) if name in made}:
                lacking = [home for home in homes if home not in self.homes[maker]]
                if lacking:
                    others = listing(map(str, self.homes[maker]))
                    problems.append(CopyMissing(name, func.ops[maker].id[1:], others).at(self._where(lacking)))
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
                microbatches=self.microbatches,
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
        if rule is None:
            return 0 if names == (WHOLE,) * len(axes) else None
        taken = rule.named(names, given.mesh.sizes)
        if taken is None or not can_be_split(taken, [axis.shares for axis in axes], self.types_of(op)):
            return None
        return choice_of(given, op, rule, names)

    def types_of(self, op: int) -> list[Type | None]:
        known = self.module.entry.ops[op]
        return [*(self.types.get(name) for name in known.operands), *(value.type for value in known.results)]

    def no_strategy(self, given: ShardInput, stage: Stated, op: int, text: str) -> Diagnostic:
        """What is wrong with the strategies of an op, and which it has."""
        rule, known = self.rules[op], self.module.entry.ops[op]
        names, axes = self.names(stage, text), given.mesh.axes
        op_id, kind = known.id[1:], known.name
        if len(names) != len(axes):
            return StrategyCount(op_id, kind, len(names), len(axes)).at(stage.where)
        if rule is None:
            return NoLayoutRule(op_id, kind, WHOLE).at(stage.where)
        for name, axis in zip(names, axes, strict=True):
            alone = [s.name for s in rule.strategies(axis.size) if can_be_split([s], [axis.shares], self.types_of(op))]
            if name not in alone:
                return NoStrategy(op_id, kind, name, axis.name, axis.size, tuple(alone)).at(stage.where)
        labels = sorted(
            given.problem.node(op).labels,
            key=lambda label: -sum(one == two for one, two in zip(label.split(SEPARATOR), names, strict=True)),
        )
        told = " | ".join(labels[:SHOWN]) + (f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else "")
        return StrategiesTogether(op_id, kind, text, str(given.mesh), told).at(stage.where)

    def decided(self, number: int, ops: Sequence[int], problems: list[Diagnostic]) -> Staged:
        """A stage, given the choices of its ops and how values of earlier stages lie."""
        stage, func = self.stated[number], self.module.entry
        cutter, everywhere = self.form(stage.mesh).cutter, (Replicate(),) * len(stage.mesh.axes)
        entering, leaving = cutter.crossing(stage.ops)
        arrives = {name: self.lies[name] if self.alike(self.home[name], number) else everywhere for name in entering}
        numbers = {name: cutter.given.layouts[name].number(lies) for name, lies in arrives.items()}
        readers = {name: self.readers(cutter, name, number) for name in leaving}
        whole = frozenset(name for name in leaving if not all(self.alike(number, reader) for reader in readers[name]))
        foreign = {name: layout for name, layout in numbers.items() if not self.alike(self.home[name], number)}
        self.borders.append(Border(arriving=foreign, whole=whole))
        given = cutter.cut(stage.ops, Border(arriving=numbers, whole=whole)).given
        choices = settled(given, ops, self.held(stage, given, problems))
        for node, op in enumerate(stage.ops):
            for result, value in enumerate(func.ops[op].results):
                if value.name in readers:
                    made = given.layout_number(value.name, int(given.problem.node(node).makes[result][choices[node]]))
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
            microbatches=self.microbatches,
            in_flight=self.in_flight(number),
        )
        return Staged(stage.ops, stage.mesh, told, bill, stage.others)

    def in_flight(self, number: int) -> int:
        if not self.training:
            return 1
        return InFlight.of(self.microbatches, [1] * len(self.stated), self.family).microbatches[number]

    def alike(self, one: int, other: int) -> bool:
        """Whether values cross between two stages as they lie."""
        return self.stated[one].replicas[0].matches(self.stated[other].replicas[0])

    def readers(self, cutter: Cutter, name: str, number: int) -> list[int]:
        """The other stages that read a value of stage ``number``."""
        nodes = cutter.given.problem.values[cutter.number[name]].readers
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
                    faults.append(NoLayout(what, name, text, str(stage.mesh), told).at(stage.where))
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
            return [SmallWeight(what, name[1:]).at(stage.where)]
        near = difflib.get_close_matches(name, known, n=1)
        verb = "reads" if what == "weight" else "makes"
        hint = f"did you mean '{near[0][1:]}'?" if near else f"leave it out, or list it where the {what} is"
        return [NotOfStage(verb, what, name[1:], hint).at(stage.where)]

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
                found = solve(problem, memory=stage.mesh.memory, seconds=seconds, progress=self.progress)
                best = max(best, found.bound / len(stage.replicas))
            except NoPlanError:  # the plan at hand fits by less than the rounding of sums
                continue
        return best

    def spent(self, cutter: Cutter, name: str, maker: int, reader: int, payer: int) -> Floats:
        """Seconds that ``payer``, one of the two, spends on a value that crosses, by its layout on the mesh of ``payer``."""
        makers, readers = self.stated[maker].replicas, self.stated[reader].replicas
        end, returns = int(payer != maker), name in cutter.given.trained
        layouts = cutter.given.layouts[name].placements
        sizes = [laid_bytes(self.types[name], lies, makers[0], readers[0]) for lies in layouts]
        return np.array([self.crossing.ends(size, makers, readers, returns=returns)[end] for size in sizes])
