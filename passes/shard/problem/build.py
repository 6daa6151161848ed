"""From a function to a ``ShardProblem``.

Nodes: the ops, by their place in the function; then each weight; then each result of the function. The choices of an op are the
strategies of its layout rule, one per axis; an op without a rule runs whole everywhere. A weight chooses the layout in which it
is kept; other layouts are made from it in every run. A result may leave in any layout but as terms.

What is free: arguments arrive in whatever layouts are asked for, and small constants stand on every device.

Communication adds to computation, but for the synchronisation S of a step that travels beside its last backward pass. What that
hides depends on the order of both and is no sum over nodes (``price`` counts it). It is at most S, without the part of what
the pass makes last, and at most the seconds B of the gradients of one microbatch. So for any ``overlap`` L from 0 to 1 no step
takes less than C + L (S - B), C being all the rest: the problem has these seconds, and its bound is one of all plans. Where
``sync`` may avoid sums, it is, for L = ``UNSUMMED``, one that counts no sums.

What a choice costs, in seconds and bytes, is in ``costs``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ir.facets import SEPARATOR, WHOLE
from ir.layout_rules import LayoutRule, Strategy, backward_rule
from ir.module import Func, Module, Splat
from ir.shares import proportional
from ir.types import Partial, Replicate, Type, type_bytes
from passes.model.folding import Folding
from passes.model.learning import updated_bytes
from passes.model.op_time import is_head
from passes.model.spmd.bill import UNSUMMED
from passes.model.spmd.layouts import Layouts, Placements, can_be_split, coherent, gradient_layout, layouts_of
from passes.model.spmd.mesh import DeviceMesh
from passes.model.work import did
from passes.shard.problem.costs import MemberCosts
from passes.shard.problem.fused import chains_of
from passes.shard.problem.outline import (
    BEHIND,
    BESIDE,
    OpForm,
    Outline,
    OutputForm,
    ValueForm,
    WeightForm,
    outline_of,
)
from passes.shard.problem.problem import Floats, NodeKind, ShardProblem, ValueKind

OVERLAPS = (1e-10, 1.0)
"""The values of ``overlap`` (``build``) by which a training step on one mesh is searched: right where the backward pass hides
all sums, and where they hide all of it. Not 0, so that of two plans the one with fewer sums is found."""


@dataclass(frozen=True, slots=True)
class ShardInput:
    """The problem with what its numbers mean: ``strategies[node kind][choice]``, one per axis, of an op, the same tuple for
    choices that differ in claims alone; ``kept[node]`` is the resource of a weight's node, ``outputs[node]`` the value of a
    result's; ``layouts[name]``: of a value, by source (``made`` tells those of links)."""

    problem: ShardProblem
    mesh: DeviceMesh
    func: Func
    strategies: tuple[tuple[tuple[Strategy | None, ...], ...], ...]
    kept: dict[int, str]
    outputs: dict[int, str]
    layouts: dict[str, Layouts]
    unsharded: tuple[str, ...]
    """Operators without a rule, sorted."""
    trained: frozenset[str] = frozenset()
    """In training, values and weights that have a gradient."""
    filled: frozenset[str] = frozenset()
    """Resources that repeat one number."""
    saved: tuple[Floats, ...] = ()
    """In training, the part of ``NodeKind.memory`` that is saved for the backward pass of one microbatch, by kind of node;
    kinds behind the last save nothing."""
    overlap: float | None = None
    """As of ``build``."""

    def keeping(self, in_flight: int) -> ShardInput:
        """This problem, built for one microbatch in flight, for so many, also of a stage that was cut from it."""
        kinds = list(self.problem.node_kinds)
        for number, saved in enumerate(self.saved if in_flight != 1 else ()):
            kinds[number] = replace(kinds[number], memory=kinds[number].memory + (in_flight - 1) * saved)
        return replace(self, problem=replace(self.problem, node_kinds=tuple(kinds)))

    def made(self, name: str, source: int) -> int:
        """The number of the layout that a source of a value stands for."""
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
        uneven: bool = False,
        microbatches: int = 1,
    ) -> None:
        """``folding`` tells the repeats of ``func``. ``microbatches``: runs that share one synchronisation of the gradients of
        weights, of which each is charged its part."""
        self.module, self.func, self.folding = module, func, folding
        self.training, self.uneven, self.microbatches = training, uneven, microbatches
        self.outlines: dict[object, Outline] = {}
        self.times: dict[object, tuple[float, float]] = {}
        self.last: _OnMesh | None = None

    def build(self, mesh: DeviceMesh, *, overlap: float | None = None, in_flight: int = 1) -> ShardInput:
        """The problem on a mesh. ``in_flight``: of how many microbatches a device holds what their backward passes need at
        once. ``overlap``: from 0 to 1, where the synchronisation of gradients may travel beside a backward pass; None: nothing
        overlaps."""
        apart, types = overlap is not None, () if self.training else mesh.types
        if (apart, types) not in self.outlines:
            chains = chains_of(self.func, types, training=self.training)
            outline = outline_of(self.module, self.func, chains, self.folding, training=self.training, apart=apart)
            self.outlines[apart, types] = outline
        outline = self.outlines[apart, types]
        if self.last is None or self.last.outline is not outline or self.last.mesh != mesh:
            self.last = _OnMesh(self, outline, mesh)
            did("written", len(self.func.ops))
        return self.last.problem(overlap).keeping(in_flight)


