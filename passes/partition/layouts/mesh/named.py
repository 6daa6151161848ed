"""Strategies by name: plans that people write by hand, as choices of a ``ShardInput``, priced and lowered like searched ones.

- ``replicate``: every device does everything;
- ``data``: the batch is split, weights are whole; in training, samples that devices do not divide are dealt evenly;
- ``megatron`` (Shoeybi et al. 2019): a product whose split columns stay split up to other products is split by column, those
  by row, one all-reduce behind each pair; embedding and head are split by vocabulary; all else stands whole on every device. A
  loss of the head's columns is split by rows, which the devices exchange (Megatron sums parts of each row's softmax). Of
  several axes the last is the tensor axis, the others split the batch where it is long enough or join the tensor axis. In
  stages a sum of activations may also be made in parts, so that what leaves a stage crosses in parts and is gathered by the
  stage behind (Narayanan et al. 2021);
- ``expert`` (Lepikhin et al. 2020): products with a matrix per expert are split by experts, all else by the batch.

Nothing is known by name or scope. A split is *carried*: a value that lies split along a dimension is read by an op with a
parallel factor along it, whose results lie split in turn. ``data`` carries the batch from the arguments as far as it goes;
what is made of weights alone and read in parts of the batch (a class token for each sample) is made in these parts.
``megatron`` carries the columns of each product with a weight: if they arrive only at products that sum over them, at losses,
or at results of the function, the product is split by column, the others by row; if not (a norm wants whole rows) it stays
whole.

Weights are kept and results leave as is cheapest for those who read and make them. A dimension is split by even parts only,
unless the input allows others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ir.core.facets import WHOLE
from ir.core.module import Func, Module
from ir.core.ops import Op
from ir.core.shares import Shares, none_empty
from ir.core.types import TensorType
from ir.layout_rules import Factor, Kind, LayoutRule, Strategy, rules
from ir.ops.operators import PRODUCT, has
from passes.partition.layouts.decide import choice_of, settled
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.graph import Graph
from passes.partition.layouts.solver.search import NoPlanError, ShardPlan, unproven

DATA = "data"
STRATEGIES = (DATA, "megatron", "expert", "replicate")
_COLUMN, _ROW = "n", "k"
"""Factors of a product ``[m, k] x [k, n]``."""
_WEIGHT_PORT = 1
LOSSES = ("onnx.SoftmaxCrossEntropyLoss", "onnx.NegativeLogLikelihoodLoss")
"""Ops that read whole rows of scores of classes."""


class UnfitError(ValueError):
    """The model has nothing that the strategy could split; the text says what."""


@dataclass(slots=True)
class Split:
    """What one role does: the strategy's name by op, and the dimension along which values lie split."""

    names: dict[int, str] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)


def named_plan(
    module: Module,
    given: ShardInput,
    name: str,
    *,
    memory: float | None = None,
    by_hand: ByHand | None = None,
) -> ShardPlan:
    """The plan called ``name``; ``by_hand``: what was read of the function already.

    Raises UnfitError where the model has no such plan, NoPlanError where it needs more than ``memory`` bytes per device,
    KeyError for no such name."""
    choices = (by_hand or ByHand(module, given)).choices(name)
    value, needs = given.problem.cost(choices), given.problem.memory(choices)
    if memory is not None and needs > memory:
        raise NoPlanError(needs)
    return unproven(choices, value, needs).bounded(0.0, "strategy")


def plans_by_name(module: Module, given: ShardInput, *, memory: float | None) -> Iterator[ShardPlan]:
    """Those that the model has and that hold their weights."""
    by_hand = ByHand(module, given)
    for name in STRATEGIES:
        with suppress(UnfitError, NoPlanError):
            yield named_plan(module, given, name, memory=memory, by_hand=by_hand)


