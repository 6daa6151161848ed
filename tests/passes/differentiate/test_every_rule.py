"""Every rule, by each float operand and of each float result of its operator: the ops of the programs, the oracle of
``dnnc train --check`` and central differences in f64 agree. What no rule knows is refused, never left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from dnnc.onnx.arrays import to_array
from ir import Inline, Module, Resource, Splat, TensorType
from ir.core.diagnostics import InvalidInput
from passes.differentiate import DifferentiatePass
from passes.differentiate.rules import RULES
from tests.passes.differentiate.numeric import Array, Case, module_of
from tests.passes.differentiate.test_rules import MOVES, REDUCTIONS, UNARY, distinct, integers

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
oracle: Any = pytest.importorskip("tests.passes.differentiate.oracle", reason="the extra 'train' is not installed")
OPSET = 23
CAUSAL = {"is_causal": 1}
UNITS = {"hidden_size": 3}
RESET = {"hidden_size": 3, "linear_before_reset": 1}


def floats(*shapes: tuple[int, ...], low: float = -2.0) -> dict[int, Array]:
    random = np.random.default_rng(len(shapes))
    return {i: distinct(random, shape, low) + 0.01 * i for i, shape in enumerate(shapes)}


def recurrent(gates: int, hidden: int) -> dict[int, Array]:
    """Three steps of two samples of two numbers, with a bias and an initial state."""
    rows = gates * hidden
    return {**floats((3, 2, 2), (1, rows, 2), (1, rows, hidden), (1, 2 * rows)), 5: floats((1, 2, hidden))[0]}


def _extended() -> dict[str, Case]:
    """A case of every operator with a rule, by its name, with a gradient wanted of every operand that has one."""
    qkv = floats((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (3, 3))
    positive = floats((3, 4), low=0.5)
    labels, columns = np.array([2, 0, 3]), np.array([[0, 2, 1], [2, 1, 0]])
    statistics = {**floats((3, 4, 2), (4,), (4,), (4,)), 4: np.array([0.5, 1.0, 1.5, 2.0])}
    windows = {"kernel_shape": [2, 2], "strides": [1, 1]}
    found = {
        name: Case(name, {0: distinct(np.random.default_rng(3), (2, 3), *UNARY[name][:2])}, fields=UNARY[name][2])
        for name in UNARY
    }
    found |= {name: Case(name, floats((3, 4), (3, 1), low=0.5)) for name in ("Add", "Sub", "Mul", "Div", "Pow", "PRelu")}
    found |= {name: Case(name, floats((3, 4), (3, 1), (4,))) for name in ("Max", "Min", "Mean", "Sum")}
    found |= {case.op: case for case in MOVES.values()}
    found |= {f"Reduce{name}": Case(f"Reduce{name}", positive, {1: integers(1)}, {"keepdims": 0}) for name in REDUCTIONS}
    one = {
        name: Case(name, floats((3, 4)))
        for name in ("Ceil", "Floor", "Gelu", "LogSoftmax", "Relu", "Round", "Sign", "Softmax", "Swish")
    }
    found |= one | {
        "Attention": Case("Attention", qkv, results=3),
        "AveragePool": Case("AveragePool", floats((1, 2, 4, 4)), fields=windows),
        "BatchNormalization": Case("BatchNormalization", statistics),
        "Cast": Case("Cast", floats((3, 4)), fields={"to": 11}),
        "CastLike": Case("CastLike", floats((3, 4), (1,))),
        "Clip": Case("Clip", {0: distinct(np.random.default_rng(7), (3, 4)), 1: np.array(-0.91), 2: np.array(1.13)}),
        "Col2Im": Case("Col2Im", floats((1, 4, 6)), {1: integers(3, 4), 2: integers(2, 2)}),
        "Concat": Case("Concat", floats((2, 1, 3), (2, 3, 3), (2, 2, 3)), fields={"axis": 1}),
        "Conv": Case("Conv", floats((1, 2, 4, 4), (3, 2, 2, 2), (3,))),
        "ConvTranspose": Case("ConvTranspose", floats((1, 2, 3, 3), (2, 3, 2, 2), (3,))),
        "DFT": Case("DFT", floats((2, 5, 3, 2)), {2: np.array(1)}),
        "Dropout": Case("Dropout", {**floats((3, 4)), 1: np.array(0.5)}, {2: np.array(False)}),
        "Einsum": Case("Einsum", floats((2, 3), (3, 4)), fields={"equation": "ij,jk->ik"}),
        "GRU": Case("GRU", recurrent(3, 3), fields=RESET, results=2),
        "Gemm": Case("Gemm", floats((2, 3), (3, 4), (4,)), fields={"alpha": 0.5, "beta": 2.0}),
        "GlobalMaxPool": Case("GlobalMaxPool", floats((2, 3, 4, 2))),
        "GridSample": Case("GridSample", {0: floats((1, 2, 3, 4))[0], 1: distinct(np.random.default_rng(2), (1, 2, 2, 2)) / 3}),
        "GroupNormalization": Case("GroupNormalization", floats((2, 4, 3), (4,), (4,)), fields={"num_groups": 2}),
        "InstanceNormalization": Case("InstanceNormalization", floats((2, 4, 3), (4,), (4,))),
        "LSTM": Case("LSTM", {**recurrent(4, 3), 6: floats((1, 2, 3))[0]}, fields=UNITS, results=3),
        "LayerNormalization": Case("LayerNormalization", floats((3, 2, 4), (2, 4), (2, 4)), fields={"axis": 1}, results=3),
        "MatMul": Case("MatMul", floats((2, 3, 4), (4, 2))),
        "MaxPool": Case("MaxPool", floats((1, 2, 4, 4)), fields=windows),
        "Mod": Case("Mod", {0: np.array([5.3, -7.1, 2.9]), 1: np.array([2.0, 3.0, -1.7])}, fields={"fmod": 1}),
        "NegativeLogLikelihoodLoss": Case("NegativeLogLikelihoodLoss", floats((3, 4)), {1: labels}),
        "Pad": Case("Pad", {**floats((3, 4)), 2: np.array(0.7)}, {1: integers(1, 0, 2, 3)}),
        "RMSNormalization": Case("RMSNormalization", floats((3, 4), (4,))),
        "RNN": Case("RNN", recurrent(1, 3), fields=UNITS, results=2),
        "Resize": Case("Resize", floats((1, 1, 2, 3)), {3: integers(1, 1, 4, 6)}, {"mode": "linear"}),
        "ScatterElements": Case("ScatterElements", {0: positive[0], 2: floats((2, 3))[0]}, {1: columns}),
        "ScatterND": Case("ScatterND", {0: positive[0], 2: floats((2, 4))[0]}, {1: np.array([[0], [2]])}),
        "SoftmaxCrossEntropyLoss": Case("SoftmaxCrossEntropyLoss", floats((3, 4)), {1: labels}, results=2),
        "Where": Case("Where", {i + 1: array for i, array in floats((3, 4), (3, 1)).items()}, {0: positive[0] > 1.0}),
    }  # fmt: skip
    return found


CASES = _extended()
ALONE = {
    "past keys": Case("Attention", floats(*[(1, 2, 3, 4)] * 3) | dict.fromkeys((4, 5), floats((1, 2, 1, 4))[0]), results=3),
    "past keys alone": Case(
        "Attention", floats(*[(1, 2, 3, 4)] * 3) | dict.fromkeys((4, 5), floats((1, 2, 3, 4))[0]), {}, CAUSAL, 3, (0,)
    ),
    "layer norm, statistics": Case("LayerNormalization", floats((3, 4), (4,), (4,)), results=3, unused=(0,)),
    "layer norm, mean": Case("LayerNormalization", floats((3, 4), (4,)), results=2),
    "layer norm, deviation": Case("LayerNormalization", floats((3, 4), (4,)), results=3, unused=(0, 1)),
    "log probabilities": Case("SoftmaxCrossEntropyLoss", floats((3, 4)), {1: np.array([2, 0, 3])}, results=2, unused=(0,)),
    "trained batch norm": Case(
        "BatchNormalization",
        {**floats((3, 4, 2), (4,), (4,)), 3: np.ones(4), 4: np.ones(4)},
        fields={"training_mode": 1},
        results=3,
        unused=(1, 2),
    ),
    "second part of three": Case("Split", floats((2, 5)), {1: integers(1, 3, 1)}, {"axis": 1}, 3, (0, 2)),
}
"""Further forms: results beyond the first without it, and operands that another rule is for."""
STEPS = ("Ceil", "Floor", "Round", "Sign")
OTHER_DOMAINS = {"com.microsoft.QuickGelu"}
"""Rules of operators that ONNX's reference does not run: they are among ``test_kernels``."""
UNTRAINED = {
    ("Compress", "input"),
    ("LSTM", "P"),
    ("NegativeLogLikelihoodLoss", "weight"),
    ("Resize", "roi"),
    ("Resize", "scales"),
    ("SoftmaxCrossEntropyLoss", "weights"),
}
"""Operands whose gradient is refused."""
UNREAD = {("BatchNormalization", "running_mean"), ("BatchNormalization", "running_var"), ("Attention", "qk_matmul_output")}
"""Results whose gradient is refused."""


