"""Picking a frontend, and the definitions of ONNX's operators that the verifier asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dnnc.compile.load import load_model
from dnnc.onnx import DIALECTS
from dnnc.onnx.opdefs import lookup
from ir import parse_module, print_module, verify
from ir.core.attributes import AttrKind, attributes
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.ops import Op, Value
from ir.ops.opdefs import PURE
from ir.ops.operators import ELEMENTWISE, EPILOGUE, RANDOM
from tests.dnnc.onnx.models import model, save, unknown_shapes

TEXT = """module @m {opset.onnx = 20} {
  func @main(%x : tensor<batch x 4 x f32>) -> (%y : tensor<batch x 4 x f32>) {
    %y = onnx.Relu(%x) : tensor<batch x 4 x f32> loc("main")
  }
}
"""


def test_ir_text_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.ir"
    path.write_text(TEXT)
    loaded = load_model(str(path), {"batch": 3}, DiagnosticSink())
    assert loaded.files.folder == tmp_path
    assert loaded.source == str(path)
    assert not unknown_shapes(loaded.module)
    assert str(loaded.module.entry.results[0].type) == "tensor<3x4xf32>"
    assert str(loaded.module.entry.ops[0].results[0].type) == "tensor<3x4xf32>"
    with pytest.raises(UsageError, match="--dim batch=3"):
        load_model(str(path), {"batc": 3}, DiagnosticSink())


def test_the_zoo_is_a_model() -> None:
    loaded = load_model("zoo:mlp", {}, DiagnosticSink())
    assert loaded.source == "zoo:mlp"
    assert not unknown_shapes(loaded.module)
    with pytest.raises(InvalidInput):
        load_model("zoo:no-such-model", {}, DiagnosticSink())


def test_what_is_imported_prints_parses_and_verifies(tmp_path: Path) -> None:
    path = save(model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {\n y = Add(x, w)\n}"), tmp_path)
    module = load_model(str(path), {}, DiagnosticSink()).module
    assert verify(module, dialects=DIALECTS) == []
    assert parse_module(print_module(module)) == module


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'sympy', 'lark', 'numba', 'networkx'}"
    code = f"import sys, dnnc.compile; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def _faults(op: Op, opset: int = 20) -> list[str]:
    definition = lookup(op.name, {"onnx": opset, "ai.onnx.ml": 3})
    assert definition is not None
    return definition.faults(op)


def test_definitions_come_from_the_schema_of_the_opset() -> None:
    x = (Value("%y"),)
    assert _faults(Op("onnx.Add", ("%a", "%b"), x)) == []
    assert "takes 2 operands, not 1" in _faults(Op("onnx.Add", ("%a",), x))[0]
    assert "needs attribute 'to'" in _faults(Op("onnx.Cast", ("%a",), x))[0]
    assert "of kind int, not float" in _faults(Op("onnx.Cast", ("%a",), x, attributes(to=1.0)))[0]
    assert _faults(Op("onnx.Unsqueeze", ("%a",), x, attributes(axes=[0])), 11) == []
    assert _faults(Op("onnx.Unsqueeze", ("%a",), x, attributes(axes=[0])), 13) != []
    assert "opset 18 has no operator Gelu" in _faults(Op("onnx.Gelu", ("%a",), x), 18)
    assert "has regions else_branch, then_branch, not none" in _faults(Op("onnx.If", ("%c",), x))[0]


def test_traits_and_kinds() -> None:
    add, random, split = (lookup(f"onnx.{name}", {"onnx": 20}) for name in ("Add", "RandomNormal", "Split"))
    assert add is not None
    assert random is not None
    assert split is not None
    assert add.traits == {PURE, ELEMENTWISE, EPILOGUE}
    assert random.traits == {RANDOM}
    assert split.results == (1, None) or split.results[1] is None
    assert dict(split.attributes)["axis"].kind is AttrKind.INT


def test_unknown_domains_and_opsets_are_opaque() -> None:
    assert lookup("onnx.com.acme.Odd", {"onnx": 20, "com.acme": 1}) is None
    assert lookup("onnx.Add", {}) is None