def restricted(given: ShardInput, name: str, ops: Sequence[int]) -> ShardInput:
    """The problem of stages by the strategy ``name``, in which each op has but the choice that it has among ``ops``; weights,
    results and layouts of what crosses are free, and so is what an op claims (``fused``), since a cut may end a chain. With
    ``megatron``, sums of activations have those choices too that split them on axes on which they are whole."""
    problem = given.problem
    sums = activation_sums(given.func) if name == "megatron" else frozenset()
    node_kinds, strategies = list(problem.node_kinds), list(given.strategies)
    saved = list(given.saved)
    numbers: dict[tuple[int, int, bool], int] = {}
    kinds = list(problem.kinds)
    for node, choice in enumerate(ops):
        taken = given.strategies[problem.kinds[node]]
        only = [other for other, its in enumerate(taken) if its is taken[choice]]
        key = problem.kinds[node], only[0], node in sums
        if node in sums:
            only = [other for other, its in enumerate(taken) if _splits(taken[choice], its)]
        if key not in numbers:
            numbers[key] = len(node_kinds)
            node_kinds.append(problem.node(node).some(only))
            strategies.append(tuple(taken[other] for other in only))
            saved.append(given.saved[key[0]][only])
        kinds[node] = numbers[key]
    fixed = replace(problem, node_kinds=tuple(node_kinds), graph=Graph(tuple(kinds), problem.values))
    return replace(given, problem=fixed, strategies=tuple(strategies), saved=tuple(saved))


def _splits(strategy: Sequence[Strategy | None], further: Sequence[Strategy | None]) -> bool:
    """Whether one is the other, or splits on axes on which that is whole: terms of sums are no parts."""
    return all(
        one is other or (one is not None and one.name == WHOLE and other is not None and other.factor is not None)
        for one, other in zip(strategy, further, strict=True)
    )


def activation_sums(func: Func) -> frozenset[int]:
    """The ops that add tensors of one type made by other ops: residual connections."""
    types = {value.name: value.type for op in func.ops for value in op.results}
    return frozenset(
        number
        for number, op in enumerate(func.ops)
        if op.name in ("onnx.Add", "onnx.Sum") and all(types.get(name) == op.results[0].type for name in op.operands)
    )


