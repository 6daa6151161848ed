"""Builds the ``ShardProblem`` of a function on a mesh.

Nodes: the ops, by their place in the function; then each weight; then each result of the function. The choices of an op are the
strategies of its layout rule, one per axis; an op without a rule runs whole everywhere. A weight chooses the layout in which it
is kept; other layouts are made from it in every run. A result may leave in any layout but a partial one. A state and what it
becomes are one node, so that both lie alike; the logits of a decoder leave whole, for one device draws tokens from them.

What is free: arguments arrive in whatever layouts are asked for, and small constants are on every device.

*Seconds* of an op under a choice are those of ``passes.meshes.costs.member_work``. In training, gradients lie as
``backward_rule`` says, those of one layout are added where they are, and each sum is brought to where the maker wants it: for a
weight, where it is kept, which is its synchronisation, once a step; so for what is made of weights alone. What the forward pass
gathered stays for the backward pass.

*Memory*: weights where they are kept, states once for each group of sequences. In training: of each weight its optimizer's
state (``OptimizerState``, or two 32-bit numbers per element, as Adam keeps) and its gradient where it is kept; the weight
itself as it is read, since what was gathered stays, each of its readers having an equal part in it; and its gradient likewise
where several microbatches share one synchronisation, for which terms wait where they are made. Besides, what ops save for the
backward pass, once per microbatch in flight. It is less than is needed where readers of one weight want it in several layouts,
or in a smaller part than is kept. Other activations are not counted here: how many are alive at once is no sum over ops. A
choice takes what its fullest member holds: sums of these are exact where one member is the fullest in all (equal devices, equal
shares), else no less than what any device needs.

*Overlap.* Communication adds to computation, but in training the sums of gradients over devices may run beside the
last backward pass of a step. Such a step takes C + S - H seconds:

- S: all sums that may run beside that pass: of each gradient the all-reduce that it begins with, for what follows on other
  axes, and what leaves parts, waits for the update; H: the part of S that the pass hides;
- C: everything else, with the sums of the gradients that the pass makes last, as nothing is left to hide those.

H depends on the order in which gradients are made and is no sum over nodes (``price`` computes it). But H <= S and H <= B, the
seconds of sums that can travel beside the backward pass of one microbatch (``DeviceType.beside``), without that of the ops at
its begin, until it makes the first gradient of a sum (``runs_first``). So H <= (1 - L) S + L B for every ``overlap`` L from 0
to 1, and

    C + S - H >= C + L (S - B).

The problem minimises the right side, so its lower bound holds for every plan. With L = ``UNSUMMED`` no sum costs anything,
those in C included: that bounds plans that agree on gradients in other ways than by sums (``sync``) as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ir.core.facets import SEPARATOR, WHOLE
from ir.core.module import Func, Module, Splat
from ir.core.ops import Op
from ir.core.topology import DeviceType
from ir.core.types import Partial, Replicate, Type, type_bytes
from ir.layout_rules import LayoutRule, Strategy, backward_rule
from passes.costs.learning import recomputes, scales, updated_bytes
from passes.costs.memory.liveness import resource_bytes
from passes.costs.op_time import is_head
from passes.graph.folding import Folding
from passes.graph.positional import read_for_positions
from passes.meshes.costs.bill import UNSUMMED
from passes.meshes.costs.member_work import MemberWork
from passes.meshes.layouts import Layouts, Placements, can_be_split, coherent, gradient_layout, layouts_of
from passes.meshes.mesh import DeviceMesh
from passes.partition.layouts.problem.fused import chains_of
from passes.partition.layouts.problem.outline import (
    BESIDE,
    OpForm,
    Outline,
    OutputForm,
    ValueForm,
    WeightForm,
    outline_of,
    read_ports,
)
from passes.partition.layouts.problem.problem import Floats, NodeKind, ShardProblem, ValueKind
from passes.solvers.work import did

OVERLAPS = (1e-10, 1.0)
"""The values of ``overlap`` for which a training step on one mesh is searched first. C + L (S - B) is near the truth for L = 0
where the backward pass can hide all sums, and for L = 1 where the sums are longer. Instead of 0 a number so small that it only
decides between plans that are else equal, for the one with fewer sums."""


def overlaps_on(types: Iterable[DeviceType]) -> tuple[float, ...]:
    """Those of ``OVERLAPS`` that are searched on devices of these types: where no sum travels beside a backward pass, B and H
    are 0, so L = 1 counts C + S, the seconds of the step."""
    return OVERLAPS if any(type_.beside for type_ in types) else OVERLAPS[-1:]


@dataclass(frozen=True, slots=True)
class ShardInput:
    """The problem with what its numbers mean."""

    problem: ShardProblem
    mesh: DeviceMesh
    func: Func
    strategies: tuple[tuple[tuple[Strategy | None, ...], ...], ...]
    """``strategies[node kind][choice]``: of an op, one strategy per axis; of other nodes there is none. Choices that differ
    only in their claim to be fused (``fused``) share one tuple object."""
    kept: dict[int, str]
    """By node of a weight: the name of the resource."""
    outputs: dict[int, str]
    """By node of a result: the name of the value."""
    layouts: dict[str, Layouts]
    """By name of a value or weight; ``layout_number`` takes a source to its place there."""
    unsharded: tuple[str, ...]
    """Names of the operators that have no layout rule, sorted."""
    trained: frozenset[str] = frozenset()
    """In training, the names of values and weights that have a gradient."""
    filled: frozenset[str] = frozenset()
    """Names of resources all of whose elements are one number."""
    saved: tuple[Floats, ...] = ()
    """In training, ``saved[node kind][choice]``: the bytes of ``NodeKind.memory`` that each further microbatch in flight saves
    for its backward pass. Kinds that a stage adds behind these save nothing."""
    overlap: float | None = None
    """The one that the problem was built with."""
    states: Mapping[str, str] = field(default_factory=dict)
    """By name of a state: the name of the value that it becomes, empty of one that no step changes."""
    copied: frozenset[str] = frozenset()
    """Of a decoder, what ops that positions alone decide read: constants, and masks that are given."""

    @property
    def one_home(self) -> frozenset[str]:
        """The resources that a stage has for itself: neither small nor repeating one number, nor read for positions."""
        return (frozenset(self.kept.values()) - self.filled | self.states.keys()) - self.copied

    def keeping(self, in_flight: int) -> ShardInput:
        """The problem in which ``in_flight`` microbatches save bytes for their backward passes; this one has one in flight."""
        if in_flight == 1 or not any(saved.any() for saved in self.saved):
            return self
        kinds = list(self.problem.node_kinds)
        for number, saved in enumerate(self.saved):
            kinds[number] = replace(kinds[number], memory=kinds[number].memory + (in_flight - 1) * saved)
        return replace(self, problem=replace(self.problem, node_kinds=tuple(kinds)))

    def layout_number(self, name: str, source: int) -> int:
        """The number of a source's layout in ``layouts[name]``: a link has two sources for each layout (``_ValueDraft``)."""
        return source % len(self.layouts[name].placements)


