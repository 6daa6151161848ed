"""Op groups: the units that TAG's search places, with the seconds and bytes of their ops and of the tensors between them.

METIS partitions the graph into groups of about equal seconds with few bytes between them. First, ops that need the same action
are joined: an op that is not split with the batch, such as one computed from weights, is joined with its readers.

Two groups may send tensors in both directions, so a group is simulated in *segments*: its ops of one level, where the level of
an op is the number of changes of group on the longest path to it. The graph of segments has no cycle, since the level never
falls along an edge and rises where the group changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dnnc.search_tag.faults import OpsNotGrouped
from ir.core.diagnostics import UsageError
from ir.core.facets import Cost
from ir.core.module import Module, Resource
from ir.core.ops import Op, Value
from ir.core.topology import DeviceType, Topology
from ir.core.types import TensorType, type_bytes
from ir.layout_rules import Factor, Kind, rules
from ir.ops.operators import PRODUCT, has
from passes.costs.learning import learning, learning_seconds, samples_of, saved_values
from passes.costs.op_time import passes_seconds
from passes.graph.graph import reads
from passes.reference.baselines.case import NoPlan
from passes.reference.baselines.metis import balanced
from passes.stages.problem import Floats

GROUPS = 40
"""Most op groups, as in TAG."""


@dataclass(frozen=True, slots=True)
class Batch:
    """How the batch is split through a function: the factor by which each op is split, by position, and the dimension along
    which each value is split, by name."""

    factors: Mapping[int, Factor]
    dims: Mapping[str, int]


def batch_of(module: Module) -> Batch:
    """The batch, propagated from the arguments of the entry function as far as the layout rules of ops permit."""
    samples, factors, dims = samples_of(module.entry), dict[int, Factor](), dict[str, int]()
    for arg in module.entry.args:
        if isinstance(arg.type, TensorType) and arg.type.shape and arg.type.shape[0] == samples:
            dims[arg.name] = 0
    for number, (op, rule) in enumerate(rules(module)):
        ports = [(port, dims[name]) for port, name in enumerate(op.operands) if name in dims]
        parallel = (factor for factor in (rule.factors if rule and ports else ()) if factor.kind is Kind.PARALLEL)
        factor = next((one for one in parallel if all(one.operands[port] == dim for port, dim in ports)), None)
        if factor is not None:
            factors[number] = factor
            along = zip(op.results, factor.results, strict=True)
            dims.update((value.name, dim) for value, dim in along if dim is not None and value.name)
    return Batch(factors, dims)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a trained weight: its bytes, the bytes that its update moves, the first op that reads the weight, and the
    bytes of the two factors whose product it is, for the whole batch; 0 if it is no product, or a sum of several."""

    op: int
    size: int
    update: int
    factors: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """The ops of an op group at one level. ``held``: bytes of their weights, gradients and optimizer state; ``saved``: bytes of
    a batch that they keep for the backward pass."""

    group: int
    ops: tuple[int, ...]
    gradients: tuple[Gradient, ...]
    held: int
    saved: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """Tensors that a segment sends to the same segments: their bytes, and the number of gradients that return."""

    source: int
    readers: tuple[int, ...]
    size: int
    back: int


