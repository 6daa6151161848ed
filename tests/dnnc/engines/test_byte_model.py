"""A language model of bytes, trained by ``dnnc train``, exported with caches, says step by step what the module says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

import dnnc  # noqa: E402
from ir.system.child import module_environment  # noqa: E402
from tests.dnnc.engines import byte_model  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
PROMPT = b"Beautiful is"


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
@pytest.mark.parametrize("opset", [18, 23])
def test_the_exported_steps_are_the_module(opset: int, tmp_path: Path) -> None:
    """Of opset 23 the attention is one operator. A prompt in two chunks, then a byte at a time."""
    torch.manual_seed(0)
    model = byte_model.ByteModel(layers=1, width=32)
    byte_model.export(model, tmp_path / "decoder.onnx", opset)
    ids = byte_model.windows(16)["input_ids"][:3]
    expected = model(torch.from_numpy(ids)).detach().numpy()
    np.testing.assert_allclose(logits_by_step(tmp_path / "decoder.onnx", ids, [5, 3, *[1] * 8]), expected, rtol=0, atol=1e-5)


def guide() -> list[str]:
    """The programs of the guide's chapter of language models: the recipe of an export, a training, an answer."""
    chapter = (ROOT / "dnnc/README.md").read_text(encoding="utf-8").partition("\n## A language model on my machines\n")[2]
    return re.findall(r"^```python\n(.*?)^```$", chapter.partition("\n## ")[0], flags=re.MULTILINE | re.DOTALL)


def test_the_guide_shows_the_export_as_it_is() -> None:
    assert guide()[0] in Path(byte_model.__file__).read_text(encoding="utf-8")


def ran(program: str, folder: Path) -> str:
    """What the program prints."""
    environment = module_environment({"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)})
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_trained_by_dnnc_it_knows_its_text(tmp_path: Path) -> None:
    """By the guide's programs. What it says step by step in onnxruntime is what the module says of all bytes at once, and what
    two stages say that keep their caches."""
    _, training, answer = guide()
    ran(training, tmp_path)
    model = byte_model.ByteModel()
    dnnc.into_torch(model, tmp_path / "trained/step600")
    said, close = list(PROMPT), 0
    for count in range(40):
        ids = np.array([said])
        logits = logits_by_step(tmp_path / "decoder.onnx", ids, [len(said)])
        np.testing.assert_allclose(logits, model(torch.from_numpy(ids)).detach().numpy(), rtol=0, atol=1e-4)
        second, best = np.sort(logits[0, -1])[-2:]
        close = close or (count if best - second < 1e-3 else 0)
        said.append(int(logits[0, -1].argmax()))
    expected = bytes(said[len(PROMPT) :]).decode("latin-1")
    found = ran(answer, tmp_path)
    assert found[: close or 40] == expected[: close or 40]
    assert found.startswith(" better than ")
    assert PROMPT + b" better than " in byte_model.text()
