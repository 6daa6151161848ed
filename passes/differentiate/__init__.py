"""Differentiate: the backward pass, the synchronisation of gradients and the update, as ops behind the forward program.

The entry function returns its loss, a scalar (pass ``training``). The resources with the facet ``optimizer`` are trained: a
gradient is made of each that reaches the loss; one that does not loses the facet, with a warning. Ops without a phase are the
forward program; behind them come those of phase I and W, then of phase U (``ir/README.md``). A backward op has the location
and the first stage of its forward op. On meshes, ``layouts`` says how each new op is split.

- ``site``, ``rules``: one rule per operator; ``tape``: reverse mode; ``update``: phase U; ``layouts``: strategies and reshards;
  ``recomputed``: forward ops that run again in place of being saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.facets import FORWARD, OptimizerState, Phase, StageSet, phase_of, sync_of
from ir.core.module import Func, Mesh, Module, Plan, Resource, Symbol
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import TensorType, without_layout
from ir.layout_rules import Surroundings
from ir.ops.grads import ASSIGN, BATCH_NORMALIZATION
from ir.ops.opdefs import module_opsets
from ir.ops.optimizers import DEFAULTS, NESTEROV, NUMBERS
from ir.ops.recipe import Recipe
from passes.costs.learning import recomputes
from passes.differentiate.faults import (
    BackwardTwice,
    LossNoScalar,
    NoGradientArrives,
    NotOfOptimizer,
    NotOneLoss,
    SyncOfMesh,
    UnknownOptimizer,
    WeightNotTrained,
    WrongRecipe,
)
from passes.differentiate.layouts import is_sharded, with_layouts
from passes.differentiate.recomputed import recomputed
from passes.differentiate.site import Added, Program
from passes.differentiate.tape import Gradients, Seed, differentiated, differentiated_alone
from passes.differentiate.update import REPLICAS, Updates, loss_scale_of
from passes.framework.base import FunctionBodies, Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import listing, reads
from passes.graph.symbols import insert_symbols
from passes.meshes.reshard_ops import bare_value, defined, without_reshards

RECOMPUTED = ("", "none", "stage")


@dataclass(frozen=True)
class DifferentiatePass(Pass):
    """Add the backward pass, the synchronisation of gradients and the optimizer's update.

    ``microbatches``: of a step; those of the plan unless given, else 1. ``learning_rate``, ``momentum``, ``beta1``, ``beta2``,
    ``epsilon``, ``weight_decay``, ``beta2_decay``, ``epsilon1``, ``epsilon2``, ``threshold``: the optimizer's numbers, torch's
    defaults unless given; weights of a group have numbers of their own (facet ``optimizer``). ``nesterov``: momentum is
    Nesterov's. What else the update does the entry function says (``ir.ops.recipe``). ``recompute``: ``none``, or
    ``stage``: the forward ops of each stage run again for its gradients, so that a stage keeps only what it received; empty: as
    the entry function says (``training``).
    """

    name: ClassVar[str] = "differentiate"
    microbatches: int | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    beta2_decay: float | None = None
    epsilon1: float | None = None
    epsilon2: float | None = None
    threshold: float | None = None
    nesterov: bool = False
    recompute: str = ""

    def __post_init__(self) -> None:
        if self.microbatches is not None and self.microbatches < 1:
            raise ValueError(f"a step has at least 1 microbatch, not {self.microbatches}")
        if self.recompute not in RECOMPUTED:
            raise ValueError(f"recompute is {' or '.join(RECOMPUTED[1:])}, not '{self.recompute}'")

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for an entry without a scalar loss, or with an op on the way of a
        gradient that has no rule; UsageError for a number that no optimizer of the module has."""
        func = module.entry
        loss = _loss(func)
        trained = [resource for resource in module.of_type(Resource) if _optimizer(resource)]
        self._check_numbers(trained)
        plain = without_reshards(func).func
        program, plan = _program(module, plain), module.first(Plan)
        body = _body(module, program, context.bodies)
        recipe, microbatches = _recipe(func), self._microbatches(plan)
        scaling = loss_scale_of(recipe, without_layout(func.results[0].type), program)
        seed = Seed(scaling[0].name, microbatches) if scaling else Seed()
        gradients = differentiated(plain, loss, [resource.name for resource in trained], program, body, seed)
        forward = [_with_results(op, gradients) for op in plain.ops]
        again = self.recompute == "stage" or (not self.recompute and recomputes(module))
        program.added = recomputed(forward, gradients.added, program) if again else list(gradients.added)
        backward = len(program.added)
        meshes = _replicas(module, plan)
        staged = any(op.facet(StageSet) is not None for op in func.ops)
        readers = _readers([*plain.ops, *(one.op.with_facets(*_stages(one)) for one in program.added)])
        updates = Updates(program, microbatches, self._numbers(), recipe, readers, meshes, staged, scaling)
        reached = [resource for resource in trained if resource.name in gradients.weights]
        if not reached:
            raise InvalidInput(NoGradientArrives(loss), where=func.name)
        updates.write(reached, gradients)
        normal = [_in_rounds(op, meshes) for op in (plain if is_sharded(module) else func).ops]
        for stage, averages in _by_stage(normal, meshes):
            updates.average(stage, averages)
        methods = {sync_of(one.facets).method for one in trained} - {"all_reduce", "auto"}
        if meshes and methods:
            asked = listing([f"sync<{method}>" for method in sorted(methods)])
            context.sink.warn(SyncOfMesh(asked), where=func.name)
        sharded = is_sharded(module)
        ops = tuple(one for op in normal for one in (_with_results(op, gradients), *_averages(op)))
        ops += tuple(one.op.with_facets(Phase(one.phase), *_stages(one)) for one in program.added)
        context.count(self.name, forward=len(func.ops), backward=backward, update=len(program.added) - backward)
        lost = [resource.name for resource in trained if resource.name not in gradients.weights]
        for name in lost:
            context.sink.warn(WeightNotTrained(loss, name), where=func.name)
        new = [*program.constants.values(), *program.others, *scaling, *updates.states]
        results = plain.results if sharded else func.results
        after = _assembled(module, replace(func, ops=ops, results=results), new, list(meshes.values()), set(lost))
        if not sharded:
            return after
        of = {total: name for name, total in reversed(list(gradients.values.items()))}
        return with_layouts(after, module, of, updates.state_of, program.around)

    def _microbatches(self, plan: Plan | None) -> int:
        return self.microbatches or (plan.microbatches if plan is not None else 0) or 1

    def _numbers(self) -> dict[str, float]:
        numbers = {key: value for key in NUMBERS if (value := getattr(self, key)) is not None}
        return {**numbers, NESTEROV: 1} if self.nesterov else numbers

    def _check_numbers(self, trained: Iterable[Resource]) -> None:
        optimizers = sorted({optimizer for resource in trained if (optimizer := _optimizer(resource))})
        for optimizer in optimizers:
            if optimizer not in DEFAULTS:
                raise InvalidInput(UnknownOptimizer(optimizer, tuple(DEFAULTS)), where="optimizer<name>")
        for key in self._numbers():
            having = ("momentum",) if key == NESTEROV else [name for name in DEFAULTS if key in DEFAULTS[name]]
            if not any(optimizer in having for optimizer in optimizers):
                where = f"differentiate{{{key.replace('_', '-')}}}"
                raise UsageError(NotOfOptimizer(" and ".join(optimizers), key), where=where)


