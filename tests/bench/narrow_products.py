"""Products of matrices in narrow element types, with PyTorch and ONNX Runtime: ``python -m tests.bench.narrow_products``.

One thread; medians of processor time. Training runs on PyTorch, and rates of a CPU are measured with ONNX Runtime, which
multiplies no bf16.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper

from tests.bench.machine import header

ROUNDS = 7
SIZES = (256, 1024)


def rate(size: int, run: Callable[[], object]) -> str:
    """GFLOP/s of a product of square matrices."""
    run()
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return f"{2 * size**3 / statistics.median(seconds) / 1e9:8.1f}"


def session(size: int, type_: int) -> onnxruntime.InferenceSession:
    values = [helper.make_tensor_value_info(name, type_, [size, size]) for name in "aby"]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "g", values[:2], values[2:])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def main() -> None:
    torch.set_num_threads(1)
    print(header())
    print("GFLOP/s        f32     bf16      f16")
    for size in SIZES:
        found = []
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            one = torch.randn(size, size).to(dtype)
            found.append(rate(size, lambda one=one: one @ one))  # type: ignore[misc]
        print(f"PyTorch {size:4} {' '.join(found)}")
        found = []
        for type_, of in ((TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)):
            model, array = session(size, type_), np.random.default_rng(0).standard_normal((size, size)).astype(of)
            found.append(rate(size, lambda model=model, array=array: model.run(None, {"a": array, "b": array})))  # type: ignore[misc]
        print(f"ORT     {size:4} {found[0]}        - {found[1]}")


if __name__ == "__main__":
    main()
