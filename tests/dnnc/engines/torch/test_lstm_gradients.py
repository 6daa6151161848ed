"""The gradients of an LSTM: those of autograd, by one kernel where a function has all of them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from dnnc.onnx.opdefs import DIALECTS
from ir import parse_module
from ir.core.facets import OptimizerState
from ir.core.module import Action, Module, Program, Resource, Schedule
from passes.differentiate import DifferentiatePass
from passes.framework.base import PassContext

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.statements.run import compiled  # noqa: E402
from dnnc.engines.torch.write.stage_file import program_source  # noqa: E402

TEXT = """
module @m {opset.onnx = 20} {
  resource @scale : tensor<4xf32> = splat(1.0) optimizer<name = sgd, size = 0>
  resource @w : tensor<#x12x4xf32> = random(normal, seed = 1) optimizer<name = sgd, size = 0>
  resource @r : tensor<#x12x3xf32> = random(normal, seed = 2) optimizer<name = sgd, size = 0>
  resource @b : tensor<#x24xf32> = random(normal, seed = 3) optimizer<name = sgd, size = 0>
  resource @h : tensor<#x2x3xf32> = random(normal, seed = 4) optimizer<name = sgd, size = 0>
  resource @c : tensor<#x2x3xf32> = random(normal, seed = 5) optimizer<name = sgd, size = 0>
  func @main(%x : tensor<5x2x4xf32>, %t : tensor<5x#x2x3xf32>) -> (%loss : tensor<f32>) {
    %s = onnx.Mul(%x, @scale) : tensor<5x2x4xf32>
    %y, _, %cell = onnx.LSTM(%s, @w, @r, OPERANDS) {direction = "DIRECTION", hidden_size = 3} : TYPES
    %p = onnx.Mul(%y, %t) : tensor<5x#x2x3xf32>
    %one = onnx.ReduceSum(%p) {keepdims = 0} : tensor<f32>
    %two = onnx.ReduceSum(%cell) {keepdims = 0} : tensor<f32>
    %loss = onnx.Add(%one, %two) : tensor<f32>
  }
}
"""
TYPES = "tensor<5x#x2x3xf32>, tensor<#x2x3xf32>, tensor<#x2x3xf32>"
ROW = (Action("F", 0, 0), Action("B", 0, 0), Action("U", 0))


def module_of(direction: str, operands: str, trained: tuple[str, ...]) -> Module:
    """``operands``: those behind the weights."""
    text = TEXT.replace("DIRECTION", direction).replace("OPERANDS", operands).replace("TYPES", TYPES)
    module = parse_module(text.replace("#", "2" if direction == "bidirectional" else "1"), "m.ir")
    symbols = tuple(
        replace(one, facets=()) if isinstance(one, Resource) and one.name[1:] not in trained else one
        for one in module.symbols
        if not isinstance(one, Resource) or one.name in (*operands.split(", "), "@scale", "@w", "@r")
    )
    return replace(module, symbols=symbols)


ALL = ("scale", "w", "r", "b", "h", "c")


@pytest.mark.parametrize(
    ("direction", "operands", "trained", "whole"),
    [
        ("forward", "@b, _, @h, @c", ALL, True),
        ("reverse", "@b, _, @h, @c", ALL, True),
        ("forward", "_, _, _, _", ("scale", "w", "r"), True),
        ("forward", "@b, _, _, _", ("w", "b"), True),
        ("reverse", "@b, _, @h, _", ("scale", "h"), True),
        ("bidirectional", "@b, _, @h, @c", ALL, False),
    ],
)
def test_gradients_are_those_of_autograd(direction: str, operands: str, trained: tuple[str, ...], whole: bool) -> None:
    module = module_of(direction, operands, trained)
    after = DifferentiatePass(1).run(module, PassContext(dialects=DIALECTS))
    entry = after.entry
    program = Program("@p", "@s", ("d",), entry.args, entry.results, entry.ops)
    after = replace(after, symbols=(*after.symbols, Schedule("@schedule", "1f1b", (("d", ROW),))))
    source = program_source(after, program, "The step.")
    assert ("lstm_gradients(" in source, "recurrent_backward(" in source) == (whole, not whole)
    scope: dict[str, Any] = {}
    exec(source, scope)
    generator = torch.Generator().manual_seed(0)
    values = {}
    for one in after.of_type(Resource):
        shape = [int(dim) for dim in one.type.shape]  # type: ignore[union-attr, arg-type]
        values[one.name] = torch.randn(shape, generator=generator) if one.name[1:] in ALL else torch.tensor(1.0).expand(shape)
    inputs = {arg.name[1:]: torch.randn([int(dim) for dim in arg.type.shape], generator=generator) for arg in entry.args}  # type: ignore[union-attr, arg-type]
    weights = {name[1:]: value.clone() for name, value in values.items()}
    with torch.no_grad():
        _, found, saved = scope["forward"](weights, inputs, {}, None)
        for function in ("backward_input", "backward_weight", "backward"):
            if function in scope:
                _, more, saved = scope[function](weights, {}, saved, None)
                found = {**found, **more}
    names = [one.name for one in module.of_type(Resource) if any(isinstance(facet, OptimizerState) for facet in one.facets)]
    for name in names:
        values[name] = values[name].clone().requires_grad_(True)
    (loss,) = compiled(module, module.entry)({**values, **{f"%{name}": value for name, value in inputs.items()}}, "cpu")
    expected = torch.autograd.grad(loss, [values[name] for name in names])
    assert found.keys() == {f"{name[1:]}.grad" for name in names}
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(found[f"{name[1:]}.grad"], gradient, rtol=1e-4, atol=1e-5)


UNUSED = """
import sys
import torch
from dnnc.engines.torch.statements.recurrent_helpers import lstm_gradients
x, w, r = torch.ones(5, 2, 4), torch.ones(1, 12, 4), torch.ones(1, 12, 3)
with torch.no_grad():
    grads, wanted = (torch.ones(5, 1, 2, 3), None, None), (True, True, True, False, False, False)
    found = lstm_gradients(grads, x, w, r, None, None, None, (False,), wanted)
assert found[0] is not None and bool(found[0].abs().sum() > 0)
assert "sympy" not in sys.modules
"""


@pytest.mark.slow  # it starts a process of its own, which imports torch
def test_gradients_import_no_symbolic_library() -> None:
    """``torch.autograd.grad`` imports SymPy where it is given gradients: 33 MB of each rank."""
    subprocess.run([sys.executable, "-c", UNUSED], check=True)
