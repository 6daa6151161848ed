"""Bytes that kernels work in, against the peak of a process that runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ir import parse_module
from passes.costs.memory.kernels import lstm_gradient_bytes, working_bytes

RUN = """
import sys
from pathlib import Path
import torch
from ir.system.host import give_back_large_blocks
from dnnc.engines.torch.statements.recurrent_helpers import lstm_gradients

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))

give_back_large_blocks()
torch.set_num_threads(1)
s, b, i, h = map(int, sys.argv[1:])
x, w, r, bias, y = (torch.ones(*shape) for shape in ((s, b, i), (1, 4 * h, i), (1, 4 * h, h), (1, 8 * h), (s, 1, b, h)))
run = lambda: lstm_gradients((y, None, None), x, w, r, bias, None, None, (False,), (True,) * 4 + (False,) * 2)
with torch.no_grad():
    run()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    found = run()
    print(status("VmHWM") - before)
"""


@pytest.mark.slow  # processes that import torch
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="it reads /proc")
@pytest.mark.parametrize("shape", [(128, 32, 256, 256), (128, 32, 64, 256), (128, 32, 512, 256), (128, 8, 256, 256)])
def test_the_gradients_of_an_lstm_work_in_what_the_plan_says(shape: tuple[int, int, int, int]) -> None:
    pytest.importorskip("torch")
    run = subprocess.run([sys.executable, "-c", RUN, *map(str, shape)], capture_output=True, text=True, check=True)
    assert lstm_gradient_bytes(*shape) == pytest.approx(int(run.stdout), rel=0.1)


OP = """
module @m {opset.onnx = 20} {
  func @main(%dy : tensor<9x1x2x3xf32>, %x : tensor<9x2x4xf32>, %y : tensor<9x1x2x3xf32>, %w : tensor<1x12x4xf32>,
      %r : tensor<1x12x3xf32>) -> (%gates : tensor<9x1x2x12xf32>) {
    %gates = grad.LSTM(%dy, _, _, %x, %w, %r, _, _, _, %y) {direction = "forward"} : tensor<9x1x2x12xf32>
  }
}
"""


def test_a_kernel_works_beside_its_results() -> None:
    (op,) = parse_module(OP).entry.ops
    size = {"%x": 4 * 9 * 2 * 4, "%gates": 4 * 9 * 2 * 12}
    assert working_bytes(op, size) == lstm_gradient_bytes(9, 2, 4, 3) - size["%gates"] > 0
