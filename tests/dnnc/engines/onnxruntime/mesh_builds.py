"""Builds with a stage on a mesh, written from ONNX text: two matrix products, the first cut by columns, the second by rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from dnnc.build.build import ANNOTATED, Build
from dnnc.build.snapshot import ONNXRUNTIME, SCHEMA, sealed
from tests.dnnc.sealing import entry


def graph(text: str, weights: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """A model from the text of a graph; ``weights`` become initializers."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]>\n' + text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in (weights or {}).items())
    return model


def write(folder: Path, program: str, models: Mapping[str, onnx.ModelProto], annotated: onnx.ModelProto) -> Path:
    """A build directory with these models and the text ``program`` as its plan.ir."""
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        onnx.save_model(model, str(folder / "stages" / name))
    onnx.save_model(annotated, str(folder / "annotated.onnx"))
    (folder / "plan.ir").write_text(program)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    manifest = {
        "schema": SCHEMA,
        "versions": {},
        "source": {"spec": "", "sha256": ""},
        "model": "pair",
        "engine": ONNXRUNTIME,
        "weights": "shared",
        "files": {path.relative_to(folder).as_posix(): entry(path) for path in files},
    }
    (folder / "manifest.json").write_text(json.dumps(sealed(manifest)))
    return folder


PAIR = """module @pair {
  func @main(%x : tensor<ROWSx6xf32>) -> (%y : tensor<ROWSx5xf32>) {
  }
  mesh @mesh [tensor = MEMBERS] on [DEVICES]
  stage @stage0 index 0 on [DEVICES] mesh @mesh (%x : tensor<ROWSx6xf32>) -> (%y : tensor<ROWSx5xf32>) {
  }
  program @program0 of @stage0 on [DEVICES] (%x : tensor<ROWSx6xf32>) -> (%y : tensor<ROWSx5xf32>) {
    %p = dnnc.segment(%x) {level = 0} : tensor<ROWSx5xf32>
    %s = comm.all_reduce(%p) {axis = "tensor", channel = 0, mesh = @mesh, reduction = "sum"} : tensor<ROWSx5xf32>
    %y = dnnc.segment(%s) {level = 1} : tensor<ROWSx5xf32>
  }
  schedule @schedule {
    kind = stream
    periodic = true
LINES
  }
  plan @plan {
    objective = throughput
    comm = sum
    value = 1.0
    port_value = 1.0
    bound = 1.0
    status = optimal
    single = 1.0
    stage {index = 0, device_type = core, devices = [DEVICES], mesh = @mesh, ops = 1, compute = 1.0}
  }
}
"""


def pair(folder: Path, members: int = 2, rows: int = 4, wide: int = 8, *, slow: int = 0, body: str = "") -> Path:
    """Writes a build of y = -(relu(x A) B), A cut by columns and B by rows, with an all-reduce of the products. ``slow``:
    iterations of a loop that each member runs before; ``body``: ONNX text instead of that loop, from ``x`` to ``x2``."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((6, wide)).astype(np.float32), random.standard_normal((wide, 5)).astype(np.float32))
    cut = wide // members
    models = {}
    loop = body or (
        f"n = Constant <value_int = {slow}> () yes = Constant <value_int = 1> () go = Cast <to = 9> (yes) "
        f"x2 = Loop (n, go, x) <body = b (int64 i, bool c, float[{rows},6] v) => (bool d, float[{rows},6] e) "
        "{ d = Identity(c) e = Sin(v) }>"
        if slow
        else "x2 = Identity(x)"
    )
    for member in range(members):
        own = slice(member * cut, (member + 1) * cut)
        first = f"g (float[{rows},6] x) => (float[{rows},5] p) {{ {loop} h = MatMul(x2, A) r = Relu(h) p = MatMul(r, B) }}"
        models[f"stage0.member{member}.segment0.onnx"] = graph(first, {"A": a[:, own].copy(), "B": b[own].copy()})
        models[f"stage0.member{member}.segment1.onnx"] = graph(f"g (float[{rows},5] s) => (float[{rows},5] y) {{ y = Neg(s) }}")
    devices = [f"cpu{member}" for member in range(members)]
    lines = "\n".join(f"    row {device} [F(0, 0)]" for device in devices)
    program = PAIR.replace("ROWS", str(rows)).replace("MEMBERS", str(members)).replace("LINES", lines)
    whole = f"g (float[{rows},6] x) => (float[{rows},5] y) {{ h = MatMul(x, A) r = Relu(h) p = MatMul(r, B) y = Neg(p) }}"
    return write(folder, program.replace("DEVICES", ", ".join(devices)), models, graph(whole, {"A": a, "B": b}))


def expected(build: Build, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of the unsplit model of a ``pair``, computed with numpy."""
    model = onnx.load_model_from_string(build.files.read(ANNOTATED))
    a, b = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    return {"y": -(np.maximum(inputs["x"] @ a, 0) @ b)}
