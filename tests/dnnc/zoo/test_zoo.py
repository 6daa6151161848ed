"""The zoo: published sizes, typed and valid IR, models that run; what is planned only; what is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from onnx_ir import serde

import ir
from dnnc.compile.load import load_model
from dnnc.engines.onnxruntime.write.export import export_func, reading_tensors
from dnnc.onnx import DIALECTS
from dnnc.onnx.weights import read_resource
from dnnc.zoo import build, build_model, entries
from ir.core.diagnostics import DiagnosticSink, ExitCode, InvalidInput
from ir.core.module import Declared, Inline, Random, Splat
from ir.core.types import TensorType
from tests.dnnc.zoo.zoo_models import CONVOLUTIONAL, SMALL, inputs, run, session


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("vgg19", 143_667_240),
        ("inception-v3", 23_834_568),  # 27,161,264 less the auxiliary classifier's 3,326,696
        ("bert-base", 109_482_240),
        ("bert-large", 335_174_458),
        ("bert-large,head=pooler", 335_141_888),
        ("bert-small,head=pooler", 28_763_648),
        ("whisper-base", 71_825_920),  # 72,593,920 less 1,500 positions of the encoder, which are not trained
        ("gpt2", 124_439_808),
        ("gpt2,qkv=separate", 124_439_808),
        ("mlp", 669_706),
        ("vit-base", 86_567_656),
        ("t5-base", 222_903_552),
        ("t5-large", 737_668_096),
        ("t5-base,version=1.1", 247_577_856),
        ("t5-large,version=1.1", 783_150_080),
        ("llama-7b", 6_738_415_616),
        ("llama-70b", 68_976_648_192),
        ("mixtral-8x7b", 46_702_792_704),
        # 12 d^2 + 13 d a layer, 50,257 tokens, 2,048 positions and the last norm, with d = 12,288
        ("gpt3-175b", 96 * (12 * 12_288**2 + 13 * 12_288) + (50_257 + 2_048 + 2) * 12_288),
    ],
)
def test_parameters_are_those_published(spec: str, parameters: int) -> None:
    assert build_model(spec).parameters == parameters


@pytest.mark.parametrize(
    ("spec", "billions"),
    [
        ("vit-base", 0.0866),
        ("transformer-base", 0.0631),
        ("t5-base", 0.223),
        ("t5-large", 0.738),
        ("llama-7b", 6.74),
        ("llama-70b", 68.98),
        ("gpt3-175b", 174.6),
        ("mixtral-8x7b", 46.7),
    ],
)
def test_parameters_as_papers_round_them(spec: str, billions: float) -> None:
    assert build_model(spec).parameters == pytest.approx(billions * 1e9, rel=0.005)


def test_summaries_say_the_parameters() -> None:
    for entry in entries():
        assert f"{build_model(entry.name).parameters:,} parameters" in entry.summary


@pytest.mark.slow
def test_building_reads_and_makes_no_weights() -> None:
    for entry in entries():
        tracemalloc.start()
        try:
            module = build(entry.name)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 64 << 20
        held = [r.data for r in module.resources.values() if isinstance(r.data, Inline)]
        assert sum(len(data.data) for data in held) < 64 << 10  # places of tokens
        assert any(isinstance(r.data, Random | Declared) for r in module.resources.values())


@pytest.mark.parametrize("name", SMALL)
def test_modules_are_valid_and_print_back(name: str) -> None:
    module = build(SMALL[name])
    assert not ir.verify(module, dialects=DIALECTS)
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


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "llama-70b", "mixtral-8x7b", "t5-large", "vit-base"])
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


@pytest.mark.parametrize("name", [name for name in SMALL if name not in CONVOLUTIONAL])
def test_bfloat16_is_what_operators_take(name: str) -> None:
    """ONNX Runtime's CPU lacks the kernels; other runtimes have them. Conv takes it from opset 22 on."""
    import onnx

    module = build(SMALL[name] + ",dtype=bf16")
    model = serde.to_proto(export_func(module, module.entry, tensors=reading_tensors(Path())))
    onnx.checker.check_model(model, full_check=True)


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