def build(
    module: Module,
    func: Func,
    mesh: DeviceMesh,
    folding: Folding | None,
    *,
    training: bool = False,
    uneven: bool = False,
    microbatches: int = 1,
    in_flight: int = 1,
    overlap: float | None = None,
) -> ShardInput:
    """The problem of ``func`` on one mesh; options as of ``Builder``."""
    builder = Builder(module, func, folding, training=training, uneven=uneven, microbatches=microbatches)
    return builder.build(mesh, overlap=overlap, in_flight=in_flight)


@dataclass(slots=True)
class _ValueDraft:
    """A form of values on a mesh while needs are added to it; ``back``: seconds in which a gradient is brought from layout to
    layout."""

    layouts: Layouts
    flows: bool
    back: Floats
    link: bool = False
    numbers: dict[tuple[int, int, float], int] = field(default_factory=dict)

    def need(self, layout: int, gradient: int, apart: float = 0.0) -> int:
        """The number of the need of ``layout`` whose gradient comes back as ``gradient`` (-1: none); ``apart``: seconds that it
        costs more where the value is not of a chain or not in that layout."""
        return self.numbers.setdefault((layout, gradient if self.flows else -1, apart), len(self.numbers))

    def finish(self, summed: float) -> ValueKind:
        """``summed``: by how much the seconds of gradients count."""
        convert, count = self.layouts.convert, len(self.layouts.placements)
        # The gradient is wanted as ``_dual`` of the source; keys from ``count`` on are layouts that it comes in.
        wanted = [self.layouts.number(gradient_layout(placements)) for placements in self.layouts.placements]
        back = self.back[:, wanted].T * summed if self.flows else np.zeros((count, count))
        weights = np.hstack([convert, back])
        columns: dict[tuple[int, float], Floats] = {}
        if self.link:  # sources from ``count`` on are of a chain
            weights = np.vstack([weights, weights])
            for layout, _, apart in self.numbers:
                if apart:
                    column = columns.setdefault((layout, apart), np.full((2 * count, 1), apart))
                    column[count + layout] = 0.0
        number = {place: 2 * count + i for i, place in enumerate(columns)}
        needs = []
        for layout, gradient, apart in self.numbers:
            keys = (layout,) if gradient < 0 else (layout, count + gradient)
            needs.append((*keys, number[layout, apart]) if apart else keys)
        return ValueKind(np.hstack([weights, *columns.values()]), tuple(needs))


