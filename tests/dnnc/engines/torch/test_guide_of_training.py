"""The programs and commands of the guide's chapter of training on data run as they are written, one after another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")

from ir.system.child import module_environment

ROOT = Path(__file__).resolve().parents[4]
MYDATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images, classes = torch.randn(1000, 3, 32, 32), torch.randint(0, 10, (1000,))

def train(seed):
    return DataLoader(TensorDataset(images[:900], classes[:900]), batch_size=128, shuffle=True, drop_last=True)

def test(seed):
    return TensorDataset(images[900:], classes[900:])
"""
"""The module ``mydata`` that the chapter describes in words. Its images are the same in every process."""


@pytest.mark.slow
def test_from_a_module_and_a_loader_to_an_evaluated_run(tmp_path: Path) -> None:
    chapter = (ROOT / "dnnc/README.md").read_text(encoding="utf-8").partition("\n### Your data, and what comes of it\n")[2]
    chapter = chapter.partition("\n## ")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```$", chapter, flags=re.MULTILINE | re.DOTALL)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", chapter, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "mydata.py").write_text(MYDATA, encoding="utf-8")
    (tmp_path / "dnnc").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dnnc "$@"\n', encoding="utf-8")
    (tmp_path / "dnnc").chmod(0o755)
    environment = module_environment({"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})
    environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    for what in ([sys.executable, "-c", program], ["sh", "-e", "-c", commands]):
        done = subprocess.run(what, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if what[0] == sys.executable:
            assert re.search(r"\{'step': \d+, 'loss': .*, 'accuracy': .*, 'perplexity': ", done.stdout)
        made = {path.name for path in (tmp_path / "trained").iterdir()}
        assert {"best", "evaluations.json", "log.csv", "step10"} <= made
        shutil.rmtree(tmp_path / "trained")
