"""Kinds of ops that the zoo has none of, on one core: ``python -m tests.bench.kinds``.

Recurrent layers of several sizes, and zoo models that onnxruntime has quantised (QDQ, unsigned activations); of each the
seconds that ``dnnc compile -t preset:cpu-1`` predicts over those of onnxruntime on one thread (the least of several runs), and,
since one core is not another, the same over what it is for ``zoo:resnet50`` in f32 in the same run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from dnnc.compile.driver import compile_model
from dnnc.compile.flags import CompileOptions
from dnnc.engines.onnxruntime.write import write_model
from dnnc.zoo import build_model
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Plan
from tests.bench.machine import header

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAYERS = [(kind, *sizes) for kind in GATES for sizes in ((64, 1, 256), (64, 8, 256), (32, 32, 512), (16, 1, 1024))]
"""Kind, steps, samples, units."""
QUANTISED = ("zoo:resnet50", "zoo:bert-base,layers=4")
RUNS = 12


def main() -> None:
    print(header())
    with tempfile.TemporaryDirectory(prefix="dnnc-bench-") as folder:
        base = ratio(zoo(QUANTISED[0], Path(folder) / "base"))[0]
        print(f"{'model':38} {'measured':>9} {'predicted':>9} {'ratio':>6} {'over f32':>8}")
        for name, path in models(Path(folder)):
            over, seconds = ratio(path)
            print(
                f"{name:38} {seconds * 1e3:6.2f} ms {over * seconds * 1e3:6.2f} ms {over:6.2f} {over / base:8.2f}", flush=True
            )


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    for kind, steps, samples, units in LAYERS:
        yield f"{kind} {steps} x {samples} x {units}", layer(folder, kind, steps, samples, units)
    for number, spec in enumerate(QUANTISED):
        plain = zoo(spec, folder / str(number))
        yield spec, plain
        yield f"{spec} quantised", quantised(plain)


def layer(folder: Path, kind: str, steps: int, samples: int, units: int) -> Path:
    rng, rows = np.random.default_rng(0), GATES[kind] * units
    weights = [numpy_helper.from_array(rng.normal(0, 0.05, (1, rows, units)).astype(np.float32), name) for name in "WR"]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, samples, units])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [steps, 1, samples, units])
    node = helper.make_node(kind, ["x", "W", "R"], ["y"], hidden_size=units)
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], weights), opset_imports=opsets, ir_version=9)
    onnx.save(model, folder / "layer.onnx")
    return folder / "layer.onnx"


def zoo(spec: str, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    write_model(build_model(spec).module, Path(), folder / "model.onnx")
    return folder / "model.onnx"


def quantised(path: Path) -> Path:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter([inputs(session(path)) for _ in range(2)])

        def get_next(self) -> Any:
            return next(self.rows, None)

    made = path.with_name("quantised.onnx")
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(str(path), str(made), Samples(), quant_format=QuantFormat.QDQ, **kinds)
    return made


def session(path: Path) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options)


def inputs(opened: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    floats = {one.name: "float" in one.type for one in opened.get_inputs()}
    return {
        one.name: rng.random(one.shape, np.float32) if floats[one.name] else rng.integers(0, 2, one.shape)
        for one in opened.get_inputs()
    }


def ratio(path: Path) -> tuple[float, float]:
    """Predicted over measured seconds, and the measured ones."""
    opened = session(path)
    feeds, took = inputs(opened), []
    for _ in range(RUNS + 2):
        began = time.perf_counter()
        opened.run(None, feeds)
        took.append(time.perf_counter() - began)
    options = CompileOptions(str(path), "preset:cpu-1", path.with_name(f"{path.stem}.build"), plan_only=True)
    plan = compile_model(options, sink=DiagnosticSink()).module.first(Plan)
    assert plan is not None
    return plan.value / min(took), min(took)


if __name__ == "__main__":
    main()
