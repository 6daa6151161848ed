"""The guide's program in Python runs as it is written, and uses what ``import dnnc`` offers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dnnc
from ir.system.child import module_environment
from tests.measured_before import measured_before

ROOT = Path(__file__).resolve().parents[3]


def program() -> str:
    chapter = (ROOT / "dnnc/README.md").read_text(encoding="utf-8").partition("\n## From Python\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```$", chapter, flags=re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.mark.slow
def test_the_program_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_before(tmp_path / "cache", monkeypatch)
    done = subprocess.run(
        [sys.executable, "-c", program()],
        cwd=tmp_path,
        env=module_environment({"PYTHONPATH": str(ROOT), **{key: os.environ[key] for key in ("PATH", "XDG_CACHE_HOME")}}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "throughput:" in done.stdout
    assert "E0418 feeds: error[E0418]: input 'x' has shape 3 x 784" in done.stdout
    assert done.stdout.rstrip().endswith("build/mlp/report.html")
    assert "<!doctype html>" in (tmp_path / "build/mlp/report.html").read_text(encoding="utf-8")[:200].lower()


def test_it_uses_public_names_alone() -> None:
    tree = ast.parse(program())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "dnnc"}
    assert used <= set(dnnc.__all__)
    assert all(hasattr(dnnc, name) for name in dnnc.__all__)
