"""What a run of units costs on a block of devices, from below: tables that get better where a plan would use them.

At first: each op's seconds, fused where it may be, as it is cut best (``speeds.Cuts``), its overhead whole; the least bytes of
weights, workspace and buffers (``workspace``); the least parts of what crosses (``crossings``). No problem is built for a form
of mesh before a plan uses it. Then all runs of the form at once: its own least seconds by op, and the tables of its units
(``chains``), without a price of memory; and for runs in plans under the price that suits them. In the end, for single runs in
plans, the solution of the run's problem, with borders in the layouts that suit best.

In training what a stage hides of its sums of gradients is bounded in two ways (``overlap``), neither of which is the nearer for
all stages. Each has bounds of its own (``Bounding.other``), and of a run the greater one counts. A form that the problem of one
overlap rules out gets no problem of the other: first comes the overlap that ruled out the form before.

All this is of one microbatch, without the hand-over that a device of a plan on several spends on each. A table of a block
(``table``) has that too, and divides by the block's replicas. Blocks of one device, with replicas or without, have one
form.

Two tables per form for what is not of units: ``core``, without what crosses, in which a bound of a run is one of every run
around it (what is left out costs nothing and frees memory); and ``whole``, of single solved runs, with their transfers over the
best link there is. Runs of one key are solved once. Every bound gives way a little for rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ir.core.facets import Cost
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.outcomes import TIGHT
from ir.core.topology import DeviceType, Topology
from ir.core.types import type_bytes
from ir.layout_rules import rules
from passes.costs.learning import InFlight, recomputes
from passes.costs.memory.liveness import value_bytes
from passes.costs.network import Network
from passes.costs.op_time import (
    dtype_of,
    epilogues,
    fused_seconds,
    in_training,
    launches,
    least_seconds,
    op_seconds,
    stated_part,
)
from passes.graph.folding import Folding
from passes.meshes.layouts import split
from passes.meshes.mesh import DeviceMesh
from passes.partition.chain.borders import Border, Cutter
from passes.partition.chain.chains import Chain, Parts, parts_of
from passes.partition.chain.crossings import Link, volumes_of
from passes.partition.chain.pipeline import Held, Sequenced, Sides, StageRun, Table, beside
from passes.partition.chain.submeshes import BestLinks, Block, Submeshes
from passes.partition.chain.units import MOST_CUTS, units_of
from passes.partition.chain.workspace import Workspace
from passes.partition.layouts.mesh.named import named_plan, restricted
from passes.partition.layouts.mesh.speeds import Cuts
from passes.partition.layouts.problem.build import Builder, ShardInput, overlaps_on
from passes.partition.layouts.problem.problem import Floats
from passes.partition.layouts.solver.search import NoPlanError, solve
from passes.solvers.anytime import Progress
from passes.solvers.work import now
from passes.stages.load import hands_over

LONGEST = 10.0
"""Seconds of one search."""
WIDER = 4.0
"""How much longer a problem on a mesh of more axes takes to build, before one was."""


@dataclass(slots=True)
class Form:
    """One form of mesh and what is known of runs on it. ``core`` and ``whole`` as told above; ``bytes``: of weights, and in
    training of what is kept for a backward pass, at least; ``saved``: for that of each further microbatch. ``cutter`` and
    ``chain`` where it has been built; ``prices`` of memory under which all runs are bounded; keys of runs that were
    ``priced``, and ``solved``."""

    mesh: DeviceMesh
    core: Floats
    whole: Floats
    bytes: Floats
    saved: Floats
    cutter: Cutter | None = None
    chain: Chain | None = None
    prices: list[float] = field(default_factory=lambda: [0.0])
    priced: set[tuple[int, bool, bool, bool, bool, int]] = field(default_factory=set)
    solved: set[int] = field(default_factory=set)
    rows: dict[tuple[float, tuple[Link, Link], bool], list[Floats]] = field(default_factory=dict)
    ends: dict[tuple[tuple[Link, Link], bool], list[Floats]] = field(default_factory=dict)


class Bounding:
    """Bounds for one module on one set of blocks."""

    def __init__(
        self,
        module: Module,
        topology: Topology,
        net: Network,
        folding: Folding | None,
        meshes: Submeshes,
        *,
        memory: int = 0,
        uneven: bool = False,
        training: bool = False,
        microbatches: int = 1,
        family: str = "",
        strategy: str = "",
        overlap: float | None = None,
        cuts: int = MOST_CUTS,
        other: Bounding | None = None,
        progress: Progress = lambda label, fraction: None,
    ) -> None:
        """``memory``: bytes per device at most; 0: those of the devices; -1: no limit. ``training``: of steps of so many
        ``microbatches``, ordered as ``family`` does. ``strategy``: ops are split as in the plan of that name (``named``) of the
        whole function, on meshes of one shape; raises UnfitError where there is none. ``overlap``: as of ``build``, of sums of
        gradients in training, of which problems so count too few: a bound holds for every plan, and what a stage really
        exposes is seen once it is solved. ``cuts``: places for them, at most. ``other``: bounds of the same plans with another
        overlap; of a run the greater one counts."""
        self.other = other
        self.each = [self] if other is None else [self, other]
        self.topology, self.net, self.meshes = topology, net, meshes
        self.strategy = strategy
        self.overlap = overlaps_on(topology.types)[0] if training and overlap is None else overlap
        self.module, self.folding, self.uneven, self.progress = module, folding, uneven, progress
        self.memory, self.cuts = memory, cuts
        self.training, self.microbatches, self.family = training, microbatches, family
        self.recomputes = recomputes(module)
        builder = Builder(module, module.entry, folding, training=training, uneven=uneven, microbatches=microbatches)
        self.builder: Builder = builder if other is None else other.builder
        self.links = meshes.links
        if self.links.returns != training:
            raise AssertionError("the blocks have the links of another objective")
        self.solved = 0
        self.took: dict[int, float] = {}
        began = now()
        smallest = min(range(len(meshes.forms)), key=lambda form: (math.prod(meshes.forms[form].sizes), form))
        self.base = self.built(meshes.forms[smallest])
        if other is None:
            self.count()
            self.forms = [self.cheapest(mesh) for mesh in meshes.forms]
        else:
            self.share(other)
            self.forms = [Form(one.mesh, one.core.copy(), one.whole.copy(), one.bytes, one.saved) for one in other.forms]
        self.equip(self.forms[smallest], self.base)
        self.took[len(self.base.mesh.axes)] = now() - began
        self.tables: dict[tuple[int, ...], Table] = {}
        self.alike: dict[tuple[int, bool, bool], int] = {}
        """By number of a block and whether the stages beside it are apart: equal for blocks of one form, replicas and links."""
        numbers: dict[object, int] = {}
        for block, comes, goes in itertools.product(meshes.blocks, (False, True), (False, True)):
            like = block.form, block.replicas, block.receives(comes), block.sends(goes)
            self.alike[block.number, comes, goes] = numbers.setdefault(like, len(numbers))
        self.greater: dict[tuple[int, int], tuple[Table, Table, Table]] = {}

    def count(self) -> None:
        """What depends on no form, nor on the overlap."""
        self.units = units_of(self.module.entry, self.folding, self.base, self.cuts)
        self.unit_of = {op: unit for unit, ops in enumerate(self.units.ops) for op in ops}
        self.runs_of: dict[int, list[tuple[int, int]]] = {}
        for first, row in enumerate(self.units.keys):
            for length, key in enumerate(row):
                self.runs_of.setdefault(key, []).append((first, first + length + 1))
        self.volumes = volumes_of(self.base, self.units.ops)
        self.parts: Parts | None = None
        self.count_kinds()
        self.least_held = self.fewest_held()
        self.least_bytes, self.saved = self.least_memory(self.base), self.least_saved(self.base)
        resources, training, microbatches = self.module.resources, self.training, self.microbatches
        self.workspace = Workspace(self.base, self.units, resources, training=training, microbatches=microbatches)

    def count_kinds(self) -> None:
        """``kinds``: one of the ops that cost as much on any mesh, with the sizes of its factors and the bytes of an epilogue's
        result; ``kinds_in[unit, kind]``: how many of them a unit has."""
        entry = self.module.entry
        followed = {} if self.training else epilogues(entry.ops, [value.name for value in entry.results])
        numbers, found = dict[object, int](), list[tuple[int, int]]()
        self.kinds: list[tuple[Op, frozenset[int], int | None]] = []
        for number, (op, rule) in enumerate(rules(self.module, entry)):
            sizes = frozenset(factor.size for factor in rule.shardable) if rule else frozenset[int]()
            chained = value_bytes(op.results[0]) if number in followed else None
            kind = numbers.setdefault((op.facets, op.name, dtype_of(op), chained, sizes), len(numbers))
            if kind == len(self.kinds):
                self.kinds.append((op, sizes, chained))
            if number in self.unit_of:
                found.append((self.unit_of[number], kind))
        self.kinds_in = np.zeros((self.units.count, len(self.kinds)))
        for place in found:
            self.kinds_in[place] += 1

    def share(self, other: Bounding) -> None:
        """What ``count`` made for ``other``."""
        self.units, self.unit_of, self.runs_of = other.units, other.unit_of, other.runs_of
        self.volumes, self.parts = other.volumes, other.parts
        self.least_bytes, self.saved, self.workspace = other.least_bytes, other.saved, other.workspace
        self.least_held = other.least_held

    def built(self, mesh: DeviceMesh) -> ShardInput:
        given = self.builder.build(mesh.limited(self.memory), overlap=self.overlap)
        if not self.strategy:
            return given
        plan = named_plan(self.module, given, self.strategy, uneven=self.uneven)
        return restricted(given, self.strategy, plan.choices[: len(given.func.ops)])

    def limit(self, mesh: DeviceMesh) -> int | None:
        return mesh.limited(self.memory).memory

    # -- tables --------------------------------------------------------------------------------------------------------

    def table(self, block: Block, before: bool, behind: bool, comes: bool = False, goes: bool = False, held: int = 0) -> Table:
        """Bounds of all runs on a block; the rest as of ``Tables``."""
        own = self.own_table(block, before, behind, comes, goes, held)
        if self.other is None:
            return own
        other = self.other.table(block, before, behind, comes, goes, held)
        if (key := (id(own), id(other))) not in self.greater:
            self.greater[key] = own, other, Table.of(np.maximum(own.seconds, other.seconds))
        return self.greater[key][2]

    def own_table(
        self, block: Block, before: bool, behind: bool, comes: bool = False, goes: bool = False, held: int = 0
    ) -> Table:
        """As ``table``, with this overlap alone."""
        form, key = self.forms[block.form], self.likeness(block, before, behind, comes, goes, held)
        if key not in self.tables and held and not self.binds(form, before, held):
            self.tables[key] = self.own_table(block, before, behind, comes, goes)
        if key not in self.tables:
            count = math.prod(block.mesh.sizes)
            volumes, links = self.volumes, (block.receives(comes), block.sends(goes))
            here = volumes.receive(count, links[0], before) + volumes.send(count, links[1], behind)
            best = self.transfers(count, before, behind)
            with np.errstate(invalid="ignore"):
                table = np.maximum(form.core + here, form.whole + np.maximum(here - best, 0.0))
                if form.chain is not None:
                    chained = self.chained(form, form.chain, links, before, behind, held)
                    np.maximum(table, chained + here, out=table)
            if (limit := self.limit(form.mesh)) is not None:
                table[self.needs(form, before, held) > limit * (1 + TIGHT)] = np.inf
            handover = np.full(table.shape, self.handover(block, False))
            handover[:1, -1:] = self.handover(block, True)
            table = (table + handover) / block.replicas
            self.tables[key] = Table.of(table)
        return self.tables[key]

    def likeness(self, block: Block, before: bool, behind: bool, comes: bool, goes: bool, held: int) -> tuple[int, ...]:
        """What all that is known of runs on a block depends on, the form first."""
        return block.form, self.alike[block.number, comes, goes], before, behind, held

    def binds(self, form: Form, before: bool, held: int) -> bool:
        """Whether it matters for any run that it holds so many microbatches."""
        if (limit := self.limit(form.mesh)) is None or not form.saved.any():
            return False
        most = limit * (1 + TIGHT)
        return len(form.prices) > 1 or bool(
            ((self.needs(form, before, held) > most) & (self.needs(form, before) <= most)).any()
        )

    def handover(self, block: Block, whole: bool) -> float:
        """Seconds of a microbatch that a device of a stage spends on hand-over. ``whole``: the stage is the whole function."""
        woken = hands_over(1 if whole else 2, block.size, training=self.training)
        return max(type_.handover for type_ in block.mesh.types) if woken else 0.0

    def chained(self, form: Form, chain: Chain, links: BestLinks, before: bool, behind: bool, held: int) -> Floats:
        """What runs cost at least beyond the least that crosses, by the tables of units, under the prices that are known;
        ``links``: those that ``Block.receives`` and ``Block.sends`` tell."""
        limit, count, (enters, leaves) = self.limit(form.mesh), self.units.count, links
        room = np.zeros((count, count + 1)) if limit is None else self.room(form, limit, before, held)
        found = np.zeros((count, count + 1))
        if (leaves, behind) not in form.ends:
            form.ends[leaves, behind] = [chain.leaving(cut, leaves, behind) for cut in range(count + 1)]
        ends = form.ends[leaves, behind]
        for price in form.prices:
            key = (price, enters, before)
            if key not in form.rows:
                form.rows[key] = chain.rows(price, [chain.entering(cut, enters, before) for cut in range(count)])
            for cut in range(1, count + 1):
                least = (form.rows[key][cut] + ends[cut]).min(axis=1) - price * room[:cut, cut]
                np.maximum(found[:cut, cut], least * (1 - TIGHT), out=found[:cut, cut])
        return found

    def beside_weights(self, form: Form, alike: bool, held: int = 0) -> tuple[Floats, Floats]:
        """Bytes of workspace and of buffers that runs need at least; ``alike``: whether the stage before has the same shape."""
        given = form.cutter.given if form.cutter is not None else None
        saved = form.saved * ((held or self.least_held) - 1)
        return self.workspace.inside(form.mesh, given) + saved, self.workspace.received(form.mesh, given, alike)

    def needs(self, form: Form, alike: bool, held: int = 0) -> Floats:
        """Bytes that runs need at least."""
        workspace, buffers = self.beside_weights(form, alike, held)
        return form.bytes + workspace + buffers

    def room(self, form: Form, limit: float, alike: bool, held: int = 0) -> Floats:
        """Bytes that runs have for weights at most, where a device has ``limit``."""
        workspace, buffers = self.beside_weights(form, alike, held)
        return limit - workspace - buffers

    def transfers(self, devices: int, before: bool, behind: bool) -> Floats:
        """Seconds that the search of a run over the best link (``over_best``) may have counted already: of the value between it
        and an alike stage an even part, of any other, which may come whole, all."""
        best, volumes = self.links.best, self.volumes
        alike = (volumes.close_enter if before else 0.0) + (volumes.close_leave if behind else 0.0)
        size = volumes.enter + volumes.leave - alike * (1 - 1 / devices)
        return (size / best.bandwidth + (volumes.enters + volumes.leaves) * best.latency) * (1 + TIGHT)

    def cheapest(self, mesh: DeviceMesh) -> Form:
        """A form by what is known without the problem on the mesh: every op cut as suits it best, every weight divided evenly.
        Where parts may differ, a small device may have less than others: then all have the room of the largest."""
        share = 1.0 / math.prod(mesh.sizes)
        unequal = self.uneven or bool(mesh.shares)
        room = max((member.room for member in mesh.members), default=1.0) if unequal else 1.0
        types = {type_.name: type_ for type_ in mesh.types}
        cuts = Cuts(tuple(axis.shares for axis in mesh.axes), mesh.members, self.uneven)
        seconds = [
            min(
                max((self.divided(op, types[type_], part, chained) for type_, part in parts.items()), default=0.0)
                for parts in cuts.parts(sizes)
            )
            for op, sizes, chained in self.kinds
        ]
        with np.errstate(invalid="ignore"):
            work = np.where(self.kinds_in > 0, self.kinds_in * seconds, 0.0).sum(axis=1)
        core, even = self.table_of(work), min(math.prod(self.base.mesh.sizes) * share / room, 1.0)
        return Form(mesh, core, np.zeros(core.shape), self.least_bytes * even, self.saved * even)

    def divided(self, op: Op, type_: DeviceType, share: float, chained: int | None) -> float:
        """Seconds of an op, forward and in training backward, of which a device does a share but pays the overhead; of an op
        that may be fused no more than then."""
        cost = op.facet(Cost)
        whole = op_seconds(op, type_)
        if cost is None:
            return whole
        if (stated := stated_part(op, type_, cost, training=self.training)) is not None:
            seconds = sum(stated) + (stated[0] if stated[1] and self.recomputes else 0.0)
            return seconds * share if cost.flops or cost.write else seconds
        type_ = in_training(type_) if self.training else type_
        alone = type_.overhead + least_seconds(op, type_, training=self.training) * share
        gradients = cost.input_grad + cost.weight_grad
        if self.training:
            alone = max(alone, launches(op, 0) * type_.launch)
        if self.training and gradients:
            back = type_.overhead + least_seconds(op, type_, gradients) * share
            alone = alone * (1 + self.recomputes) + max(back, launches(op, gradients) * type_.launch)
        return alone if chained is None else min(alone, fused_seconds(op, type_, chained) * share)

    @staticmethod
    def table_of(work: Sequence[float] | Floats) -> Floats:
        sums, count = np.concatenate([[0.0], np.cumsum(work)]), len(work)
        table: Floats = np.maximum(sums[None, :] - sums[:count, None], 0.0) * (1 - TIGHT)
        table[np.arange(count + 1)[None, :] <= np.arange(count)[:, None]] = np.inf
        return table

    def least_memory(self, given: ShardInput) -> Floats:
        """Bytes per device that a run needs at least: of weights, each once, and in training what its ops keep."""
        problem = given.problem
        kept = [math.fsum(float(problem.node(op).memory.min()) for op in ops) for ops in self.units.ops]
        sums = np.concatenate([[0.0], np.cumsum(kept)])
        added: Floats = np.maximum(sums[None, :] - sums[:-1, None], 0.0) * (1 - TIGHT)
        for value in problem.values:
            if value.maker[0] in given.kept:
                size = float(problem.node(value.maker[0]).memory.min())
                before = -1
                for reader in sorted({self.unit_of[node] for node, _ in value.readers if node in self.unit_of}):
                    added[before + 1 : reader + 1, reader + 1 :] += size
                    before = reader
        return added

    def held(self, stages: int) -> Held:
        """Of each of so many stages the microbatches of which it holds what their backward passes need; empty for no stages."""
        if not self.training:
            return (1,) * stages
        return InFlight.of(self.microbatches, (1,) * stages, self.family).microbatches if stages else ()

    def fewest_held(self) -> Floats:
        """The same of each run in all plans that it is a stage of, at least: there is one stage behind it, or none. Of more
        stages each holds as many at least."""
        count = self.units.count
        fewest = np.ones((count, count + 1))
        if count:
            fewest[:, :count], fewest[:, count] = self.held(2)
            fewest[0, count] = self.held(1)[0]
        return fewest

    def least_saved(self, given: ShardInput) -> Floats:
        """Bytes per device that a run saves at least for the backward pass of each further microbatch."""
        count = self.units.count
        if not given.saved or not count:
            return np.zeros((count, count + 1))
        least = [float(saved.min(initial=math.inf)) for saved in given.saved]
        sums = np.cumsum([0.0, *(math.fsum(least[given.problem.kinds[op]] for op in ops) for ops in self.units.ops)])
        return np.asarray(np.maximum(sums[None, :] - sums[:-1, None], 0.0) * (1 - TIGHT))

    def equip(self, form: Form, given: ShardInput) -> None:
        """The problem on a form's mesh, and the bounds that it gives without a search."""
        form.cutter = Cutter(given, self.units.constants.ops)
        if self.parts is None:
            self.parts = parts_of(form.cutter, self.units)
        form.chain, problem = Chain(form.cutter, self.parts), given.problem
        quick = [float(kind.seconds.min(initial=math.inf)) for kind in problem.node_kinds]
        table = self.table_of([math.fsum(quick[problem.kinds[op]] for op in ops) for ops in self.units.ops])
        form.bytes = np.maximum(form.bytes, self.least_memory(given))
        form.saved = np.maximum(form.saved, self.least_saved(given))
        np.maximum(form.core, table, out=form.core)
        free = [np.zeros(form.chain.states(cut)) for cut in range(self.units.count + 1)]
        for cut, rows in enumerate(form.chain.rows(0.0, free[:-1])):
            np.maximum(form.core[:cut, cut], rows.min(axis=1) * (1 - TIGHT), out=form.core[:cut, cut])

    def cutter(self, form: Form) -> Cutter:
        """That of a form, whose problem is built the first time."""
        if form.cutter is None:
            began, axes = now(), len(form.mesh.axes)
            self.progress(f"mesh {form.mesh}", None)
            self.equip(form, self.built(form.mesh))
            self.forget(form)
            self.took[axes] = max(self.took.get(axes, 0.0), now() - began)
        assert form.cutter is not None
        return form.cutter

    def nearer(self, run: StageRun, sides: tuple[bool, bool]) -> Form:
        """The form of a run, with a problem, in which it is bounded better: with this overlap or the other."""
        form = self.forms[run.block.form]
        self.cutter(form)
        if self.other is None:
            return form
        self.other.cutter(self.other.forms[run.block.form])
        own, other = (one.own_table(run.block, *sides).seconds[run.first, run.behind] for one in (self, self.other))
        return form if own >= other else self.other.forms[run.block.form]

    def is_built(self, number: int) -> bool:
        """Whether a form has its problems, of every overlap."""
        return all(one.forms[number].cutter is not None for one in self.each)

    def built_by(self, number: int, ends: float) -> bool:
        """Builds the problem of a form with this overlap; whether there was the time for it. Others are built when a plan uses
        them: to ask the programme again costs less than a problem."""
        form = self.forms[number]
        if form.cutter is None:
            if now() + self.expected(form) > ends:
                return False
            self.cutter(form)
        return True

    def expected(self, form: Form) -> float:
        """Seconds that building its problem may take, by those of others of as many axes, if there are any; 0 once built."""
        axes = len(form.mesh.axes)
        return self.took.get(axes, WIDER * max(self.took.values(), default=0.0)) if form.cutter is None else 0.0

    def forget(self, form: Form) -> None:
        """Tables of a form whose bounds got better."""
        self.tables = {key: table for key, table in self.tables.items() if self.forms[key[0]] is not form}

    # -- searches ------------------------------------------------------------------------------------------------------

    def refine(self, found: Sequenced, seconds: float, held: Held, *, exact: bool) -> bool:
        """Betters the bounds of a plan's runs, the dearest first, until one turns out dearer than all were; whether one did.
        ``held``: as of the programme that found it; ``exact``: also by a search of the run itself."""
        ends = now() + seconds
        sides = dict(zip(found.runs, beside(found.runs, held), strict=True))

        def seconds_of(run: StageRun) -> float:
            return float(self.table(run.block, *sides[run]).seconds[run.first, run.behind])

        limit = max(map(seconds_of, found.runs)) * (1 + TIGHT)
        for better in (self.price, self.solve) if exact else (self.price,):
            for run in sorted(found.runs, key=lambda run: (-seconds_of(run), run.first)):
                for one in self.each:
                    built = one.built_by(run.block.form, ends)
                    if seconds_of(run) > limit:
                        self.each.sort(key=lambda other: other is not one)
                        return True
                    if not built or now() > ends:
                        return False
                better(run, sides[run], ends)
                if seconds_of(run) > limit:
                    return True
        return False

    def price(self, run: StageRun, sides: Sides, ends: float) -> None:
        """Looks for the price of memory under which a run is bounded best; ``sides``: as of ``Tables``."""
        if self.other is not None:
            self.other.price(run, sides, ends)
        form = self.forms[run.block.form]
        limit, key = self.limit(form.mesh), (self.units.key(run.first, run.behind), *sides)
        if limit is None or key in form.priced:
            return
        form.priced.add(key)
        (alike, behind, comes, goes, held), chain = sides, form.chain
        assert chain is not None
        before = chain.entering(run.first, run.block.receives(comes), alike)
        after = chain.leaving(run.behind, run.block.sends(goes), behind)
        room = float(self.room(form, limit, alike, held)[run.first, run.behind])
        price = chain.within(run.first, run.behind, before, after, room, form.prices, until=ends).price
        if price not in form.prices:
            form.prices.append(price)
            self.forget(form)

    def solve(self, run: StageRun, sides: Sides, ends: float) -> None:
        """Searches a run and notes what it costs at least, there and around it."""
        form = self.forms[run.block.form]
        cutter, key = self.cutter(form), self.units.key(run.first, run.behind)
        if key in form.solved:
            return
        form.solved.add(key)
        ops = self.units.run(run.first, run.behind)
        entering, leaving = cutter.crossing(ops)
        receive = {name: self.over_best(cutter, name) for name in entering}
        send = {name: self.over_best(cutter, name) for name in leaving}
        problem = cutter.cut(ops, Border(receive, send)).given.problem
        self.solved += 1
        seconds = max(0.1, min(LONGEST, ends - now()))
        limit, room = self.limit(form.mesh), None
        if limit is not None:  # that of every run around it too
            room = float(self.room(form, limit, True)[: run.first + 1, run.behind :].max())
        try:
            bound = solve(problem, memory=room, seconds=seconds, progress=self.progress).bound * (1 - TIGHT)
        except NoPlanError:
            bound = math.inf
        crossing = math.fsum(float(row.max()) for row in (*receive.values(), *send.values()))
        self.note(form, key, bound, bound - crossing)

    def note(self, form: Form, key: int, bound: float, core: float) -> None:
        for first, behind in self.runs_of[key]:
            form.whole[first, behind] = max(form.whole[first, behind], bound)
            around = form.core[: first + 1, behind:]
            np.maximum(around, core, out=around)
        self.forget(form)

    def over_best(self, cutter: Cutter, name: str) -> Floats:
        """Seconds that a member spends at least to send or receive a value, by layout."""
        best, given, type_ = self.links.best, cutter.given, cutter.types[name]
        size = type_bytes(type_) or 0
        parts = np.array([split(type_, placements, given.mesh) for placements in given.layouts[name].placements])
        times = 2 if name in self.base.trained else 1  # its gradient comes back, over the same link at the same cost
        return times * (best.latency + size * parts / best.bandwidth)
