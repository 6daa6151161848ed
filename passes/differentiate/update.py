"""Phase U: once a step, gradients are averaged over the microbatches, summed over replicas and stages, and weights are updated.

The ops of each trained weight, in order, where *home* is the first stage that has a gradient of the weight:

1. in each stage that has a gradient: ``grad.accumulate``, the mean over the step's microbatches (in a replica, its part of the
   mean), and where the stage is replicated, ``comm.all_reduce``, the sum over the replicas;
2. at home: the sum over stages, the sums that Adafactor reads, the optimizer's op, ``grad.ema`` where weights are averaged, and
   a ``grad.assign`` to each resource of the optimizer's state and to the average;
3. in home and every stage that reads the weight: a ``grad.assign`` of the new weight.

Where the norm of gradients is clipped or the loss has a scale, all sums come first. Each home then has the sum of squares of
its gradients, the first of them the sum of all and what follows from it for every optimizer's op: the factor of its gradient,
and whether the step is taken (``grad.loss_scale``). So a weight counts once, whether it is replicated, split or tied, and all
weights skip a step or none. Where the learning rate has a schedule, each home has its factor (``grad.rate``).

Besides, the replicas of a stage with running averages (of batch normalisation) assign the mean of theirs to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ir.core.attributes import Attribute, Attributes, AttrKind, attributes
from ir.core.facets import UPDATE, OptimizerState
from ir.core.module import Mesh, Resource, Splat
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import ONNX_TYPES, Dim, DType, TensorType, Type, without_layout
from ir.ops.grads import ACCUMULATE, ASSIGN, STEP
from ir.ops.loss_scale import LOSS_SCALE, SCALE, SKIPPED, STEPS
from ir.ops.optimizers import (
    ADAFACTOR_SQUARES,
    ADAFACTOR_SUMS,
    COUNTS,
    DEFAULTS,
    EMA,
    EMA_STATE,
    FACTORED_SUMS,
    NESTEROV,
    RATE,
    state_types,
)
from ir.ops.recipe import Recipe
from passes.differentiate.site import AXES_OPERAND, Added, Program
from passes.differentiate.tape import Gradients

REPLICAS = "replicas"
"""The name of the one axis of the mesh of a stage's replicas."""


SQUARES = "onnx.ReduceSumSquare"
"""The op that sums the squares of a gradient."""
_AXES_OPERAND = {SQUARES: 18, "onnx.ReduceSum": AXES_OPERAND}
"""The opset from which the axes of an op are an operand."""
FEW = 4
"""Terms that one op sums of the many that make a norm."""
_EPSILON = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23, DType.F64: 2.0**-52}
"""The distance from 1 to the next number: Adafactor's ``epsilon1`` by default."""


@dataclass(frozen=True, slots=True)
class Total:
    """The gradient of a weight over a step: the name of the value, its home, and the forward op that it belongs to."""

    name: str
    at: tuple[int, ...]
    source: Op


@dataclass(frozen=True, slots=True)
class Judged:
    """What follows from all gradients of a step, by the names of values, empty where there is none: the factor ``scale`` of
    each gradient, whether the step is ``taken``, and the ``count`` of those that were, with it."""

    scale: str = ""
    taken: str = ""
    count: str = ""