def test_every_operand_and_result_of_every_rule_has_a_case() -> None:
    missing = []
    for name in sorted(rule.removeprefix("onnx.") for rule in RULES):
        if name in OTHER_DOMAINS or name == "Compress" or "." in name:  # the last are of dialects without schemas
            continue
        schema, case = onnx.defs.get_schema(name), CASES[name]
        kinds = {kind.type_param_str: kind.allowed_type_strs for kind in schema.type_constraints}
        float_of = {
            formal: any("float" in kind for kind in kinds.get(formal.type_str, [formal.type_str]))
            for formal in (*schema.inputs, *schema.outputs)
        }
        tried = {i for one in (case, *ALONE.values()) if one.op == name for i in one.floats}
        read = {i for i in range(case.results) if i not in case.unused}
        missing += [
            (name, formal.name)
            for i, formal in enumerate(schema.inputs)
            if float_of[formal] and i not in tried and (name, formal.name) not in UNTRAINED
        ]
        missing += [
            (name, formal.name)
            for i, formal in enumerate(schema.outputs)
            if float_of[formal] and i not in read and (name, formal.name) not in UNREAD
        ]
    assert not missing


def values_of(after: Module) -> dict[str, Any]:
    found = {}
    for resource in after.of_type(Resource):
        assert isinstance(resource.type, TensorType)
        if isinstance(resource.data, Inline):
            found[resource.name] = torch.tensor(np.array(to_array(resource.type, resource.data.data)))
        else:
            assert isinstance(resource.data, Splat)
            found[resource.name] = torch.full(resource.type.shape, resource.data.value, dtype=torch.float64)
    return found


