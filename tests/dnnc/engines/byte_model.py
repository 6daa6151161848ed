"""A small language model of bytes: a module of PyTorch, its training data, and its export with caches of keys and values."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and a feed-forward part, each added to what it reads the norm of."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.wide_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor, past: tuple[Tensor, ...] = ()) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        normed = self.norm(x)
        query, key, value = (
            part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        if past:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.wide_norm(x)))), (key, value)


class ByteModel(nn.Module):
    """``forward`` trains: bytes ``[batch, length]`` to logits ``[batch, length, 256]`` of the byte behind each."""

    def __init__(self, layers: int = 2, width: int = 64, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, input_ids: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1])
        return self.step(input_ids, places, places <= places[:, None])[0]

    def step(self, input_ids: Tensor, places: Tensor, mask: Tensor, caches: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...]:
        """The logits of new bytes, and the caches with their keys and values."""
        x, presents = self.bytes(input_ids) + self.places(places), []
        for i, block in enumerate(self.blocks):
            x, present = block(x, mask, caches[2 * i : 2 * i + 2])
            presents += present
        return self.logits(self.norm(x)), *presents


class Decoder(nn.Module):
    """A step as exporters write it: ``attention_mask [batch, past + length]``, ``position_ids [batch, length]``, and for each
    layer a key and a value ``[batch, heads, past, width]``."""

    def __init__(self, model: ByteModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        past, length = caches[0].shape[2], input_ids.shape[1]
        earlier = torch.arange(past + length) <= past + torch.arange(length)[:, None]
        mask = earlier & attention_mask[:, None, None].bool()
        return self.model.step(input_ids, position_ids, mask, caches)


def export(model: ByteModel, path: str | os.PathLike[str], opset: int = 20) -> None:
    """Writes the decoder with optimum's names; sizes of batch, step and past stay open."""
    layers, heads, width = len(model.blocks), model.blocks[0].heads, model.bytes.embedding_dim
    parts = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    batch, past, length = 2, 5, 3  # any three that differ, none of them 0 or 1
    positions = torch.arange(past, past + length).repeat(batch, 1)
    caches = [torch.zeros(batch, heads, past, width // heads) for _ in parts]
    step, total = {0: "batch_size", 1: "sequence_length"}, {0: "batch_size", 1: "total_sequence_length"}
    torch.onnx.export(
        Decoder(model).eval(),
        (torch.zeros_like(positions), torch.ones(batch, past + length, dtype=torch.int64), positions, *caches),
        path,
        dynamo=True,
        opset_version=opset,
        external_data=False,
        dynamic_shapes=(step, total, step, tuple({0: "batch_size", 2: "past_sequence_length"} for _ in parts)),
        input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{part}" for part in parts)],
        output_names=["logits", *(f"present.{part}" for part in parts)],
    )


def text() -> bytes:
    """The Zen of Python, which every Python has."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13").encode()


def windows(context: int = 64) -> dict[str, Any]:
    """Every stretch of ``context`` bytes of the text, and the bytes that come next."""
    numbers = np.frombuffer(text(), np.uint8).astype(np.int64)
    rows = np.lib.stride_tricks.sliding_window_view(numbers, context + 1)
    return {"input_ids": np.ascontiguousarray(rows[:, :-1]), "labels": np.ascontiguousarray(rows[:, 1:])}
