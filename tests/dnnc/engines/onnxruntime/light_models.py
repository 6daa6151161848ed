"""The light models of the ``onnx`` package, with seeded random weights instead of their constant ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIKE_OTHERS = {"vgg19", "zfnet512"}  # chains of the operators of bvlc_alexnet, with hundreds of MB of weights
NAMES = tuple(sorted({path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx")} - LIKE_OTHERS))


def randomised(name: str, path: Path) -> Path:
    """Writes the light model ``name`` to ``path`` with weights normal(0, 2 / fan-in); variances are positive."""
    model = onnx.load(str(FOLDER / f"light_{name}.onnx"))
    graph = model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    variances = {node.input[4] for node in graph.node if node.op_type == "BatchNormalization"}
    scales = {node.input[1] for node in graph.node if node.op_type == "BatchNormalization"}
    # A pattern of prime length, repeated: drawing 144 million numbers for vgg19 would take longer than its check.
    pattern = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
    nodes, weights = [], []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            nodes.append(node)
            continue
        shape, target = tuple(int(d) for d in shapes[node.input[0]]), node.output[0]
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        values = np.resize(pattern, shape) * np.float32((2 / fan_in) ** 0.5 if len(shape) > 1 else 0.1)
        if target in variances or target in scales:
            values = np.abs(values) + np.float32(0.5)
        weights.append(numpy_helper.from_array(values, target))
    used = {name for node in nodes for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    inputs = [value for value in graph.input if value.name in used and value.name not in shapes]
    outputs, infos = list(graph.output), list(graph.value_info)
    randomised_graph = helper.make_graph(nodes, graph.name, inputs, outputs, [*tensors, *weights], value_info=infos)
    result = helper.make_model(randomised_graph, ir_version=4, opset_imports=list(model.opset_import))
    onnx.save_model(result, str(path), save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)
    return path