@dataclass
class Workload:
    """A training step of a module with costs, divided into op groups."""

    module: Module
    topology: Topology
    most: int = GROUPS
    _seconds: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)

    @cached_property
    def batch(self) -> Batch:
        return batch_of(self.module)

    @cached_property
    def group_of(self) -> tuple[int, ...]:
        """The op group of each op. Groups are numbered by decreasing seconds, the order of the search."""
        part = _grouped(self)
        total: dict[int, float] = {}
        for number, seconds in zip(part, self.mean, strict=True):
            total[number] = total.get(number, 0.0) + seconds
        order = {number: place for place, number in enumerate(sorted(total, key=lambda one: (-total[one], one)))}
        return tuple(order[number] for number in part)

    @cached_property
    def count(self) -> int:
        """Number of op groups."""
        return max(self.group_of, default=-1) + 1

    @cached_property
    def mean(self) -> list[float]:
        """Seconds of each op for the whole batch, forward and backward, in the mean over device types."""
        rows = [[one.both for one in learning_seconds(self.module, type_)] for type_ in self.topology.types]
        return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]

    @cached_property
    def makers(self) -> tuple[tuple[int, ...], ...]:
        """The ops whose results each op reads."""
        made = {value.name: number for number, op in enumerate(self.module.entry.ops) for value in op.results}
        return tuple(tuple(sorted({made[name] for name in reads(op) if name in made})) for op in self.module.entry.ops)

    @cached_property
    def sizes(self) -> dict[tuple[int, int], int]:
        """Bytes that one op reads from another, by producer and reader."""
        made = {value.name: (number, value) for number, op in enumerate(self.module.entry.ops) for value in op.results}
        sizes: dict[tuple[int, int], int] = {}
        for number, op in enumerate(self.module.entry.ops):
            for name in reads(op):
                if name in made:
                    maker, value = made[name]
                    sizes[maker, number] = sizes.get((maker, number), 0) + (type_bytes(value.type) or 0)
        return sizes

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ops of each op group, in order."""
        members: list[list[int]] = [[] for _ in range(self.count)]
        for number, group in enumerate(self.group_of):
            members[group].append(number)
        return tuple(map(tuple, members))

    @cached_property
    def held(self) -> list[int]:
        """For each op, bytes of the weights that it reads first, with their gradients and optimizer state."""
        state, owner = learning(self.module).state, self._owners
        held = [0] * len(self.module.entry.ops)
        for name, number in owner.items():
            size = type_bytes(self.module.resources[name].type) or 0
            held[number] += 2 * size + state[name] if name in state else size
        return held

    @cached_property
    def saved(self) -> list[int]:
        """For each op, bytes of a batch that it is the first to keep for the backward pass."""
        learned, seen, saved = learning(self.module), set[str](), []
        for op in self.module.entry.ops:
            values = {name: size for name, size in saved_values(op, learned).items() if name not in seen}
            seen.update(values)
            saved.append(sum(values.values()))
        return saved

    @cached_property
    def _owners(self) -> dict[str, int]:
        """The first reader of each weight."""
        owners: dict[str, int] = {}
        for number, op in enumerate(self.module.entry.ops):
            for name in reads(op):
                if name in self.module.resources:
                    owners.setdefault(name, number)
        return owners

    @cached_property
    def gradients(self) -> dict[int, tuple[Gradient, ...]]:
        """Gradients of trained weights, by the first op that reads the weight."""
        learned, gradients = learning(self.module), dict[int, list[Gradient]]()
        readers: dict[str, int] = {}
        for op in self.module.entry.ops:
            for name in reads(op):
                readers[name] = readers.get(name, 0) + 1
        for name, number in self._owners.items():
            if name in learned.state:
                resource, op = self.module.resources[name], self.module.entry.ops[number]
                factors = _factors(op, resource, learned.sizes) if readers[name] == 1 and number in self.batch.factors else 0
                size = type_bytes(resource.type) or 0
                gradients.setdefault(number, []).append(Gradient(number, size, learned.update[name], factors))
        return {number: tuple(row) for number, row in gradients.items()}

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in topological order."""
        members: dict[tuple[int, int], list[int]] = {}
        levels: list[int] = []
        for number, makers in enumerate(self.makers):
            group = self.group_of[number]
            levels.append(max((levels[maker] + (self.group_of[maker] != group) for maker in makers), default=0))
            members.setdefault((levels[number], group), []).append(number)
        return tuple(
            Segment(
                group,
                tuple(ops),
                tuple(one for number in ops for one in self.gradients.get(number, ())),
                sum(self.held[number] for number in ops),
                sum(self.saved[number] for number in ops),
            )
            for (_, group), ops in sorted(members.items(), key=lambda item: (item[0][0], item[1]))
        )

    @cached_property
    def bundles(self) -> tuple[Bundle, ...]:
        """Tensors that segments send to others."""
        home = {number: place for place, segment in enumerate(self.segments) for number in segment.ops}
        learned, sums = learning(self.module), dict[tuple[int, tuple[int, ...]], list[int]]()
        readers: dict[str, set[int]] = {}
        for number, op in enumerate(self.module.entry.ops):
            for name in reads(op):
                readers.setdefault(name, set()).add(home[number])
        for number, op in enumerate(self.module.entry.ops):
            for value in op.results:
                others = tuple(sorted(readers.get(value.name, set()) - {home[number]}))
                if others:
                    row = sums.setdefault((home[number], others), [0, 0])
                    size = type_bytes(value.type) or 0
                    row[0] += size
                    row[1] += size if value.name in learned.values else 0
        return tuple(Bundle(source, others, *row) for (source, others), row in sorted(sums.items()))

    def seconds(self, type_: DeviceType, parts: int) -> list[tuple[float, float]]:
        """Seconds of each op, forward and backward, for one of ``parts`` equal parts of the batch on a device type."""
        key = type_.name, parts
        if key not in self._seconds:
            known: dict[object, tuple[float, float]] = {}  # equal ops share their facets
            rows = []
            for number, op in enumerate(self.module.entry.ops):
                cut = self._part(number, op, parts)
                cost = cut.facet(Cost, Cost())
                alike = op.facets, cut.results[0].type if cut.results else None
                if alike not in known:
                    known[alike] = passes_seconds(cut, type_, cost.input_grad + cost.weight_grad)
                rows.append(known[alike])
            self._seconds[key] = rows
        return self._seconds[key]

    def _part(self, number: int, op: Op, parts: int) -> Op:
        """The op for one part of the batch; unchanged if it is not split with the batch."""
        cost = op.facet(Cost)
        if cost is None or parts == 1 or number not in self.batch.factors:
            return op

        def cut(value: Value) -> Value:
            dim, type_ = self.batch.dims.get(value.name), value.type
            length = type_.shape[dim] if dim is not None and isinstance(type_, TensorType) and type_.shape else None
            if dim is None or not isinstance(length, int) or not isinstance(type_, TensorType) or not type_.shape:
                return value
            return Value(value.name, replace(type_, shape=(*type_.shape[:dim], -(-length // parts), *type_.shape[dim + 1 :])))

        here = replace(
            cost,
            flops=cost.flops // parts,
            scalar=-(-cost.scalar // parts),
            read=cost.weight + (cost.read - cost.weight) // parts,
            write=cost.write // parts,
            input_grad=cost.input_grad // parts,
            weight_grad=cost.weight_grad // parts,
        )
        return replace(op.with_facets(here), results=tuple(map(cut, op.results)))


def _factors(op: Op, resource: Resource, sizes: Mapping[str, int]) -> int:
    """Bytes of the input and of the output gradient of a product with this matrix; 0 for other ops."""
    matrix = isinstance(resource.type, TensorType) and len(resource.type.shape or ()) == 2
    if not has(op, PRODUCT) or not matrix or len(op.operands) < 2 or op.operands[1] != resource.name:
        return 0
    return sizes.get(op.operands[0], 0) + sizes.get(op.results[0].name, 0)


def _grouped(workload: Workload) -> list[int]:
    """The part of each op. Raises UsageError if METIS is not installed."""
    ops, batch = workload.module.entry.ops, workload.batch
    leader = list(range(len(ops)))

    def top(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    for number, makers in enumerate(workload.makers):
        for maker in makers:
            if maker not in batch.factors:
                leader[top(number)] = top(maker)
    classes = sorted({top(number) for number in range(len(ops))})
    index = {number: place for place, number in enumerate(classes)}
    place_of = [index[top(number)] for number in range(len(ops))]
    weights = np.zeros(len(classes))
    near: list[dict[int, float]] = [{} for _ in classes]
    for number, makers in enumerate(workload.makers):
        weights[place_of[number]] += workload.mean[number]
        for maker in makers:
            u, v = place_of[maker], place_of[number]
            if u != v:
                near[u][v] = near[v][u] = near[u].get(v, 0.0) + workload.sizes[maker, number]
    part = _parts(near, weights, workload.most)
    return [part[place] for place in place_of]


def _parts(near: Sequence[Mapping[int, float]], weights: Floats, most: int) -> list[int]:
    """The part of each node; at most ``most`` parts. A node heavier than an even share of the remaining nodes is a part of its
    own, since METIS cannot balance it."""
    left = sorted(range(len(near)), key=lambda node: (-weights[node], node))
    part: dict[int, int] = {}
    total = float(weights.sum())
    while left and len(part) < most - 1 and weights[left[0]] * (most - len(part)) > total:
        total -= weights[left[0]]
        part[left.pop(0)] = len(part)
    first, left = len(part), sorted(left)
    if len(left) > most - first:
        index = {node: place for place, node in enumerate(left)}
        inner = [{index[other]: cost for other, cost in near[node].items() if other in index} for node in left]
        try:
            parts = balanced(inner, weights[left], most - first)
        except NoPlan as error:
            raise UsageError(OpsNotGrouped(str(error)), where="--search tag") from None
    else:
        parts = list(range(len(left)))
    part.update((node, first + number) for node, number in zip(left, parts, strict=True))
    return [part[node] for node in range(len(near))]


def runs(weights: Sequence[float], count: int) -> list[int]:
    """Cuts a sequence into ``count`` runs of about equal weight; the run of each element."""
    total, done, run_of = math.fsum(weights) or 1.0, 0.0, []
    for weight in weights:
        run_of.append(min(count - 1, int((done + weight / 2) / total * count)))
        done += weight
    if run_of != sorted(run_of):
        raise AssertionError(f"the runs {run_of} do not follow each other")
    return run_of