class Builder:
    """Builds the problems of one function on several meshes: what does not depend on the mesh is found once (``outline``), and
    what does not depend on the overlap once for each mesh."""

    def __init__(
        self,
        module: Module,
        func: Func,
        folding: Folding | None,
        *,
        training: bool = False,
        microbatches: int = 1,
    ) -> None:
        """``folding``: the repeats of ``func``; ``microbatches``: those of a step. All seconds are per microbatch, so each is
        charged its part of the synchronisation of gradients, which happens once a step."""
        self.module, self.func, self.folding = module, func, folding
        self.training, self.microbatches = training, microbatches
        self.outlines: dict[object, Outline] = {}
        self.times: dict[object, tuple[float, float]] = {}
        self.last: _OnMesh | None = None

    def build(self, mesh: DeviceMesh, *, overlap: float | None = None) -> ShardInput:
        """The problem on a mesh. ``overlap``: the L of the module, where sums of gradients may run beside a backward pass; None
        where nothing overlaps."""
        apart, types = overlap is not None, () if self.training else mesh.types
        if (apart, types) not in self.outlines:
            chains = chains_of(self.func, types, training=self.training)
            outline = outline_of(self.module, self.func, chains, self.folding, training=self.training, apart=apart)
            self.outlines[apart, types] = outline
        outline = self.outlines[apart, types]
        if self.last is None or self.last.outline is not outline or self.last.mesh != mesh:
            self.last = _OnMesh(self, outline, mesh)
            did("written", len(self.func.ops))
        return self.last.problem(overlap)


