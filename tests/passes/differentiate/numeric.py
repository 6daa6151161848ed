"""Gradients by ``differentiate`` as numbers, and by central differences: of one op, or of any module with a scalar loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from dnnc.engines.onnxruntime.write.export import export_func
from dnnc.onnx.arrays import dtype_of_array, to_dense
from dnnc.onnx.opdefs import DIALECTS
from ir import DType, Func, Inline, Module, Op, OptimizerState, Resource, TensorType, Value, verify
from ir.core.attributes import attributes
from ir.core.facets import UPDATE, phase_of
from ir.ops.grads import ACCUMULATE
from passes.differentiate import DifferentiatePass
from passes.framework.base import PassContext
from passes.graph.graph import renamed

Array = NDArray[Any]
OPSET = 20


@dataclass
class Case:
    """``op`` with float operands that get gradients (``floats``) and others that are constants (``fixed``), by position.

    ``unused``: results that the loss does not read."""

    op: str
    floats: Mapping[int, Array]
    fixed: Mapping[int, Array] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1
    unused: tuple[int, ...] = ()
    shared: bool = False
    """All float operands are one value, the first."""


def module_of(case: Case, *, opset: int = OPSET, computed: bool = False) -> Module:
    """The op, then a random weighting of its results, summed: a scalar. ``computed``: the op reads its float operands as values
    made of the weights, not as the weights."""
    random = np.random.default_rng(0)
    resources, operands = [], []
    for position in range(1 + max([*case.floats, *case.fixed])):
        array = case.floats.get(position, case.fixed.get(position))
        if array is None:
            operands.append("")
            continue
        if case.shared and position in case.floats:
            position = min(case.floats)
        name = f"@x{position}"
        facets = (OptimizerState("sgd"),) if position in case.floats else ()
        if name not in operands:
            resources.append(_resource(name, array, facets))
        operands.append(name)
    values = _evaluate_op(case, opset)
    ahead = []
    if computed:
        types = {resource.name: resource.type for resource in resources if resource.facets}
        ahead = [Op("onnx.Identity", (name,), (Value(f"%{name[1:]}", type_),)) for name, type_ in types.items()]
        operands = [f"%{name[1:]}" if name in types else name for name in operands]
    op = Op(
        f"onnx.{case.op}",
        tuple(operands),
        tuple(Value(f"%y{i}", TensorType(dtype_of_array(value), value.shape)) for i, value in enumerate(values)),
        attributes(case.fields),
    )
    ops, sums = [*ahead, op], []
    for i, value in enumerate(values):
        if i in case.unused or value.dtype.kind != "f":
            continue
        resources.append(_resource(f"@r{i}", random.normal(size=value.shape)))
        type_ = TensorType(DType.F64, value.shape)
        ops.append(Op("onnx.Mul", (f"%y{i}", f"@r{i}"), (Value(f"%p{i}", type_),)))
        ops.append(Op("onnx.ReduceSum", (f"%p{i}",), (Value(f"%s{i}", TensorType(DType.F64, ())),), attributes(keepdims=0)))
        sums.append(f"%s{i}")
    ops.append(Op("onnx.Sum", tuple(sums), (Value("%loss", TensorType(DType.F64, ())),)))
    func = Func("@main", (), (Value("%loss", TensorType(DType.F64, ())),), tuple(ops))
    return Module("@m", (*resources, func), attributes({"opset.onnx": opset}))


def _resource(name: str, array: Array, facets: Any = ()) -> Resource:
    dense = to_dense(np.asarray(array))
    assert isinstance(dense.data, bytes)
    return Resource(name, dense.type, Inline(dense.data), facets=facets)


def _evaluate_op(case: Case, opset: int) -> Sequence[Array]:
    """The results of the op, by ONNX's reference."""
    import onnx

    given = {**case.floats, **case.fixed}
    names = [f"x{i}" if i in given else "" for i in range(1 + max(given))]
    outs = [f"y{i}" for i in range(case.results)]
    node = onnx.helper.make_node(case.op.rpartition(".")[2], names, outs, **case.fields)
    inputs = [
        onnx.helper.make_tensor_value_info(f"x{i}", onnx.helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), np.shape(a))
        for i, a in sorted(given.items())
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in outs]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", inputs, outputs), opset_imports=[onnx.helper.make_opsetid("", opset)]
    )
    with np.errstate(all="ignore"):
        feeds = {f"x{i}": first_of(case, i, np.asarray(a)) for i, a in given.items()}
        return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)]


