"""Rules whose gradients are kernels, as torch runs them: against central differences and torch's autograd, in f64, on random
shapes; and what they cost against the facts that plans are made by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dnnc.onnx.opdefs import DIALECTS
from ir import DType, Func, Inline, Location, Module, Op, OptimizerState, Resource, TensorType, Type, Value, verify
from ir.core.attributes import attributes
from ir.core.facets import Cost, phase_of
from ir.text.dense import dense_data
from passes.differentiate import DifferentiatePass
from passes.framework.base import PassContext
from passes.prepare.cost import CostPass
from tests.ir.layout_rules.attention_cases import trained_attention
from tests.ir.layout_rules.cases import CASES
from tests.ir.layout_rules.harness import Case, type_of, whole
from tests.ir.layout_rules.making import Make, Maker

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
backend: Any = pytest.importorskip("dnnc.engines.torch.statements.run", reason="the extra 'train' is not installed")


def wide(type_: Type) -> Type:
    """f32 as f64."""
    return replace(type_, dtype=DType.F64) if isinstance(type_, TensorType) and type_.dtype is DType.F32 else type_


def module_of(case: Case, trained: tuple[int, ...], dtype: type = np.float64) -> Module:
    """The op on trained weights and constants, its first result weighted at random and summed."""
    resources = []
    for i, array in enumerate(case.operands):
        if array is not None:
            array = np.asarray(array, dtype) if array.dtype.kind == "f" else np.asarray(array)
            facets = (OptimizerState("sgd"),) if i in trained else ()
            resources.append(Resource(f"@x{i}", type_of(array), Inline(array.tobytes()), facets=facets))
    found = [type_of(result) for result in whole(case)]
    op = case.op([wide(type_) if dtype is np.float64 else type_ for type_ in found])
    op = replace(op, operands=tuple(name.replace("%", "@") for name in op.operands))
    made = op.results[0].type
    assert isinstance(made, TensorType)
    scalar = TensorType(made.dtype, ())
    weights = np.random.default_rng(0).normal(size=found[0].shape).astype(dtype)
    resources.append(Resource("@r", made, Inline(weights.tobytes())))
    product = Op("onnx.Mul", ("%y0", "@r"), (Value("%p", made),))
    loss = Op("onnx.ReduceSum", ("%p",), (Value("%loss", scalar),), attributes({"keepdims": 0}))
    func = Func("@main", (), (Value("%loss", scalar),), (op, product, loss))
    return Module("@m", (*resources, func), attributes({"opset.onnx": case.opset}))


def tensors(module: Module) -> dict[str, Any]:
    """The resources as torch holds them."""
    found = {}
    for resource in module.of_type(Resource):
        assert isinstance(resource.type, TensorType)
        if isinstance(resource.data, Inline):
            data = resource.data.data
        else:
            data = dense_data(resource.type.dtype, [str(resource.data.value)] * (resource.type.elements or 0))
        names = {DType.F64: "float64", DType.F32: "float32", DType.I64: "int64", DType.I32: "int32", DType.BOOL: "bool"}
        array = np.frombuffer(bytes(data), names[resource.type.dtype]).reshape(resource.type.shape)
        found[resource.name] = torch.from_numpy(array.copy())
    return found


def check(case: Case, trained: tuple[int, ...]) -> Module:
    """Compares the gradients of the op; gives the differentiated module."""
    module = module_of(case, trained)
    after = DifferentiatePass(learning_rate=1.0).run(module, PassContext(dialects=DIALECTS))
    assert verify(after, dialects=DIALECTS) == []
    values = tensors(after)
    before = {name: value.clone() for name, value in values.items()}
    backend.run_function(after.entry, after, values)
    leaves = {f"@x{i}": before[f"@x{i}"].clone().requires_grad_() for i in trained}
    (loss,) = backend.run_function(module.entry, module, {**before, **leaves})
    by_autograd = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, leaf), wanted in zip(leaves.items(), by_autograd, strict=True):
        found = before[name] - values[name]  # a step of length 1
        wanted = torch.zeros_like(leaf) if wanted is None else wanted
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9, msg=lambda text: f"{text}\n{case}")
        direction = torch.from_numpy(np.random.default_rng(1).normal(size=tuple(leaf.shape)))
        high, low = (
            backend.run_function(module.entry, module, {**before, name: before[name] + sign * 1e-6 * direction})[0]
            for sign in (1, -1)
        )
        slope = float(high - low) / 2e-6
        assert np.isclose(float((found * direction).sum()), slope, rtol=1e-4, atol=1e-6), (name, case)
    return after


def loss_case(name: str) -> Make:
    def make(m: Maker) -> Case:
        batch, classes, places = m.length(1, 2, 4), m.length(2, 3, 5), m.shape(0, 2)
        labels = m.random.integers(0, classes, (batch, *places))
        fields: dict[str, Any] = {"reduction": m.pick("none", "sum", "mean")}
        if m.flag():
            fields["ignore_index"] = m.pick(-100, 1)
            labels = np.where(m.random.integers(0, 3, labels.shape) == 0, fields["ignore_index"], labels)
            labels.reshape(-1)[0] = 0
        weights = [m.floats(classes, low=0.5, high=1.5)] if m.flag() else []
        return Case(name, [m.floats(batch, classes, *places), labels, *weights], fields)

    return make


def windows(m: Maker, spatial: int) -> dict[str, Any]:
    """Any windows: overlapping ones, pads that differ, dilations, SAME."""
    fields: dict[str, Any] = {"kernel_shape": [m.pick(1, 2, 3) for _ in range(spatial)]}
    fields["strides"] = [m.pick(1, 2, 3) for _ in range(spatial)]
    if m.flag():
        fields["auto_pad"] = m.pick("SAME_UPPER", "SAME_LOWER", "VALID")
        pairs = zip(fields["strides"], fields["kernel_shape"], strict=True)
        fields["strides"] = [min(stride, width) for stride, width in pairs]  # others would need pads below zero
    else:
        pads = [m.pick(*range(width)) for width in fields["kernel_shape"]]
        ends = pads if m.flag() else [m.pick(*range(width)) for width in fields["kernel_shape"]]
        fields["pads"] = [*pads, *ends]
    return fields


def conv(m: Maker) -> Case:
    spatial, group = m.pick(1, 2, 2, 3), m.pick(1, 1, 2, 3)
    inputs, outputs = group * m.pick(1, 2), group * m.pick(1, 2)
    fields = windows(m, spatial) | {"group": group}
    if fields.get("auto_pad", "NOTSET") in ("NOTSET", "VALID") and m.flag():
        fields["dilations"] = [m.pick(1, 2) for _ in range(spatial)]
    x = m.floats(m.pick(1, 2), inputs, *(m.pick(5, 6, 7) for _ in range(spatial)))
    w = m.floats(outputs, inputs // group, *fields["kernel_shape"])
    return Case("onnx.Conv", [x, w, *([m.floats(outputs)] if m.flag() else [])], fields)


def conv_transpose(m: Maker) -> Case:
    spatial, group = m.pick(1, 2), m.pick(1, 1, 2)
    inputs, outputs = group * m.pick(1, 2), m.pick(1, 2)
    kernel, strides = [m.pick(2, 3) for _ in range(spatial)], [m.pick(1, 2, 3) for _ in range(spatial)]
    more = [m.pick(*range(stride)) for stride in strides]
    pad = [m.pick(0, 1) for _ in range(spatial)]
    fields = {"group": group, "strides": strides, "pads": pad * 2, "output_padding": more, "kernel_shape": kernel}
    x, w = m.floats(m.pick(1, 2), inputs, *(m.pick(3, 4) for _ in range(spatial))), m.floats(inputs, outputs, *kernel)
    return Case("onnx.ConvTranspose", [x, w, *([m.floats(outputs * group)] if m.flag() else [])], fields)


def pool(name: str) -> Make:
    def make(m: Maker) -> Case:
        spatial = m.pick(1, 2, 2, 3)
        fields = windows(m, spatial)
        if "auto_pad" not in fields and m.flag():
            fields["ceil_mode"] = 1
        if name == "AveragePool":
            fields["count_include_pad"] = int(m.flag())
        if fields.get("auto_pad", "NOTSET") == "NOTSET" and "ceil_mode" not in fields and m.flag():
            fields["dilations"] = [m.pick(1, 2) for _ in range(spatial)]
        return Case(f"onnx.{name}", [m.floats(m.pick(1, 2), m.pick(1, 3), *(m.pick(5, 6) for _ in range(spatial)))], fields)

    return make


def fold(m: Maker) -> Case:
    spatial = m.pick(1, 2)
    block, image = [m.pick(1, 2, 3) for _ in range(spatial)], [m.pick(5, 6) for _ in range(spatial)]
    fields: dict[str, Any] = {"strides": [m.pick(1, 2) for _ in block], "dilations": [m.pick(1, 2) for _ in block]}
    fields["pads"] = [m.pick(0, 1) for _ in (*block, *block)]
    pads = [fields["pads"][i] + fields["pads"][spatial + i] for i in range(spatial)]
    spans = [d * (k - 1) + 1 for d, k in zip(fields["dilations"], block, strict=True)]
    lengths = zip(image, pads, spans, fields["strides"], strict=True)
    windows_ = int(np.prod([(length + pad - span) // stride + 1 for length, pad, span, stride in lengths]))
    x = m.floats(m.pick(1, 2), m.pick(1, 2) * int(np.prod(block)), windows_)
    return Case("onnx.Col2Im", [x, np.array(image), np.array(block)], fields, constants=(1, 2))


def grid_sample(m: Maker) -> Case:
    spatial = m.pick(2, 2, 3)
    batch, before, after = m.pick(1, 2), [m.pick(2, 3, 4) for _ in range(spatial)], [m.pick(1, 2, 3) for _ in range(spatial)]
    fields = {"mode": m.pick("linear", "linear", "nearest", *(["cubic"] if spatial == 2 else []))}
    fields |= {"padding_mode": m.pick("zeros", "border", "reflection"), "align_corners": int(m.flag())}
    grid = m.floats(batch, *after, spatial, low=-1.3, high=1.3)
    return Case("onnx.GridSample", [m.floats(batch, m.pick(1, 2), *before), grid], fields)


def einsum(m: Maker) -> Case:
    """Dots that broadcast, and letters that stand twice in a term."""
    a, b, c = (m.length(2, 3) for _ in range(3))
    kinds: dict[str, list[tuple[int, ...]]] = {
        "ii->i": [(a, a)],
        "bii->b": [(b, a, a)],
        "aba,bc->ac": [(a, b, a), (b, c)],
        "...ij,...jk->...ik": [(*m.pick((c, b), (1, b)), a, b), (*m.pick((c, b), (c, 1)), b, c)],
        "...i,i": [(c, b, a), (a,)],
        "i...,...": [(a, b, c), (b, m.pick(1, c))],
        "iij,jkk->k": [(a, a, b), (b, c, c)],
        "iii->i": [(a, a, a)],
    }
    equation = m.pick(*kinds)
    return Case("onnx.Einsum", [m.floats(*shape) for shape in kinds[equation]], {"equation": equation})


def with_past(m: Maker) -> Case:
    """Attention that gives keys and values with those before them."""
    batch, shared, repeat, rows, keys, past, width = (m.pick(1, 2) for _ in range(7))
    shapes = [(batch, shared * repeat, rows, 4), (batch, shared, keys, 4), (batch, shared, keys, width)]
    fields: dict[str, Any] = {"is_causal": int(m.flag())}
    if m.flag():
        shapes = [(b, length, heads * size) for b, heads, length, size in shapes]
        fields |= {"q_num_heads": shared * repeat, "kv_num_heads": shared}
    caches = [m.floats(batch, shared, past, 4), m.floats(batch, shared, past, width)]
    mask = m.floats(rows, past + keys) if m.flag() else None
    return Case("onnx.Attention", [*(m.floats(*shape) for shape in shapes), mask, *caches], fields, results=3, opset=23)


def resize(m: Maker) -> Case:
    before = [m.pick(2, 3, 4) for _ in range(m.pick(1, 2, 3))]
    kind = m.pick("nearest", "linear", "corners")
    after = [length * m.pick(1, 2, 3) if kind == "nearest" else m.pick(2, 3, 5, 8) for length in before]
    fields = {
        "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        "linear": {"mode": "linear"},
        "corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    }[kind]
    sizes = np.array([2, 3, *after], np.int64)
    return Case("onnx.Resize", [m.floats(2, 3, *before), None, None, sizes], fields, constants=(3,))


def batch_norm(trains: bool) -> Make:
    def make(m: Maker) -> Case:
        shape = (m.pick(2, 3), m.length(1, 2, 3), *m.shape(0, 2))
        numbers = [m.floats(shape[1], low=0.5, high=1.5) for _ in range(4)]
        fields = {"training_mode": int(trains), "epsilon": 1e-3}
        return Case("onnx.BatchNormalization", [m.floats(*shape), *numbers], fields, results=3 if trains else 1)

    return make


def softmax(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape()
        return Case(f"onnx.{name}", [m.floats(*shape)], {"axis": m.axis(len(shape))}, opset=m.pick(11, 20))

    return make


def gelu(m: Maker) -> Case:
    return Case("onnx.Gelu", [m.floats(*m.shape())], {"approximate": m.pick("none", "tanh")})


def relu(m: Maker) -> Case:
    return Case("onnx.Relu", [m.floats(*m.shape())])


def recurrent(name: str) -> Make:
    """One direction or two, with or without a bias and initial states."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[name]

    def make(m: Maker) -> Case:
        steps, batch, width, hidden, directions = m.pick(1, 3), m.pick(1, 2), 2, 3, m.pick(1, 2)
        rows, state = gates * hidden, (directions, batch, hidden)
        fields: dict[str, Any] = {"hidden_size": hidden}
        fields["direction"] = m.pick("forward", "reverse") if directions == 1 else "bidirectional"
        fields |= {"linear_before_reset": 1} if name == "GRU" else {}
        if name == "RNN":
            fields["activations"] = [m.pick("Tanh", "Relu")] * directions
        operands: list[Any] = [m.floats(steps, batch, width), m.floats(directions, rows, width)]
        operands += [m.floats(directions, rows, hidden), m.floats(directions, 2 * rows) if m.flag() else None, None]
        operands += [m.floats(*state) if m.flag() else None]
        operands += [m.floats(*state) if m.flag() else None] if name == "LSTM" else []
        return Case(f"onnx.{name}", operands, fields, results=3 if name == "LSTM" else 2)

    return make


