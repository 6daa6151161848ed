"""Models with an encoder and a decoder against the layers of PyTorch, which know nothing of ours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dnnc.zoo import build
from tests.dnnc.zoo.zoo_models import SMALL, Array, inputs, run, weights_of

torch = pytest.importorskip("torch", reason="the layers that these models are compared with are PyTorch's")
HEADS, EPSILON = 8, 1e-5


class Layers:
    """PyTorch's layers with the weights of a module, in double precision."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}

    def attention(self, name: str, query: object, memory: object, **masks: object) -> object:
        w = self.weights
        hidden = w[f"{name}.q.weight"].shape[0]
        layer = torch.nn.MultiheadAttention(hidden, HEADS, batch_first=True, dtype=torch.float64)
        bias = [w.get(f"{name}.{part}.bias", torch.zeros(hidden, dtype=torch.float64)) for part in "qkv"]
        state = {
            "in_proj_weight": torch.cat([w[f"{name}.{part}.weight"].T for part in "qkv"]),
            "in_proj_bias": torch.cat(bias),
            "out_proj.weight": w[f"{name}.out.weight"].T,
            "out_proj.bias": w[f"{name}.out.bias"],
        }
        layer.load_state_dict(state)
        return layer(query, memory, memory, need_weights=False, **masks)[0]

    def linear(self, name: str, value: object) -> object:
        return torch.nn.functional.linear(value, self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"])

    def norm(self, name: str, value: object) -> object:
        w = self.weights
        return torch.nn.functional.layer_norm(value, w[f"{name}.weight"].shape, w[f"{name}.weight"], w[f"{name}.bias"], EPSILON)

    def wide(self, name: str, value: object, act: object) -> object:
        return self.linear(f"{name}.fc2", act(self.linear(f"{name}.fc1", value)))  # type: ignore[operator]


def waves(length: int, hidden: int, last: int) -> object:
    """Sines, then cosines; wavelengths grow to ``10,000 ** (hidden / 2 / last)``, less one step, times 2 pi."""
    angles = np.outer(np.arange(length), np.exp(-math.log(10_000) / last * np.arange(hidden // 2)))
    return torch.tensor(np.concatenate([np.sin(angles), np.cos(angles)], 1))


def test_transformer_equals_torch() -> None:
    module = build(f"{SMALL['transformer-base']},batch=2")
    given, layers = inputs(module, 3), Layers(weights_of(module))
    given["attention_mask"] = np.array([[1] * 11 + [0] * 5, [1] * 16])
    words = layers.weights["embedding.weight"]
    away = torch.tensor(given["attention_mask"] == 0)
    x = words[given["input_ids"]] * math.sqrt(64) + waves(16, 64, 32)
    for number in range(2):
        name = f"encoder.layers.{number}"
        x = layers.norm(f"{name}.self.norm", x + layers.attention(f"{name}.self", x, x, key_padding_mask=away))
        x = layers.norm(f"{name}.ffn.norm", x + layers.wide(f"{name}.ffn", x, torch.relu))
    y = words[given["decoder_input_ids"]] * math.sqrt(64) + waves(12, 64, 32)
    later = torch.triu(torch.ones(12, 12, dtype=torch.bool), 1)
    for number in range(2):
        name = f"decoder.layers.{number}"
        y = layers.norm(f"{name}.self.norm", y + layers.attention(f"{name}.self", y, y, attn_mask=later))
        y = layers.norm(f"{name}.cross.norm", y + layers.attention(f"{name}.cross", y, x, key_padding_mask=away))
        y = layers.norm(f"{name}.ffn.norm", y + layers.wide(f"{name}.ffn", y, torch.relu))
    assert np.allclose(run(module, given)[0], (y @ words.T).detach().numpy(), rtol=0, atol=2e-5)


def test_whisper_equals_torch() -> None:
    module = build(f"{SMALL['whisper-base']},batch=2")
    given, layers = inputs(module, 3), Layers(weights_of(module))
    w, gelu = layers.weights, torch.nn.functional.gelu
    x = torch.tensor(given["input_features"], dtype=torch.float64)
    for number, stride in ((1, 1), (2, 2)):
        name = f"encoder.conv{number}"
        x = gelu(torch.nn.functional.conv1d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride=stride, padding=1))
    x = x.transpose(1, 2) + waves(12, 64, 31)
    for number in range(2):
        name = f"encoder.layers.{number}"
        normed = layers.norm(f"{name}.self.norm", x)
        x = x + layers.attention(f"{name}.self", normed, normed)
        x = x + layers.wide(f"{name}.ffn", layers.norm(f"{name}.ffn.norm", x), gelu)
    x = layers.norm("encoder.norm", x)
    words = w["decoder.embedding.weight"]
    y = words[given["decoder_input_ids"]] + w["decoder.positions.weight"][:12]
    later = torch.triu(torch.ones(12, 12, dtype=torch.bool), 1)
    for number in range(2):
        name = f"decoder.layers.{number}"
        normed = layers.norm(f"{name}.self.norm", y)
        y = y + layers.attention(f"{name}.self", normed, normed, attn_mask=later)
        y = y + layers.attention(f"{name}.cross", layers.norm(f"{name}.cross.norm", y), x)
        y = y + layers.wide(f"{name}.ffn", layers.norm(f"{name}.ffn.norm", y), gelu)
    assert np.allclose(run(module, given)[0], (layers.norm("decoder.norm", y) @ words.T).detach().numpy(), rtol=0, atol=2e-5)
