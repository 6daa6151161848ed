"""Functions of another opset than their model: one meaning, that of onnxruntime, or a refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest

from dnnc.engines.onnxruntime.write.export import export_func
from ir.core.diagnostics import InvalidInput
from tests.dnnc.onnx.control_flow import unoptimised
from tests.dnnc.onnx.models import load

ARRAYS = {
    "x": np.random.default_rng(0).normal(size=(2, 4, 3, 3)).astype(np.float32),
    "w": np.ones(4, np.float32),
    "yes": np.array(True),
    "r": np.array([[0, 0, 2, 2]], np.float32),
    "i": np.array([0]),
}

SAME, OTHER, CONVERTED = "same", "other", "converted"
"""Both readings are one; they are two; only the function's own is possible."""

CASES = [
    *((f"y = {name}(x)", 11, 20, OTHER) for name in ("Softmax", "LogSoftmax", "Hardmax")),
    *((f"y = {name}(x)", 20, 11, OTHER) for name in ("Softmax", "LogSoftmax", "Hardmax")),
    *((f"y = {name} <axis = 2> (x)", 12, 13, OTHER) for name in ("Softmax", "LogSoftmax", "Hardmax")),
    *((f"y = {name} <axis = -1> (x)", 11, 20, SAME) for name in ("Softmax", "LogSoftmax", "Hardmax")),
    ("y = If (yes) <then_branch = t () => (p) { p = Softmax(x) }, else_branch = e () => (q) { q = Neg(x) }>", 11, 20, OTHER),
    ("y = GroupNormalization <num_groups = 2> (x, w, w)", 20, 21, OTHER),
    ("a = Shape(x)\n b = DFT(x)\n y = Reshape(x, a)", 19, 20, OTHER),
    ("y = RoiAlign(x, r, i)", 15, 16, OTHER),
    ("y = Relu(x)", 11, 20, SAME),
    ("y = Flatten(x)", 10, 20, SAME),
    ("y = Dropout(x)", 11, 20, SAME),
    ("y = BatchNormalization(x, w, w, w, w)", 9, 20, SAME),
    ("y = AveragePool <kernel_shape = [2, 2]> (x)", 10, 20, SAME),
    ("y = Cast <to = 10> (x)", 9, 20, SAME),
    ("y = ArgMax <axis = 1> (x)", 11, 20, SAME),
    ("y = Concat <axis = 1> (x, x)", 11, 20, SAME),
    ("y = Squeeze(x)", 11, 20, SAME),
    ("y = ReduceSum <axes = [1]> (x)", 11, 20, CONVERTED),
    ("y = Unsqueeze <axes = [0]> (x)", 11, 20, CONVERTED),
    ("y = Slice <starts = [0], ends = [1]> (x)", 9, 20, CONVERTED),
    ("y = Pad <pads = [0, 0, 1, 1, 0, 0, 1, 1]> (x)", 10, 20, CONVERTED),
    ("y, z = TopK <k = 2> (x)", 9, 20, CONVERTED),
    ("y = Clip <max = 0.5, min = 0.0> (x)", 10, 20, CONVERTED),
    ("y, z = Split <axis = 1, split = [1, 3]> (x)", 11, 20, CONVERTED),
    ("y, z = Split <axis = 1> (x)", 11, 13, SAME),
    ("y, z = Split <axis = 1> (x)", 11, 18, CONVERTED),
    ("y, z = Split <axis = 1> (x)", 13, 20, CONVERTED),
    ("y, z = Split <axis = 1, num_outputs = 2> (x)", 18, 20, SAME),
]


def _model(body: str, own: int, other: int) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["": {other}, "f": 1]>\n'
    inputs = "float[2, 4, 3, 3] x, float[4] w, bool yes, float[1, 4] r, int64[1] i"
    return onnx.parser.parse_model(
        f"{head}g ({inputs}) => (y) {{ y = f.fn(x, w, yes, r, i) }}\n"
        f'<domain: "f", opset_import: ["": {own}]> fn (x, w, yes, r, i) => (y) {{ {body} }}'
    )


@pytest.mark.parametrize(("body", "own", "other", "kind"), CASES)
def test_a_function_means_one_thing(tmp_path: Path, body: str, own: int, other: int, kind: str) -> None:
    proto = _model(body, own, other)
    right = unoptimised(proto.SerializeToString(), ARRAYS)
    if kind == OTHER:
        said = rf"\w+ (means something else in opset {other} of the model than in {own} of the function|.*cannot be converted)"
        with pytest.raises(InvalidInput, match=rf"function 'fn': error\[E1619\]: {said}|{said}"):
            load(proto, tmp_path)
        return
    module = load(proto, tmp_path)
    found = unoptimised(onnx_ir.to_proto(export_func(module, module.entry)).SerializeToString(), ARRAYS)
    assert found is not None
    assert (right is None) == (kind == CONVERTED), right
    if right is not None:
        np.testing.assert_array_equal(found["y"], right["y"])


def _changed() -> list[tuple[str, int, int]]:
    """Operators that changed before opset 20 and need no attribute: name, an opset before a change, number of operands."""
    found = []
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or not 7 <= schema.since_version < 20 or not 1 <= schema.min_input <= 3 or schema.min_output != 1:
            continue
        try:
            newest = onnx.defs.get_schema(schema.name, 20, "")
        except onnx.defs.SchemaError:
            continue
        if newest.since_version != schema.since_version and not any(a.required for a in schema.attributes.values()):
            found.append((schema.name, schema.since_version, schema.min_input))
    return found


@pytest.mark.slow
def test_every_operator_is_read_in_one_way_or_refused(tmp_path: Path) -> None:
    """Of all operators that changed, where onnxruntime runs them on a tensor: what is imported is what it computes."""
    tried, refused = set(), set()
    for name, own, operands in _changed():
        proto = _model(f"y = {name}({', '.join(['x'] * operands)})", own, 20)
        right = unoptimised(proto.SerializeToString(), ARRAYS)
        if right is None:
            continue
        try:
            module = load(proto, tmp_path)
        except InvalidInput:
            refused.add(name)
            continue
        found = unoptimised(onnx_ir.to_proto(export_func(module, module.entry)).SerializeToString(), ARRAYS)
        assert found is not None
        np.testing.assert_array_equal(found["y"], right["y"], name)
        tried.add(name)
    assert len(tried) > 40
    assert refused == {"Softmax", "LogSoftmax", "Hardmax"}
