"""What the pass promises of the whole step: phases, names, synchronisation, one gradient per stage of a weight."""

from __future__ import annotations

import ir
from dnnc.onnx.opdefs import DIALECTS
from ir import Module
from ir.core.facets import PHASES, phase_of
from ir.ops.grads import ACCUMULATE, ASSIGN
from ir.ops.optimizers import hyperparameters
from tests.passes.differentiate.oracle import compare, differentiated, values_of
from tests.passes.differentiate.test_models import trained

BY_SAMPLES = """module @m {opset.onnx = 20} {
  resource @w : tensor<8x8xf32> = random(normal, seed = 1) optimizer<name = adam, size = 512>
  func @main(%x : tensor<4096x8xf32>) -> (%loss : tensor<f32>) {
    %h = onnx.MatMul(%x, @w) : tensor<4096x8xf32>
    %s = onnx.Mul(%h, %h) : tensor<4096x8xf32>
    %loss = onnx.ReduceSum(%s) {keepdims = 0} : tensor<f32>
  }
}
"""


def test_phases_follow_each_other_and_only_means_cross_into_the_update() -> None:
    func = differentiated(trained("gpt2"), "differentiate").entry
    phases = {value.name: phase_of(op.facets) for op in func.ops for value in op.results}
    runs = [PHASES.index(phase_of(op.facets)) for op in func.ops]
    assert runs.index(1) > max(i for i, phase in enumerate(runs) if phase == 0)
    assert max(i for i, phase in enumerate(runs) if phase in (1, 2)) < runs.index(3)
    for op in func.ops:
        read = {phases[name] for name in op.operands if name in phases}
        phase = phase_of(op.facets)
        assert "W" not in read or phase in ("W", "U"), op
        assert phase != "U" or op.name == ACCUMULATE or read <= {"U"}, op


def test_every_update_is_kept() -> None:
    after = differentiated(trained("mlp"), "differentiate")
    again = differentiated(after, "canonicalize")
    for module in (after, again):
        assert {op.operands[0] for op in module.entry.ops if op.name == ASSIGN} == set(_trained(module))


def _trained(module: Module) -> list[str]:
    return [resource.name for resource in module.of_type(ir.Resource) if resource.facets]


def test_numbers_are_those_that_were_written() -> None:
    func = differentiated(ir.load_module(BY_SAMPLES, dialects=DIALECTS), "differentiate{beta2=0.95}").entry
    (adam,) = [op for op in func.ops if op.name == "grad.adam"]
    assert hyperparameters(adam) == {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.0}


def test_a_gradient_that_is_a_constant_is_accumulated_like_others() -> None:
    """That of a term of the loss: a resource has no sum over microbatches that the update could read."""
    sgd = "optimizer<name = sgd, size = 0>"
    text = BY_SAMPLES.replace("optimizer<name = adam, size = 512>", f"{sgd}\n  resource @bias : tensor<f32> = splat(0.0) {sgd}")
    total = "    %t = onnx.ReduceSum(%s) {keepdims = 0} : tensor<f32>\n    %loss = onnx.Add(%t, @bias) : tensor<f32>\n"
    text = text.replace("    %loss = onnx.ReduceSum(%s) {keepdims = 0} : tensor<f32>\n", total)
    after = differentiated(ir.load_module(text, dialects=DIALECTS), "differentiate")
    made = {value.name for op in after.entry.ops for value in op.results}
    sums = [op.operands[0] for op in after.entry.ops if op.name == ACCUMULATE]
    assert len(sums) == 2
    assert made.issuperset(sums)
    compare(after, values_of(after))