@pytest.mark.parametrize("name", STEPS)
def test_steps_have_no_gradient(name: str) -> None:
    with pytest.raises(InvalidInput, match="no gradient of %loss reaches a trained weight"):
        DifferentiatePass().run(module_of(CASES[name], opset=OPSET), oracle.context())


SLOPES = {name: case for name, case in (CASES | ALONE).items() if name not in STEPS}


@pytest.mark.parametrize("case", SLOPES.values(), ids=SLOPES)
def test_programs_and_the_oracle_agree_with_central_differences(case: Case) -> None:
    after = DifferentiatePass().run(module_of(case, opset=OPSET, computed=True), oracle.context())
    values = values_of(after)
    oracle.compare(after, values)
    _, gradients = oracle.by_ops(after, values)
    random = np.random.default_rng(1)
    assert {name for name in gradients} <= {f"@x{i}" for i in case.floats}
    for i in case.floats:
        name, step = f"@x{i}", 1e-6
        direction = torch.from_numpy(np.asarray(random.normal(size=np.shape(case.floats[i]))))
        high, low = (oracle.by_ops(after, {**values, name: values[name] + sign * step * direction})[0] for sign in (1.0, -1.0))
        found = float((gradients[name] * direction).sum()) if name in gradients else 0.0
        assert np.isclose(found, (high - low) / (2 * step), rtol=1e-5, atol=1e-6), (name, found, (high - low) / (2 * step))


AVERAGES = {**floats((3, 4), (4,), (4,)), 3: np.ones(4), 4: np.ones(4)}
WEIGHTED = {**floats((3, 4)), 2: np.ones(4)}
SCALED = {**floats((1, 1, 2, 3)), 2: np.array([1.0, 1.0, 2.0, 2.0])}
REFUSED: Mapping[str, tuple[Case, str]] = {
    "scales": (Case("Resize", SCALED, fields={"mode": "nearest"}), "@x2"),
    "running averages": (Case("BatchNormalization", AVERAGES, fields={"training_mode": 1}, results=3), "%y1, %y2"),
    "class weights": (Case("SoftmaxCrossEntropyLoss", WEIGHTED, {1: np.array([2, 0, 3])}), "class weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_gradient_that_no_rule_knows_is_refused_where_it_is(name: str) -> None:
    case, words = REFUSED[name]
    with pytest.raises(InvalidInput) as raised:
        DifferentiatePass().run(module_of(case, opset=OPSET), oracle.context())
    (told,) = raised.value.diagnostics
    assert f"onnx.{case.op}" in told.message
    assert words in told.message
    assert told.where == "%y0"
