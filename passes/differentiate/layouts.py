"""How the ops of the backward pass are split on the meshes of their stages.

Every op takes a strategy of its own layout rule on each axis, in the order of the program: the one for which least bytes move
to bring its operands from where they lie, and its result, where that is the gradient of a value, to the layout of that
gradient. Ties go to a result that lies there already, then to less work. ``comm.reshard`` ops are then written as for the
forward program.

The gradient of a value lies as ``backward_rule`` says: beside ``S(d)`` as ``S(d)``, beside ``P(sum)`` and ``R`` as ``R``. That
of a weight, or of what is made of weights alone, has no such layout: it is accumulated as it is made, as ``P(sum)`` where
members hold terms, and reduced once a step by the reshard before the optimizer, which works in the layout that the weight is
kept in, or, where ``sync`` says ``reduce_scatter``, on parts of it. Where ``sync`` says ``sfb``, the ops that lead to that
gradient alone run whole along the axes on which members would hold terms, so that what is gathered are its factors
(``passes.meshes.factors``).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir.core.facets import (
    INPUT_GRADIENT,
    SEPARATOR,
    UPDATE,
    WEIGHT_GRADIENT,
    WHOLE,
    Phase,
    ShardRule,
    StageSet,
    phase_of,
    sync_of,
)
from ir.core.module import Mesh, Module, Plan, Resource
from ir.core.ops import Op, Value
from ir.core.shares import none_empty, proportional
from ir.core.types import Partial, Placement, Replicate, Shard, type_bytes
from ir.layout_rules import LayoutRule, Strategy, Surroundings, backward_rule
from ir.ops.boxes import Placements, shape_of
from ir.ops.grads import ASSIGN
from ir.ops.opdefs import RESHARD
from ir.ops.optimizers import ADAFACTOR_SQUARES, EMA, OPTIMIZERS, UpdateOperands
from passes.costs.learning import of_weights
from passes.differentiate.update import SQUARES
from passes.graph.graph import reads
from passes.meshes.decided import bare_results, decided
from passes.meshes.factors import factored
from passes.meshes.reshard_ops import Decided, laid, same_shape, with_reshards

MOST_COMBINATIONS = 4096
"""Combinations of strategies over all axes that are compared; of more, the op runs whole."""
_SLICED = 1e-3
"""What a part of a whole tensor costs, as a fraction of its bytes: nothing moves, but whole it may be wanted again."""


def is_sharded(module: Module) -> bool:
    """Whether a stage of the plan is on a mesh."""
    plan = module.first(Plan)
    return plan is not None and plan.on_meshes


def with_layouts(
    module: Module, before: Module, gradients: Mapping[str, str], states: Mapping[str, Sequence[str]], around: Surroundings
) -> Module:
    """``module`` with strategies, layouts and reshards. Its entry has the forward ops without reshards and those of the other
    phases behind; ``before`` is the module as it was. ``gradients``: of each gradient the value that it is of; ``states``: the
    optimizer's of each weight."""
    chooser = _Chooser(module, decided(before), gradients, states, around)
    return chooser.module_after()


