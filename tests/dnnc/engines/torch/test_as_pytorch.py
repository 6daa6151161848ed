"""The table "as PyTorch": modules of many kinds, trained for 5 steps by processes, are as far as rounding from what PyTorch
makes of them (``python -m tests.dnnc.engines.torch.pytorch_modules`` prints how far, of each plan)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
modules: Any = pytest.importorskip("tests.dnnc.engines.torch.pytorch_modules", reason="the extra 'train' is not installed")

pytestmark = pytest.mark.slow
CLOSE = 1e-5
"""A unit in the last place of a float is 1.2e-7 of it; 5 steps of sums in another order make some of these."""
GROUPS = 4
"""Groups of small modules. Modules of a group are trained side by side: planning and starting processes take as long as many
of their steps."""
LIKE_OTHERS = {
    *("MLP", "classifier", "autoencoder", "LayerNorm", "Embedding", "LSTM", "MultiheadAttention"),
    *("MLP-Mixer", "gMLP", "TCN", "matrix factorisation", "hypernetwork", "Perceiver", "EfficientNet", "siamese triplet"),
    *("soft MoE", "ConvLSTM", "VAE", "GCN"),
}
"""Modules of the table that are made of operators which others train: exporting them takes long."""


def tried(table: Mapping[str, Any]) -> list[Any]:
    return [case for name, case in table.items() if name not in LIKE_OTHERS]


def test_the_table_has_forty_modules_and_more() -> None:
    assert len(modules.CASES) >= 40
    assert len(modules.WHOLE) >= 30
    assert modules.MODULES.keys() > LIKE_OTHERS


@pytest.mark.parametrize("number", range(GROUPS))
def test_steps_are_pytorchs(number: int, tmp_path: Path) -> None:
    """On a mesh, where a rule of its own splits each operator. Other plans leave operators whole: the whole models below run
    on these."""
    group = [case.whole() for case in tried(modules.CASES)[number::GROUPS]]
    assert modules.Trial(modules.together(group), tmp_path).difference("mesh") < CLOSE


@pytest.mark.parametrize("plan", modules.PLANS)
def test_steps_of_whole_models_are_pytorchs(plan: str, tmp_path: Path) -> None:
    """Each on one of the plans, in turn; the table has all."""
    group = tried(modules.WHOLE)[[*modules.PLANS].index(plan) :: len(modules.PLANS)]
    assert modules.Trial(modules.together(group), tmp_path).difference(plan) < CLOSE