def require_gradients(module: Module, bodies: FunctionBodies | None) -> None:
    """Raises InvalidInput where the pass ``differentiate`` would find no gradient on the way from the loss to a weight, as soon
    as sizes are known: a plan takes longer to search than this takes."""
    func = module.entry
    program = _program(module, func)
    trained = [resource.name for resource in module.of_type(Resource) if _optimizer(resource)]
    differentiated(func, _loss(func), trained, program, _body(module, program, bodies))


@dataclass(frozen=True, slots=True)
class PassAlone:
    """One pass of one op as the entry function of a module that holds what it reads. ``fresh``: the arguments that ops next to
    it have just made; the others were saved by the forward pass. ``summed``: the results that are gradients of weights, which
    are added to those of other microbatches."""

    module: Module
    fresh: frozenset[str]
    summed: frozenset[str] = frozenset()


class Alone:
    """Makes single ops of a module run apart from it, forward and backward, as they do in its training step."""

    def __init__(self, module: Module, bodies: FunctionBodies | None) -> None:
        self.module, self.bodies = module, bodies
        self.program = _program(module, module.entry)

    def of(self, op: Op, learned: Sequence[bool], readers: Sequence[int]) -> tuple[PassAlone, PassAlone | None]:
        """The forward and the backward pass of an op, None where no gradient goes through it. ``learned``: which operands need
        a gradient; ``readers``: how many ops contribute to the gradient of each result: their sum is a part of the backward
        pass. Raises InvalidInput for an op that has no gradient."""
        self.program.added, self.program.others = [], []
        named = {value.name: count for value, count in zip(op.results, readers, strict=True)}
        wanted = [name for name, learns in zip(op.operands, learned, strict=True) if learns]
        found = differentiated_alone(op, wanted, named, self.program, _body(self.module, self.program, self.bodies))
        forward = self.alone((_with_results(op, found),), [])
        if not found.given:
            return forward, None
        gradients = {total: name[:1] == "@" for name, by_stage in found.weights.items() for total in by_stage.values()}
        backward = self.alone([one.op for one in found.added], list(gradients), {value.name for value in found.given})
        return forward, replace(backward, summed=frozenset(name for name, of_weight in gradients.items() if of_weight))

    def alone(self, ops: Sequence[Op], results: Sequence[str], fresh: Collection[str] = ()) -> PassAlone:
        """The ops as a function of what they read, which returns ``results``: all that they make where none is said."""
        types, made = self.program.around.types, [value for op in ops for value in op.results if value.name]
        read = dict.fromkeys([*(name for op in ops for name in reads(op)), *results])
        names = [name for name in read if name not in {value.name for value in made}]
        args = tuple(Value(name, types[name]) for name in names if name[:1] == "%")
        returned = tuple(Value(name, types[name]) for name in results) or tuple(made)
        func = Func(self.module.entry.name, args, returned, tuple(replace(op, facets=()) for op in ops))
        known = (*self.module.of_type(Resource), *self.program.constants.values(), *self.program.others)
        held = [resource for resource in known if resource.name in read]
        module = replace(self.module, symbols=(*held, func))
        return PassAlone(module, frozenset(fresh or (value.name for value in args)))


