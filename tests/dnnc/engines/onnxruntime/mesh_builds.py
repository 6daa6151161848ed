"""Builds with a stage on a mesh, written from ONNX text: two matrix products, the first cut by columns, the second by rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from dnnc.build.build import ANNOTATED, Build, ValueInfo
from dnnc.build.snapshot import SCHEMA, sealed
from ir.core.types import DType, TensorType
from tests.dnnc.sealing import entry

Box = Sequence[Sequence[int]]


def graph(text: str, weights: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """A model from the text of a graph; ``weights`` become initializers."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]>\n' + text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in (weights or {}).items())
    return model


def port(name: str, shape: Sequence[int]) -> dict[str, Any]:
    return ValueInfo.of(name, TensorType(DType.F32, tuple(shape))).to_json()


def local(name: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "shape": list(shape)}


def part(
    name: str, box: Box, *, reduction: str = "", delivers: bool = True, channel: int = -1, term: int = 0
) -> dict[str, Any]:
    return {
        "name": name,
        "value": name,
        "box": [list(side) for side in box],
        "reduction": reduction,
        "delivers": delivers,
        "channel": channel,
        "term": term,
    }


def write(folder: Path, manifest: dict[str, Any], models: Mapping[str, onnx.ModelProto], annotated: onnx.ModelProto) -> Path:
    """Writes a build directory with these models; adds to the manifest the entries that every build has."""
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        onnx.save_model(model, str(folder / "stages" / name))
    onnx.save_model(annotated, str(folder / "annotated.onnx"))
    stages = [
        {"index": s["index"], "device_type": "core", "device": s["devices"], "seconds": {"compute": 1.0}, "ops": []}
        for s in manifest["stages"]
    ]
    plan = {"schema": "dnnc.plan/1", "objective": "throughput", "comm": "sum", "value": 1.0, "port_value": 1.0, "bound": 1.0}
    plan |= {"status": "optimal", "single": 1.0, "stages": stages, "cuts": [], "certificate": {}}
    (folder / "plan.json").write_text(json.dumps(plan))
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    manifest = {
        "schema": SCHEMA,
        "versions": {},
        "source": {"spec": "", "sha256": ""},
        "model": "pair",
        "weights": "shared",
        "schedule": {"slots": 2, "rows": _in_order(manifest["stages"])},
        **manifest,
        "files": {path.relative_to(folder).as_posix(): entry(path) for path in files},
    }
    (folder / "manifest.json").write_text(json.dumps(sealed(manifest)))
    return folder


def _in_order(stages: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """The rows of a schedule in which each stage receives, runs and sends."""
    rows: dict[str, list[list[Any]]] = {}
    for stage in stages:
        ahead = len(stages) - 1 - stage["index"]
        own = [["recv", stage["index"], ahead, channel["id"]] for channel in stage["receives"]]
        own.append(["F", stage["index"], ahead])
        own += [["send", stage["index"], ahead, channel["id"]] for channel in stage["sends"]]
        for device in stage["devices"]:
            rows.setdefault(device, []).extend(own)
    return rows


def pair(folder: Path, members: int = 2, rows: int = 4, wide: int = 8, *, slow: int = 0, body: str = "") -> Path:
    """Writes a build of y = -(relu(x A) B), A cut by columns and B by rows, with an all-reduce of the products. ``slow``:
    iterations of a loop that each member runs before; ``body``: ONNX text instead of that loop, from ``x`` to ``x2``."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((6, wide)).astype(np.float32), random.standard_normal((wide, 5)).astype(np.float32))
    cut = wide // members
    models, programs = {}, []
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
        programs.append(
            {
                "device": f"cpu{member}",
                "inputs": ["x"],
                "segments": [
                    {
                        "level": level,
                        "model": f"stages/stage0.member{member}.segment{level}.onnx",
                        "inputs": [source],
                        "outputs": [local(target, (rows, 5))],
                    }
                    for level, (source, target) in enumerate((("x", "p"), ("s", "y")))
                ],
                "receives": [],
                "sends": [],
                "outputs": [part("y", [[0, rows], [0, 5]], delivers=member == 0)],
            }
        )
    collective = {
        "kind": "all_reduce",
        "channel": 0,
        "level": 0,
        "operand": "p",
        "result": "s",
        "element": 1,
        "groups": [list(range(members))],
        "operands": [[rows, 5]] * members,
        "results": [[rows, 5]] * members,
        "reduction": "sum",
        "split": -1,
        "join": -1,
    }
    stage = {
        "index": 0,
        "devices": [f"cpu{member}" for member in range(members)],
        "device_type": "core",
        "inputs": [port("x", (rows, 6))],
        "outputs": [port("y", (rows, 5))],
        "receives": [],
        "sends": [],
        "axes": [["tensor", members]],
        "collectives": [collective],
        "members": programs,
    }
    manifest = {"inputs": stage["inputs"], "outputs": stage["outputs"], "stages": [stage]}
    whole = f"g (float[{rows},6] x) => (float[{rows},5] y) {{ h = MatMul(x, A) r = Relu(h) p = MatMul(r, B) y = Neg(p) }}"
    return write(folder, manifest, models, graph(whole, {"A": a, "B": b}))


def expected(build: Build, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of the unsplit model of a ``pair``, computed with numpy."""
    model = onnx.load_model_from_string(build.files.read(ANNOTATED))
    a, b = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    return {"y": -(np.maximum(inputs["x"] @ a, 0) @ b)}
