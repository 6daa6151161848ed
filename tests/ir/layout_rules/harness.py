"""Runs an op whole and by shards on onnxruntime, and puts the shards' results together as its rule says they fit.

A ``Case`` is an op with its operands as arrays. ``Runs`` collects many small programs (every shard of every strategy) and runs
them as one graph, since what takes time is to make a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from dnnc.engines.torch.statements import prelude, statement
from dnnc.onnx.attributes import attribute_proto
from dnnc.onnx.opdefs import operator_of
from ir.core.attributes import Attribute, attributes
from ir.core.ops import Op, Value
from ir.core.types import DType, Partial, Placement, Replicate, Shard, TensorType, Type
from ir.layout_rules import Constants, Cut, Factor, FixedResult, Kind, LayoutRule, Strategy, localise, rule_of

Array = NDArray[Any]
try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]
_DTYPES = {
    "float32": DType.F32, "float64": DType.F64, "float16": DType.F16, "int64": DType.I64, "int32": DType.I32, "int8": DType.I8,
    "uint8": DType.U8, "uint32": DType.U32, "bool": DType.BOOL,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An op and its operands. ``constants``: those whose elements the rule may read."""

    name: str
    operands: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    results: int = 1
    opset: int = 20
    made: tuple[Type, ...] = ()
    """Types of the results, where the operands do not tell them: of kernels of ``grad``."""

    def op(self, results: Sequence[Type] | None = None) -> Op:
        types = results or self.made or [TensorType(DType.F32)] * self.results
        return Op(
            self.name,
            tuple("" if array is None else f"%x{i}" for i, array in enumerate(self.operands)),
            tuple(Value(f"%y{i}", type_) for i, type_ in enumerate(types)),
            attributes({key: value for key, value in self.attributes.items() if not isinstance(value, Attribute)}),
        )

    def types(self) -> list[Type | None]:
        return [None if array is None else type_of(array) for array in self.operands]

    def numbers(self) -> Constants:
        """Elements of the constant operands."""
        return [
            tuple(array.reshape(-1).tolist()) if array is not None and i in self.constants else None
            for i, array in enumerate(self.operands)
        ]

    def rule(self, results: Sequence[Array]) -> LayoutRule | None:
        types = [type_of(result) for result in results]
        return rule_of(self.op(types), self.types(), types, self.numbers(), {"onnx": self.opset})


def type_of(array: Array) -> TensorType:
    return TensorType(_DTYPES[array.dtype.name], array.shape)


