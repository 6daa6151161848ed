"""Every op's statement for torch computes what onnxruntime computes, on random instances."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dnnc.engines.torch.statements import EMITTERS, identifier, prelude, statement
from ir.core.attributes import Dense, attributes
from ir.core.diagnostics import InvalidInput
from ir.core.ops import Location, Op, Value
from ir.core.types import DType, TensorType, Type
from ir.ops.optimizers import COUNTS, DEFAULTS, STATE
from tests.ir.layout_rules.cases import CASES, cases
from tests.ir.layout_rules.harness import Array, Case, type_of, whole

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")


def by_torch(case: Case, results: list[Array]) -> list[Array]:
    """The results of the op by its statement. ``results``: of the same shapes."""
    op = case.op([type_of(result) for result in results])
    operands = [None if array is None else f"x{i}" for i, array in enumerate(case.operands)]
    names = [f"y{i}" for i in range(len(results))]
    types: dict[str, Type] = {f"%x{i}": type_ for i, type_ in enumerate(case.types()) if type_ is not None}
    constants = {
        f"%x{i}": tuple(array.reshape(-1).tolist())
        for i, array in enumerate(case.operands)
        if array is not None and array.size <= 64 and (array.dtype == np.int64 or i in case.constants)
    }
    text = statement(op, operands, names, types, constants, case.opset)
    scope: dict[str, Any] = {"device": "cpu"}
    exec(prelude([op]), scope)
    for i, array in enumerate(case.operands):
        if array is not None:
            scope[f"x{i}"] = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape).copy())
    exec(text, scope)
    return [scope[name].numpy(force=True) for name in names]


@pytest.mark.parametrize("name", sorted(set(EMITTERS) & set(CASES)))
def test_a_statement_computes_what_onnxruntime_does(name: str) -> None:
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(name))
    def check(case: Case) -> None:
        assume("softcap" not in case.attributes and (name != "onnx.Attention" or case.results == case.opset - 22 == 1))
        expected = whole(case)
        for found, wanted in zip(by_torch(case, expected), expected, strict=True):
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5, err_msg=str(case))

    check()


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 2), st.integers(0, 1), st.booleans(), st.booleans())
def test_indices_of_maxima_count_in_the_whole_tensor(spatial: int, storage: int, padded: bool, uneven: bool) -> None:
    x = np.random.default_rng(spatial).permutation(60 * 6**spatial)[: 6 * 6**spatial].astype(np.float32)
    pads = [int(padded)] * spatial + [int(padded) + int(uneven)] * spatial
    fields = {"kernel_shape": [3] * spatial, "strides": [2] * spatial, "pads": pads, "storage_order": storage}
    case = Case("onnx.MaxPool", [x.reshape(2, 3, *[6] * spatial)], fields, results=2)
    expected = whole(case)
    for found, wanted in zip(by_torch(case, expected), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def one(name: str, results: list[Type], **values: object) -> Op:
    return Op(name, ("%x",), tuple(Value(f"%y{i}", type_) for i, type_ in enumerate(results)), attributes(values))


def test_what_torch_lacks_is_told_at_its_node() -> None:
    op = Op("onnx.NonMaxSuppression", ("%x",), (Value("%y", f32(2)),), location=Location("main", "/nms"))
    with pytest.raises(InvalidInput) as caught:
        statement(op, ["x"], ["y"], {"%x": f32(2)})
    assert "onnx.NonMaxSuppression: dnnc cannot write this op as PyTorch" in str(caught.value)
    assert "main: /nms" in str(caught.value)


def test_a_shape_that_is_not_known_is_told() -> None:
    with pytest.raises(InvalidInput, match="needs every dimension of"):
        statement(one("onnx.Reshape", [TensorType(DType.F32, ("n", 2))]), ["x"], ["y"], {"%x": f32(4)})


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_fill_of_bfloat16_is_written(shape: tuple[int, ...]) -> None:
    """Members of a mesh fill with zeros where another one adds a bias."""
    half = Dense(TensorType(DType.BF16, (1,)), b"\x00\x3f")
    fill = Op("onnx.ConstantOfShape", ("%x",), (Value("%y", TensorType(DType.BF16, shape)),), attributes({"value": half}))
    scope: dict[str, Any] = {"device": "cpu"}
    exec(prelude([fill]), scope)
    exec(statement(fill, ["x"], ["y"], {"%x": TensorType(DType.I64, (len(shape),))}, {"%x": shape}), scope)
    assert torch.equal(scope["y"], torch.full(shape, 0.5, dtype=torch.bfloat16))


def test_statements_read_like_those_of_a_person() -> None:
    types: dict[str, Type] = {"%x": f32(2, 6)}
    assert statement(one("onnx.Reshape", [f32(3, 4)]), ["x"], ["y"], types) == "y = x.reshape((3, 4))"
    assert statement(one("onnx.LeakyRelu", [f32(2, 6)], alpha=0.1), ["x"], ["y"], types) == "y = F.leaky_relu(x, 0.1)"
    split = one("onnx.Split", [f32(2, 2), f32(2, 4)], axis=1)
    assert statement(split, ["x"], ["a", ""], types) == "a, _ = torch.split(x, [2, 4], dim=1)"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=6), max_size=12))
def test_every_name_becomes_an_identifier_of_its_own(names: list[str]) -> None:
    taken: set[str] = set()
    found = [identifier(f"%{name}", taken) for name in names]
    assert len(set(found)) == len(names)
    for name in found:
        assert name.isidentifier()
        exec(f"{name} = 1", {})


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_optimizers_step_as_those_of_torch(name: str, decay: float) -> None:
    """20 steps on the same gradients, bit for bit; weight and state are updated in place where they are resources."""
    numbers = {**DEFAULTS[name], "weight_decay": decay}
    states = [f"@w.{state}" for state in STATE[name]]
    step = ["%step"] if name in COUNTS else []
    results = tuple(Value(f"%n{i}", f32(3, 4)) for i in range(1 + len(states)))
    op = Op(f"grad.{name}", ("@w", "%g", *states, *step), results, attributes(numbers))
    names = ["w", "g", *(f"s{i}" for i in range(len(states))), *(["step"] if step else [])]
    made = [f"n{i}" for i in range(len(results))]
    text = statement(op, names, made, {name: f32(3, 4) for name in op.operands})
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 4, generator=random)
    ours = weight.clone()
    scope: dict[str, Any] = {"w": ours, **{f"s{i}": torch.zeros(3, 4) for i in range(len(states))}}
    exec(prelude([op]), scope)
    leaf = weight.clone().requires_grad_()
    rate, betas = numbers["learning_rate"], (numbers.get("beta1", 0.9), numbers.get("beta2", 0.999))
    optimizer = {
        "sgd": lambda: torch.optim.SGD([leaf], rate, weight_decay=decay),
        "momentum": lambda: torch.optim.SGD([leaf], rate, numbers["momentum"], weight_decay=decay),
        "adam": lambda: torch.optim.Adam([leaf], rate, betas, numbers["epsilon"], decay, fused=True),
        "adamw": lambda: torch.optim.AdamW([leaf], rate, betas, numbers["epsilon"], decay, fused=True),
    }[name]()
    for number in range(1, 21):
        leaf.grad = torch.randn(3, 4, generator=random)
        optimizer.step()
        scope.update(g=leaf.grad.clone(), step=number)
        exec(text, scope)
        assert scope["n0"] is ours
        assert torch.equal(ours, leaf.detach())


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_torch(name: str) -> None:
    """Of each optimizer's signature in torch: those that are numbers here, and those that the ops do not have."""
    classes = {"sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    classes["adafactor"] = torch.optim.Adafactor
    said = {key: parameter.default for key, parameter in inspect.signature(classes[name]).parameters.items()}
    ours = {"lr": "learning_rate", "eps": "epsilon", "weight_decay": "weight_decay"}
    ours |= {"beta2_decay": "beta2_decay", "d": "threshold"}
    wanted = {ours[key]: value for key, value in said.items() if key in ours}
    if "betas" in said:
        wanted["beta1"], wanted["beta2"] = said["betas"]
    if name == "adafactor":
        assert wanted.pop("epsilon") == (None, 0.001)
        wanted |= {"epsilon1": torch.finfo(torch.float32).eps, "epsilon2": 0.001}
    if name == "momentum":
        wanted["momentum"] = 0.9  # torch has 0 there, which is sgd
    assert wanted == DEFAULTS[name]
    assert not any(said.get(key) for key in ("dampening", "nesterov", "amsgrad", "maximize"))