@pytest.mark.parametrize(
    ("spec", "convolutions", "shapes"),
    [
        ("resnet101", 104, {"layer3.22.relu3": "1024x14x14", "layer4.2.relu3": "2048x7x7"}),
        ("vgg19", 16, {"features.36": "512x7x7", "classifier.3": "4096"}),
        (
            "inception-v3",
            94,
            {"maxpool2": "192x35x35", "Mixed_5b": "256x35x35", "Mixed_6a": "768x17x17", "Mixed_7a": "1280x8x8",
             "Mixed_7c": "2048x8x8"},
        ),
    ],
)  # fmt: skip
def test_convolutional_models_have_the_layers_of_torchvision(spec: str, convolutions: int, shapes: dict[str, str]) -> None:
    ops = {op.id: op for op in build(spec).entry.ops}
    assert sum(op.name == "onnx.Conv" for op in ops.values()) == convolutions
    for name, shape in shapes.items():
        assert str(ops[f"%{name}"].results[0].type) == f"tensor<1x{shape}xf32>"


# Weights that are only declared


def data_of(spec: str) -> dict[str, set[type]]:
    """Kinds of data, of weights and of constants."""
    kinds: dict[str, set[type]] = {"weights": set(), "constants": set()}
    for resource in build(spec).resources.values():
        constant = isinstance(resource.data, Inline | Splat)
        kinds["constants" if constant else "weights"].add(type(resource.data))
    return kinds


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("gpt3-175b", Declared),
        ("t5-large", Declared),
        ("t5-large,dtype=f16", Random),
        ("t5-large,weights=random", Random),
        ("resnet50", Random),
        ("resnet50,weights=declared", Declared),
        ("resnet50,classes=1000000", Declared),
    ],
)
def test_weights_above_two_gib_are_declared(spec: str, kind: type) -> None:
    assert data_of(spec)["weights"] == {kind}
    assert build_model(spec).declared == (kind is Declared)


def test_declared_models_are_the_same_program() -> None:
    one, other = build(SMALL["t5-base"]), build(SMALL["t5-base"] + ",weights=declared")
    assert one.entry == other.entry
    assert one.resources.keys() == other.resources.keys()
    assert ir.parse_module(ir.print_module(other)) == other


# What is refused


@pytest.mark.parametrize(
    ("spec", "column", "words"),
    [
        ("zoo:gpt3", 5, "unknown zoo model 'gpt3'; did you mean 'gpt3-175b'?"),
        ("zoo:llama", 5, "did you mean 'llama-70b' or 'llama-7b'?"),
        ("zoo:gtp2", 5, "did you mean 'gpt2'?"),
        (
            "zoo:zzz",
            5,
            "expected one of: bert-base, bert-large, bert-small, gpt2, gpt3-175b, inception-v3, llama-70b, llama-7b, ",
        ),
        ("zoo:gpt2,qkv=both", 10, "found 'both' for qkv, expected one of: fused, separate"),
        ("zoo:gpt2,weights=0", 10, "expected one of: auto, random, declared"),
        ("zoo:llama-7b,heads=8,kv_heads=3", 5, "heads=8 is no multiple of kv_heads=3; kv_heads=2 would fit"),
        ("zoo:llama-7b,hidden=60,heads=4", 5, "heads are 15 wide, hidden=60 over heads=4; an even width was expected"),
        ("zoo:mixtral-8x7b,top=9", 5, "top=9 is more than experts=8"),
        ("zoo:mixtral-8x7b,routing=top", 18, "expected one of: dense, capacity"),
        ("zoo:vit-base,image=100", 5, "image=100 is no multiple of patch=16; image=96 would fit"),
        ("zoo:vit-base,image=8", 5, "image=16 would fit"),
        ("zoo:t5-base,version=2", 13, "expected one of: 1.0, 1.1"),
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
        ("zoo:vgg19,image=100", 5, "image=100 is no multiple of 32; image=96 would fit"),
        ("zoo:inception-v3,image=64", 5, "image=64 is too small; image=75 would do"),
        ("zoo:whisper-base,frames=25", 5, "frames=25; an even number was expected"),
        ("zoo:transformer-base,hidden=65", 5, "hidden=65; an even width from 4 on was expected"),
        ("zoo:mlp,,", 9, "unknown option ''"),
    ],
)
def test_wrong_specs_point_at_the_fault(spec: str, column: int, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        build(spec)
    diagnostic = caught.value.diagnostics[0]
    assert words in diagnostic.message
    assert diagnostic.code.startswith("E05")
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