def first_of(case: Case, position: int, array: Array) -> Array:
    return np.asarray(case.floats[min(case.floats)]) if case.shared and position in case.floats else array


def differentiated(module: Module) -> Module:
    """The module after the pass, verified."""
    after = DifferentiatePass().run(module, PassContext(dialects=DIALECTS))
    assert verify(after, dialects=DIALECTS) == []
    return after


class Numbers:
    """Loss and gradients of a differentiated module as functions of its trained weights and arguments."""

    def __init__(self, after: Module) -> None:
        func = after.entry
        trained = [r for r in after.of_type(Resource) if any(isinstance(f, OptimizerState) for f in r.facets)]
        names = {resource.name: f"%w.{resource.name[1:]}" for resource in trained}
        self.gradients = {op.operands[0]: None for op in func.ops if op.name == ACCUMULATE}
        ops = [replace(op, facets=()) for op in func.ops if phase_of(op.facets) != UPDATE and op.results]
        types = {value.name: value.type for op in ops for value in op.results}
        results = [Value(name, types.get(name)) for name in (func.results[0].name, *self.gradients)]  # type: ignore[arg-type]
        args = [*func.args, *(Value(names[resource.name], resource.type) for resource in trained)]
        plain = Func("@main", tuple(args), tuple(results), renamed(ops, names))
        symbols = [s for s in after.of_type(Resource) if s.name not in names]
        model = export_func(Module("@m", (*symbols, plain), after.attributes), plain)
        self.evaluator = ReferenceEvaluator(onnx_ir.to_proto(model))
        self.reads = [given.name for given in onnx_ir.to_proto(model).graph.input]
        self.weights = gradients_of(func)

    def __call__(self, feeds: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
        """``feeds``: arguments by name, weights by ``w.NAME``."""
        with np.errstate(all="ignore"):
            given = {name: feeds[name] for name in self.reads if name in feeds}
            found: Any = self.evaluator.run(None, given)
        loss, *gradients = found
        by_name = dict(zip(self.gradients, gradients, strict=True))
        return float(loss), {
            weight: np.sum([by_name[name] for name in names], axis=0) for weight, names in self.weights.items()
        }


def gradients_of(func: Func) -> dict[str, list[str]]:
    """Of each weight that is updated, the gradients that are accumulated for it, one per stage."""
    makers = {value.name: op for op in func.ops for value in op.results}

    def accumulated(name: str) -> list[str]:
        op = makers[name]
        return (
            [op.operands[0]] if op.name == ACCUMULATE else [found for operand in op.operands for found in accumulated(operand)]
        )

    return {op.operands[0]: accumulated(op.operands[1]) for op in func.ops if op.name == "grad.sgd"}


def check(case: Case, *, tolerance: float = 1e-5, step: float = 1e-6) -> None:
    """The gradients of the op against central differences along random directions."""
    numbers = Numbers(differentiated(module_of(case)))
    chosen = [min(case.floats)] if case.shared else list(case.floats)
    point = {f"w.x{i}": np.asarray(case.floats[i], np.float64) for i in chosen}
    _, gradients = numbers(point)
    random = np.random.default_rng(1)
    for i in chosen:
        gradient = gradients.get(f"@x{i}")
        for _ in range(2):
            direction = random.normal(size=np.shape(case.floats[i]))
            high, _ = numbers(point | {f"w.x{i}": point[f"w.x{i}"] + step * direction})
            low, _ = numbers(point | {f"w.x{i}": point[f"w.x{i}"] - step * direction})
            wanted = (high - low) / (2 * step)
            found = 0.0 if gradient is None else float(np.sum(gradient * direction))
            assert gradient is None or gradient.shape == direction.shape
            assert np.isclose(found, wanted, rtol=tolerance, atol=tolerance), (case.op, i, found, wanted)
