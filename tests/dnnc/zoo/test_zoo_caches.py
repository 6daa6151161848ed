"""Decoders with caches compute, step by step, what they compute of the whole sequence, in both formats of exporters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_ir import serde

import ir
from dnnc.engines.onnxruntime.write.export import export_func, reading_tensors
from dnnc.onnx import DIALECTS
from dnnc.onnx.weights import read_resource
from dnnc.zoo import build, build_model
from ir.core.diagnostics import InvalidInput
from ir.core.module import Declared, Module, Random
from ir.core.types import DType, TensorType
from tests.dnnc.zoo.zoo_models import CACHED, ENCODED, Array, session

FORMATS = ("concat", "inplace")
TOKENS = 16
IDS = np.random.default_rng(0).integers(0, 97, (2, TOKENS))


def logits_by_step(module: Module, kind: str, step: int, given: dict[str, Array] | None = None) -> Array:
    """The logits of ``IDS``, ``step`` tokens at a time. Appended caches keep their length: the oldest positions fall out, and
    those that hold no token yet are padding."""
    running = session(module)
    sizes = {port.name: port.shape for port in running.get_inputs()}
    feeds = {name: np.zeros(shape, np.float32) for name, shape in sizes.items() if name.startswith("past")} | (given or {})
    context = sizes["attention_mask"][1]
    found = []
    for start in range(0, TOKENS, step):
        seen = start + step
        mask = np.zeros((len(IDS), context), np.int64)
        mask[:, slice(context - seen, None) if kind == "concat" else slice(0, seen)] = 1
        feeds |= {"input_ids": IDS[:, start:seen], "attention_mask": mask}
        if "position_ids" in sizes:  # T5 counts places of the cache, which are positions but for padding before them
            first = context - step if given and kind == "concat" else start
            feeds["position_ids"] = np.tile(np.arange(first, first + step), (len(IDS), 1))
        logits, *caches = running.run(None, feeds)
        found.append(logits)
        for port, cache in zip(running.get_outputs()[1:], caches, strict=True):
            feeds[port.name.replace("present", "past_key_values")] = cache[:, :, step:] if kind == "concat" else cache
    return np.concatenate(found, 1)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("step", [1, 4])
def test_steps_with_caches_give_the_logits_of_the_whole_sequence(name: str, kind: str, step: int) -> None:
    spec = f"{CACHED[name]},batch={len(IDS)}"
    whole = session(build(f"{spec},seq={TOKENS}")).run(None, {"input_ids": IDS})[0]
    context = TOKENS + (step if kind == "concat" else 3)
    module = build(f"{spec},seq={step},cache={kind},context={context}")
    near = 1e-2 if "int4" in name else 2e-5  # packed products round rows to 8 bits: a last bit before may be a step behind
    np.testing.assert_allclose(logits_by_step(module, kind, step), whole, rtol=0, atol=near)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("step", [1, 4])
def test_an_encoder_writes_what_the_steps_of_its_decoder_read(name: str, kind: str, step: int) -> None:
    spec = f"{ENCODED[name]},batch={len(IDS)}"
    source = {"input_ids": np.random.default_rng(1).integers(0, 97, (2, 11)), "attention_mask": np.ones((2, 11), np.int64)}
    source["attention_mask"][0, 8:] = 0
    whole = session(build(f"{spec},target_seq={TOKENS}")).run(None, {**source, "decoder_input_ids": IDS})[0]
    encoder = session(build(f"{spec},cache=cross"))
    given = {
        port.name.replace("present", "past_key_values"): value
        for port, value in zip(encoder.get_outputs(), encoder.run(None, source), strict=True)
    }
    given["encoder_attention_mask"] = source["attention_mask"]
    module = build(f"{spec},target_seq={step},cache={kind},context={TOKENS + (step if kind == 'concat' else 3)}")
    np.testing.assert_allclose(logits_by_step(module, kind, step, given), whole, rtol=0, atol=2e-5)


def test_sequences_of_a_batch_may_differ_in_length() -> None:
    """In place, each sequence is as long as its row of the mask says."""
    spec = f"{CACHED['llama-70b']},seq=1,cache=inplace,context=8"
    together, alone = session(build(f"{spec},batch=2")), session(build(f"{spec},batch=1"))

    def run(running: object, ids: Array, lengths: list[int], caches: list[Array]) -> list[Array]:
        mask = np.arange(8) < np.array(lengths)[:, None]
        names = [port.name for port in alone.get_inputs()[2:]]
        feeds = {"input_ids": ids, "attention_mask": mask.astype(np.int64), **dict(zip(names, caches, strict=True))}
        return running.run(None, feeds)  # type: ignore[attr-defined, no-any-return]

    random = np.random.default_rng(2)
    caches = [random.standard_normal((2, 2, 8, 16)).astype(np.float32) for _ in range(4)]
    ids, lengths = IDS[:, :1], [3, 7]
    both = run(together, ids, lengths, caches)
    for i in range(2):
        single = run(alone, ids[i : i + 1], lengths[i : i + 1], [cache[i : i + 1] for cache in caches])
        for one, other in zip(both, single, strict=True):
            np.testing.assert_allclose(one[i : i + 1], other, rtol=0, atol=1e-5)


CASES = [
    *(f"{spec},cache={kind}" for spec in (*CACHED.values(), *ENCODED.values()) for kind in FORMATS),
    *(f"{spec},cache=cross" for spec in ENCODED.values()),
]


@pytest.mark.parametrize("spec", CASES)
def test_modules_are_valid_and_state_the_shapes_of_the_operators(spec: str) -> None:
    module = build(f"{spec},context=24")
    assert not ir.verify(module, dialects=DIALECTS)
    assert ir.parse_module(ir.print_module(module)) == module
    for value in (*module.entry.args, *(value for op in module.entry.ops for value in op.results)):
        assert isinstance(value.type, TensorType)
        assert value.type.elements is not None
    model = serde.to_proto(export_func(module, module.entry, tensors=reading_tensors(Path())))
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("kind", ["none", *FORMATS])
def test_caches_change_no_weight(kind: str) -> None:
    for spec in (CACHED["llama-70b"], CACHED["gpt2 int4"]):
        plain, cached = build(spec), build(f"{spec},cache={kind},context=32")
        weights = [{r for r in module.resources.values() if isinstance(r.data, Random)} for module in (plain, cached)]
        assert weights[0] == weights[1]


def test_names_and_axes_are_those_of_optimum_and_of_genai() -> None:
    spec = "llama-70b,layers=2,hidden=128,heads=8,kv_heads=2,vocab=97,batch=3,context=40"
    past = [f"past_key_values.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    present = [f"present.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    appended, inplace = (build(f"{spec},cache={kind}").entry for kind in FORMATS)
    assert [arg.name for arg in appended.args] == [
        f"%{name}" for name in ("input_ids", "attention_mask", "position_ids", *past)
    ]
    assert [arg.name for arg in inplace.args] == [f"%{name}" for name in ("input_ids", "attention_mask", *past)]
    for func, before in ((appended, 39), (inplace, 40)):
        assert [result.name for result in func.results] == ["%logits", *(f"%{name}" for name in present)]
        assert {arg.type.shape for arg in func.args[-4:] if isinstance(arg.type, TensorType)} == {(3, 2, before, 16)}
        assert {result.type.shape for result in func.results[1:] if isinstance(result.type, TensorType)} == {(3, 2, 40, 16)}


def test_int4_weights_are_half_a_byte_each() -> None:
    """And a scale of four bytes for each 32 of them; the embedding stays as it is."""
    model = build_model("llama-7b,weights=int4")
    embedding = 32000 * 4096
    assert model.parameters == 6_738_415_616
    products = model.parameters - embedding - (2 * 32 + 1) * 4096
    assert model.weight_bytes == products * 5 // 8 + 4 * (embedding + (2 * 32 + 1) * 4096)
    assert model.declared
    held = {r.type.dtype for r in model.module.resources.values() if isinstance(r.data, Declared) and ".qweight" in r.name}
    assert held == {DType.U8}


def test_experts_of_4_bits_are_those_of_their_numbers() -> None:
    """QMoE against numpy: the softmax of the chosen logits, and rows of gate and up in turn."""
    spec = "mixtral-8x7b,layers=1,hidden=64,heads=4,kv_heads=2,vocab=97,experts=4,weights=int4,seq=5"
    module = build(spec)
    ops = {op.name: op for op in module.entry.ops}
    expert = ops["onnx.com.microsoft.QMoE"]
    read = {name: read_resource(module.resources[name], Path()) for name in expert.operands if name.startswith("@")}

    def unpacked(numbers: str, scales: str) -> Array:
        pairs = np.stack([read[numbers] & 15, read[numbers] >> 4], -1).reshape(*read[numbers].shape[:-1], -1)
        return (pairs.astype(np.float64) - 8) * np.repeat(read[scales], 32, -1)

    wide, down = unpacked(*expert.operands[2:4]), unpacked(*expert.operands[5:7])
    assert 0.9 < wide.std() * 8 < 1.1
    outputs = (*module.entry.results, expert.results[0], *(value for op in module.entry.ops for value in op.results))
    seen = {name: value for value in outputs if (name := value.name) in (*expert.operands, expert.results[0].name)}
    main = replace(module.entry, results=tuple(seen.values()))
    running = session(replace(module, symbols=(*module.resources.values(), main)))
    found = dict(zip(seen, running.run(None, {"input_ids": IDS[:1, :5]}), strict=True))
    x, logits = (found[name].astype(np.float64) for name in expert.operands[:2])
    for row, scores, result in zip(x, logits, found[expert.results[0].name], strict=True):
        chosen = np.argsort(-scores)[:2]
        weights = np.exp(scores[chosen]) / np.exp(scores[chosen]).sum()
        gates, ups = (np.stack([wide[i, side::2] @ row for i in chosen]) for side in (0, 1))
        mixed = sum(w * (down[i] @ (g / (1 + np.exp(-g)) * u)) for w, i, g, u in zip(weights, chosen, gates, ups, strict=True))
        np.testing.assert_allclose(result, mixed, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpt2,cache=concat,context=4,seq=4", "E0514.*context=4 is too short for seq=4; context=5 would do"),
        ("llama-7b,cache=inplace,context=4,seq=5", "E0514.*context=4 is too short for seq=5; context=5 would do"),
        ("gpt2,cache=concat,context=1025", "E0509.*context=1025 is longer than positions=1024; add positions=1025"),
        ("llama-7b,cache=inplace,hidden=64", r"E0507.*hidden/heads=8 is no multiple of 16; heads=4 would fit"),
        ("mixtral-8x7b,weights=int4,routing=capacity", "E0515.*weights=int4 and routing=capacity exclude each other"),
        ("mixtral-8x7b,weights=int4,hidden=96", "E0507.*ffn=336 is no multiple of 32; ffn=352 would fit"),
        ("gpt2,cache=cross", "E0505.*found 'cross' for cache"),
    ],
)
def test_caches_that_cannot_be(spec: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(spec)
