"""The two passes of single ops, run alone, against torch's autograd of the forward pass."""

from __future__ import annotations

import pytest
import torch

from dnnc.engines.torch.statements.run import run_function
from dnnc.onnx.importer.bodies import OnnxBodies
from ir import Module, load_module
from ir.core.module import Resource
from passes.differentiate import Alone
from tests.passes.differentiate.oracle import differentiated, values_of

OPS = {
    "MatMul": ("%x : tensor<3x4xf32>, %w : tensor<4x5xf32>", "onnx.MatMul(%x, %w) : tensor<3x5xf32>", (0, 1)),
    "MatMul of data": ("%x : tensor<3x4xf32>, %w : tensor<4x5xf32>", "onnx.MatMul(%x, %w) : tensor<3x5xf32>", (1,)),
    "square": ("%x : tensor<3x4xf32>", "onnx.Mul(%x, %x) : tensor<3x4xf32>", (0, 1)),
    "sum passed on": ("%x : tensor<3x4xf32>, %w : tensor<4xf32>", "onnx.Add(%x, %w) : tensor<3x4xf32>", (0, 1)),
    "Softmax": ("%x : tensor<3x4xf32>", "onnx.Softmax(%x) {axis = 1} : tensor<3x4xf32>", (0,)),
    "composite": ("%x : tensor<3x4xf32>", "onnx.Gelu(%x) : tensor<3x4xf32>", (0,)),
    "norm with results of its own": (
        "%x : tensor<3x4xf32>, %s : tensor<4xf32>, %b : tensor<4xf32>",
        "onnx.LayerNormalization(%x, %s, %b) {axis = -1} : tensor<3x4xf32>",
        (0, 1, 2),
    ),
    "Conv": (
        "%x : tensor<2x3x5x5xf32>, %w : tensor<4x3x3x3xf32>",
        "onnx.Conv(%x, %w) {pads = [1, 1, 1, 1], kernel_shape = [3, 3]} : tensor<2x4x5x5xf32>",
        (0, 1),
    ),
    "MaxPool": (
        "%x : tensor<2x3x4x4xf32>",
        "onnx.MaxPool(%x) {kernel_shape = [2, 2], strides = [2, 2]} : tensor<2x3x2x2xf32>",
        (0,),
    ),
}


def of(name: str) -> tuple[Module, tuple[bool, ...]]:
    args, op, learned = OPS[name]
    result = op.rpartition(" : ")[2]
    text = f"module @one {{opset.onnx = 20}} {{ func @main({args}) -> (%y : {result}) {{\n    %y = {op}\n  }}\n}}"
    module = load_module(text, where="test")
    return module, tuple(i in learned for i in range(len(module.entry.ops[0].operands)))


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("name", OPS)
def test_a_backward_pass_alone_gives_the_gradients_that_autograd_gives(name: str, readers: int) -> None:
    module, learned = of(name)
    (op,) = module.entry.ops
    forward, backward = Alone(module, OnnxBodies()).of(op, learned, (readers,))
    assert backward is not None
    wanted = list(dict.fromkeys(operand for operand, learns in zip(op.operands, learned, strict=True) if learns))
    given = {value: tensor.requires_grad_(value in wanted) for value, tensor in values_of(forward.module).items()}
    made = run_function(forward.module.entry, forward.module, given)
    values = {value.name: tensor.detach() for value, tensor in zip(forward.module.entry.results, made, strict=True)}
    above = {name: torch.randn(made[0].shape) for name in backward.fresh}
    assert len(above) == readers
    expected = torch.autograd.grad(made[0], [given[value] for value in wanted], sum(above.values()))
    held = values_of(backward.module)  # constants that the rule added
    found = run_function(backward.module.entry, backward.module, {**held, **given, **values, **above})
    assert len(found) == len(expected)
    for one, other in zip(sorted(found, key=summary), sorted(expected, key=summary), strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-4, atol=1e-5)


def summary(tensor: torch.Tensor) -> tuple[int, float]:
    """By what gradients in any order are told apart."""
    return tensor.numel(), round(float(tensor.detach().sum()), 3)


def test_an_op_without_a_gradient_has_a_forward_pass_alone() -> None:
    module, learned = of("MatMul")
    forward, backward = Alone(module, None).of(module.entry.ops[0], (False,) * len(learned), (1,))
    assert backward is None
    assert forward.fresh == {"%x", "%w"}


def test_gradients_of_weights_are_those_that_microbatches_add_up() -> None:
    made = differentiated_forward()
    op = next(op for op in made.entry.ops if op.name == "onnx.MatMul")
    _, backward = Alone(made, None).of(op, (True, True), (1,))
    assert backward is not None
    (summed,) = backward.summed
    types = {value.name: value.type for value in backward.module.entry.results}
    assert len(types) == 2
    assert types[summed] == next(r.type for r in made.of_type(Resource) if r.name == op.operands[1])


def differentiated_forward() -> Module:
    text = """module @m {opset.onnx = 20} {
  resource @w : tensor<4x5xf32> = splat(0.5)
  func @main(%x : tensor<3x4xf32>) -> (%y : tensor<3x5xf32>) {
    %h = onnx.Relu(%x) : tensor<3x4xf32>
    %y = onnx.MatMul(%h, @w) : tensor<3x5xf32>
  }
}"""
    return differentiated(load_module(text, where="test"), "cost")