def _body(module: Module, program: Program, bodies: FunctionBodies | None) -> Callable[[Op], Module | None]:
    """What finds the ops that a composite op of the module stands for."""
    opsets = module_opsets(module)

    def body(op: Op) -> Module | None:
        return bodies(op, [program.around.types.get(name) for name in op.operands], opsets) if bodies else None

    return body


def _optimizer(resource: Resource) -> str:
    """The name of the optimizer that trains a resource; empty where none does."""
    return next((facet.name for facet in resource.facets if isinstance(facet, OptimizerState)), "")


def _recipe(func: Func) -> Recipe:
    """What the function says of the update. Raises InvalidInput."""
    try:
        return Recipe.of(func)
    except ValueError as error:
        raise InvalidInput(WrongRecipe(str(error)), where=func.name) from None


def _loss(func: Func) -> str:
    """The name of the scalar that the function returns. Raises InvalidInput."""
    if any(phase_of(op.facets) != FORWARD for op in func.ops):
        raise InvalidInput(BackwardTwice(), where=func.name)
    if len(func.results) != 1:
        raise InvalidInput(NotOneLoss(len(func.results)), where=func.name)
    (result,) = func.results
    bare = without_layout(result.type)
    if not isinstance(bare, TensorType) or not bare.dtype.is_float or bare.shape != ():
        raise InvalidInput(LossNoScalar(result.name, str(bare)), where=func.name)
    return result.name


def _program(module: Module, func: Func) -> Program:
    """What rules see of the forward program: types without layouts, small constants, names that are taken."""
    around = Surroundings(module.resources.values(), module_opsets(module))
    around.types = {name: without_layout(type_) for name, type_ in around.types.items()}
    around.types.update((arg.name, arg.type) for arg in func.args)
    for op in func.ops:
        around.see(replace(op, results=tuple(map(bare_value, op.results))))
    taken = {*defined(module.entry.ops), *(arg.name for arg in func.args)}
    return Program(around, taken, {symbol.name for symbol in module.symbols})