@dataclass(slots=True)
class _Chooser:
    """Walks over the ops that are new. ``lies``: how each value lies in the stage that makes it, its ``home``."""

    module: Module
    found: Decided
    gradients: Mapping[str, str]
    states: Mapping[str, Sequence[str]]
    around: Surroundings
    lies: dict[str, Placements] = field(init=False)
    home: dict[str, int] = field(init=False)
    kept: list[dict[str, Placements]] = field(init=False)
    resources: dict[str, Resource] = field(init=False)
    alone: frozenset[str] = field(init=False)
    optimizers: Mapping[str, Op] = field(init=False)
    """The optimizer's op by the gradient that it reads."""
    updates: Mapping[str, Op] = field(init=False)
    """The optimizer's op by each resource of its state."""
    whole: Mapping[str, frozenset[int]] = field(init=False)
    """By first result, axes along which an op of phase W runs whole."""
    known: dict[tuple[int, str], list[Placements]] = field(default_factory=dict)
    """Other layouts that a stage has a value in already, since an op before wanted it so."""

    def __post_init__(self) -> None:
        self.lies = dict(self.found.lies)
        self.kept = [dict(kept) for kept in self.found.kept]
        self.resources = self.module.resources
        self.alone = of_weights(self.found.func, self.resources)
        self.home = {
            value.name: stages[0]
            for op, stages in zip(self.found.func.ops, self.found.members, strict=True)
            for value in op.results
        }
        self.optimizers = {op.operands[1]: op for op in self.module.entry.ops if op.name in OPTIMIZERS}
        self.updates = {state: op for op in self.optimizers.values() for state in UpdateOperands.of(op).states}
        self.whole = self.multiplied()

    def multiplied(self) -> dict[str, frozenset[int]]:
        """The axes along which each op runs whole that leads to gradients of weights with ``sync<sfb>`` alone."""
        weights = {name for name, resource in self.resources.items() if sync_of(resource.facets).method == "sfb"}
        axes = factored(self.found.func, weights, self.terms) if weights else {}
        found: dict[str, frozenset[int]] = {}
        reached: dict[str, frozenset[int]] = {}  # along which all gradients are whole that a value leads to
        for op in reversed(self.module.entry.ops if axes else ()):
            names: Sequence[str] = op.operands
            if op.name in OPTIMIZERS:
                weight = op.operands[0]
                here, names = axes[weight].axes if weight in axes else frozenset(), op.operands[1:2]
            elif phase_of(op.facets) in (UPDATE, WEIGHT_GRADIENT) and op.name not in (ASSIGN, SQUARES):
                here = frozenset.intersection(*(reached.get(v.name, frozenset()) for v in op.results if v.name))
            else:
                continue
            if phase_of(op.facets) == WEIGHT_GRADIENT and here and op.results[0].name:
                found[op.results[0].name] = here
            for name in names:
                reached[name] = reached.get(name, here) & here
        return found

    def terms(self, op: Op, operand: int) -> list[int]:
        """The axes along which members hold terms of the gradient of an operand of a forward op."""
        rule, mesh = self.around.rule(bare_results(op)), self.found.meshes[op.facet(StageSet, StageSet((0,))).stages[0]]
        names = op.facet(ShardRule, ShardRule("")).rule.split(SEPARATOR)
        if rule is None or len(names) != len(mesh.axes):
            return []
        both = enumerate(zip(names, mesh.axes, strict=True))
        backs = (
            (i, next((b for b in backward_rule(rule, size) if b.strategy.name == name), None)) for i, (name, (_, size)) in both
        )
        return [i for i, back in backs if back is not None and isinstance(back.gradients[operand], Partial)]

    def module_after(self) -> Module:
        known = {op.id: wants for op, wants in zip(self.found.func.ops, self.found.wants, strict=True)}
        ops: list[Op] = []
        wants: list[tuple[Placements, ...] | None] = []
        for op in self.module.entry.ops:
            old = op.name != ASSIGN and phase_of(op.facets) not in (INPUT_GRADIENT, WEIGHT_GRADIENT, "U")
            if old:
                wanted = known[op.id]
                if any(value.name and value.name not in self.lies for value in op.results):
                    op, wanted = self.op(op)  # with results that the backward pass reads in addition
                ops.append(op)
                wants.append(wanted)
                self.note(op, wanted)
                continue
            for one in self.by_stage(op):
                laid_op, wanted = self.op(one)
                ops.append(laid_op)
                wants.append(wanted)
                self.note(laid_op, wanted)
        func = replace(self.module.entry, ops=tuple(ops))
        members = tuple(op.facet(StageSet, StageSet(())).stages for op in ops)
        after = Decided(func, members, self.found.meshes, tuple(wants), self.lies, self.found.outputs, tuple(self.kept))
        module = self.module.replace(self.module.entry, func)
        module = with_reshards(self.with_states(module), after)
        return module.replace(module.entry, replace(module.entry, ops=in_time(module.entry.ops)))

    def note(self, op: Op, wants: Sequence[Placements] | None) -> None:
        """What an op wants of its operands its stage has from then on."""
        stage = op.facet(StageSet, StageSet((0,))).stages[0]
        whole: Placements = (Replicate(),) * len(self.found.meshes[stage].axes)
        for number, name in enumerate(op.operands):
            if name:
                wanted = whole if wants is None else wants[number]
                layouts = self.known.setdefault((stage, name), [])
                if wanted not in layouts:
                    layouts.append(wanted)

    def by_stage(self, op: Op) -> Sequence[Op]:
        """An op of several stages as one for each, where one of them is on a mesh."""
        stages = op.facet(StageSet, StageSet(())).stages
        if len(stages) < 2 or not any(self.found.meshes[stage].axes for stage in stages):
            return (op,)
        return [op.with_facets(StageSet((stage,))) for stage in stages]

    def with_states(self, module: Module) -> Module:
        """The optimizer's state lies as the update works."""
        symbols = []
        for symbol in module.symbols:
            if isinstance(symbol, Resource) and symbol.name in self.state_layouts():
                mesh, lies = self.state_layouts()[symbol.name]
                symbol = replace(symbol, type=laid(symbol.type, mesh, lies))
            symbols.append(symbol)
        return replace(module, symbols=tuple(symbols))

    def state_layouts(self) -> dict[str, tuple[Mesh, Placements]]:
        return {
            state: (self.found.meshes[stage], kept[state])
            for stage, kept in enumerate(self.kept)
            for states in self.states.values()
            for state in states
            if state in kept
        }

    # -- one op --------------------------------------------------------------------------------------------------------

    def op(self, op: Op) -> tuple[Op, tuple[Placements, ...] | None]:
        """The op with its strategies and the layouts of its results, and how it wants its operands."""
        stage = op.facet(StageSet, StageSet((0,))).stages[0]
        mesh = self.found.meshes[stage]
        whole: Placements = (Replicate(),) * len(mesh.axes)
        rule = self.around.rule(bare_results(op)) if mesh.axes else None
        strategies = None
        if rule is not None:
            whole_along = self.whole.get(op.results[0].name if op.results else "", frozenset())
            strategies = self.given(op, rule, mesh, stage) or self.cheapest(op, rule, mesh, stage, whole_along)
        wants = None
        results = [whole] * len(op.results)
        if strategies is not None and any(strategy.name != WHOLE for strategy in strategies):
            wants = tuple(tuple(s.operands[i] for s in strategies) for i in range(len(op.operands)))
            results = [tuple(s.results[i] for s in strategies) for i in range(len(op.results))]
        names = [s.name for s in strategies] if wants is not None and strategies else [WHOLE] * len(mesh.axes)
        values = []
        for value, lies in zip(op.results, results, strict=True):
            if value.name:
                self.lies[value.name], self.home[value.name] = lies, stage
            values.append(Value(value.name, laid(value.type, mesh, lies)) if value.name else value)
        op = replace(op, results=tuple(values))
        return (op.with_facets(ShardRule(SEPARATOR.join(names))) if mesh.axes else op), wants

    def given(self, op: Op, rule: LayoutRule, mesh: Mesh, stage: int) -> list[Strategy] | None:
        """The strategies of an op that works in the layout of its resource, or that has those of the op it repeats."""
        facet = op.facet(ShardRule)
        if facet is not None:
            return rule.named(facet.rule.split(SEPARATOR), [size for _, size in mesh.axes])
        if op.name in (ASSIGN, EMA):
            target = self.kept[stage].get(op.operands[0], (Replicate(),) * len(mesh.axes))
        elif op.name in OPTIMIZERS:
            target = self.updated(op, rule, mesh, stage)
            self.keep_states(op, rule, mesh, stage)
        elif op.name in (SQUARES, ADAFACTOR_SQUARES, "onnx.Cast") and op.operands[0] in self.optimizers:
            target = self.updated_by(self.optimizers[op.operands[0]], mesh, stage)
        else:
            return None
        return self.along(rule, mesh, target)

    def keep_states(self, op: Op, rule: LayoutRule, mesh: Mesh, stage: int) -> None:
        """The state of a weight lies as its update reads it, and a moving average as the weight is updated."""
        target = self.updated(op, rule, mesh, stage)
        strategies = self.along(rule, mesh, target) or []
        for state in self.states.get(op.operands[0], ()):
            place = op.operands.index(state) if state in op.operands else 0
            self.kept[stage][state] = tuple(s.operands[place] for s in strategies) or target

    def along(self, rule: LayoutRule, mesh: Mesh, target: Placements) -> list[Strategy] | None:
        """On each axis the strategy that reads the first operand so; None where one axis has none."""
        found = []
        for (_, size), placement in zip(mesh.axes, target, strict=True):
            strategy = next((s for s in rule.strategies(size) if s.operands[0] == placement), None)
            if strategy is None:
                return None
            found.append(strategy)
        return found

    def updated_by(self, optimizer: Op, mesh: Mesh, stage: int) -> Placements:
        """How the update of a gradient works, before its turn: what reads the gradient too should not move it once more."""
        rule = self.around.rule(bare_results(optimizer))
        return (Replicate(),) * len(mesh.axes) if rule is None else self.updated(optimizer, rule, mesh, stage)

    def updated(self, op: Op, rule: LayoutRule, mesh: Mesh, stage: int) -> Placements:
        """How an update works: as its weight is kept, or on parts of it where ``sync`` asks for that."""
        weight = op.operands[0]
        kept = self.kept[stage].get(weight, (Replicate(),) * len(mesh.axes))
        if sync_of(self.resources[weight].facets).method != "reduce_scatter":
            return kept
        gradient = self.seen(op.operands[1], stage)
        target = list(kept)
        for axis, (placement, part) in enumerate(zip(kept, gradient, strict=True)):
            if not (isinstance(placement, Replicate) and isinstance(part, Partial)):
                continue
            for strategy in rule.strategies(mesh.axes[axis][1]):
                chosen = strategy.operands[0]
                if isinstance(chosen, Shard) and chosen not in target and self.fits(op, strategy, [], mesh, axis):
                    target[axis] = chosen
                    break
        return tuple(target)

    # -- the cheapest --------------------------------------------------------------------------------------------------

    def cheapest(self, op: Op, rule: LayoutRule, mesh: Mesh, stage: int, whole: Collection[int] = ()) -> list[Strategy]:
        """The strategies, one for each axis, for which least moves; along the axes of ``whole`` the op runs whole."""
        options = [
            [s for s in rule.strategies(size) if s.name == WHOLE or axis not in whole]
            for axis, (_, size) in enumerate(mesh.axes)
        ]
        placements = [self.ready(name, stage) for name in op.operands]
        combinations = 1
        for axis in options:
            combinations *= len(axis)
        if combinations > MOST_COMBINATIONS:
            options = [axis[:1] for axis in options]
        best, least = None, (float("inf"), 1, 1, float("inf"))
        for chosen in itertools.product(*options):
            if not self.valid(op, chosen, mesh):
                continue
            price = self.price(op, chosen, placements, mesh)
            if price < least:
                best, least = list(chosen), price
        return best or [strategies[0] for strategies in options]

    def ready(self, name: str, stage: int) -> Sequence[Placements]:
        """The layouts in which a stage has an operand; none for an absent one."""
        return [self.seen(name, stage), *self.known.get((stage, name), ())] if name else ()

    def seen(self, name: str, stage: int) -> Placements:
        """How a value lies as a stage gets it."""
        mesh = self.found.meshes[stage]
        whole: Placements = (Replicate(),) * len(mesh.axes)
        if name[:1] == "@":
            update = self.updates.get(name)
            rule = self.around.rule(bare_results(update)) if update is not None and mesh.axes else None
            if update is not None and rule is not None and name not in self.kept[stage]:
                self.keep_states(update, rule, mesh, stage)
            return self.kept[stage].get(name, whole)
        home = self.home.get(name)
        if home is None:
            return whole
        lies = self.lies[name]
        return lies if home == stage or same_shape(self.found.meshes[home], mesh) else whole

    def valid(self, op: Op, chosen: Sequence[Strategy], mesh: Mesh) -> bool:
        """Whether every shard gets something, and terms of one value are of one reduction."""
        done: list[tuple[int, Strategy]] = []
        for axis, strategy in enumerate(chosen):
            if not self.fits(op, strategy, done, mesh, axis):
                return False
            done.append((axis, strategy))
        tensors = zip(*((*s.operands, *s.results) for s in chosen), strict=True)
        return all(len({p.reduction for p in tensor if isinstance(p, Partial)}) < 2 for tensor in tensors)

    def fits(self, op: Op, strategy: Strategy, done: Sequence[tuple[int, Strategy]], mesh: Mesh, axis: int) -> bool:
        """Whether the factor of a strategy can be cut once more, between elements where not in the proportion of the
        shares."""
        factor = strategy.factor
        if factor is None:
            return True
        cuts = [mesh.along(other) for other, one in done if one.name == strategy.name] + [mesh.along(axis)]
        if not none_empty(factor.size, cuts):
            return False
        if proportional(factor.size, cuts):
            return True
        names = (*op.operands, *(value.name for value in op.results))
        tensors = zip(names, (*factor.operands, *factor.results), strict=True)
        shapes = [(shape_of(self.around.types[name]), dim) for name, dim in tensors if name and dim is not None]
        return all(shape is not None and shape[dim] == factor.size for shape, dim in shapes)

    def price(
        self, op: Op, chosen: Sequence[Strategy], placements: Sequence[Sequence[Placements]], mesh: Mesh
    ) -> tuple[float, int, int, float]:
        """Bytes that move, whether a gradient lies elsewhere than it should, whether a constant is cut, work."""
        moved = 0.0
        for number, (name, layouts) in enumerate(zip(op.operands, placements, strict=True)):
            if name:
                size = float(type_bytes(self.around.types[name]) or 0)
                wanted = tuple(strategy.operands[number] for strategy in chosen)
                moved += size * min(distance(lies, wanted, mesh) for lies in layouts)
        astray = 0
        for number, value in enumerate(op.results):
            target = self.target(value.name, mesh)
            if target is None:
                continue
            made = tuple(strategy.results[number] for strategy in chosen)
            astray |= int(made != target)
            moved += float(type_bytes(value.type) or 0) * distance(made, target, mesh)
        work = 1.0
        for strategy, (_, count) in zip(chosen, mesh.axes, strict=True):
            work *= strategy.factor.share(count) if strategy.factor is not None else 1.0
        source = not any(name[:1] == "%" for name in op.operands)
        cut = int(source and any(strategy.name != WHOLE for strategy in chosen))
        return moved, astray, cut, work

    def target(self, name: str, mesh: Mesh) -> Placements | None:
        """How the gradient of a value should lie."""
        value = self.gradients.get(name)
        if value is None or value[:1] == "@" or value in self.alone or value not in self.lies:
            return None
        lies = self.lies[value]
        if len(lies) != len(mesh.axes):
            return None
        return tuple(placement if isinstance(placement, Shard) else Replicate() for placement in lies)