MAKERS: Mapping[str, tuple[Make, tuple[int, ...]]] = {
    "attention": (trained_attention, (0, 1, 2)),
    "attention with past": (with_past, (0, 1, 2, 4, 5)),
    "average pool": (pool("AveragePool"), (0,)),
    "batch norm, frozen": (batch_norm(False), (0, 1, 2)),
    "batch norm, trained": (batch_norm(True), (0, 1, 2)),
    "conv": (conv, (0, 1, 2)),
    "conv transpose": (conv_transpose, (0, 1, 2)),
    "cross entropy": (loss_case("onnx.SoftmaxCrossEntropyLoss"), (0,)),
    "einsum": (einsum, (0, 1)),
    "fold": (fold, (0,)),
    "gelu": (gelu, (0,)),
    "global max": (CASES["onnx.GlobalMaxPool"], (0,)),
    "grid sample": (grid_sample, (0, 1)),
    "gru": (recurrent("GRU"), (0, 1, 2, 3, 5)),
    "group norm": (CASES["onnx.GroupNormalization"], (0, 1, 2)),
    "instance norm": (CASES["onnx.InstanceNormalization"], (0, 1, 2)),
    "layer norm": (CASES["onnx.LayerNormalization"], (0, 1, 2)),
    "likelihood": (loss_case("onnx.NegativeLogLikelihoodLoss"), (0,)),
    "log softmax": (softmax("LogSoftmax"), (0,)),
    "lstm": (recurrent("LSTM"), (0, 1, 2, 3, 5, 6)),
    "max pool": (pool("MaxPool"), (0,)),
    "quick gelu": (CASES["onnx.com.microsoft.QuickGelu"], (0,)),
    "relu": (relu, (0,)),
    "resize": (resize, (0,)),
    "rms norm": (CASES["onnx.RMSNormalization"], (0, 1)),
    "rnn": (recurrent("RNN"), (0, 1, 2, 3, 5)),
    "softmax": (softmax("Softmax"), (0,)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_gradients(name: str) -> None:
    make, floats = MAKERS[name]

    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def random_instances(data: st.DataObject) -> None:
        case = make(Maker(data.draw))
        trained = tuple(i for i in floats if i < len(case.operands) and case.operands[i] is not None)
        left = data.draw(st.sets(st.sampled_from(trained), min_size=1))
        check(case, tuple(sorted(left)))

    random_instances()


def counted(module: Module) -> Module:
    return CostPass().run(module, PassContext(dialects=DIALECTS))


def facts_of(module: Module) -> Cost:
    return next(op.facet(Cost, Cost()) for op in counted(module).entry.ops if op.location.node == "op")


EXACT = {
    "attention", "average pool", "batch norm, trained", "conv", "conv transpose", "fold", "gelu", "grid sample", "gru",
    "instance norm", "layer norm", "log softmax", "lstm", "max pool", "relu", "resize", "rms norm", "rnn", "softmax",
}  # fmt: skip
"""Ops whose gradients are kernels and nothing else, but for the sums that give the gradient of a bias."""


@pytest.mark.parametrize("name", sorted(EXACT | {"cross entropy", "likelihood"}))
def test_costs_are_counted_twice(name: str) -> None:
    """The flops of the backward ops are those by which the forward op was planned, and what they read of the forward pass is
    what it said that it keeps."""
    make, floats = MAKERS[name]

    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(st.data())
    def random_instances(data: st.DataObject) -> None:
        case = make(Maker(data.draw))
        if case.opset < 13 or case.attributes.get("reduction", "none") != "none":
            return
        weights = [i for i in floats[1:] if name != "attention" and i < len(case.operands)]
        if any(np.size(case.operands[i]) == 1 for i in (0, *weights)):
            return  # a resource of one element is a constant to the facts
        module, after = as_planned(case, weights)
        facts = facts_of(module)
        backward = [op for op in counted(after).entry.ops if phase_of(op.facets) in ("I", "W")]
        own = [op for op in backward if op.location.node == "op"]
        assert sum(op.facet(Cost, Cost()).flops for op in own) == facts.input_grad + facts.weight_grad, (case, own)
        made = {value.name: value.type for op in after.entry.ops if phase_of(op.facets) == "F" for value in op.results}
        made |= {argument.name: argument.type for argument in after.entry.args}
        kept = {operand for op in own for operand in op.operands if operand in made}
        assert sum(made[name].nbytes for name in kept) == facts.saved, (case, kept, facts)

    random_instances()


def as_planned(case: Case, weights: list[int]) -> tuple[Module, Module]:
    """The op on weights and on values that depend on one, and its differentiated module."""
    trained = (*weights, *(i for i, array in enumerate(case.operands) if array is not None and array.dtype.kind == "f"))
    module = module_of(case, tuple(sorted({*trained} - set(_fixed(case)))), np.float32)
    op, *rest = module.entry.ops
    ahead, names = [], list(op.operands)
    for i in sorted({*trained} - set(weights) - set(_fixed(case))):
        type_ = next(r.type for r in module.of_type(Resource) if r.name == f"@x{i}")
        ahead.append(Op("onnx.Identity", (f"@x{i}",), (Value(f"%v{i}", type_),)))
        names[i] = f"%v{i}"
    for i in (i for i, array in enumerate(case.operands) if array is not None and array.dtype.kind != "f"):
        if i not in case.constants and case.operands[i].dtype == np.int64 and "Loss" in case.name:  # type: ignore[union-attr]
            type_ = next(r.type for r in module.of_type(Resource) if r.name == f"@x{i}")
            ahead.append(Op("onnx.Identity", (f"@x{i}",), (Value(f"%v{i}", type_),)))
            names[i] = f"%v{i}"
    op = replace(op, operands=tuple(names), location=Location("main", "op"))
    func = replace(module.entry, ops=(*ahead, op, *rest))
    module = module.replace(module.entry, func)
    return module, DifferentiatePass().run(module, PassContext(dialects=DIALECTS))


def _fixed(case: Case) -> tuple[int, ...]:
    """Float operands that no gradient is asked of: running averages, class weights, masks."""
    if "Loss" in case.name:
        return (2,)
    return {"onnx.BatchNormalization": (3, 4), "onnx.Attention": (3,), "onnx.Resize": (1, 2)}.get(case.name, ())