def build(
    module: Module,
    func: Func,
    mesh: DeviceMesh,
    folding: Folding | None,
    *,
    training: bool = False,
    microbatches: int = 1,
    overlap: float | None = None,
) -> ShardInput:
    """The problem of ``func`` on one mesh; options as of ``Builder`` and ``Builder.build``."""
    builder = Builder(module, func, folding, training=training, microbatches=microbatches)
    return builder.build(mesh, overlap=overlap)


@dataclass(slots=True)
class _ValueDraft:
    """A ``ValueKind`` under construction: ops add ``needs``, then ``finish`` makes it. ``flows``, ``link``: as of
    ``ValueForm``; ``convert[from, to]``: seconds to reshard the value; ``back``: its gradient.

    With n layouts, sources 0 .. n - 1 are the layouts; n .. 2n - 1, of a link only, the same layouts made by a chain
    (``fused``). Keys 0 .. n - 1 are the layouts in which the value is read, n .. 2n - 1 those in which readers give its
    gradient back; then there is one key for each cost of an epilogue that is not fused. ``needs[layout, gradient, unfused]`` is
    a need's number."""

    layouts: Layouts
    convert: Floats
    flows: bool
    back: Layouts
    link: bool = False
    needs: dict[tuple[int, int, float], int] = field(default_factory=dict)

    def need(self, layout: int, gradient: int, unfused: float = 0.0) -> int:
        """The number of the need of a reader that takes the value in ``layout`` and gives its gradient in ``gradient`` (-1:
        none). ``unfused``: seconds that the reader takes more unless a chain makes the value in ``layout``."""
        return self.needs.setdefault((layout, gradient if self.flows else -1, unfused), len(self.needs))

    def finish(self, counted: float, hidden: float) -> ValueKind:
        """The kind; seconds to reshard a gradient are multiplied by ``counted``, and less ``hidden`` times those of the
        all-reduce that comes first."""
        convert, count = self.convert, len(self.layouts.placements)
        wanted = [self.layouts.number(gradient_layout(placements)) for placements in self.layouts.placements]
        back = (self.back.convert * counted - self.back.first * hidden)[:, wanted].T if self.flows else np.zeros((count, count))
        weights = np.hstack([convert, back])
        columns: dict[tuple[int, float], Floats] = {}
        if self.link:
            weights = np.vstack([weights, weights])
            for layout, _, unfused in self.needs:
                if unfused:
                    column = columns.setdefault((layout, unfused), np.full((2 * count, 1), unfused))
                    column[count + layout] = 0.0
        key_of = {column: 2 * count + i for i, column in enumerate(columns)}
        needs = []
        for layout, gradient, unfused in self.needs:
            keys = (layout,) if gradient < 0 else (layout, count + gradient)
            needs.append((*keys, key_of[layout, unfused]) if unfused else keys)
        return ValueKind(np.hstack([weights, *columns.values()]), tuple(needs))


