"""A language model of bytes, trained by ``dnnc train``, exported with caches, says step by step what the module says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

import dnnc  # noqa: E402
from tests.dnnc.engines.byte_model import ByteModel, export, text, windows  # noqa: E402

PROMPT = b"Beautiful is"


def seeded(**sizes: int) -> ByteModel:
    torch.manual_seed(0)
    return ByteModel(**sizes)


def logits_by_step(path: Path, ids: Any, lengths: list[int]) -> Any:
    """Of the exported decoder in onnxruntime, ``lengths`` bytes at a time, from empty caches on."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()[3:]]
    width = session.get_inputs()[3].shape[3]
    caches = [np.zeros((len(ids), 4, 0, width), np.float32) for _ in names]
    found, start = [], 0
    for length in lengths:
        end = start + length
        feeds = {
            "input_ids": ids[:, start:end],
            "attention_mask": np.ones((len(ids), end), np.int64),
            "position_ids": np.tile(np.arange(start, end), (len(ids), 1)),
        }
        logits, *caches = session.run(None, feeds | dict(zip(names, caches, strict=True)))
        found.append(logits)
        start = end
    return np.concatenate(found, 1)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 20, 23])
def test_the_exported_steps_are_the_module(opset: int, tmp_path: Path) -> None:
    """Of opset 23 the attention is one operator. A prompt in two chunks, then a byte at a time."""
    model = seeded(layers=1, width=32)
    export(model, tmp_path / "decoder.onnx", opset)
    ids = windows(16)["input_ids"][:3]
    expected = model(torch.from_numpy(ids)).detach().numpy()
    np.testing.assert_allclose(logits_by_step(tmp_path / "decoder.onnx", ids, [5, 3, *[1] * 8]), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_trained_by_dnnc_it_knows_its_text(tmp_path: Path) -> None:
    model = seeded()
    dnnc.from_torch(model, (torch.zeros(4, 64, dtype=torch.int64),), tmp_path / "bytes.onnx")
    plan = dnnc.plan(
        tmp_path / "bytes.onnx", machines="preset:cpu-2", objective="training", loss="cross-entropy:", microbatches=2,
        learning_rate=3e-3,
    )  # fmt: skip
    plan.write(tmp_path / "training").train(windows(), steps=400, checkpoint=tmp_path / "trained")
    dnnc.into_torch(model, tmp_path / "trained/step400")
    export(model, tmp_path / "decoder.onnx")
    said = list(PROMPT)
    for _ in range(16):
        ids = np.array([said])
        logits = logits_by_step(tmp_path / "decoder.onnx", ids, [1] * len(said))
        np.testing.assert_allclose(logits, model(torch.from_numpy(ids)).detach().numpy(), rtol=0, atol=1e-4)
        said.append(int(logits[0, -1].argmax()))
    assert bytes(said).startswith(PROMPT + b" better than ")
    assert PROMPT + b" better than " in text()
