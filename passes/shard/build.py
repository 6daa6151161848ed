"""From a function to a ``ShardProblem``.

Nodes: the ops, by their place in the function; then each weight; then each result of the function. The choices of an op are the
strategies of its layout rule, one per axis; an op without a rule runs whole everywhere. A weight chooses the layout in which it
is kept; other layouts are made from it in every run. A result may leave in any layout but as terms.

What is free: arguments arrive in whatever layouts are asked for, and small constants stand on every device.

Seconds of an op under a choice: those of ``passes.model.op_time`` for a member's own shard, flops and bytes, on its own type
of device; of the members the longest. An epilogue is fused where no layout is between (``fused``), so one device costs what
``partition`` says. In training nothing is fused, and the backward pass is priced likewise, with the flops of both gradients and
twice the bytes of the forward pass; gradients lie as ``backward_rule`` says, those of one layout are added where they are, and
each sum is brought to where the maker wants it: for a weight, where it is kept, which is its synchronisation, once a step; so
for what is made of weights alone. What the forward pass gathered stays for the backward pass.

Communication adds to computation, but for the synchronisation S of a step that travels beside its last backward pass. What that
hides depends on the order of both and is no sum over nodes (``price`` counts it). It is at most S, without the part of what
the pass makes last, and at most the seconds B of the gradients of one microbatch. So for any ``overlap`` L from 0 to 1 no step
takes less than C + L (S - B), C being all the rest: the problem has these seconds, and its bound is one of all plans. Where
``sync`` may avoid sums, it is, for L = ``UNSUMMED``, one that counts no sums.

Memory: weights where they are kept. In training: of each weight its optimizer's state (``OptimizerState``, or two 32-bit
numbers per element, as Adam keeps) and its gradient where it is kept; the weight itself as it is read, since what was gathered
stays, each of its readers having an equal part in it; and its gradient likewise where several microbatches share one
synchronisation, for which terms wait where they are made. Besides, what each op that a gradient flows through saves for its
backward pass (``Cost.saved``), once per microbatch in flight: the operands as this member reads them; what goes beyond operands
(scores of attention) by its part of the work or of the results, whichever is more; what cannot be told (indices) whole. That is
more than is needed where several ops save one tensor: ``Cost.saved`` looks at one op alone. It is less where readers of one
weight want it in several layouts, or in a smaller part than is kept. Other activations are not counted here: how many are
alive at once is no sum over ops.

A choice takes what its fullest member holds, in bytes of the smallest device: of a device with twice the memory half its bytes.
Sums of these are exact where one member is the fullest in all (equal devices, equal shares), else no less than what any device
needs.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.facets import SEPARATOR, WHOLE, Cost
from ir.layout_rules import Factor, LayoutRule, Strategy, Surroundings, backward_rule
from ir.module import Func, Module, Resource, Splat
from ir.opdefs import module_opsets
from ir.ops import Op
from ir.shares import Shares, nested_cut, none_empty, proportional
from ir.types import Partial, Placement, Replicate, Shard, TensorType, Type, type_bytes
from passes.model.folding import Folding
from passes.model.graph import reads
from passes.model.learning import made_last, of_weights, recomputes, trained, update_seconds, updated_bytes
from passes.model.op_time import fused_seconds, is_head, op_seconds, passes_seconds, stated_part
from passes.model.spmd.bill import UNSUMMED
from passes.model.spmd.layouts import Layouts, Placements, coherent, fullest, layouts_of, local_op, part
from passes.model.spmd.mesh import DeviceMesh, Member
from passes.model.work import did
from passes.shard.cells import cells_of
from passes.shard.fused import Epilogue, chains_of
from passes.shard.problem import Floats, NodeKind, ShardProblem, ValueKind, ValueNode

OVERLAPS = (1e-10, 1.0)
"""The values of ``overlap`` (``build``) by which a training step on one mesh is searched: right where the backward pass hides
all sums, and where they hide all of it. Not 0, so that of two plans the one with fewer sums is found."""
SMALL = 64
"""Elements up to which a constant stands on every device."""


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
    """The problem of ``func``; ``folding`` tells its repeats. ``microbatches``: runs that share one synchronisation of the
    gradients of weights, of which each is charged its part. ``in_flight``: of how many a device holds what their backward
    passes need at once. ``overlap``: from 0 to 1, where that synchronisation may travel beside a backward pass; None: nothing
    overlaps."""
    builder = _Builder(module, func, mesh, training, uneven, microbatches, overlap)
    for op in func.ops:
        builder.op(op)
    for name in dict.fromkeys(name for op in func.ops for name in reads(op) if name in builder.weights):
        builder.weight(name)
    for value in func.results:
        builder.output(value.name)
    found = replace(builder.finish(folding), overlap=overlap).keeping(in_flight)
    did("written", len(func.ops))
    return found


@dataclass(slots=True)
class _ValueDraft:
    """A kind of values while needs are added to it; ``back``: seconds in which a gradient is brought from layout to layout."""

    layouts: Layouts
    flows: bool
    numbers: dict[tuple[int, int, float], int]
    back: Floats
    link: bool = False

    def need(self, layout: int, gradient: int, apart: float = 0.0) -> int:
        """The number of the need of ``layout`` whose gradient comes back as ``gradient`` (-1: none); ``apart``: seconds that it
        costs more where the value is not of a chain or not in that layout."""
        return self.numbers.setdefault((layout, gradient if self.flows else -1, apart), len(self.numbers))

    def finish(self) -> ValueKind:
        convert, count = self.layouts.convert, len(self.layouts.placements)
        # The gradient is wanted as ``_dual`` of the source; keys from ``count`` on are layouts that it comes in.
        wanted = [self.layouts.number(gradient_layout(placements)) for placements in self.layouts.placements]
        back = self.back[:, wanted].T if self.flows else np.zeros((count, count))
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


class _Builder:
    def __init__(
        self,
        module: Module,
        func: Func,
        mesh: DeviceMesh,
        training: bool,
        uneven: bool,
        microbatches: int,
        overlap: float | None = None,
    ) -> None:
        self.func, self.mesh, self.training, self.uneven = func, mesh, training, uneven
        self.synced, self.last = 1.0 if overlap is None else overlap, made_last(func)
        if overlap == UNSUMMED:
            self.last = frozenset()
        self.beside = (overlap or 0.0) / microbatches
        self.microbatches, self.again = microbatches, recomputes(module)
        self.around = Surroundings(module.resources.values(), module_opsets(module))
        self.around.types.update((arg.name, arg.type) for arg in func.args)
        self.resources = module.resources
        self.chains = chains_of(func, mesh.types, training=training)
        self.weights = {name for name, resource in self.resources.items() if self.is_weight(resource)}
        self.state = trained(self.resources) if training else {}
        self.trained = {name for name in self.weights if name in self.state}
        self.summed = self.weights | of_weights(func, self.trained)
        self.values: dict[tuple[Type, bool, float | None, bool], int] = {}
        self.drafts: list[_ValueDraft] = []
        self.kind_numbers: dict[object, int] = {}
        self.saved_rows: list[Floats] = []
        self.times_read = Counter(name for op in func.ops for name in _read_ports(op))
        self.node_kinds: list[NodeKind] = []
        self.strategies: list[tuple[tuple[Strategy | None, ...], ...]] = []
        self.kinds: list[int] = []
        self.rules: list[LayoutRule | None] = []  # keeps them alive, so that identities are theirs
        self.made: dict[str, tuple[int, int]] = {}
        self.readers: dict[str, list[tuple[int, int]]] = {}
        self.kept: dict[int, str] = {}
        self.outputs: dict[int, str] = {}
        self.unsharded: set[str] = set()

    def is_weight(self, resource: Resource) -> bool:
        return is_kept(resource.type, training=self.training)

    def value_kind(self, name: str) -> int:
        summed = (1.0 if name in self.last else self.synced) if name in self.summed else None
        key = (self.around.types[name], name in self.trained, summed, name in self.chains.links)
        if key not in self.values:
            self.values[key] = len(self.drafts)
            type_, flows, summed, link = key
            layouts = layouts_of(type_, self.mesh, self.uneven)
            back = layouts.convert
            if flows and summed is not None:  # once a step, in buckets
                back = layouts_of(type_, self.mesh, self.uneven, together=True).convert * summed / self.microbatches
            self.drafts.append(_ValueDraft(layouts, flows, {}, back, link))
        return self.values[key]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def op(self, op: Op) -> None:
        """Adds an op; the values that it reads have been made."""
        rule = self.around.rule(op)
        self.around.see(op)
        count = len(op.operands)
        ports = [(i if i < count else -1, name) for i, name in enumerate(_read_ports(op)) if self.is_priced(name)]
        if rule is not None and self.training:
            flows = any(name in self.trained for name in op.operands)
            self.trained.update(v.name for v, has in zip(op.results, rule.differentiable[1], strict=True) if has and flows)
        if rule is None:
            self.unsharded.add(op.name)
        operands = tuple([self.around.types.get(name) if name else None for name in op.operands])
        read_kinds = tuple([(i, self.value_kind(name)) for i, name in ports])
        made_kinds = tuple([self.value_kind(value.name) if value.name else -1 for value in op.results])
        repeats = len(set(op.operands)) < len(op.operands) and tuple(op.operands.index(name) for name in op.operands)
        shared = tuple([self.times_read[name] for _, name in ports if name in self.weights and name in self.trained])
        epilogue = self.chains.epilogues.get(len(self.kinds))
        key = (op.name, id(rule), op.facets, operands, read_kinds, made_kinds, repeats, shared, epilogue)
        number = self.kind_numbers.get(key)
        if number is None:
            number = self.kind_numbers[key] = len(self.node_kinds)
            self.rules.append(rule)
            flows = any(name in self.trained for name in op.operands)
            self.op_kind(op, rule, operands, read_kinds, made_kinds, flows, epilogue)
        node = len(self.kinds)
        self.kinds.append(number)
        for port, (_, name) in enumerate(ports):
            self.readers.setdefault(name, []).append((node, port))
        self.made.update((value.name, (node, result)) for result, value in enumerate(op.results) if value.name)

    def is_priced(self, name: str) -> bool:
        return name in self.made or name in self.weights

    def op_kind(
        self,
        op: Op,
        rule: LayoutRule | None,
        operands: Sequence[Type | None],
        read_kinds: Sequence[tuple[int, int]],
        made_kinds: Sequence[int],
        flows: bool,
        epilogue: Epilogue | None,
    ) -> None:
        """A kind of ops: every combination of strategies that its values can have, of equal ones the quickest, and those that
        save less memory; those of an epilogue with all that they may claim."""
        results = [value.type for value in op.results]
        rows: list[_Row] = []
        for strategies, gradients in self.combinations(rule, operands, results):
            if rule is None:
                lies: list[Placements] = [(Replicate(),) * len(self.mesh.axes)] * (len(operands) + len(results))
            else:
                lies = [tuple(s.operands[i] for s in strategies if s) for i in range(len(operands))]
                lies += [tuple(s.results[i] for s in strategies if s) for i in range(len(results))]
            if not all(map(coherent, lies)):
                continue
            needs = []
            for i, kind in read_kinds:
                draft = self.drafts[kind]
                layout = draft.layouts.number(lies[i]) if i >= 0 else draft.layouts.number((Replicate(),) * len(self.mesh.axes))
                back = gradients[i] if i >= 0 else None
                needs.append(-1 if layout < 0 else draft.need(layout, draft.layouts.number(back) if back else -1))
            made = [
                self.drafts[kind].layouts.number(lies[len(operands) + i]) if kind >= 0 else 0
                for i, kind in enumerate(made_kinds)
            ]
            if -1 in needs or -1 in made:
                continue
            saved = self.saved(op, operands, strategies, lies) if flows else 0.0
            held = self.held(op, lies)
            link = len(made) > 0 and made_kinds[0] >= 0 and self.drafts[made_kinds[0]].link
            chained = [made[0] + len(self.drafts[made_kinds[0]].layouts.placements), *made[1:]] if link else made
            seconds = self.seconds(op, operands, strategies, lies)
            for port in epilogue.ports if epilogue else ():
                fused = self.seconds(op, operands, strategies, lies, port)
                place = next(place for place, (i, _) in enumerate(read_kinds) if i == port)
                draft = self.drafts[read_kinds[place][1]]
                apart = epilogue.false if epilogue and link else seconds - fused if fused < seconds else 0.0
                joined = draft.need(draft.layouts.number(lies[port]), -1, apart)
                asked = (*needs[:place], joined, *needs[place + 1 :])
                rows.append(_Row(fused, saved, held, asked, tuple(chained), strategies))
            if not epilogue or link:
                given = tuple(chained if is_head(op) else made)
                rows.append(_Row(seconds, saved, held, tuple(needs), given, strategies))
        self.add_kind(_undominated(rows), len(read_kinds), len(made_kinds))

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
            if not possible([back.strategy for back in picked], cuts, types, self.uneven):
                continue
            gradients: list[Placements | None] = []
            for i in range(len(operands)):
                layout = tuple(g for back in picked if (g := back.gradients[i]) is not None)
                gradients.append(layout if len(layout) == len(picked) else None)
            yield tuple(back.strategy for back in picked), gradients

    def weight(self, name: str) -> None:
        """A resource that chooses where it is kept."""
        resource = self.resources[name]
        kind = self.value_kind(name)
        key = ("weight", kind, resource.facets)
        if key not in self.kind_numbers:
            self.kind_numbers[key] = len(self.node_kinds)
            layouts = self.drafts[kind].layouts
            kept = [i for i, p in enumerate(layouts.placements) if not any(isinstance(q, Partial) for q in p)]
            size, seconds = type_bytes(resource.type) or 0, np.zeros(len(kept))
            if name in self.trained:
                moved = updated_bytes(size, self.state[name])
                seconds = np.array([self.update_seconds(resource.type, layouts.placements[i], moved) for i in kept])
                size = size * (self.microbatches == 1) + self.state[name]
            self.node_kinds.append(
                NodeKind(
                    tuple(_text(layouts.placements[i]) for i in kept),
                    seconds,
                    np.array([size * fullest(resource.type, layouts.placements[i], self.mesh) for i in kept]),
                    makes=(np.array(kept, np.int64),),
                )
            )
            self.strategies.append(())
            self.saved_rows.append(np.zeros(len(kept)))
        node = len(self.kinds)
        self.kinds.append(self.kind_numbers[key])
        self.made[name] = (node, 0)
        self.kept[node] = name

    def update_seconds(self, type_: Type, lies: Placements, moved: int) -> float:
        """Of a weight whose update moves so many bytes, on the member that takes longest; the part of a microbatch."""
        seconds = (update_seconds(moved * part(type_, lies, self.mesh, m.place), m.type) for m in self.mesh.members)
        return max(seconds, default=0.0) / self.microbatches

    def output(self, name: str) -> None:
        """A result of the function: any layout but terms; its gradient comes as it lies."""
        if name not in self.made or name in self.weights:
            return  # an argument or a weight is handed on as it is
        kind = self.value_kind(name)
        key = ("output", kind)
        if key not in self.kind_numbers:
            self.kind_numbers[key] = len(self.node_kinds)
            draft = self.drafts[kind]
            free = [i for i, p in enumerate(draft.layouts.placements) if not any(isinstance(q, Partial) for q in p)]
            needs = np.array([draft.need(i, i) for i in free], np.int64)
            labels = tuple(_text(draft.layouts.placements[i]) for i in free)
            self.node_kinds.append(NodeKind(labels, np.zeros(len(free)), np.zeros(len(free)), reads=(needs,)))
            self.strategies.append(())
            self.saved_rows.append(np.zeros(len(free)))
        self.outputs[len(self.kinds)] = name
        self.readers.setdefault(name, []).append((len(self.kinds), 0))
        self.kinds.append(self.kind_numbers[key])

    def add_kind(self, rows: Sequence[_Row], ports: int, results: int) -> None:
        self.node_kinds.append(
            NodeKind(
                tuple(row.label for row in rows),
                np.array([row.seconds for row in rows]),
                np.array([row.memory for row in rows]),
                tuple(np.array([row.needs[port] for row in rows], np.int64) for port in range(ports)),
                tuple(np.array([row.made[result] for row in rows], np.int64) for result in range(results)),
            )
        )
        self.strategies.append(tuple(row.strategies for row in rows))
        self.saved_rows.append(np.array([row.saved for row in rows]))

    # -- seconds and bytes ---------------------------------------------------------------------------------------------

    def seconds(
        self,
        op: Op,
        operands: Sequence[Type | None],
        strategies: Sequence[Strategy | None],
        lies: Sequence[Placements],
        port: int = -1,
    ) -> float:
        """Of the member that takes longest, forward and, in training, backward; ``port``: the operand by which the op is fused
        into what makes it, where that is quicker."""
        cost = op.facet(Cost)
        if cost is None:
            return max((op_seconds(op, type_) for type_ in self.mesh.types), default=0.0)
        rows = [self.member_seconds(op, cost, operands, strategies, lies, m, port) for m in self.mesh.members]
        longest, back = (max((row[part] for row in rows), default=0.0) for part in (0, 1))
        return longest - self.beside * back if math.isfinite(longest) else longest

    def member_seconds(
        self,
        op: Op,
        cost: Cost,
        operands: Sequence[Type | None],
        strategies: Sequence[Strategy | None],
        lies: Sequence[Placements],
        member: Member,
        port: int,
    ) -> tuple[float, float]:
        """Of both passes, and of them the gradients'."""
        local = _local_cost(op, cost, operands, lies, share_of(strategies, self.mesh, member.place), self.mesh, member.place)
        stated = stated_part(op, member.type, local, training=self.training)
        if stated is not None:
            again = stated[0] if self.again and stated[1] else 0.0
            return stated[0] + stated[1] + again, stated[1]
        here = local_op(op, lies[len(operands) :], self.mesh, member.place).with_facets(local)
        chained = operands[port] if port >= 0 else None
        if chained is not None:
            kept = part(chained, lies[port], self.mesh, member.place)
            fused = fused_seconds(here, member.type, round((type_bytes(chained) or 0) * kept))
            return min(op_seconds(here, member.type), fused), 0.0
        if not self.training:
            return op_seconds(here, member.type), 0.0
        learns = cost.input_grad + cost.weight_grad > 0
        forward, backward = passes_seconds(here, member.type, local.input_grad if learns else 0)
        return forward * (2 if learns and self.again else 1) + backward, backward

    def held(self, op: Op, lies: Sequence[Placements]) -> float:
        """Bytes of the weights that learn as an op reads them: its part of these, and of gradients that wait."""
        whole: Placements = (Replicate(),) * len(self.mesh.axes)
        found = 0.0
        for i, name in enumerate(_read_ports(op)):
            if name in self.weights and name in self.trained:
                type_ = self.resources[name].type
                part = fullest(type_, lies[i] if i < len(op.operands) else whole, self.mesh)
                found += (type_bytes(type_) or 0) * part * (1 + (self.microbatches > 1)) / self.times_read[name]
        return found

    def saved(
        self, op: Op, operands: Sequence[Type | None], strategies: Sequence[Strategy | None], lies: Sequence[Placements]
    ) -> float:
        """Bytes that the fullest member keeps for the backward pass."""
        cost = op.facet(Cost)
        if cost is None or not cost.saved:
            return 0.0
        places = [(member.place, member.room) for member in self.mesh.members] or [(self.mesh.foremost, 1.0)]
        return max(self.member_saved(op, cost.saved, operands, strategies, lies, place) / room for place, room in places)

    def member_saved(
        self,
        op: Op,
        saved: int,
        operands: Sequence[Type | None],
        strategies: Sequence[Strategy | None],
        lies: Sequence[Placements],
        place: Sequence[int],
    ) -> float:
        given = zip(op.operands, operands, lies[: len(operands)], strict=True)
        inputs = {
            (name, placements): (type_bytes(type_) or 0, part(type_, placements, self.mesh, place))
            for name, type_, placements in given
            if name and name[:1] != "@" and type_ is not None and _is_float(type_)
        }
        whole = sum({name: size for (name, _), (size, _) in inputs.items()}.values())
        made = [part(value.type, lies[len(operands) + i], self.mesh, place) for i, value in enumerate(op.results)]
        if 0 < whole <= saved:
            beyond = max([share_of(strategies, self.mesh, place), *made])
            return sum(size * here for size, here in inputs.values()) + (saved - whole) * beyond
        if made and saved == type_bytes(op.results[0].type):
            return saved * made[0]
        return float(saved)

    def finish(self, folding: Folding | None) -> ShardInput:
        values = [
            ValueNode(self.value_kind(name), maker, tuple(self.readers[name]))
            for name, maker in self.made.items()
            if name in self.readers
        ]
        problem = ShardProblem(
            tuple(self.node_kinds), tuple(draft.finish() for draft in self.drafts), tuple(self.kinds), tuple(values)
        )
        if folding is not None:
            problem = replace(problem, cells=cells_of(folding, {name: node for node, name in self.kept.items()}))
        layouts = {name: self.drafts[self.value_kind(name)].layouts for name in self.made}
        return ShardInput(
            problem,
            self.mesh,
            self.func,
            tuple(self.strategies),
            self.kept,
            self.outputs,
            layouts,
            tuple(sorted(self.unsharded)),
            frozenset(self.trained),
            frozenset(name for name, resource in self.resources.items() if isinstance(resource.data, Splat)),
            tuple(self.saved_rows),
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """One choice of an op."""

    seconds: float
    saved: float
    held: float
    needs: tuple[int, ...]
    made: tuple[int, ...]
    strategies: tuple[Strategy | None, ...]

    @property
    def memory(self) -> float:
        return self.saved + self.held

    @property
    def label(self) -> str:
        return SEPARATOR.join(strategy.name if strategy else WHOLE for strategy in self.strategies)


def _undominated(rows: Sequence[_Row]) -> list[_Row]:
    """Of rows that lie alike, those that no other betters in seconds or saved bytes without losing in the other; of equal ones
    the first. In the given order."""
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number, row in enumerate(rows):
        alike.setdefault((row.needs, row.made), []).append(number)
    left = []
    for numbers in alike.values():
        least = math.inf
        for number in sorted(numbers, key=lambda number: (rows[number].seconds, rows[number].saved, number)):
            if rows[number].saved < least:
                least = rows[number].saved
                left.append(number)
    return [rows[number] for number in sorted(left)]


def _read_ports(op: Op) -> tuple[str, ...]:
    """What an op reads: its operands, as often as they stand there, then what its regions capture besides."""
    return (*op.operands, *(name for name in reads(op) if name not in op.operands)) if op.regions else op.operands


def is_kept(type_: Type, *, training: bool) -> bool:
    """Whether a resource of this type chooses where it is kept; others stand on every device."""
    if not isinstance(type_, TensorType) or type_.elements is None:
        return False
    return type_.elements > (1 if training and type_.dtype.is_float else SMALL)


def possible(strategies: Sequence[Strategy], axes: Sequence[Shares], types: Sequence[Type | None], uneven: bool) -> bool:
    """Whether an op with operands and results of ``types`` can be split so, a strategy per axis of these shares, with no part
    empty and all in proportion, unless ``uneven``."""
    cuts: dict[str, list[Shares]] = {}
    for strategy, shares in zip(strategies, axes, strict=True):
        if strategy.factor:
            cuts.setdefault(strategy.name, []).append(shares)
    factors = {factor.name: factor for strategy in strategies if (factor := strategy.factor)}
    if not all(none_empty(factors[name].size, along) for name, along in cuts.items()):
        return False
    odd = [factors[name] for name, along in cuts.items() if not proportional(factors[name].size, along)]
    return not odd or (uneven and all(_by_elements(factor, types) for factor in odd))


def share_of(strategies: Iterable[Strategy | None], mesh: DeviceMesh, place: Sequence[int]) -> float:
    """Part of the op's flops that the member at ``place`` works."""
    cuts: dict[str, tuple[Factor, list[tuple[Shares, int]]]] = {}
    for strategy, axis, at in zip(strategies, mesh.axes, place, strict=True):
        if strategy is not None and strategy.factor is not None and strategy.factor.divided:
            cuts.setdefault(strategy.name, (strategy.factor, []))[1].append((axis.shares, at))
    return math.prod(nested_cut(factor.size, along)[1] / factor.size for factor, along in cuts.values())


def _by_elements(factor: Factor, types: Sequence[Type | None]) -> bool:
    """Whether the factor's units are single elements of all tensors that it lies along: only then are balanced parts of its
    units also balanced parts of their dimensions, as layouts say, where parts are not equal."""
    for type_, dim in zip(types, (*factor.operands, *factor.results), strict=True):
        if dim is not None and isinstance(type_, TensorType) and type_.shape is not None and type_.shape[dim] != factor.size:
            return False
    return True


def gradient_layout(placements: Placements) -> Placements:
    """Where the maker of a value wants its gradient (``ir.layout_rules.backward_rule``)."""

    def dual(placement: Placement) -> Placement:
        match placement:
            case Shard():
                return placement
            case Partial("max"):
                return Partial("sum")
        return Replicate()

    return tuple(map(dual, placements))


def _local_cost(
    op: Op,
    cost: Cost,
    operands: Sequence[Type | None],
    lies: Sequence[Placements],
    share: float,
    mesh: DeviceMesh,
    place: Sequence[int],
) -> Cost:
    """The cost of the shard of the member at ``place``. Bytes read are those of the operands, each value once per layout, where
    the op reads all of them; else (a Gather) the part of the first that ends in the results, and the rest. ``input_grad`` is
    that of both gradients."""
    count = len(operands)
    rows = [
        (n, type_bytes(t) or 0, t, p)
        for n, t, p in zip(op.operands, operands, lies[:count], strict=True)
        if n and t is not None
    ]
    made = [(v.name, type_bytes(v.type) or 0, v.type, p) for v, p in zip(op.results, lies[count:], strict=True) if v.name]

    def whole(rows: Sequence[tuple[str, int, Type, Placements]]) -> int:
        return sum({name: size for name, size, _, _ in rows}.values())

    def here(rows: Sequence[tuple[str, int, Type, Placements]]) -> float:
        distinct = {(name, placements): (size, type_) for name, size, type_, placements in rows}
        return sum(size * part(type_, placements, mesh, place) for (_, placements), (size, type_) in distinct.items() if size)

    results = here(made) / whole(made) if whole(made) else 1.0

    def read(bytes_: int, rows: Sequence[tuple[str, int, Type, Placements]]) -> int:
        total = whole(rows)
        if cost.kind != "gather" and total and bytes_ >= total:
            return round(bytes_ * here(rows) / total)
        rest = [row for row in rows if row[0] != op.operands[0]]
        if bytes_ < whole(rest):
            return round(bytes_ * results)
        return round((bytes_ - whole(rest)) * results + here(rest))

    return replace(
        cost,
        flops=round(cost.flops * share),
        input_grad=round((cost.input_grad + cost.weight_grad) * share),
        read=read(cost.read, rows),
        write=round(cost.write * results),
        weight=read(cost.weight, [row for row in rows if row[0][:1] == "@"]),
    )


def _is_float(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.is_float


def _text(placements: Placements) -> str:
    return ", ".join(map(str, placements))


__all__ = ["OVERLAPS", "SEPARATOR", "SMALL", "ShardInput", "build", "gradient_layout", "is_kept", "possible", "share_of"]