class _OnMesh:
    """What the problems on one mesh share, whatever the overlap: the choices of each form of ops (``rows``), and the kinds of
    the nodes of weights and results (``fixed``), both by number of the form."""

    def __init__(self, builder: Builder, outline: Outline, mesh: DeviceMesh) -> None:
        self.builder, self.outline, self.mesh = builder, outline, mesh
        self.training, self.microbatches = builder.training, builder.microbatches
        self.resources, self.bytes = builder.module.resources, resource_bytes(builder.module)
        again = recomputes(builder.module)
        self.work = MemberWork(mesh, training=builder.training, again=again, times=builder.times)
        self.whole: Placements = (Replicate(),) * len(mesh.axes)
        made = {number for name, number in outline.value_of.items() if not name.startswith("@")}
        self.drafts = [self.value(form, weight=number not in made) for number, form in enumerate(outline.values)]
        self.rows: list[list[_Row]] = []
        self.fixed: dict[int, NodeKind] = {}
        for number, form in enumerate(outline.forms):
            self.rows.append(self.op(form) if isinstance(form, OpForm) else [])
            if isinstance(form, WeightForm):
                self.fixed[number] = self.weight(form)
            elif isinstance(form, OutputForm):
                self.fixed[number] = self.output(form)

    def problem(self, overlap: float | None) -> ShardInput:
        """The problem with this overlap."""
        outline, builder = self.outline, self.builder
        hiding = (overlap or 0.0) / self.microbatches
        counted = UNSUMMED if overlap == UNSUMMED else 1.0
        beside = 1.0 - overlap if overlap not in (None, UNSUMMED) else 0.0
        node_kinds: list[NodeKind] = []
        strategies: list[tuple[tuple[Strategy | None, ...], ...]] = []
        saved: list[Floats] = []
        for number, form in enumerate(outline.forms):
            if isinstance(form, OpForm):
                hides = hiding if form.hides else 0.0
                rows = _undominated(self.rows[number], hides)
                node_kinds.append(_node_kind(rows, hides, len(form.reads), len(form.makes)))
                strategies.append(tuple([row.strategies for row in rows]))
                saved.append(np.array([0.0 if self.work.again else row.saved for row in rows]))
            else:
                node_kinds.append(self.fixed[number])
                strategies.append(())
                saved.append(np.zeros(len(self.fixed[number].seconds)))
        values = []
        for draft, value in zip(self.drafts, outline.values, strict=True):
            once = self.microbatches if value.flows and value.summed else 1
            hidden = beside / once if value.summed == BESIDE else 0.0
            values.append(draft.finish((counted if value.summed else 1.0) / once, hidden))
        problem = ShardProblem(tuple(node_kinds), tuple(values), outline.graph)
        return ShardInput(
            problem,
            self.mesh,
            builder.func,
            tuple(strategies),
            outline.kept,
            outline.outputs,
            {name: self.drafts[value].layouts for name, value in outline.value_of.items()},
            outline.unsharded,
            outline.trained,
            frozenset(name for name, resource in self.resources.items() if isinstance(resource.data, Splat)),
            tuple(saved),
            overlap,
            {name: f"%{state.result}" if state.result else "" for name, state in builder.module.states.items()},
            read_for_positions(builder.module),
        )

    def value(self, form: ValueForm, *, weight: bool) -> _ValueDraft:
        """The draft, without needs, of a form of values. ``weight``: whether only weights have this form."""
        layouts = layouts_of(form.type, self.mesh, weight=weight)
        back = layouts
        if form.flows and form.summed:  # once a step, in buckets
            back = layouts_of(form.type, self.mesh, together=True, weight=weight)
        convert = layouts.convert
        if form.blocked:
            every = layouts.placements
            reordered = [[self.work.reorder_seconds(form.type, one, two) * (one != two) for two in every] for one in every]
            convert = convert + np.array(reordered)
        return _ValueDraft(layouts, convert, form.flows, back, form.link)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def op(self, form: OpForm) -> list[_Row]:
        """The choices of a form of ops: every combination of strategies whose layouts its operands and results can have. An
        epilogue has one for each operand that it may be fused by; if it makes a link, these claim that it is fused, and one
        more does not (module ``fused``). Their needs are added to the drafts."""
        op, operands, drafts = form.op, form.operands, self.drafts
        results = [value.type for value in op.results]
        types = (*operands, *results)
        link = len(form.makes) > 0 and form.makes[0] >= 0 and drafts[form.makes[0]].link
        rows: list[_Row] = []
        for strategies, gradients in self.combinations(form.rule, operands, results):
            if form.rule is None:
                placements: list[Placements] = [self.whole] * (len(operands) + len(results))
            else:
                placements = [tuple([s.operands[i] for s in strategies if s]) for i in range(len(operands))]
                placements += [tuple([s.results[i] for s in strategies if s]) for i in range(len(results))]
            if not all(map(coherent, placements)):
                continue
            needs = []
            for i, kind in form.reads:
                draft = drafts[kind]
                layout = draft.layouts.number(placements[i] if i >= 0 else self.whole)
                back = gradients[i] if i >= 0 else None
                needs.append(-1 if layout < 0 else draft.need(layout, draft.layouts.number(back) if back else -1))
            made = [
                drafts[kind].layouts.number(placements[len(operands) + i]) if kind >= 0 else 0
                for i, kind in enumerate(form.makes)
            ]
            if -1 in needs or -1 in made:
                continue
            saved = self.work.saved(op, types, strategies, placements) if form.flows else 0.0
            longest, backward = self.work.seconds(op, id(op), types, strategies, placements)
            row = _Row(longest, backward, saved, self.held(op, placements), tuple(needs), tuple(made), strategies)
            of_chain = replace(row, made=(made[0] + len(drafts[form.makes[0]].layouts.placements), *made[1:])) if link else row
            for port in form.epilogue.ports if form.epilogue else ():
                rows.append(self.fused(form, of_chain, placements, port, link))
            if not form.epilogue or link:
                rows.append(of_chain if is_head(op) else row)
        return rows

    def fused(self, form: OpForm, row: _Row, placements: Sequence[Placements], port: int, link: bool) -> _Row:
        """The choice ``row`` with the op fused into what makes operand ``port``. ``link``: whether the op makes a link. Unless
        a chain makes that operand in the layout that is read, the need costs the seconds that fusion saves or, for an op that
        makes a link, ``Epilogue.penalty``."""
        types = (*form.operands, *(value.type for value in form.op.results))
        seconds, _ = self.work.seconds(form.op, id(form.op), types, row.strategies, placements, port)
        place = next(place for place, (i, _) in enumerate(form.reads) if i == port)
        draft = self.drafts[form.reads[place][1]]
        unfused = row.longest - seconds if seconds < row.longest else 0.0
        if form.epilogue and link:
            unfused = form.epilogue.penalty
        need = draft.need(draft.layouts.number(placements[port]), -1, unfused)
        return replace(row, longest=seconds, needs=(*row.needs[:place], need, *row.needs[place + 1 :]))

    def held(self, op: Op, lies: Sequence[Placements]) -> float:
        """Bytes of the weights that learn as an op reads them: its part of these, and of gradients that wait."""
        outline, found = self.outline, 0.0
        for i, name in enumerate(read_ports(op)):
            if name in outline.weights and name in outline.trained:
                type_ = self.resources[name].type
                part = self.work.fullest(type_, lies[i] if i < len(op.operands) else self.whole)
                found += (type_bytes(type_) or 0) * part * (1 + (self.microbatches > 1)) / outline.read[name]
        return found

    def combinations(
        self, rule: LayoutRule | None, operands: Sequence[Type | None], results: Sequence[Type]
    ) -> Iterable[tuple[tuple[Strategy | None, ...], list[Placements | None]]]:
        """Every choice of one strategy per axis that the types allow, with the layout in which it makes the gradient of each
        operand (None: it makes none). Without a rule there is one choice, in which the op runs whole everywhere (None)."""
        if rule is None:
            yield (None,) * len(self.mesh.axes), [None] * len(operands)
            return
        # Of an axis of one member the first: all strategies are the same.
        options = [backward_rule(rule, axis.size)[: None if axis.size > 1 else 1] for axis in self.mesh.axes]
        types, cuts = (*operands, *results), [axis.shares for axis in self.mesh.axes]
        for picked in itertools.product(*options):
            if not can_be_split([back.strategy for back in picked], cuts, types):
                continue
            gradients: list[Placements | None] = []
            for i in range(len(operands)):
                layout = tuple(g for back in picked if (g := back.gradients[i]) is not None)
                gradients.append(layout if len(layout) == len(picked) else None)
            yield tuple(back.strategy for back in picked), gradients

    def weight(self, form: WeightForm) -> NodeKind:
        """The kind of a weight: it chooses the layout in which it is kept, any but a partial one; of a state, that in which the
        result leaves that it becomes. Its seconds, in training, are those of the optimizer."""
        type_, layouts = self.resources[form.name].type, self.drafts[form.value].layouts
        kept = [i for i, p in enumerate(layouts.placements) if not any(isinstance(q, Partial) for q in p)]
        kept = [layouts.number(self.whole)] if form.whole else kept
        needs: tuple[NDArray[np.int64], ...] = ()
        if form.becomes >= 0:
            becomes = self.drafts[form.becomes]
            numbers = {i: becomes.layouts.number(layouts.placements[i]) for i in kept}
            kept = [i for i in kept if numbers[i] >= 0]
            needs = (np.array([becomes.need(numbers[i], -1) for i in kept], np.int64),)
        size, seconds = self.bytes[form.name], np.zeros(len(kept))
        if form.name in self.outline.trained:
            state = self.outline.state[form.name]
            moved = updated_bytes(size, state, scaled=scales(self.builder.module))
            seconds = (
                np.array([self.work.update_seconds(type_, layouts.placements[i], moved) for i in kept]) / self.microbatches
            )
            size = size * (self.microbatches == 1) + state  # of several, gradients wait where they are made (``held``)
        return NodeKind(
            tuple(", ".join(map(str, layouts.placements[i])) for i in kept),
            seconds,
            np.array([size * self.work.fullest(type_, layouts.placements[i]) for i in kept]),
            needs,
            (np.array(kept, np.int64),),
        )

    def output(self, form: OutputForm) -> NodeKind:
        """The kind of a result of the function, which may leave in any layout but a partial one, unless it is asked for whole;
        its gradient comes in the same."""
        draft = self.drafts[form.value]
        allowed = [i for i, p in enumerate(draft.layouts.placements) if not any(isinstance(q, Partial) for q in p)]
        allowed = [draft.layouts.number(self.whole)] if form.whole else allowed
        needs = np.array([draft.need(i, i) for i in allowed], np.int64)
        labels = tuple(", ".join(map(str, draft.layouts.placements[i])) for i in allowed)
        return NodeKind(labels, np.zeros(len(allowed)), np.zeros(len(allowed)), reads=(needs,))


