"""Models that people train, as modules of PyTorch of a size for one core, with random samples: for ``train_step --whole``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.bench.train_stages import model as resnet20

WIDTH, HEADS, LAYERS, WORDS, LENGTH, CLASSES = 256, 4, 4, 8192, 128, 10


class Block(nn.Module):
    """Attention and a network of two products: with layer normalisation before each of both, or behind (``after``)."""

    def __init__(self, *, causal: bool, after: bool) -> None:
        super().__init__()
        self.causal, self.after = causal, after
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for part in self.mixed(x).split(WIDTH, dim=-1))
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(made.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def network(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(functional.gelu(self.wide(x)))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.after:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.network(x))  # type: ignore[no-any-return]
        x = x + self.attention(self.norm1(x))
        return x + self.network(self.norm2(x))


class Gpt2(nn.Module):
    """Scores of the next word; the table of words is that of the scores (Radford et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block(causal=True, after=False) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, WORDS, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places.weight
        return self.scores(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """Classes of sentences (Devlin et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.Sequential(*[Block(causal=False, after=True) for _ in range(LAYERS)])
        self.pool, self.scores = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.norm(self.words(words) + self.places.weight))
        return self.scores(torch.tanh(self.pool(x[:, 0])))  # type: ignore[no-any-return]


class Vit(nn.Module):
    """Classes of images of 64x64 in patches of 8x8 (Dosovitskiy et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 65, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block(causal=False, after=False) for _ in range(LAYERS)])
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(patches.shape[0], -1, -1), patches], dim=1) + self.places
        return self.scores(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]


class Lstm(nn.Module):
    """Classes of sequences, by the last state of two layers (Hochreiter and Schmidhuber 1997)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.scores = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.scores(self.layers(self.words(words))[0][:, -1])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Trained:
    """``batch``: samples of a step, a multiple of 8; ``shape``: of a sample, of words where ``words``, else of an image;
    ``labels``: the shape of a sample's labels, of which there are ``classes``."""

    module: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]
    words: bool
    classes: int = CLASSES
    labels: tuple[int, ...] = ()

    def samples(self, count: int) -> tuple[Any, Any]:
        """Inputs and labels of random samples."""
        random = np.random.default_rng(0)
        of_words = random.integers(0, WORDS, (count, *self.shape))
        inputs = of_words if self.words else random.normal(size=(count, *self.shape)).astype(np.float32)
        return inputs, random.integers(0, self.classes, (count, *self.labels))


MODELS = {
    "gpt2": Trained(Gpt2, 8, (LENGTH,), words=True, classes=WORDS, labels=(LENGTH,)),
    "bert": Trained(Bert, 16, (LENGTH,), words=True),
    "resnet20": Trained(resnet20, 64, (3, 32, 32), words=False),
    "vit": Trained(Vit, 32, (3, 64, 64), words=False),
    "lstm": Trained(Lstm, 32, (LENGTH,), words=True),
}
