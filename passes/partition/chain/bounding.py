"""What a run of units costs on a block of devices, from below: tables that get better where a plan would use them.

At first: each op's seconds and the least bytes of weights (``least``), of workspace and buffers (``workspace``); the least
parts of what crosses (``crossings``). No problem is built for a form of mesh before a plan uses it. Then all runs of the form
at once: its own least seconds by op, and the tables of its units (``chains``), without a price of memory; and for runs in plans
under the price that suits them. In the end, for single runs in plans, the solution of the run's problem, with borders in the
layouts that suit best.

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
from dataclasses import dataclass, field

import numpy as np

from ir.core.module import Module
from ir.core.outcomes import TIGHT
from ir.core.topology import Topology
from ir.core.types import type_bytes
from passes.costs.network import Network
from passes.graph.folding import Folding
from passes.meshes.layouts import split
from passes.meshes.mesh import DeviceMesh
from passes.partition.chain.borders import Border, Cutter
from passes.partition.chain.chains import Chain
from passes.partition.chain.crossings import Link
from passes.partition.chain.least import Least, table_of
from passes.partition.chain.pipeline import Held, Sequenced, Sides, StageRun, Table, beside
from passes.partition.chain.submeshes import BestLinks, Block, Submeshes
from passes.partition.chain.units import MOST_CUTS
from passes.partition.layouts.mesh.named import named_plan, restricted
from passes.partition.layouts.problem.build import Builder, ShardInput, overlaps_on
from passes.partition.layouts.problem.problem import Floats
from passes.partition.layouts.solver.search import NoPlanError, solve
from passes.solvers.anytime import Progress
from passes.solvers.work import now
from passes.stages.load import handover

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

    @staticmethod
    def of(mesh: DeviceMesh, seconds: Floats, bytes_: Floats, saved: Floats) -> Form:
        """A form before its problem is built: ``seconds``, ``bytes_`` and ``saved`` of runs as of ``Least.on``."""
        return Form(mesh, seconds, np.zeros(seconds.shape), bytes_, saved)


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
        self.module, self.progress, self.memory = module, progress, memory
        self.training, self.microbatches, self.family = training, microbatches, family
        builder = Builder(module, module.entry, folding, training=training, microbatches=microbatches)
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
            self.least = Least(
                module,
                self.base,
                folding,
                training=training,
                microbatches=microbatches,
                family=family,
                cuts=cuts,
            )
            self.forms = [Form.of(mesh, *self.least.on(mesh)) for mesh in meshes.forms]
        else:
            self.least = other.least
            self.forms = [Form(one.mesh, one.core.copy(), one.whole.copy(), one.bytes, one.saved) for one in other.forms]
        self.units, self.volumes, self.workspace = self.least.units, self.least.volumes, self.least.workspace
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

    def built(self, mesh: DeviceMesh) -> ShardInput:
        given = self.builder.build(mesh.limited(self.memory), overlap=self.overlap)
        if not self.strategy:
            return given
        plan = named_plan(self.module, given, self.strategy)
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
        return handover(block.mesh.types, 1 if whole else 2, block.size, training=self.training)

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
        saved = form.saved * ((held or self.least.in_flight) - 1)
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

    def equip(self, form: Form, given: ShardInput) -> None:
        """The problem on a form's mesh, and the bounds that it gives without a search."""
        form.cutter = Cutter(given, self.units.constants.ops)
        form.chain, problem = Chain(form.cutter, self.least.parts), given.problem
        quick = [float(kind.seconds.min(initial=math.inf)) for kind in problem.node_kinds]
        table = table_of([math.fsum(quick[problem.kinds[op]] for op in ops) for ops in self.units.ops])
        form.bytes = np.maximum(form.bytes, self.least.memory_of(given))
        form.saved = np.maximum(form.saved, self.least.saved_of(given))
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

    def refine(self, found: Sequenced, seconds: float, held: Held, *, exact: bool, limit: float = 0.0) -> bool:
        """Betters the bounds of a plan's runs, the dearest first, until one turns out dearer than all were, and than ``limit``;
        whether one did. ``held``: as of the programme that found it; ``exact``: also by a search of the run itself."""
        ends = now() + seconds
        sides = dict(zip(found.runs, beside(found.runs, held), strict=True))

        def seconds_of(run: StageRun) -> float:
            return float(self.table(run.block, *sides[run]).seconds[run.first, run.behind])

        limit = max(limit, max(map(seconds_of, found.runs)) * (1 + TIGHT))
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
        price = chain.best_price(run.first, run.behind, before, after, room, form.prices, until=ends)
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
        for first, behind in self.least.runs_of[key]:
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
