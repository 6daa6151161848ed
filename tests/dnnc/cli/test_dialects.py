"""Whoever reads a module knows ONNX's operators, whatever was imported before: each command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """module @m {opset.onnx = 20} {
  func @main(%x : tensor<4xf32>) -> (%y : tensor<4xf32>) {
    %y = onnx.Nonsense(%x) : tensor<4xf32>
  }
}
"""


@pytest.mark.parametrize("passes", ["", pytest.param("cost", marks=pytest.mark.slow)])
def test_opt_refuses_an_operator_that_does_not_exist_where_it_stands(passes: str, tmp_path: Path) -> None:
    """Before, a pass that changed nothing let it through, and another was blamed for it."""
    path = tmp_path / "bad.ir"
    path.write_text(MODULE)
    command = [sys.executable, "-m", "dnnc", "opt", str(path), "--passes", passes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith(f"{path}:3:10: error[E2301]: INV11: opset 20 has no operator Nonsense\n")
    assert not done.stdout
