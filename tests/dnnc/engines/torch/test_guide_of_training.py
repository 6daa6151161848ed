"""The program of the guide's chapter of training runs as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")

from ir.system.child import module_environment

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.slow
def test_from_a_module_and_a_loader_to_an_evaluated_run(tmp_path: Path) -> None:
    chapter = (ROOT / "dnnc/README.md").read_text(encoding="utf-8").partition("\n### Your data, and what comes of it\n")[2]
    (program, *_) = re.findall(r"^```python\n(.*?)^```$", chapter, flags=re.MULTILINE | re.DOTALL)
    environment = module_environment({"PYTHONPATH": str(ROOT)})
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\{'step': \d+, 'loss': .*, 'accuracy': .*, 'perplexity': ", done.stdout)
    made = {path.name for path in (tmp_path / "trained").iterdir()}
    assert {"best.safetensors", "evaluations.json", "log.csv", "step10.safetensors"} <= made