def distance(before: Placements, after: Placements, mesh: Mesh) -> float:
    """Bytes that move from one layout to another, of a tensor of one byte."""
    return sum(conversion(one, other, size) for one, other, (_, size) in zip(before, after, mesh.axes, strict=True))


def conversion(before: Placement, after: Placement, count: int) -> float:
    """Bytes that a member of a ring of ``count`` passes on, of a tensor of one byte."""
    if before == after:
        return 0.0
    part = (count - 1) / count
    match before, after:
        case (Replicate(), Shard()):
            return _SLICED
        case (Replicate(), Partial()):
            return 2 * _SLICED
        case (Partial(), Replicate()):
            return 2 * part
        case (Shard(), Shard()):
            return part / count
    return part


def in_time(ops: Sequence[Op]) -> tuple[Op, ...]:
    """``ops`` with every reshard in a phase that is not behind that of a reader: what I reads is not made in W."""
    early: set[str] = set()
    found = []
    for op in reversed(ops):
        phase = phase_of(op.facets)
        if phase == WEIGHT_GRADIENT and op.name == RESHARD and op.results[0].name in early:
            op, phase = op.with_facets(Phase(INPUT_GRADIENT)), INPUT_GRADIENT
        if phase == INPUT_GRADIENT:
            early.update(reads(op))
        found.append(op)
    return tuple(reversed(found))
