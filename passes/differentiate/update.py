"""Phase U: once a step, gradients are averaged over the microbatches, summed over replicas and stages, and weights are updated.

Of each trained weight: a ``grad.accumulate`` in each stage that has a gradient of it, a ``comm.all_reduce`` over the replicas
of a replicated stage, the sum over stages and the optimizer's op in the first of them, and a ``grad.assign`` in every stage
that reads the weight, for it and, in the first, for its state. Of running averages of a replicated stage, their mean over the
replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ir.core.attributes import Attribute, Attributes, AttrKind, attributes
from ir.core.facets import UPDATE, OptimizerState
from ir.core.module import Mesh, Resource, Splat
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType, Type, without_layout
from ir.ops.grads import ACCUMULATE, ASSIGN, COUNTS, DEFAULTS, STATE, STEP
from passes.differentiate.site import Added, Program
from passes.differentiate.tape import Gradients

REPLICAS = "replicas"
"""The axis of a mesh of a stage's replicas."""


@dataclass(slots=True)
class Updates:
    """Writes the ops of phase U into ``program.added``. ``readers[resource]``: stages that read it; ``replicas[stage]``: the
    mesh of a replicated stage; ``states``: the resources made here, ``state_of`` those of each weight."""

    program: Program
    microbatches: int
    numbers: Mapping[str, float]
    readers: Mapping[str, Sequence[int]]
    replicas: Mapping[int, Mesh]
    staged: bool
    states: list[Resource] = field(default_factory=list)
    state_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    steps: dict[int, str] = field(default_factory=dict)

    def write(self, resource: Resource, gradients: Gradients) -> None:
        """The update of one weight."""
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
        total = means[0]
        if len(means) > 1:
            name = "onnx.Add" if len(means) == 2 else "onnx.Sum"
            (total,) = self.op(name, means, [(f"{resource.name[1:]}.grad.sum", type_)], (), at, source)
        self.optimize(resource, total, at, source)

    def optimize(self, resource: Resource, gradient: str, at: tuple[int, ...], source: Op) -> None:
        """The optimizer's op and what keeps its results."""
        optimizer = next(facet.name for facet in resource.facets if isinstance(facet, OptimizerState))
        type_ = without_layout(resource.type)
        states = [self.state(resource, suffix) for suffix in STATE[optimizer]]
        self.state_of[resource.name] = tuple(states)
        operands = [resource.name, gradient, *states]
        if optimizer in COUNTS:
            operands.append(self.step(at, source))
        numbers = {key: self.numbers.get(key, value) for key, value in DEFAULTS[optimizer].items()}
        wanted = [(f"{name[1:]}.new", type_) for name in (resource.name, *states)]
        new, *others = self.op(f"grad.{optimizer}", operands, wanted, attributes(numbers), at, source)
        everywhere = tuple(sorted({*at, *self.readers.get(resource.name, ())}))
        self.op(ASSIGN, (resource.name, new), [], (), everywhere, source)
        for state, value in zip(states, others, strict=True):
            self.op(ASSIGN, (state, value), [], (), at, source)

    def average(self, stage: int, averages: Mapping[str, Op]) -> None:
        """Replicas of a stage that each moved running averages by their own microbatches go on from the mean of these, which
        travel in one message. ``averages``: of one element type, each with its batch normalisation."""
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

    def state(self, resource: Resource, suffix: str) -> str:
        """A resource of the weight's type that is zero at first; its name."""
        name = unique(f"{resource.name}.{suffix}", self.program.symbols)
        self.states.append(Resource(name, without_layout(resource.type), Splat(0.0)))
        self.program.around.types[name] = without_layout(resource.type)
        return name

    def step(self, at: tuple[int, ...], source: Op) -> str:
        """The number of the step, read once in each stage."""
        if at[0] not in self.steps:
            (self.steps[at[0]],) = self.op(STEP, (), [("step", TensorType(DType.I64, ()))], (), at, source)
        return self.steps[at[0]]

    def op(
        self,
        name: str,
        operands: Sequence[str],
        results: Sequence[tuple[str, Type]],
        fields: Attributes,
        stages: tuple[int, ...],
        source: Op,
    ) -> tuple[str, ...]:
        """Adds an op of phase U whose results are called so, or nearly; their names."""
        values = tuple(Value(unique(f"%{wanted}", self.program.taken), type_) for wanted, type_ in results)
        self.program.around.types.update((value.name, value.type) for value in values)
        op = Op(name, tuple(operands), values, fields, location=source.location)
        self.program.added.append(Added(op, source, stages if self.staged else (), UPDATE))
        return tuple(value.name for value in values)


def _reduction(mesh: Mesh) -> Attributes:
    where = Attribute(AttrKind.SYMBOL, mesh.name)
    return attributes(axis=REPLICAS, channel=0, mesh=where, reduction="sum")


__all__ = ["REPLICAS", "Updates"]
