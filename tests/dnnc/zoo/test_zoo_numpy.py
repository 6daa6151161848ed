"""Models of the zoo compute what plain numpy computes, written from the papers and not from the graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dnnc.zoo import build
from tests.dnnc.zoo.zoo_models import SMALL, Array, inputs, run, weights_of


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


@pytest.mark.parametrize("name", ["bert-base", "bert-small"])
def test_bert_equals_numpy(name: str) -> None:
    module = build(SMALL[name])
    given, w = inputs(module, 3), weights_of(module)
    ids, segments = given["input_ids"][0], given["token_type_ids"][0]
    given["attention_mask"] = np.array([[1] * 11 + [0] * 5])
    allowed = np.broadcast_to(given["attention_mask"][0] == 1, (16, 16))
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][segments]
    x = layer_norm(x + w["embeddings.position_embeddings.weight"][:16], w, "embeddings.LayerNorm", 1e-12)
    for layer in range(2):
        part = f"encoder.layer.{layer}"
        q, k, v = (linear(x, w, f"{part}.attention.self.{which}") for which in ("query", "key", "value"))
        x = x + linear(attention(q, k, v, 8, allowed), w, f"{part}.attention.output.dense")
        x = layer_norm(x, w, f"{part}.attention.output.LayerNorm", 1e-12)
        wide = gelu_exact(linear(x, w, f"{part}.intermediate.dense"))
        x = layer_norm(x + linear(wide, w, f"{part}.output.dense"), w, f"{part}.output.LayerNorm", 1e-12)
    if name == "bert-small":
        x = layer_norm(gelu_exact(linear(x, w, "words.dense")), w, "words.LayerNorm", 1e-12)
        logits = x @ w["embeddings.word_embeddings.weight"].T + w["words.bias"]
        assert np.allclose(run(module, given)[0][0], logits, rtol=0, atol=2e-5)
        return
    hidden, pooled = run(module, given)
    assert np.allclose(hidden[0], x, rtol=0, atol=2e-5)
    assert np.allclose(pooled[0], np.tanh(linear(x[0], w, "pooler.dense")), rtol=0, atol=2e-5)


# Rotary, grouped, gated, relative, mixed


def rms_norm(x: Array, w: dict[str, Array], name: str, epsilon: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w[f"{name}.weight"]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def turned(x: Array, theta: float) -> Array:
    """``[seq, width]``: as complex numbers, halves being real and imaginary parts, each turned by its angle."""
    seq, width = x.shape
    half = width // 2
    angles = np.outer(np.arange(seq), theta ** (-np.arange(half) / half))
    result = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([result.real, result.imag], -1)


def rotary_attention(x: Array, w: dict[str, Array], name: str, heads: int, kv_heads: int, theta: float) -> Array:
    """One head at a time; consecutive heads share a key head."""
    q, k, v = (x @ w[f"{name}.{part}_proj.weight"] for part in "qkv")
    width, causal = q.shape[-1] // heads, np.tril(np.ones((len(x), len(x)), bool))
    parts = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        other = slice(head * kv_heads // heads * width, (head * kv_heads // heads + 1) * width)
        parts.append(attention(turned(q[:, own], theta), turned(k[:, other], theta), v[:, other], 1, causal))
    return np.concatenate(parts, -1) @ w[f"{name}.o_proj.weight"]


def gated(x: Array, w: dict[str, Array], name: str) -> Array:
    wide = silu(x @ w[f"{name}.gate_proj.weight"]) * (x @ w[f"{name}.up_proj.weight"])
    return wide @ w[f"{name}.down_proj.weight"]


def experts(x: Array, w: dict[str, Array], name: str, top: int, places: int) -> Array:
    """One token at a time, its chosen experts only, those that have a place left."""
    rows, taken = [], np.zeros(4, int)
    for token in x:
        logits = token @ w[f"{name}.router.weight"]
        chosen = np.argsort(-logits)[:top]
        row = np.zeros_like(token)
        for share, expert in zip(softmax(logits[chosen]), chosen, strict=True):
            taken[expert] += 1
            if taken[expert] <= places:
                gate, up, down = (w[f"{name}.{part}.weight"][expert] for part in ("gate", "up", "down"))
                row = row + share * ((silu(token @ gate) * (token @ up)) @ down)
        rows.append(row)
    assert (taken > places).any() == (places < len(x)), "the small configuration drops tokens"
    return np.stack(rows)


@pytest.mark.parametrize(
    ("name", "heads", "kv_heads", "theta", "places"),
    [
        ("llama-7b", 8, 8, 1e4, 0),
        ("llama-70b", 8, 2, 1e4, 0),
        ("mixtral-8x7b", 8, 2, 1e6, 16),
        ("by capacity", 8, 2, 1e6, 6),
    ],
)
def test_decoders_with_rotation_equal_numpy(name: str, heads: int, kv_heads: int, theta: float, places: int) -> None:
    module = build(f"{SMALL[name]},batch=2")
    given, w = inputs(module, 3), weights_of(module)
    found = run(module, given)[0]
    for ids, logits in zip(given["input_ids"], found, strict=True):
        x = w["model.embed_tokens.weight"][ids]
        for layer in range(2):
            layer_name = f"model.layers.{layer}"
            normed = rms_norm(x, w, f"{layer_name}.input_layernorm", 1e-5)
            x = x + rotary_attention(normed, w, f"{layer_name}.self_attn", heads, kv_heads, theta)
            normed = rms_norm(x, w, f"{layer_name}.post_attention_layernorm", 1e-5)
            mixed = experts(normed, w, f"{layer_name}.moe", 2, places) if places else gated(normed, w, f"{layer_name}.mlp")
            x = x + mixed
        expected = rms_norm(x, w, "model.norm", 1e-5) @ w["logits.weight"]
        assert np.allclose(logits, expected, rtol=0, atol=2e-5)


def test_places_for_all_are_dense_routing() -> None:
    """An expert gets each token at most once."""
    dense = build(f"{SMALL['mixtral-8x7b']},batch=2")
    given = inputs(dense, 5)
    ample = build(f"{SMALL['by capacity'].replace('capacity=75', 'capacity=200')},batch=2")
    assert np.allclose(run(dense, given)[0], run(ample, given)[0], rtol=0, atol=2e-5)


def test_gpt3_equals_numpy() -> None:
    module = build(f"{SMALL['gpt3-175b']},batch=2")
    given, w = inputs(module, 3), weights_of(module)
    found = run(module, given)[0]
    causal = np.tril(np.ones((16, 16), bool))
    for ids, logits in zip(given["input_ids"], found, strict=True):
        x = w["wte.weight"][ids] + w["wpe.weight"][:16]
        for layer in range(2):
            name = f"h.{layer}"
            normed = layer_norm(x, w, f"{name}.ln_1", 1e-5)
            q, k, v = (linear(normed, w, f"{name}.attn.{part}") for part in ("query", "key", "value"))
            x = x + linear(attention(q, k, v, 8, causal), w, f"{name}.attn.c_proj")
            wide = gelu_tanh(linear(layer_norm(x, w, f"{name}.ln_2", 1e-5), w, f"{name}.mlp.c_fc"))
            x = x + linear(wide, w, f"{name}.mlp.c_proj")
        assert np.allclose(logits, layer_norm(x, w, "ln_f", 1e-5) @ w["wte.weight"].T, rtol=0, atol=2e-5)


def relative_buckets(queries: int, keys: int, both_ways: bool) -> Array:
    """As the released code has it, on arrays: half of the buckets for exact distances, half logarithmic up to 128."""
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    buckets, first = 32, np.zeros_like(distance)
    if both_ways:
        buckets = 16
        first = np.where(distance > 0, 16, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = buckets // 2
    far = np.log(np.maximum(distance, 1).astype(np.float32) / exact) / math.log(128 / exact) * (buckets - exact)
    far = np.minimum(exact + far.astype(int), buckets - 1)
    return first + np.where(distance < exact, distance, far)


def test_buckets_of_distances() -> None:
    from dnnc.zoo.t5 import bucket

    for both_ways in (False, True):
        wanted = relative_buckets(300, 300, both_ways)
        found = [[bucket(key - query, both_ways=both_ways) for key in range(300)] for query in range(300)]
        assert np.array_equal(wanted, found)


def biased_attention(
    x: Array, memory: Array, w: dict[str, Array], name: str, heads: int, allowed: Array, bias: Array | None
) -> Array:
    """Scores are not scaled; ``bias`` is ``[seq, other, heads]``."""
    q, k, v = x @ w[f"{name}.q.weight"], memory @ w[f"{name}.k.weight"], memory @ w[f"{name}.v.weight"]
    width = q.shape[-1] // heads
    parts = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = q[:, part] @ k[:, part].T + (0 if bias is None else bias[..., head])
        parts.append(softmax(np.where(allowed, scores, -np.inf)) @ v[:, part])
    return np.concatenate(parts, -1) @ w[f"{name}.o.weight"]


@pytest.mark.parametrize("name", ["t5-base", "t5-large"])
def test_t5_equals_numpy(name: str) -> None:
    module = build(f"{SMALL[name]},batch=2")
    given, w = inputs(module, 3), weights_of(module)
    given["attention_mask"] = np.array([[1] * 11 + [0] * 5, [1] * 16])
    found = run(module, given)[0]
    newer = name == "t5-large"

    def feed(x: Array, part: str) -> Array:
        normed = rms_norm(x, w, f"{part}.layer_norm", 1e-6)
        if newer:
            return (gelu_tanh(normed @ w[f"{part}.wi_0.weight"]) * (normed @ w[f"{part}.wi_1.weight"])) @ w[f"{part}.wo.weight"]
        return np.maximum(normed @ w[f"{part}.wi.weight"], 0) @ w[f"{part}.wo.weight"]

    for sample in range(2):
        kept = given["attention_mask"][sample] == 1
        x = w["shared.weight"][given["input_ids"][sample]]
        bias = w["encoder.relative_attention_bias.weight"][relative_buckets(16, 16, True)]
        for layer in range(2):
            part = f"encoder.block.{layer}"
            normed = rms_norm(x, w, f"{part}.self.layer_norm", 1e-6)
            x = x + biased_attention(normed, normed, w, f"{part}.self", 8, kept[None, :], bias)
            x = x + feed(x, f"{part}.ff")
        memory = rms_norm(x, w, "encoder.final_layer_norm", 1e-6)
        x = w["shared.weight"][given["decoder_input_ids"][sample]]
        bias = w["decoder.relative_attention_bias.weight"][relative_buckets(12, 12, False)]
        for layer in range(2):
            part = f"decoder.block.{layer}"
            normed = rms_norm(x, w, f"{part}.self.layer_norm", 1e-6)
            x = x + biased_attention(normed, normed, w, f"{part}.self", 8, np.tril(np.ones((12, 12), bool)), bias)
            normed = rms_norm(x, w, f"{part}.cross.layer_norm", 1e-6)
            x = x + biased_attention(normed, memory, w, f"{part}.cross", 8, kept[None, :], None)
            x = x + feed(x, f"{part}.ff")
        x = rms_norm(x, w, "decoder.final_layer_norm", 1e-6)
        expected = x @ w["logits.weight"] if newer else x / 8 @ w["shared.weight"].T
        assert np.allclose(found[sample], expected, rtol=0, atol=2e-5)


def test_vit_equals_numpy() -> None:
    module = build(f"{SMALL['vit-base']},batch=2")
    given, w = inputs(module, 3), weights_of(module)
    found = run(module, given)[0]
    everywhere = np.ones((10, 10), bool)
    for image, expected in zip(given["x"].astype(np.float64), found, strict=True):
        patches = [image[:, i : i + 16, j : j + 16].reshape(-1) for i in range(0, 48, 16) for j in range(0, 48, 16)]
        x = np.stack(patches) @ w["patches.weight"].reshape(64, -1).T + w["patches.bias"]
        x = np.concatenate([w["class_token"][0], x]) + w["positions"][0]
        for layer in range(2):
            name = f"layers.{layer}"
            normed = layer_norm(x, w, f"{name}.ln_1", 1e-6)
            q, k, v = (linear(normed, w, f"{name}.attention.{part}") for part in ("query", "key", "value"))
            x = x + linear(attention(q, k, v, 8, everywhere), w, f"{name}.attention.out")
            x = x + linear(
                gelu_exact(linear(layer_norm(x, w, f"{name}.ln_2", 1e-6), w, f"{name}.mlp.fc1")), w, f"{name}.mlp.fc2"
            )
        assert np.allclose(linear(layer_norm(x, w, "ln", 1e-6)[0], w, "head"), expected, rtol=0, atol=2e-5)
