"""Names that graphs inside each other share: refused where ONNX forbids it, else what onnxruntime takes them for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import numpy_helper

from dnnc.engines.onnxruntime.write.export import export_func
from ir.core.diagnostics import InvalidInput
from tests.dnnc.onnx.control_flow import equal, unoptimised
from tests.dnnc.onnx.models import load, model

INSIDE = "node #1 (If, makes 'z'), then_branch"
HEAD = '<ir_version: 10, opset_import: ["": 20, "f": 1]>\n'
ELSE = "else_branch = e () => (q) { q = Add(x, w) }>"
LOOP = "z = Loop (n, c, x) <body = b (int64 i, bool k, {a}) => (bool k2, float[2] s) {{ k2 = Identity(k)\n {body} }}>\n"

FORBIDDEN = {
    "node": (
        f"w = Neg(x)\n z = If (c) <then_branch = t () => (p) {{ w = Abs(x)\n p = Add(x, w) }}, {ELSE}",
        "(Neg, makes 'w')",
    ),
    "initializer": (f"w = Neg(x)\n z = If (c) <then_branch = t () => (p) {{ p = Add(x, w) }}, {ELSE}", "(Neg, makes 'w')"),
    "input": (
        "v = Neg(x)\n z = If (c) <then_branch = t () => (p) { p = Add(v, x) }, else_branch = e () => (q) { q = Add(x, x) }>",
        "a graph input",
    ),
    "body": (
        "w = Neg(x)\n" + LOOP.format(a="a", body="w = Abs(a)\n s = Add(w, a)"),
        "(Neg, makes 'w')",
    ),
    "nested": (
        "z = If (c) <then_branch = t () => (p) { w = Neg(x)\n "
        "p = If (c) <then_branch = t2 () => (r) { w = Abs(x)\n r = Neg(w) }, "
        "else_branch = e2 () => (r2) { r2 = Neg(w) }> }, else_branch = e () => (q) { q = Neg(x) }>",
        "then_branch: node #0 (Neg, makes 'w')",
    ),
}


def _model(body: str) -> onnx.ModelProto:
    return model(f"g (float[2] x, bool c, int64 n) => (float[2] y) {{ {body}\n y = Identity(z) }}")


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_name_made_anew_inside_is_refused_with_both_places(tmp_path: Path, case: str) -> None:
    body, around = FORBIDDEN[case]
    proto = _model(body)
    if case in ("initializer", "input"):
        name = "w" if case == "initializer" else "x"
        branch = proto.graph.node[1].attribute[0].g
        branch.initializer.append(numpy_helper.from_array(np.full(2, 6, np.float32), name))
    with pytest.raises(InvalidInput) as raised:
        load(proto, tmp_path)
    (fault,) = raised.value.diagnostics
    assert "is defined by" in fault.message
    assert "around it by" in fault.message
    assert ("around it by the model's graph: " in fault.message) == ("_branch" not in around)
    assert fault.message.endswith(around)
    assert "_branch" in fault.where or "body" in fault.where


def test_one_inside_a_function_is_refused_too(tmp_path: Path) -> None:
    text = "g (float[2] x, bool c) => (float[2] y) { y = f.G(x, c) }\n"
    inside = f"w = Abs(x)\n y = If (c) <then_branch = t () => (p) {{ w = Neg(x)\n p = Add(x, w) }}, {ELSE}"
    with pytest.raises(InvalidInput, match="around it by the model's graph: node #0"):
        load(model(f'{text}<domain: "f", opset_import: ["": 20]> G (x, c) => (y) {{ {inside} }}', HEAD), tmp_path)


ALLOWED = {
    "both branches": "z = If (c) <then_branch = t () => (p) { w = Abs(x)\n p = Neg(w) }, "
    "else_branch = e () => (q) { w = Neg(x)\n q = Add(w, w) }>",
    "a later node": "v = If (c) <then_branch = t () => (p) { w = Abs(x)\n p = Neg(w) }, "
    "else_branch = e () => (q) { q = Neg(x) }>\n w = Neg(v)\n z = Add(w, v)",
    "what the node makes": "z = If (c) <then_branch = t () => (z) { z = Abs(x) }, else_branch = e () => (z) { z = Neg(x) }>",
    "what enters a body": "w = Neg(x)\n" + LOOP.format(a="w", body="s = Add(w, x)").replace("z =", "v =") + "z = Add(v, w)",
    "all that enters": "z = Loop (n, c, x) <body = b (int64 n, bool c, x) => (bool k, s) { k = Identity(c)\n s = Neg(x) }>",
}


@pytest.mark.parametrize("case", ALLOWED)
def test_other_names_mean_what_they_mean_to_onnxruntime(tmp_path: Path, case: str) -> None:
    proto = _model(ALLOWED[case])
    module = load(proto, tmp_path)
    written = onnx_ir.to_proto(export_func(module, module.entry)).SerializeToString()
    for condition in (True, False):
        arrays = {"x": np.array([1, -2], np.float32), "c": np.array(condition), "n": np.array(3)}
        right, found = unoptimised(proto.SerializeToString(), arrays), unoptimised(written, arrays)
        assert right is not None
        assert found is not None
        assert equal(found, right)