class ByHand:
    """The ops of a function with their rules, and who reads what."""

    def __init__(self, module: Module, given: ShardInput) -> None:
        self.given, self.func, self.mesh = given, given.func, given.mesh
        self.resources = module.resources
        drawn: list[tuple[Op, LayoutRule | None]] = list(rules(module, self.func))
        self.rules = [rule for _, rule in drawn]
        self.readers: dict[str, list[tuple[int, int]]] = {}
        self.still: set[str] = set()  # values made of resources alone
        for number, op in enumerate(self.func.ops):
            for port, name in enumerate(op.operands):
                self.readers.setdefault(name, []).append((number, port))
            if op.operands and not op.regions and all(self.is_still(name) for name in op.operands if name):
                self.still.update(value.name for value in op.results)
        self.known: dict[tuple[object, ...], int] = {}  # choices of ops of one kind by their strategies
        self.makers = {value.name: number for number, op in enumerate(self.func.ops) for value in op.results}

    def is_still(self, name: str) -> bool:
        return name in self.resources or name in self.still

    # -- plans ---------------------------------------------------------------------------------------------------------

    def choices(self, name: str) -> tuple[int, ...]:
        """Raises UnfitError, KeyError."""
        makers = {"replicate": self.replicate, "data": self.data, "megatron": self.megatron, "expert": self.expert}
        best: tuple[float, tuple[int, ...]] | None = None
        for per_axis in makers[name]():
            choices = settled(self.given, [self.choice(number, per_axis) for number in range(len(self.func.ops))])
            cost = self.given.problem.cost(choices)
            if best is None or cost < best[0]:
                best = cost, choices
        assert best is not None
        return best[1]

    def replicate(self) -> Iterator[list[Split]]:
        yield [Split() for _ in self.mesh.axes]

    def data(self) -> Iterator[list[Split]]:
        axes = range(len(self.mesh.axes))
        if len(self.batch_axes(axes)) < len(axes):
            raise UnfitError(f"the batch of {self.batch()} cannot be split over {self.mesh} devices")
        yield [self.by_batch(axes)] * len(axes)

    def megatron(self) -> Iterator[list[Split]]:
        count = len(self.mesh.axes)
        data = self.batch_axes(range(count - 1))
        tensor = [axis for axis in range(count) if axis not in data]
        splits = [self.by_pairs(self.cuts(tensor), exchange_late=late) for late in (False, True)]
        if not splits[0].names:
            devices = math.prod(self.mesh.sizes[axis] for axis in tensor)
            raise UnfitError(f"no product's columns stay split over {devices} devices up to another product")
        batch = self.by_batch(data) if data else Split()
        for split in splits[: 1 + (splits[0].names != splits[1].names)]:
            yield [batch if axis in data else split for axis in range(count)]

    def expert(self) -> Iterator[list[Split]]:
        every = range(len(self.mesh.axes))
        axes = self.batch_axes(every)
        batch = self.by_batch(axes) if axes else Split()
        found = [split for summed in (False, True) if (split := self.by_experts(self.cuts(every), summed=summed)).names]
        if not found:
            raise UnfitError(f"there are no experts that could be split over {self.mesh} devices")
        for split in found:
            merged = Split({**batch.names, **split.names})
            yield [merged if axis in axes else split for axis in every]

    # -- parts of plans ------------------------------------------------------------------------------------------------

    def cuts(self, axes: Sequence[int]) -> list[Shares]:
        """The shares of the members along ``axes``, one list of cuts inside the other."""
        return [self.mesh.axes[axis].shares for axis in axes]

    def batch(self) -> int:
        """The leading dimension of the first argument that has one; 1 where there is none."""
        for arg in self.func.args:
            if isinstance(arg.type, TensorType) and arg.type.shape and isinstance(arg.type.shape[0], int):
                return arg.type.shape[0]
        return 1

    def batch_axes(self, axes: Sequence[int]) -> list[int]:
        """Those of ``axes``, from the first on, for which the batch is long enough."""
        taken: list[int] = []
        for axis in axes:
            if none_empty(self.batch(), self.cuts([*taken, axis])):
                taken.append(axis)
        return taken

    def by_batch(self, axes: Sequence[int]) -> Split:
        """The batch, carried from the arguments, and parts of it that are made of weights alone."""
        batch, split = self.batch(), Split()
        for arg in self.func.args:
            if isinstance(arg.type, TensorType) and arg.type.shape and arg.type.shape[0] == batch:
                split.dims[arg.name] = 0
        for number in self.walk(split):
            factor = self.carrier(number, split, self.cuts(axes))
            if factor is not None:
                self.take(split, number, factor)
        self.pull(split, self.cuts(axes))
        return split

    def by_pairs(self, cuts: Sequence[Shares], *, exchange_late: bool) -> Split:
        """Column-row pairs, heads and embeddings, cut by ``cuts``. ``exchange_late``: the columns of a head become rows
        at the loss, not right behind the head, where elements are narrower but rows may be too few."""
        found = Split()
        for number, op in enumerate(self.func.ops):
            column = self.product_factor(number, _COLUMN, cuts)
            if column is not None and column.operands[0] is None:
                trial = self.trial(number, column, cuts, exchange_late)
                if trial is not None and all(found.names.get(n, name) == name for n, name in trial.names.items()):
                    found.names.update(trial.names)
            entry = self.vocabulary(op, number, cuts)
            if entry is not None:
                found.names[number] = entry.name
        self.pull(found, cuts)
        return found

    def trial(self, product: int, column: Factor, cuts: Sequence[Shares], exchange_late: bool) -> Split | None:
        """What carries the columns of ``product`` to products that sum over them, to losses or to results; None where
        something else reads them."""
        split = Split()
        self.take(split, product, column)
        for number in self.walk(split):
            factor = self.carrier(number, split, cuts)
            if factor is None and self.func.ops[number].name in LOSSES:
                made = self.func.ops[product].results[0].name
                rows = None if exchange_late else self.by_rows(self.readers[made], cuts)
                if rows is not None:
                    return Split({product: column.name, **rows.names})
                rows = self.by_rows([(number, 0)], cuts)
                if rows is None:
                    return None
                split.names.update(rows.names)
            elif factor is None:
                row = self.product_factor(number, _ROW, cuts)
                ends = row is not None and row.operands[0] == split.dims.get(self.func.ops[number].operands[0])
                if row is None or not ends:
                    return None
                split.names[number] = row.name
            else:
                self.take(split, number, factor)
        return split

    def by_rows(self, readers: Sequence[tuple[int, int]], cuts: Sequence[Shares]) -> Split | None:
        """The rows of what the ``readers`` read, each an op with the operand's position, and of what is made of it up to sums;
        None where rows are too few."""
        split = Split()
        for number, port in readers:
            rule = self.rules[number]
            parallel = (
                (f for f in rule.factors if f.kind is Kind.PARALLEL and f.operands[port] == 0) if rule is not None else ()
            )
            rows = next((factor for factor in parallel if none_empty(factor.size, cuts)), None)
            if rows is None:
                return None
            self.take(split, number, rows)
        for number in self.walk(split):
            factor = self.carrier(number, split, cuts)
            if factor is not None:
                self.take(split, number, factor)
            elif (end := self.carrier(number, split, cuts, Kind.SUM)) is not None:
                split.names[number] = end.name
        return split

    def vocabulary(self, op: Op, number: int, cuts: Sequence[Shares]) -> Factor | None:
        """The split of an embedding table by its entries, where what picks them comes from outside."""
        rule = self.rules[number]
        if op.name != "onnx.Gather" or rule is None or not self.is_weight(op.operands[0]) or self.is_still(op.operands[1]):
            return None
        return next((f for f in rule.factors if f.name == "entry" and none_empty(f.size, cuts)), None)

    def by_experts(self, cuts: Sequence[Shares], *, summed: bool) -> Split:
        """From the first product with a matrix per expert to the last; ``summed``: and on to the sum over experts."""
        split, products, into = Split(), set[int](), dict[int, set[int]]()
        for number in range(len(self.func.ops)):
            factor = self.experts(number, cuts)
            if factor is not None:
                products.add(number)
                self.take(split, number, factor)
        if not products:
            return split
        carried = Split(dict(split.names), dict(split.dims))
        for number in self.walk(carried):
            for name in self.func.ops[number].operands:
                if name in carried.dims:
                    into.setdefault(number, set()).add(self.makers[name])
            if number in products:
                continue
            factor = self.carrier(number, carried, cuts)
            if factor is not None:
                self.take(carried, number, factor)
            elif summed:
                end = self.carrier(number, carried, cuts, Kind.SUM)
                if end is not None:
                    carried.names[number] = end.name
        if summed:
            return carried
        kept = set(products)  # with what lies between two of them
        for number in sorted(carried.names, reverse=True):
            if number in kept:
                kept.update(into.get(number, ()))
        return Split({number: name for number, name in carried.names.items() if number in kept})

    def experts(self, number: int, cuts: Sequence[Shares]) -> Factor | None:
        """The factor of the experts in a product with a matrix for each."""
        op, rule = self.func.ops[number], self.rules[number]
        if not has(op, PRODUCT) or rule is None or not self.is_weight(op.operands[_WEIGHT_PORT]):
            return None
        parallel = (f for f in rule.factors if f.kind is Kind.PARALLEL and f.operands[_WEIGHT_PORT] == 0 and f.name != _COLUMN)
        return next((factor for factor in parallel if none_empty(factor.size, cuts)), None)

    def pull(self, split: Split, cuts: Sequence[Shares]) -> None:
        """What is made of weights alone is made in the parts in which it is read."""
        for number in reversed(range(len(self.func.ops))):
            op, rule = self.func.ops[number], self.rules[number]
            if rule is None or number in split.names or not op.results or op.results[0].name not in self.still:
                continue
            wanted = {self.wanted(split, reader, port) for reader, port in self.readers.get(op.results[0].name, ())}
            dim = next(iter(wanted)) if len(wanted) == 1 else None
            factors = (f for f in rule.factors if f.kind is Kind.PARALLEL and f.results[0] == dim and none_empty(f.size, cuts))
            factor = next(factors, None) if dim is not None else None
            if factor is not None:
                split.names[number] = factor.name

    def wanted(self, split: Split, reader: int, port: int) -> int | None:
        """The dimension along which an op reads split, None for whole."""
        rule = self.rules[reader]
        return rule.factor(split.names[reader]).operands[port] if rule is not None and reader in split.names else None

    # -- carrying ------------------------------------------------------------------------------------------------------

    def walk(self, split: Split) -> Iterator[int]:
        """The ops that read what lies split, each once, in order; what ``split`` gains on the way is followed too."""
        heap: list[int] = []
        seen: set[int] = set()
        names: Iterable[str] = list(split.dims)
        while True:
            for name in names:
                for number, _ in self.readers.get(name, ()):
                    if number not in seen:
                        seen.add(number)
                        heapq.heappush(heap, number)
            if not heap:
                return
            number = heapq.heappop(heap)
            yield number
            names = [value.name for value in self.func.ops[number].results if value.name in split.dims]

    def carrier(self, number: int, split: Split, cuts: Sequence[Shares], kind: Kind = Kind.PARALLEL) -> Factor | None:
        """The factor along which all split operands of an op lie."""
        rule = self.rules[number]
        ports = [(port, split.dims[name]) for port, name in enumerate(self.func.ops[number].operands) if name in split.dims]
        for factor in rule.factors if rule is not None else ():
            if (
                factor.kind is kind
                and all(factor.operands[port] == dim for port, dim in ports)
                and none_empty(factor.size, cuts)
            ):
                return factor
        return None

    def take(self, split: Split, number: int, factor: Factor) -> None:
        """Splits an op along a factor."""
        split.names[number] = factor.name
        for value, dim in zip(self.func.ops[number].results, factor.results, strict=True):
            if dim is not None and value.name:
                split.dims[value.name] = dim

    def product_factor(self, number: int, name: str, cuts: Sequence[Shares]) -> Factor | None:
        """Factor ``name`` of a product with a weight, where it is long enough."""
        op, rule = self.func.ops[number], self.rules[number]
        if not has(op, PRODUCT) or rule is None or not self.is_weight(op.operands[_WEIGHT_PORT]):
            return None
        return next((f for f in rule.factors if f.name == name and none_empty(f.size, cuts)), None)

    def is_weight(self, name: str) -> bool:
        return self.is_still(name) and (name not in self.resources or name in self.given.layouts)

    # -- choices -------------------------------------------------------------------------------------------------------

    def choice(self, number: int, per_axis: Sequence[Split]) -> int:
        """The choice of an op by its strategy per axis; what cannot be had is had on fewer axes, at last on none."""
        names = [split.names.get(number, WHOLE) for split in per_axis]
        rule, key = self.rules[number], (self.given.problem.kinds[number], *names)
        if key in self.known:
            return self.known[key]
        wanted = ([WHOLE] * kept + names[kept:] for kept in range(len(names) + 1))
        found = (
            0
            if rule is None
            else next((c for each in wanted if (c := choice_of(self.given, number, rule, each)) is not None), None)
        )
        if found is None:
            raise AssertionError(f"{self.func.ops[number].id} cannot run whole")
        self.known[key] = found
        return found