@dataclass(frozen=True, slots=True)
class _Row:
    """One choice of an op. ``longest``: seconds of the slowest member, of both passes in training; ``backward``: seconds of the
    backward pass of the member where it is longest; ``saved``: bytes kept for one backward pass; ``held``: other bytes;
    ``needs``: of each value read its need's number; ``made``: of each result its source."""

    longest: float
    backward: float
    saved: float
    held: float
    needs: tuple[int, ...]
    made: tuple[int, ...]
    strategies: tuple[Strategy | None, ...]

    def seconds(self, hiding: float) -> float:
        """Seconds less ``hiding`` times the backward pass: L B of the module, per microbatch."""
        return self.longest - hiding * self.backward if math.isfinite(self.longest) else self.longest

    @property
    def memory(self) -> float:
        return self.saved + self.held

    @property
    def label(self) -> str:
        return SEPARATOR.join(strategy.name if strategy else WHOLE for strategy in self.strategies)


def _node_kind(rows: Sequence[_Row], hiding: float, ports: int, results: int) -> NodeKind:
    return NodeKind(
        tuple([row.label for row in rows]),
        np.array([row.seconds(hiding) for row in rows]),
        np.array([row.memory for row in rows]),
        tuple([np.array([row.needs[port] for row in rows], np.int64) for port in range(ports)]),
        tuple([np.array([row.made[result] for row in rows], np.int64) for result in range(results)]),
    )


def _undominated(rows: Sequence[_Row], hiding: float) -> list[_Row]:
    """Of rows with the same needs and results, and so the same held bytes, those that no other dominates in seconds and saved
    bytes; of equal rows the first. They stay in order."""
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    seconds = [row.seconds(hiding) for row in rows]
    for number, row in enumerate(rows):
        alike.setdefault((row.needs, row.made), []).append(number)
    left = []
    for numbers in alike.values():
        least = math.inf
        for number in sorted(numbers, key=lambda number: (seconds[number], rows[number].saved, number)):
            if rows[number].saved < least:
                least = rows[number].saved
                left.append(number)
    return [rows[number] for number in sorted(left)]