@dataclass(slots=True)
class Updates:
    """Appends the ops of phase U to ``program.added``. In every method ``source`` is the forward op that the new ops belong to,
    and ``at`` the stages that run them."""

    program: Program
    microbatches: int
    """Those of a step, over all replicas."""
    numbers: Mapping[str, float]
    """Numbers of the optimizers (learning rate ..) that replace their defaults."""
    recipe: Recipe
    readers: Mapping[str, Sequence[int]]
    """The stages that read each resource."""
    replicas: Mapping[int, Mesh]
    """The mesh of each replicated stage."""
    staged: bool
    """Whether the program has stages; without, all is in stage 0 and no op names it."""
    scaling: Sequence[Resource] = ()
    """The scale of the loss and its counts (``loss_scale_of``); none where the loss has no scale."""
    states: list[Resource] = field(default_factory=list)
    """Filled here: the resources of optimizer state."""
    state_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Filled here: the names of the state of each weight."""
    steps: dict[int, str] = field(default_factory=dict)
    """Filled here: in each stage that asked for it, the value that holds the number of the step."""
    rates: dict[int, str] = field(default_factory=dict)
    """Filled here: likewise the factor of the learning rate."""

    def write(self, resources: Sequence[Resource], gradients: Gradients) -> None:
        """Adds all ops that update the trained weights ``resources``, each of which has a gradient in ``gradients``."""
        if self.recipe.clip_norm is None and not self.scaling:
            for resource in resources:
                self.optimize(resource, self.total(resource, gradients), Judged())
            return
        totals = [self.total(resource, gradients) for resource in resources]
        judged = self.judged(resources, totals)
        for resource, total in zip(resources, totals, strict=True):
            self.optimize(resource, total, judged)

    def total(self, resource: Resource, gradients: Gradients) -> Total:
        """Adds the ops that make the gradient of a weight over the step's microbatches, replicas and stages."""
        parts = gradients.weights[resource.name]
        type_ = without_layout(resource.type)
        home = min(parts)
        means = []
        for stage, gradient in parts.items():
            source = gradients.readers[resource.name, stage]
            fields = attributes(microbatches=self.microbatches)
            (mean,) = self.op(ACCUMULATE, (gradient,), [(f"{gradient[1:]}.mean", type_)], fields, (stage,), source)
            if stage in self.replicas:
                fields = _reduction(self.replicas[stage])
                (mean,) = self.op("comm.all_reduce", (mean,), [(f"{mean[1:]}.reduced", type_)], fields, (stage,), source)
            means.append(mean)
        source, at = gradients.readers[resource.name, home], (home,)
        return Total(self.sum(means, f"{resource.name[1:]}.grad.sum", type_, at, source), at, source)

    def judged(self, resources: Sequence[Resource], totals: Sequence[Total]) -> Judged:
        """Adds the ops that decide on the norm of all gradients: with a ``clip_norm`` each is multiplied by
        min(1, clip_norm / (norm + 1e-6)), as by ``torch.nn.utils.clip_grad_norm_``; with a scale of the loss they are divided
        by it first, and a step with a norm that is not finite is not taken, as by ``torch.amp.GradScaler``."""
        squares, scalar, at, source = self.squares(resources, totals)
        inverse = taken = count = ""
        name, most = squares, self.recipe.clip_norm
        if self.scaling:
            inverse, taken, count = self.unscaled(squares, scalar, at, source)
        if most is None:
            return Judged(inverse, taken, count)
        steps: list[tuple[str, tuple[str, ...], str]] = [
            ("onnx.Sqrt", (), "grad.norm"),
            *([("onnx.Mul", (inverse,), "grad.norm.unscaled")] if inverse else []),
            ("onnx.Add", (self.program.constant(scalar.dtype, (), [1e-6]),), "grad.norm.offset"),
            ("onnx.Div", (self.program.constant(scalar.dtype, (), [most]),), "grad.scale.unbounded"),
            ("onnx.Min", (self.program.constant(scalar.dtype, (), [1.0]),), "grad.scale"),
            *([("onnx.Mul", (inverse,), "grad.scale.unscaled")] if inverse else []),
        ]
        for op, operands, result in steps:
            both = (*operands, name) if op == "onnx.Div" else (name, *operands)
            (name,) = self.op(op, both, [(result, scalar)], (), at, source)
        return Judged(name, taken, count)

    def unscaled(self, squares: str, scalar: TensorType, at: tuple[int, ...], source: Op) -> tuple[str, str, str]:
        """Adds the ops that make the factor of gradients which undoes the scale of the loss, whether the step is taken, and the
        number of those that were, and move the scale."""
        assert self.recipe.loss_scale is not None
        number, flag = TensorType(DType.I64, ()), TensorType(DType.BOOL, ())
        names = [one.name for one in self.scaling]
        scale, type_ = names[0], self.scaling[0].type
        if type_ != scalar:
            fields = attributes(to=ONNX_TYPES[scalar.dtype])
            (scale,) = self.op("onnx.Cast", (scale,), [(f"{scale[1:]}.wide", scalar)], fields, at, source)
        one = self.program.constant(scalar.dtype, (), [float(self.microbatches)])
        (inverse,) = self.op("onnx.Div", (one, scale), [("grad.unscale", scalar)], (), at, source)
        results = [(f"{one.name[1:]}.new", one.type) for one in self.scaling]
        fields = attributes(self.recipe.loss_scale.attributes())
        *new, taken = self.op(LOSS_SCALE, (*names, squares), [*results, ("grad.finite", flag)], fields, at, source)
        (count,) = self.op("onnx.Sub", (self.step(at, source), names[2]), [("step.taken", number)], (), at, source)
        for name, value in zip(names, new, strict=True):
            everywhere = tuple(sorted({*at, *self.readers.get(name, ())}))
            self.op(ASSIGN, (name, value), [], (), everywhere, source)
        return inverse, taken, count

    def squares(self, resources: Sequence[Resource], totals: Sequence[Total]) -> tuple[str, TensorType, tuple[int, ...], Op]:
        """Adds the ops that sum the squares of all gradients. Returns the name and the type of the sum, the stage that has it,
        and the forward op that it belongs to."""
        types = [type_ for r in resources if isinstance(type_ := without_layout(r.type), TensorType)]
        scalar = TensorType(DType.F64 if any(type_.dtype is DType.F64 for type_ in types) else DType.F32, ())
        squares: dict[tuple[int, ...], list[str]] = {}
        sources: dict[tuple[int, ...], Op] = {}
        for type_, total in zip(types, totals, strict=True):
            at, source, gradient = total.at, total.source, total.name
            if type_.dtype is not scalar.dtype:
                wide = TensorType(scalar.dtype, type_.shape)
                fields = attributes(to=ONNX_TYPES[scalar.dtype])
                (gradient,) = self.op("onnx.Cast", (gradient,), [(f"{gradient[1:]}.wide", wide)], fields, at, source)
            fields = attributes(keepdims=0)
            (square,) = self.op(SQUARES, (gradient,), [(f"{total.name[1:]}.squares", scalar)], fields, at, source)
            squares.setdefault(at, []).append(square)
            sources.setdefault(at, source)
        parts = [self.sum_in_parts(of, scalar, at, sources[at]) for at, of in sorted(squares.items())]
        at = min(squares)
        source = sources[at]
        return self.sum(parts, "grad.squares.all", scalar, at, source), scalar, at, source

    def sum(self, terms: Sequence[str], wanted: str, type_: Type, at: tuple[int, ...], source: Op) -> str:
        """Adds the sum of some values, of one only where there are several. Returns its name."""
        if len(terms) == 1:
            return terms[0]
        (total,) = self.op("onnx.Add" if len(terms) == 2 else "onnx.Sum", terms, [(wanted, type_)], (), at, source)
        return total

    def sum_in_parts(self, terms: Sequence[str], type_: Type, at: tuple[int, ...], source: Op) -> str:
        """As ``sum``, of squares, of so few terms at a time that a proof can try all layouts in which members may have them."""
        while len(terms) > 1:
            parts = [terms[i : i + FEW] for i in range(0, len(terms), FEW)]
            terms = [self.sum(part, "grad.squares", type_, at, source) for part in parts]
        return terms[0]

    def optimize(self, resource: Resource, total: Total, judged: Judged) -> None:
        """Adds the optimizer's op, and the assignments of the new weight and the new state."""
        facet = next(facet for facet in resource.facets if isinstance(facet, OptimizerState))
        optimizer, type_ = facet.name, without_layout(resource.type)
        assert isinstance(type_, TensorType)
        at, source = total.at, total.source
        kept = state_types(optimizer, type_)
        states = [self.state(resource, suffix, kind) for suffix, kind in kept.items()]
        operands = [resource.name, total.name, *states]
        if optimizer in COUNTS:
            operands.append(judged.count or self.step(at, source))
        operands += [self.rate(at, source), judged.scale, judged.taken]
        fields = self.fields(facet, type_)
        if optimizer == "adafactor":
            operands += self.adafactor_sums(resource, total, states, judged, fields)
        while not operands[-1]:
            operands.pop()
        types = {resource.name: type_, **dict(zip(states, kept.values(), strict=True))}
        results = [(f"{name[1:]}.new", kind) for name, kind in types.items()]
        new, *others = self.op(f"grad.{optimizer}", operands, results, fields, at, source)
        assigned = dict(zip(states, others, strict=True))
        if self.recipe.ema is not None:
            average = self.state(resource, EMA_STATE, type_)
            fields = attributes(decay=float(self.recipe.ema))
            moved = (average, new, self.step(at, source))
            (assigned[average],) = self.op(EMA, moved, [(f"{average[1:]}.new", type_)], fields, at, source)
        self.state_of[resource.name] = tuple(assigned)
        everywhere = tuple(sorted({*at, *self.readers.get(resource.name, ())}))
        self.op(ASSIGN, (resource.name, new), [], (), everywhere, source)
        for state, value in assigned.items():
            self.op(ASSIGN, (state, value), [], (), at, source)

    def fields(self, facet: OptimizerState, type_: TensorType) -> Attributes:
        """The attributes of the optimizer's op of a weight: the numbers of its group, of the step, or by default."""
        defaults = dict(DEFAULTS[facet.name])
        if "epsilon1" in defaults:
            defaults["epsilon1"] = _EPSILON[type_.dtype]
        given = {**self.numbers, **facet.numbers}
        numbers: dict[str, float] = {key: float(given.get(key, value)) for key, value in defaults.items()}
        more = {NESTEROV: 1} if facet.name == "momentum" and given.get(NESTEROV) else {}
        shape = {"shape": Attribute(AttrKind.INTS, type_.shape or ())} if facet.name == "adafactor" else {}
        return attributes({**numbers, **more, **shape})

    def adafactor_sums(
        self, resource: Resource, total: Total, states: Sequence[str], judged: Judged, fields: Attributes
    ) -> list[str]:
        """Adds the ops that make the sums which Adafactor reads, in f32 where the weight has 16 bits. Returns their names in
        the order of ``ADAFACTOR_SUMS``."""
        type_, at, source = without_layout(resource.type), total.at, total.source
        assert isinstance(type_, TensorType)
        assert type_.shape is not None
        wide = type_.dtype if type_.dtype in (DType.F32, DType.F64) else DType.F32

        def wider(name: str, of: str) -> str:
            if wide is type_.dtype:
                return name
            result = [(f"{of}.wide", TensorType(wide, type_.shape))]
            return self.op("onnx.Cast", (name,), result, attributes(to=ONNX_TYPES[wide]), at, source)[0]

        def summed(op: str, name: str, suffix: str, axes: tuple[int, ...], shape: tuple[Dim, ...]) -> str:
            fields = attributes(keepdims=int(bool(axes)))
            operands = [name]
            since = _AXES_OPERAND[op]
            if axes and (self.program.around.opsets or {}).get("onnx", since) < since:
                fields = attributes(axes=axes, keepdims=1)
            elif axes:
                operands.append(self.program.constant(DType.I64, (len(axes),), axes))
            of = wide if name[:1] == "%" or not axes else type_.dtype
            result = [(f"{resource.name[1:]}.{suffix}", TensorType(of, shape))]
            return self.op(op, operands, result, fields, at, source)[0]

        gradient = wider(total.name, total.name[1:])
        weight = summed(SQUARES, wider(resource.name, resource.name[1:]), ADAFACTOR_SUMS[0], (), ())
        factored: list[str] = []
        if len(states) > 1:
            *front, n, m = type_.shape
            rank = len(type_.shape)
            rows = summed(SQUARES, gradient, FACTORED_SUMS[0], (rank - 1,), (*front, n, 1))
            columns = summed(SQUARES, gradient, FACTORED_SUMS[1], (rank - 2,), (*front, 1, m))
            both = summed("onnx.ReduceSum", rows, FACTORED_SUMS[2], (rank - 2,), (*front, 1, 1))
            averages = summed("onnx.ReduceSum", states[0], FACTORED_SUMS[3], (rank - 2,), (*front, 1, 1))
            factored = [rows, columns, both, averages]
        step = judged.count or self.step(at, source)
        kept = tuple((key, value) for key, value in fields if key in ("beta2_decay", "epsilon1", "shape"))
        result = [(f"{resource.name[1:]}.{ADAFACTOR_SUMS[1]}", TensorType(wide, ()))]
        (change,) = self.op(ADAFACTOR_SQUARES, (total.name, step, judged.scale, *states, *factored), result, kept, at, source)
        return [weight, change, *factored]

    def average(self, stage: int, averages: Mapping[str, Op]) -> None:
        """Sets the running averages of a stage's replicas, each of which updated its own by its own microbatches, to their mean
        over the replicas, by one all-reduce. ``averages``: resources (vectors of one element type), each with its batch
        normalisation."""
        mesh, source = self.replicas[stage], next(iter(averages.values()))
        bare = (without_layout(self.program.around.types[name]) for name in averages)
        types = [type_ for type_ in bare if isinstance(type_, TensorType)]
        sizes = [type_.elements or 0 for type_ in types]
        whole = TensorType(types[0].dtype, (sum(sizes),))
        at = (stage,)
        (joined,) = self.op("onnx.Concat", [*averages], [("averages", whole)], attributes(axis=0), at, source)
        share = self.program.constant(whole.dtype, (), [1.0 / len(mesh.devices)])
        (part,) = self.op("onnx.Mul", (joined, share), [("averages.part", whole)], (), at, source)
        (mean,) = self.op("comm.all_reduce", (part,), [("averages.mean", whole)], _reduction(mesh), at, source)
        parts = [(f"{name[1:]}.mean", type_) for name, type_ in zip(averages, types, strict=True)]
        lengths = self.program.constant(DType.I64, (len(sizes),), sizes)
        means = self.op("onnx.Split", (mean, lengths), parts, attributes(axis=0), at, source)
        for name, new in zip(averages, means, strict=True):
            self.op(ASSIGN, (name, new), [], (), at, source)

    def state(self, resource: Resource, suffix: str, type_: TensorType) -> str:
        """Makes a resource that is zero at first; returns its name, ``@weight.suffix`` if that is free."""
        name = unique(f"{resource.name}.{suffix}", self.program.symbols)
        self.states.append(Resource(name, type_, Splat(0.0)))
        self.program.around.types[name] = type_
        return name

    def step(self, at: tuple[int, ...], source: Op) -> str:
        """The name of the value (scalar int64) that holds the number of the step; one op per stage reads it."""
        if at[0] not in self.steps:
            (self.steps[at[0]],) = self.op(STEP, (), [("step", TensorType(DType.I64, ()))], (), at, source)
        return self.steps[at[0]]

    def rate(self, at: tuple[int, ...], source: Op) -> str:
        """The name of the value (scalar f64) that holds the factor of the learning rate; one op per stage makes it. Empty where
        the learning rate is constant."""
        if self.recipe.schedule.changes and at[0] not in self.rates:
            operands, fields = (self.step(at, source),), self.recipe.schedule.attributes()
            (self.rates[at[0]],) = self.op(RATE, operands, [("rate", TensorType(DType.F64, ()))], fields, at, source)
        return self.rates.get(at[0], "")

    def op(
        self,
        name: str,
        operands: Sequence[str],
        results: Sequence[tuple[str, Type]],
        fields: Attributes,
        at: tuple[int, ...],
        source: Op,
    ) -> tuple[str, ...]:
        """Adds an op of phase U. ``results``: for each the name that it gets, made unique if taken, and its type. Returns the
        names of the results."""
        values = tuple(Value(unique(f"%{wanted}", self.program.taken), type_) for wanted, type_ in results)
        self.program.around.types.update((value.name, value.type) for value in values)
        op = Op(name, tuple(operands), values, fields, location=source.location)
        self.program.added.append(Added(op, source, at if self.staged else (), UPDATE))
        return tuple(value.name for value in values)


def loss_scale_of(recipe: Recipe, type_: Type, program: Program) -> tuple[Resource, ...]:
    """The resources of a step whose loss, of this type, has a scale: the scale, the steps since it changed, the skipped steps.
    None where it has no scale."""
    if recipe.loss_scale is None:
        return ()
    number = TensorType(DType.I64, ())
    first = ((SCALE, type_, recipe.loss_scale.init), (STEPS, number, 0), (SKIPPED, number, 0))
    found = tuple(Resource(unique(f"@{name}", program.symbols), kind, Splat(value)) for name, kind, value in first)
    program.around.types.update((one.name, one.type) for one in found)
    return found


def _reduction(mesh: Mesh) -> Attributes:
    """The attributes of an all-reduce that sums over the replicas of ``mesh``."""
    where = Attribute(AttrKind.SYMBOL, mesh.name)
    return attributes(axis=REPLICAS, channel=0, mesh=where, reduction="sum")
