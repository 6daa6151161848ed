"""Phase U: once a step, gradients are averaged over the microbatches, summed over replicas and stages, and weights are updated.

The ops of each trained weight, in order, where *home* is the first stage that has a gradient of the weight:

1. in each stage that has a gradient: ``grad.accumulate``, the mean over the step's microbatches (in a replica, its part of the
   mean), and where the stage is replicated, ``comm.all_reduce``, the sum over the replicas;
2. at home: the sum over stages, the optimizer's op, and a ``grad.assign`` to each resource of the optimizer's state;
3. in home and every stage that reads the weight: a ``grad.assign`` of the new weight.

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
from ir.core.types import DType, TensorType, Type, without_layout
from ir.ops.grads import ACCUMULATE, ASSIGN, COUNTS, DEFAULTS, STATE, STEP
from passes.differentiate.site import Added, Program
from passes.differentiate.tape import Gradients

REPLICAS = "replicas"
"""The name of the one axis of the mesh of a stage's replicas."""


@dataclass(slots=True)
class Updates:
    """Appends the ops of phase U to ``program.added``. In every method ``source`` is the forward op that the new ops belong to,
    and ``at`` the stages that run them."""

    program: Program
    microbatches: int
    """Those of a step, over all replicas."""
    numbers: Mapping[str, float]
    """Numbers of the optimizers (learning rate ..) that replace their defaults."""
    readers: Mapping[str, Sequence[int]]
    """The stages that read each resource."""
    replicas: Mapping[int, Mesh]
    """The mesh of each replicated stage."""
    staged: bool
    """Whether the program has stages; without, all is in stage 0 and no op names it."""
    states: list[Resource] = field(default_factory=list)
    """Filled here: all resources of optimizer state."""
    state_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Filled here: the names of the state of each weight."""
    steps: dict[int, str] = field(default_factory=dict)
    """Filled here: in each stage that asked for it, the value that holds the number of the step."""

    def write(self, resource: Resource, gradients: Gradients) -> None:
        """Adds all ops that update the trained weight ``resource``, which has a gradient in ``gradients``."""
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
        """Adds the optimizer's op, and the assignments of the new weight and the new state. ``gradient``: the name of the sum
        over stages; ``at``: home."""
        optimizer = next(facet.name for facet in resource.facets if isinstance(facet, OptimizerState))
        type_ = without_layout(resource.type)
        states = [self.state(resource, suffix) for suffix in STATE[optimizer]]
        self.state_of[resource.name] = tuple(states)
        operands = [resource.name, gradient, *states]
        if optimizer in COUNTS:
            operands.append(self.step(at, source))
        numbers = {key: self.numbers.get(key, value) for key, value in DEFAULTS[optimizer].items()}
        results = [(f"{name[1:]}.new", type_) for name in (resource.name, *states)]
        new, *others = self.op(f"grad.{optimizer}", operands, results, attributes(numbers), at, source)
        everywhere = tuple(sorted({*at, *self.readers.get(resource.name, ())}))
        self.op(ASSIGN, (resource.name, new), [], (), everywhere, source)
        for state, value in zip(states, others, strict=True):
            self.op(ASSIGN, (state, value), [], (), at, source)

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

    def state(self, resource: Resource, suffix: str) -> str:
        """Makes a resource of the weight's type that is zero at first; returns its name, ``@weight.suffix`` if that is free."""
        name = unique(f"{resource.name}.{suffix}", self.program.symbols)
        self.states.append(Resource(name, without_layout(resource.type), Splat(0.0)))
        self.program.around.types[name] = without_layout(resource.type)
        return name

    def step(self, at: tuple[int, ...], source: Op) -> str:
        """The name of the value (scalar int64) that holds the number of the step; one op per stage reads it."""
        if at[0] not in self.steps:
            (self.steps[at[0]],) = self.op(STEP, (), [("step", TensorType(DType.I64, ()))], (), at, source)
        return self.steps[at[0]]

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


def _reduction(mesh: Mesh) -> Attributes:
    """The attributes of an all-reduce that sums over the replicas of ``mesh``."""
    where = Attribute(AttrKind.SYMBOL, mesh.name)
    return attributes(axis=REPLICAS, channel=0, mesh=where, reduction="sum")


__all__ = ["REPLICAS", "Updates"]