class Runs:
    """Small programs, run together: ``add`` gives a function that yields a program's results after ``run``."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.feeds: dict[str, Array] = {}
        self.wanted: list[str] = []
        self.results: dict[str, Array] = {}
        self.count = 0

    def add(self, ops: Iterable[Op], operands: Sequence[Array | None], results: Iterable[str]) -> Callable[[], list[Array]]:
        self.count += 1
        prefix = f"p{self.count}"
        ops = tuple(ops)
        read = {name for op in ops for name in op.operands}
        for i, array in enumerate(operands):
            if array is not None and f"%x{i}" in read:
                self.feeds[f"{prefix}%x{i}"] = np.asarray(array)  # arithmetic turns arrays of rank 0 into scalars
        for op in ops:
            domain, operator = operator_of(op.name)
            node = onnx.NodeProto(op_type=operator, domain=domain)
            node.input.extend(prefix + name if name else "" for name in op.operands)
            node.output.extend(prefix + value.name for value in op.results)
            node.attribute.extend(attribute_proto(key, attribute) for key, attribute in op.attributes)
            self.nodes.append(node)
        names = [prefix + name for name in results]
        self.wanted += names
        return lambda: [self.results[name] for name in names]

    def run(self) -> None:
        inputs = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feeds.items()
        ]
        graph = onnx.GraphProto(name="g", node=self.nodes, input=inputs)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.wanted)
        domains = [onnx.helper.make_opsetid("", self.opset), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=domains, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.results = dict(zip(self.wanted, session.run(self.wanted, self.feeds), strict=True))


class TorchRuns(Runs):
    """Kernels of ``grad``, run by their statements for torch."""

    def add(self, ops: Iterable[Op], operands: Sequence[Array | None], results: Iterable[str]) -> Callable[[], list[Array]]:
        values = {f"%x{i}": torch.from_numpy(np.array(array)) for i, array in enumerate(operands) if array is not None}
        types: dict[str, Type] = {f"%x{i}": type_of(array) for i, array in enumerate(operands) if array is not None}
        for op in ops:
            names = [f"y{i}" for i in range(len(op.results))]
            given = [f"values[{name!r}]" if name else None for name in op.operands]
            scope: dict[str, Any] = {"values": values, "device": "cpu"}
            exec(prelude([op]) + statement(op, given, names, types), scope)
            values.update((value.name, scope[name]) for value, name in zip(op.results, names, strict=True))
            types.update((value.name, value.type) for value in op.results)
        return lambda: [values[name].numpy() for name in results]

    def run(self) -> None:
        pass


def runner(case: Case) -> Runs:
    return TorchRuns(case.opset) if case.name.startswith("grad.") else Runs(case.opset)


def whole(case: Case) -> list[Array]:
    """The results of the op run whole."""
    runs = runner(case)
    op = case.op()
    get = runs.add([op], case.operands, [value.name for value in op.results])
    runs.run()
    return get()


def part(array: Array, dim: int, cut: Cut) -> Array:
    """A shard of ``array`` along ``dim``."""
    unit = array.shape[dim] // cut.factor.size
    return np.take(array, range(cut.start * unit, (cut.start + cut.length) * unit), axis=dim)


def terms(array: Array, count: int, reduction: str, random: np.random.Generator) -> list[Array]:
    """``count`` arrays whose sum or maximum is ``array``, none of them alike."""
    if reduction == "max":
        spread = [array - random.integers(0, 3, array.shape).astype(array.dtype) for _ in range(count)]
        holder = random.integers(0, count, array.shape)
        return [np.where(holder == i, array, term) for i, term in enumerate(spread)]
    parts = [random.integers(-3, 4, array.shape).astype(array.dtype) for _ in range(count - 1)]
    return [*parts, array - sum(parts, np.zeros_like(array))]


def placed(array: Array, placement: Placement, cuts: Sequence[Cut], count: int, random: np.random.Generator) -> list[Array]:
    """What each member holds of ``array``."""
    match placement:
        case Shard(dim):
            return [part(array, dim, cut) for cut in cuts]
        case Partial(reduction):
            return terms(array, count, reduction, random)
    return [array] * count


def joined(parts: Sequence[Array], placement: Placement) -> Array:
    """The whole array, from what each member holds; replicas must agree."""
    match placement:
        case Shard(dim):
            return np.concatenate(parts, axis=dim)
        case Partial("max"):
            return np.asarray(np.maximum.reduce(list(parts)))
        case Partial():
            return np.asarray(np.add.reduce(list(parts)), parts[0].dtype)
        case Replicate():
            for other in parts[1:]:
                np.testing.assert_allclose(other, parts[0], rtol=1e-6, atol=1e-6)
    return parts[0]


def cuts_of(factor: Factor, count: int, random: np.random.Generator | None) -> list[Cut]:
    """``count`` shards: balanced ones, or with ``random`` any that are not empty."""
    if random is None:
        return [Cut(factor, start, length) for start, length in factor.cuts(count)]
    ends = sorted(random.choice(np.arange(1, factor.size), count - 1, replace=False).tolist())
    edges = [0, *ends, factor.size]
    return [Cut(factor, edges[i], edges[i + 1] - edges[i]) for i in range(count)]


def check_strategies(case: Case, counts: Sequence[int] = (2, 4), seed: int = 0) -> dict[str, int]:
    """Runs every strategy of the op on every number of members, balanced and not, and compares with the op run whole.

    Gives how often each strategy was run. Raises AssertionError where one differs, without the case, which hypothesis and
    pytest tell of: its text takes longer than its ops."""
    random = np.random.default_rng(seed)
    expected = whole(case)
    rule = case.rule(expected)
    assert rule is not None, f"{case.name} has no rule here: {case}"
    types = [type_of(result) for result in expected]
    check_rule(rule, case.types(), types)
    runs = runner(case)
    tried: list[tuple[Strategy, int, list[Callable[[], list[Array]]]]] = []
    for count in counts:
        for strategy in rule.strategies(count):
            if strategy.name == "replicate":
                continue
            for uneven in (False, True) if strategy.factor else (False,):
                cuts = cuts_of(strategy.factor, count, random if uneven else None) if strategy.factor else []
                held = [
                    [None] * count if array is None else placed(array, placement, cuts, count, random)
                    for array, placement in zip(case.operands, strategy.operands, strict=True)
                ]
                members = []
                for member in range(count):
                    ops = localise(case.op(types), case.types(), cuts[member : member + 1], case.numbers())
                    members.append(
                        runs.add(ops, [parts[member] for parts in held], [value.name for value in case.op(types).results])
                    )
                    check_types(ops, case.op(types))
                tried.append((strategy, count, members))
    if tried:
        runs.run()
    done: dict[str, int] = {}
    for strategy, count, members in tried:
        outputs = [member() for member in members]
        for i, (result, placement) in enumerate(zip(expected, strategy.results, strict=True)):
            found = joined([output[i] for output in outputs], placement)
            message = f"{case.name}, {strategy.name} over {count}, result {i}"
            assert found.shape == result.shape, message
            np.testing.assert_allclose(found, result, rtol=2e-4, atol=2e-5, err_msg=message)
        done[strategy.name] = done.get(strategy.name, 0) + 1
    return done


def check_two_axes(case: Case, seed: int = 0) -> int:
    """Runs the op on a mesh of 2 x 2 for every pair of strategies that may stand on different axes, and compares.

    Gives how many. Terms of a sum over one axis and of a maximum over the other do not commute, and are no such pair."""
    random = np.random.default_rng(seed)
    expected = whole(case)
    rule = case.rule(expected)
    assert rule is not None, f"{case.name} has no rule here: {case}"
    op = case.op([type_of(result) for result in expected])
    runs = runner(case)
    tried: list[tuple[Strategy, Strategy, list[list[Callable[[], list[Array]]]]]] = []
    strategies = [strategy for strategy in rule.strategies(2) if strategy.name != "replicate"]
    for first, second in combinations(strategies, 2):
        if _reduction(first) == _reduction(second) or None in (_reduction(first), _reduction(second)):
            rows = cuts_of(first.factor, 2, None) if first.factor else []
            columns = cuts_of(second.factor, 2, None) if second.factor else []
            members: list[list[Callable[[], list[Array]]]] = []
            held = [
                None if array is None else [placed(row, q, columns, 2, random) for row in placed(array, p, rows, 2, random)]
                for array, p, q in zip(case.operands, first.operands, second.operands, strict=True)
            ]
            for i in range(2):
                members.append([])
                for j in range(2):
                    ops = localise(op, case.types(), [*rows[i : i + 1], *columns[j : j + 1]], case.numbers())
                    operands = [None if parts is None else parts[i][j] for parts in held]
                    members[i].append(runs.add(ops, operands, [value.name for value in op.results]))
            tried.append((first, second, members))
    if tried:
        runs.run()
    for first, second, members in tried:
        for k, result in enumerate(expected):
            rows_ = [joined([member()[k] for member in row], second.results[k]) for row in members]
            found = joined(rows_, first.results[k])
            message = f"{case.name}, {first.name} by {second.name}, result {k}"
            np.testing.assert_allclose(found, result, rtol=2e-4, atol=2e-5, err_msg=message)
    return len(tried)


def _reduction(strategy: Strategy) -> str | None:
    """The reduction that a strategy leaves to be done."""
    return next((placement.reduction for placement in strategy.results if isinstance(placement, Partial)), None)


def check_rule(rule: LayoutRule, operands: Sequence[Type | None], results: Sequence[Type | None]) -> None:
    """The invariants of a rule: every dimension above 1 stands in one factor, in whole units; results lack what is reduced."""
    names = [factor.name for factor in rule.factors]
    assert len(set(names)) == len(names)
    for side, types in (("operands", operands), ("results", results)):
        for i, type_ in enumerate(types):
            for dim, length in enumerate((type_.shape or ()) if isinstance(type_, TensorType) else ()):
                found = [factor for factor in rule.factors if getattr(factor, side)[i] == dim]
                assert len(found) == (length != 1), (side, i, dim, found)
                if found and found[0].kind is not Kind.WHOLE:
                    assert isinstance(length, int)
                    assert length % found[0].size == 0
    for factor in rule.shardable:
        assert factor.size > 1
        reduced = all(dim is None for dim in factor.results)
        fixed = any(isinstance(adapt, FixedResult) for adapt in factor.adapt)
        assert reduced == (factor.kind is not Kind.PARALLEL or fixed)
        assert not factor.partial or factor.kind is Kind.SUM


def check_types(ops: Sequence[Op], op: Op) -> None:
    """What ``localise`` gives: the op's results under their names, each name made once."""
    made = [value.name for local in ops for value in local.results]
    assert len(set(made)) == len(made)
    assert {value.name for value in op.results} <= set(made)