class _OnMesh:
    """The choices of all forms of nodes on one mesh, whatever the overlap."""

    def __init__(self, builder: Builder, outline: Outline, mesh: DeviceMesh) -> None:
        self.builder, self.outline, self.mesh = builder, outline, mesh
        self.training, self.uneven, self.microbatches = builder.training, builder.uneven, builder.microbatches
        self.resources = builder.module.resources
        self.costs = MemberCosts(builder.module, outline, mesh, builder.times, builder.training, builder.microbatches)
        self.whole: Placements = (Replicate(),) * len(mesh.axes)
        self.drafts = [self.value(form) for form in outline.values]
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
        beside = (overlap or 0.0) / self.microbatches
        unsummed = overlap if overlap == UNSUMMED else 1.0
        times = {0: 1.0, BESIDE: 1.0 if overlap is None else overlap, BEHIND: unsummed}
        node_kinds: list[NodeKind] = []
        strategies: list[tuple[tuple[Strategy | None, ...], ...]] = []
        saved: list[Floats] = []
        for number, form in enumerate(outline.forms):
            if isinstance(form, OpForm):
                rows = _undominated(self.rows[number], beside)
                node_kinds.append(_node_kind(rows, beside, len(form.reads), len(form.makes)))
                strategies.append(tuple([row.strategies for row in rows]))
                saved.append(np.array([row.saved for row in rows]))
            else:
                node_kinds.append(self.fixed[number])
                strategies.append(())
                saved.append(np.zeros(len(self.fixed[number].seconds)))
        values = [
            draft.finish(times[form.summed] / (self.microbatches if form.flows and form.summed else 1))
            for draft, form in zip(self.drafts, outline.values, strict=True)
        ]
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
        )

    def value(self, form: ValueForm) -> _ValueDraft:
        """A form of values, which nobody needs yet."""
        layouts = layouts_of(form.type, self.mesh, self.uneven)
        back = layouts.convert
        if form.flows and form.summed:  # once a step, in buckets
            back = layouts_of(form.type, self.mesh, self.uneven, together=True).convert
        return _ValueDraft(layouts, form.flows, back, form.link)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def op(self, form: OpForm) -> list[_Row]:
        """Every combination of strategies that the values of a form of ops can have; of an epilogue with all that it may
        claim."""
        op, operands, drafts = form.op, form.operands, self.drafts
        results = [value.type for value in op.results]
        rows: list[_Row] = []
        for strategies, gradients in self.combinations(form.rule, operands, results):
            if form.rule is None:
                lies: list[Placements] = [self.whole] * (len(operands) + len(results))
            else:
                lies = [tuple([s.operands[i] for s in strategies if s]) for i in range(len(operands))]
                lies += [tuple([s.results[i] for s in strategies if s]) for i in range(len(results))]
            if not all(map(coherent, lies)):
                continue
            needs = []
            for i, kind in form.reads:
                draft = drafts[kind]
                layout = draft.layouts.number(lies[i] if i >= 0 else self.whole)
                back = gradients[i] if i >= 0 else None
                needs.append(-1 if layout < 0 else draft.need(layout, draft.layouts.number(back) if back else -1))
            made = [
                drafts[kind].layouts.number(lies[len(operands) + i]) if kind >= 0 else 0 for i, kind in enumerate(form.makes)
            ]
            if -1 in needs or -1 in made:
                continue
            saved = self.costs.saved(op, operands, strategies, lies) if form.flows else 0.0
            link = len(made) > 0 and form.makes[0] >= 0 and drafts[form.makes[0]].link
            chained = [made[0] + len(drafts[form.makes[0]].layouts.placements), *made[1:]] if link else made
            longest, backward = self.costs.seconds(form, strategies, lies)
            row = _Row(longest, backward, saved, self.costs.held(op, lies), tuple(needs), tuple(made), strategies)
            for port in form.epilogue.ports if form.epilogue else ():
                fused, _ = self.costs.seconds(form, strategies, lies, port)
                place = next(place for place, (i, _) in enumerate(form.reads) if i == port)
                draft = drafts[form.reads[place][1]]
                apart = form.epilogue.false if form.epilogue and link else row.longest - fused if fused < row.longest else 0.0
                joined = draft.need(draft.layouts.number(lies[port]), -1, apart)
                asked = (*needs[:place], joined, *needs[place + 1 :])
                rows.append(replace(row, longest=fused, needs=asked, made=tuple(chained)))
            if not form.epilogue or link:
                rows.append(replace(row, made=tuple(chained)) if is_head(op) and link else row)
        return rows

    def combinations(
        self, rule: LayoutRule | None, operands: Sequence[Type | None], results: Sequence[Type]
    ) -> Iterable[tuple[tuple[Strategy | None, ...], list[Placements | None]]]:
        """One strategy per axis, with the layouts of the operands' gradients."""
        if rule is None:
            yield (None,) * len(self.mesh.axes), [None] * len(operands)
            return
        options = [
            [
                back
                for back in backward_rule(rule, axis.size)[: None if axis.size > 1 else 1]
                if self.uneven or back.strategy.factor is None or proportional(back.strategy.factor.size, [axis.shares])
            ]
            for axis in self.mesh.axes
        ]
        types, cuts = (*operands, *results), [axis.shares for axis in self.mesh.axes]
        for picked in itertools.product(*options):
            if not can_be_split([back.strategy for back in picked], cuts, types, self.uneven):
                continue
            gradients: list[Placements | None] = []
            for i in range(len(operands)):
                layout = tuple(g for back in picked if (g := back.gradients[i]) is not None)
                gradients.append(layout if len(layout) == len(picked) else None)
            yield tuple(back.strategy for back in picked), gradients

    def weight(self, form: WeightForm) -> NodeKind:
        """A resource that chooses where it is kept."""
        type_, layouts = self.resources[form.name].type, self.drafts[form.value].layouts
        kept = [i for i, p in enumerate(layouts.placements) if not any(isinstance(q, Partial) for q in p)]
        size, seconds = type_bytes(type_) or 0, np.zeros(len(kept))
        if form.name in self.outline.trained:
            state = self.outline.state[form.name]
            moved = updated_bytes(size, state)
            seconds = np.array([self.costs.update_seconds(type_, layouts.placements[i], moved) for i in kept])
            size = size * (self.microbatches == 1) + state
        return NodeKind(
            tuple(", ".join(map(str, layouts.placements[i])) for i in kept),
            seconds,
            np.array([size * self.costs.fullest(type_, layouts.placements[i]) for i in kept]),
            makes=(np.array(kept, np.int64),),
        )

    def output(self, form: OutputForm) -> NodeKind:
        """A result of the function: any layout but terms; its gradient comes as it lies."""
        draft = self.drafts[form.value]
        free = [i for i, p in enumerate(draft.layouts.placements) if not any(isinstance(q, Partial) for q in p)]
        needs = np.array([draft.need(i, i) for i in free], np.int64)
        labels = tuple(", ".join(map(str, draft.layouts.placements[i])) for i in free)
        return NodeKind(labels, np.zeros(len(free)), np.zeros(len(free)), reads=(needs,))


