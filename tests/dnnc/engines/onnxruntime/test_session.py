"""What a session holds: the weights once, whatever onnxruntime made of them on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

HELD = """
import sys
from dataclasses import replace
from pathlib import Path
from dnnc.engines.onnxruntime.session.session import DEFAULT, open_session

def held():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024

path, before = Path(sys.argv[1]), held()
session = open_session(path.read_bytes(), replace(DEFAULT, folder=str(path.parent)))
print(held() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_convolutions_that_are_laid_out_anew_are_held_once(tmp_path: Path) -> None:
    """Their weights lie in files, as those of builds do; onnxruntime lays out those of convolutions anew."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.random((512, 512, 3, 3), np.float32), f"w{i}") for i in range(8)]
    nodes = [helper.make_node("Conv", [f"h{i}" if i else "x", f"w{i}"], [f"h{i + 1}"], pads=[1, 1, 1, 1]) for i in range(8)]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 512, 4, 4])
    last = helper.make_tensor_value_info("h8", TensorProto.FLOAT, [1, 512, 4, 4])
    size = sum(len(weight.raw_data) for weight in weights)
    model = helper.make_model(helper.make_graph(nodes, "g", [image], [last], weights), ir_version=10)
    onnx.save(model, tmp_path / "conv.onnx", save_as_external_data=True, location="conv.data")
    run = subprocess.run([sys.executable, "-c", HELD, str(tmp_path / "conv.onnx")], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1.3 * size
