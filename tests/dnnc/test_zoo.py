"""The zoo: published sizes, typed and valid IR, models that run and compute what a plain numpy rewrite computes."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx_ir import serde

import ir
from dnnc.backend.export import export_func, reading_tensors
from dnnc.frontends import load_model
from dnnc.frontends.weights import read_resource
from dnnc.zoo import build, build_model, entries
from ir.diagnostics import DiagnosticSink, ExitCode, InvalidInput
from ir.module import Inline, Module, Random
from ir.types import TensorType

Array = NDArray[Any]
SMALL = {
    "mlp": "mlp,batch=2,inputs=12,hidden=16",
    "gpt2": "gpt2,layers=2,hidden=64,seq=16,vocab=97",
    "bert-base": "bert-base,layers=2,hidden=64,seq=16,vocab=97",
    "resnet50": "resnet50,image=64,width=16",
}


def session(module: Module) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = serde.to_proto(export_func(module, module.entry, tensors=reading_tensors(Path())))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def inputs(module: Module, seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for arg in module.entry.args:
        assert isinstance(arg.type, TensorType)
        shape = tuple(int(dim) for dim in arg.type.shape or ())
        kinds = {"f32": np.float32, "f16": np.float16, "f64": np.float64}
        if arg.type.dtype.is_integer:
            made[arg.name[1:]] = generator.integers(0, 2 if "vocab" not in arg.name else 97, shape)
        else:
            made[arg.name[1:]] = generator.standard_normal(shape).astype(kinds[arg.type.dtype.value])
    return made


def run(module: Module, given: dict[str, Array]) -> list[Array]:
    return list(session(module).run(None, given))


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [("resnet50", 25_557_032), ("bert-base", 109_482_240), ("gpt2", 124_439_808), ("mlp", 669_706)],
)
def test_parameters_are_those_published(spec: str, parameters: int) -> None:
    assert build_model(spec).parameters == parameters


def test_summaries_say_the_parameters() -> None:
    for entry in entries():
        assert f"{build_model(entry.name).parameters:,} parameters" in entry.summary


def test_building_reads_and_makes_no_weights() -> None:
    build("mlp")
    for entry in entries():
        start = time.process_time()
        module = build(entry.name)
        assert time.process_time() - start < 0.5  # 0.01 on a quiet core
        held = [r.data for r in module.resources.values() if isinstance(r.data, Inline)]
        assert sum(len(data.data) for data in held) < 16 << 10
        assert any(isinstance(r.data, Random) for r in module.resources.values())


@pytest.mark.parametrize("name", SMALL)
def test_modules_are_valid_and_print_back(name: str) -> None:
    module = build(SMALL[name])
    assert not ir.verify(module)
    assert ir.parse_module(ir.print_module(module)) == module


@pytest.mark.parametrize("name", SMALL)
def test_every_value_has_a_static_shape(name: str) -> None:
    func = build(SMALL[name]).entry
    for value in (*func.args, *func.results, *(value for op in func.ops for value in op.results)):
        assert isinstance(value.type, TensorType)
        assert value.type.elements is not None


@pytest.mark.parametrize("name", SMALL)
def test_models_run_and_outputs_vary(name: str) -> None:
    module = build(SMALL[name])
    running = session(module)  # refuses the model when a stated shape is wrong
    first, second = (running.run(None, inputs(module, seed)) for seed in (0, 1))
    for one, other, stated in zip(first, second, module.entry.results, strict=True):
        assert isinstance(stated.type, TensorType)
        assert one.shape == stated.type.shape
        assert np.isfinite(one).all()
        assert 0.05 < one.std() < 100
        assert np.abs(one - other).max() > 0.01 * one.std()


@pytest.mark.parametrize("name", SMALL)
def test_half_precision_stays_near(name: str) -> None:
    full, half = build(SMALL[name]), build(SMALL[name] + ",dtype=f16")
    given = inputs(full, 0)
    narrow = {key: value.astype(np.float16) if value.dtype == np.float32 else value for key, value in given.items()}
    for one, other in zip(run(full, given), run(half, narrow), strict=True):
        assert other.dtype == np.float16
        assert np.isfinite(other).all()
        assert np.abs(one - other).max() < 0.05 * np.abs(one).max()


@pytest.mark.parametrize("name", SMALL)
def test_stated_shapes_are_those_of_the_operators(name: str) -> None:
    import onnx

    module = build(SMALL[name])
    model = serde.to_proto(export_func(module, module.entry, tensors=reading_tensors(Path())))
    onnx.checker.check_model(model, full_check=True)  # strict shape inference against the value_info


def test_one_seed_one_model() -> None:
    assert build("mlp") == build("zoo:mlp")
    assert build("mlp,seed=1") != build("mlp")
    weights = [read_resource(build(spec).resources["@fc1.weight"], Path()) for spec in ("mlp", "mlp", "mlp,seed=1")]
    assert np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])
    # Another layer changes no other layer's numbers.
    assert build("mlp,layers=4").resources["@fc1.weight"] == build("mlp").resources["@fc1.weight"]
    # No two weights are alike.
    seeds = [r.data.seed for r in build("bert-base").resources.values() if isinstance(r.data, Random)]
    assert len(set(seeds)) == len(seeds)


def test_the_canonical_spec_names_what_differs() -> None:
    assert build_model("gpt2,seq=16,layers=12,batch=2").spec == "zoo:gpt2,batch=2,seq=16"


def test_the_head_of_gpt2_is_tied_to_its_embedding() -> None:
    module = build("gpt2")
    readers = [op.name for op in module.entry.ops if "@wte.weight" in op.operands]
    assert readers == ["onnx.Gather", "onnx.Gemm"]


def test_the_frontend_knows_the_zoo() -> None:
    assert load_model("zoo:mlp", {}, DiagnosticSink()).module == build("mlp")


# Plain numpy, written from the papers and not from the graphs


def weights_of(module: Module) -> dict[str, Array]:
    return {name[1:]: read_resource(r, Path()).astype(np.float64) for name, r in module.resources.items()}


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def layer_norm(x: Array, w: dict[str, Array], name: str, epsilon: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x: Array, w: dict[str, Array], name: str) -> Array:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def attention(q: Array, k: Array, v: Array, heads: int, allowed: Array) -> Array:
    """One head at a time; ``allowed[i, j]``: position i may look at j."""
    width = q.shape[-1] // heads
    parts = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = np.where(allowed, q[:, part] @ k[:, part].T / math.sqrt(width), -np.inf)
        parts.append(softmax(scores) @ v[:, part])
    return np.concatenate(parts, -1)


def test_mlp_equals_numpy() -> None:
    module = build(SMALL["mlp"])
    given, w = inputs(module, 3), weights_of(module)
    value = given["x"].astype(np.float64)
    for layer in (1, 2, 3):
        value = value @ w[f"fc{layer}.weight"].T + w[f"fc{layer}.bias"]
        value = np.maximum(value, 0) if layer < 3 else value
    assert np.allclose(run(module, given)[0], value, rtol=0, atol=1e-5)


def test_gpt2_equals_numpy() -> None:
    module = build(SMALL["gpt2"])
    given, w = inputs(module, 3), weights_of(module)
    ids = given["input_ids"][0]
    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    causal = np.tril(np.ones((len(ids), len(ids)), bool))
    for layer in range(2):
        q, k, v = np.split(linear(layer_norm(x, w, f"h.{layer}.ln_1", 1e-5), w, f"h.{layer}.attn.c_attn"), 3, -1)
        x = x + linear(attention(q, k, v, 8, causal), w, f"h.{layer}.attn.c_proj")
        wide = gelu_tanh(linear(layer_norm(x, w, f"h.{layer}.ln_2", 1e-5), w, f"h.{layer}.mlp.c_fc"))
        x = x + linear(wide, w, f"h.{layer}.mlp.c_proj")
    logits = layer_norm(x, w, "ln_f", 1e-5) @ w["wte.weight"].T
    assert np.allclose(run(module, given)[0][0], logits, rtol=0, atol=2e-5)


def test_bert_equals_numpy() -> None:
    module = build(SMALL["bert-base"])
    given, w = inputs(module, 3), weights_of(module)
    ids, segments = given["input_ids"][0], given["token_type_ids"][0]
    given["attention_mask"] = np.array([[1] * 11 + [0] * 5])
    allowed = np.broadcast_to(given["attention_mask"][0] == 1, (16, 16))
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][segments]
    x = layer_norm(x + w["embeddings.position_embeddings.weight"][:16], w, "embeddings.LayerNorm", 1e-12)
    for layer in range(2):
        name = f"encoder.layer.{layer}"
        q, k, v = (linear(x, w, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        x = x + linear(attention(q, k, v, 8, allowed), w, f"{name}.attention.output.dense")
        x = layer_norm(x, w, f"{name}.attention.output.LayerNorm", 1e-12)
        wide = gelu_exact(linear(x, w, f"{name}.intermediate.dense"))
        x = layer_norm(x + linear(wide, w, f"{name}.output.dense"), w, f"{name}.output.LayerNorm", 1e-12)
    hidden, pooled = run(module, given)
    assert np.allclose(hidden[0], x, rtol=0, atol=2e-5)
    assert np.allclose(pooled[0], np.tanh(linear(x[0], w, "pooler.dense")), rtol=0, atol=2e-5)


def test_resnet_has_the_layers_of_torchvision() -> None:
    ops = {op.id: op for op in build("resnet50").entry.ops}
    shapes = {name: ops[name].results[0].type for name in ("%conv1", "%maxpool", "%layer1.2.relu3", "%layer4.2.relu3", "%y")}
    assert [str(type_) for type_ in shapes.values()] == [
        "tensor<1x64x112x112xf32>",
        "tensor<1x64x56x56xf32>",
        "tensor<1x256x56x56xf32>",
        "tensor<1x2048x7x7xf32>",
        "tensor<1x1000xf32>",
    ]
    # Version 1.5: the 3x3 convolution of a stage's first block has the stride.
    assert ops["%layer2.0.conv1"].get("strides") == (1, 1)
    assert ops["%layer2.0.conv2"].get("strides") == (2, 2)
    assert sum(op.name == "onnx.Conv" for op in ops.values()) == 53


# What is refused


@pytest.mark.parametrize(
    ("spec", "column", "words"),
    [
        ("zoo:gpt3", 5, "unknown zoo model 'gpt3'; did you mean 'gpt2'?"),
        ("zoo:zzz", 5, "expected one of: bert-base, gpt2, mlp, resnet50"),
        ("zoo:", 5, "unknown zoo model ''"),
        (
            "zoo:gpt2,layer=2",
            10,
            "unknown option 'layer' of zoo:gpt2; did you mean 'layers'? its options, with defaults: batch=1",
        ),
        ("zoo:gpt2,seq=16,layers=two", 17, "found 'two' for layers, expected a whole number from 1 to 10000"),
        ("zoo:gpt2,layers=0", 10, "found '0' for layers"),
        ("zoo:gpt2,layers=-1", 10, "found '-1' for layers"),
        ("zoo:gpt2,hidden=99999999999", 10, "expected a whole number from 1 to"),
        ("zoo:gpt2,layers", 10, "option 'layers' has no value"),
        ("zoo:gpt2,layers=1,layers=2", 19, "option 'layers' is given twice"),
        ("zoo:gpt2,dtype=int8", 10, "expected one of: f32, f16, bf16, f64"),
        ("zoo:gpt2,hidden=100,heads=12", 5, "hidden=100 is no multiple of heads=12; heads=10 would fit"),
        ("zoo:bert-base,seq=600", 5, "seq=600 is longer than positions=512; add positions=600"),
        ("zoo:mlp,,", 9, "unknown option ''"),
    ],
)
def test_wrong_specs_point_at_the_fault(spec: str, column: int, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        build(spec)
    diagnostic = caught.value.diagnostics[0]
    assert words in diagnostic.message
    assert diagnostic.span is not None
    assert (diagnostic.where, diagnostic.span.line, diagnostic.span.column) == (spec, 1, column)
    assert caught.value.exit_code is ExitCode.INVALID_INPUT


def test_every_fault_of_a_spec_is_told() -> None:
    with pytest.raises(InvalidInput) as caught:
        build("gpt2,layers=x,hidden=y,dtype=z")
    assert len(caught.value.diagnostics) == 3


def test_the_example_of_the_readme_builds() -> None:
    module = build("gpt2,layers=2,hidden=64,seq=16")  # 64 has no 12 heads; 8 is the most that divides it
    scores = next(op for op in module.entry.ops if op.id == "%h.0.attn.scores")
    assert str(scores.results[0].type) == "tensor<1x8x16x16xf32>"