@dataclass(frozen=True, slots=True)
class _Row:
    """One choice of an op: seconds of both passes of the member that takes longest, and of the longest backward pass."""

    longest: float
    back: float
    saved: float
    held: float
    needs: tuple[int, ...]
    made: tuple[int, ...]
    strategies: tuple[Strategy | None, ...]

    def seconds(self, beside: float) -> float:
        """Without the part of the backward pass that hides sums of gradients."""
        return self.longest - beside * self.back if math.isfinite(self.longest) else self.longest

    @property
    def memory(self) -> float:
        return self.saved + self.held

    @property
    def label(self) -> str:
        return SEPARATOR.join(strategy.name if strategy else WHOLE for strategy in self.strategies)


def _node_kind(rows: Sequence[_Row], beside: float, ports: int, results: int) -> NodeKind:
    return NodeKind(
        tuple([row.label for row in rows]),
        np.array([row.seconds(beside) for row in rows]),
        np.array([row.memory for row in rows]),
        tuple([np.array([row.needs[port] for row in rows], np.int64) for port in range(ports)]),
        tuple([np.array([row.made[result] for row in rows], np.int64) for result in range(results)]),
    )


def _undominated(rows: Sequence[_Row], beside: float) -> list[_Row]:
    """Of rows that lie alike, those that no other betters in seconds or saved bytes without losing in the other; of equal ones
    the first. In the given order."""
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    seconds = [row.seconds(beside) for row in rows]
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


__all__ = ["OVERLAPS", "SEPARATOR", "Builder", "ShardInput", "build"]