def _stages(one: Added) -> tuple[StageSet, ...]:
    return (StageSet(one.stages),) if one.stages else ()


def _readers(ops: Iterable[Op]) -> dict[str, list[int]]:
    """The stages that read each resource."""
    found: dict[str, set[int]] = {}
    for op in ops:
        stages = op.facet(StageSet, StageSet((0,))).stages
        for name in reads(op):
            if name[:1] == "@":
                found.setdefault(name, set()).update(stages)
    return {name: sorted(stages) for name, stages in found.items()}


def _replicas(module: Module, plan: Plan | None) -> dict[int, Mesh]:
    """A mesh of one axis for each replicated stage that is on devices."""
    taken = {symbol.name for symbol in module.symbols}
    return {
        stage.index: Mesh(unique(f"@{REPLICAS}{stage.index}", taken), ((REPLICAS, stage.replicas),), stage.devices)
        for stage in (plan.stages if plan is not None else ())
        if stage.replicas > 1 and not stage.mesh and stage.devices
    }


def _with_results(op: Op, gradients: Gradients) -> Op:
    """A forward op with the results that the backward pass reads in addition."""
    extra = {number: value for (id_, number), value in gradients.named.items() if id_ == op.id}
    if not extra:
        return op
    results = list(op.results) + [Value("")] * (max(extra) + 1 - len(op.results))
    for number, value in extra.items():
        results[number] = value
    return replace(op, results=tuple(results))


def _running_averages(op: Op) -> list[tuple[str, str]]:
    """The running averages that a batch normalisation moves when it trains, each with the name of what it becomes."""
    if op.name != BATCH_NORMALIZATION or not op.get("training_mode", 0):
        return []
    pairs = zip(op.operands[3:5], op.results[1:3], strict=False)
    return [(resource, value.name) for resource, value in pairs if value.name]


def _averages(op: Op) -> Iterable[Op]:
    """What keeps the running averages of a batch normalisation that trains."""
    facets = tuple(facet for facet in op.facets if isinstance(facet, StageSet))
    for resource, new in _running_averages(op):
        yield Op(ASSIGN, (resource, new), facets=facets, location=op.location)


def _by_stage(ops: Iterable[Op], replicas: Mapping[int, Mesh]) -> Iterator[tuple[int, dict[str, Op]]]:
    """The running averages of replicated stages that train, of each element type apart, with their batch normalisations."""
    found: dict[tuple[int, object], dict[str, Op]] = {}
    for op in ops:
        stage = op.facet(StageSet, StageSet((0,))).stages[0]
        if stage in replicas:
            for average, _ in _running_averages(op):
                found.setdefault((stage, getattr(op.results[1].type, "dtype", None)), {}).setdefault(average, op)
    yield from ((stage, averages) for (stage, _), averages in found.items())


def _in_rounds(op: Op, replicas: Mapping[int, Mesh]) -> Op:
    """A batch normalisation of R replicas decays for each of its microbatches as the unsplit one does for R of them."""
    stage = op.facet(StageSet, StageSet((0,))).stages[0]
    if stage not in replicas or not _running_averages(op):
        return op
    momentum = float(op.get("momentum", 0.9)) ** len(replicas[stage].devices)
    return replace(op, attributes=tuple(sorted({**dict(op.attributes), **dict(attributes(momentum=momentum))}.items())))


def _assembled(module: Module, func: Func, new: Sequence[Resource], meshes: Sequence[Mesh], lost: set[str]) -> Module:
    """The module with the new entry, the new resources behind the others, and the meshes before the plan."""
    symbols: list[Symbol] = []
    last = max(i for i, symbol in enumerate(module.symbols) if isinstance(symbol, Resource))
    for i, symbol in enumerate(module.symbols):
        if symbol is module.entry:
            symbol = func
        elif isinstance(symbol, Resource) and symbol.name in lost:
            symbol = replace(symbol, facets=tuple(f for f in symbol.facets if not isinstance(f, OptimizerState)))
        symbols.append(symbol)
        if i == last:
            symbols += new
    return insert_symbols(replace(module, symbols=tuple(symbols)), meshes)


__all__ = ["Alone", "DifferentiatePass", "PassAlone"]
