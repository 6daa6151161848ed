"""What a model says of its training: frozen, detached, a padding row; and what options say instead."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest
import torch

import ir
from dnnc.engines.torch.statements.run import run_function
from dnnc.onnx.importer.read import import_proto
from dnnc.onnx.opdefs import DIALECTS
from ir import InTraining, Module, OptimizerState, Resource
from ir.core.diagnostics import InvalidInput
from passes.framework.base import PassContext
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.training import TrainingPass
from tests.passes.differentiate.oracle import by_autograd, by_ops, context, values_of

STATED = """module @m {opset.onnx = 20} {
  resource @table : tensor<5x3xf32> = random(normal, seed = 1)
  resource @w : tensor<3xf32> = random(normal, seed = 2)
  resource @fixed : tensor<3xf32> = random(normal, seed = 3) training<frozen>
  resource @guarded : tensor<3xf32> = random(normal, seed = 4)
  func @main(%i : tensor<2x4xi64>) -> (%y : tensor<f32>) {
    %rows = onnx.Gather(@table, %i) : tensor<2x4x3xf32> training<padding, row = 1>
    %scaled = onnx.Mul(%rows, @w) : tensor<2x4x3xf32>
    %shifted = onnx.Add(%scaled, @fixed) : tensor<2x4x3xf32>
    %product = onnx.Mul(%shifted, @guarded) : tensor<2x4x3xf32>
    %kept = onnx.Identity(%product) : tensor<2x4x3xf32> training<detached>
    %all = onnx.Mul(%kept, %shifted) : tensor<2x4x3xf32>
    %y = onnx.ReduceSum(%all) {keepdims = 0} : tensor<f32>
  }
}
"""
NORM = """module @m {opset.onnx = 20} {
  resource @scale : tensor<3xf32> = splat(2.0)
  resource @bias : tensor<3xf32> = splat(1.0)
  resource @mean : tensor<3xf32> = splat(0.5)
  resource @var : tensor<3xf32> = splat(4.0)
  func @main(%x : tensor<4x3xf32>) -> (%y : tensor<4x3xf32>) {
    %y = onnx.BatchNormalization(%x, @scale, @bias, @mean, @var) {momentum = 0.9} : tensor<4x3xf32> training<frozen>
  }
}
"""


def trained(module: Module, **options: object) -> tuple[Module, list[str]]:
    after = TrainingPass(**options).run(module, PassContext(dialects=DIALECTS))  # type: ignore[arg-type]
    marked = [one.name for one in after.of_type(Resource) if any(isinstance(f, OptimizerState) for f in one.facets)]
    return after, marked


def test_gradients_are_those_of_detached_values_and_padding_rows() -> None:
    module = ir.load_module(STATED, dialects=DIALECTS)
    after = PassManager(parse_pipeline("training{loss=output:y,optimizer=sgd},canonicalize,differentiate")).run(
        module, context()
    )
    values = values_of(after)
    values["%i"] = torch.tensor([[0, 1, 1, 4], [2, 1, 0, 3]])
    _, found = by_ops(after, values)
    table, w = (values[name].clone().requires_grad_() for name in ("@table", "@w"))
    shifted = torch.nn.functional.embedding(values["%i"], table, padding_idx=1) * w + values["@fixed"]
    ((shifted * values["@guarded"]).detach() * shifted).sum().backward()
    assert found.keys() == {"@table", "@w"}
    torch.testing.assert_close(found["@table"], table.grad)
    torch.testing.assert_close(found["@w"], w.grad)
    assert float(found["@table"][1].abs().max()) == 0
    for name, gradient in by_autograd(after, values)[1].items():
        torch.testing.assert_close(found[name], gradient)


def test_frozen_resources_train_where_they_are_named() -> None:
    module = ir.load_module(STATED, dialects=DIALECTS)
    assert trained(module, loss="output:y")[1] == ["@table", "@w"]
    assert trained(module, loss="output:y", trainable=("fixed",))[1] == ["@fixed"]
    assert trained(module, loss="output:y", frozen=("table",))[1] == ["@w"]


@pytest.mark.parametrize(("option", "trains"), [("model", False), ("train", True), ("frozen", False)])
def test_a_batch_normalisation_that_infers_stays_so(option: str, trains: bool) -> None:
    module = ir.load_module(NORM, dialects=DIALECTS)
    after, marked = trained(module, loss="mse:y", batchnorm=option)
    (norm,) = [op for op in after.entry.ops if op.name == "onnx.BatchNormalization"]
    assert (norm.get("training_mode", 0) == 1) is trains
    assert marked == ["@scale", "@bias"]


def test_running_averages_are_torchs() -> None:
    """Of the variance the unbiased one."""
    module = ir.load_module(NORM.replace(" training<frozen>", ""), dialects=DIALECTS)
    after, _ = trained(module, loss="mse:y")
    (norm,) = [op for op in after.entry.ops if op.name == "onnx.BatchNormalization"]
    func = after.entry
    alone = ir.Func(func.name, func.args[:1], norm.results[1:3], (norm,))
    x = torch.randn(4, 3)
    values = {"%x": x, "@scale": torch.full((3,), 2.0), "@bias": torch.ones(3)}
    values |= {"@mean": torch.full((3,), 0.5), "@var": torch.full((3,), 4.0)}
    mean, variance = run_function(alone, after.replace(func, alone), values)
    layer = torch.nn.BatchNorm1d(3)
    layer.running_mean.fill_(0.5)
    layer.running_var.fill_(4.0)
    layer(x)
    torch.testing.assert_close(mean, layer.running_mean)
    torch.testing.assert_close(variance, layer.running_var)


def model_saying(said: str) -> onnx.ModelProto:
    text = """<ir_version: 10, opset_import: ["": 20]> m (float[4] x) => (float[4] y) { y = Identity (x) }"""
    model = onnx.parser.parse_model(text)
    model.graph.node[0].metadata_props.add(key="dnnc.training", value=said)
    return model


def test_a_model_file_says_it_in_metadata() -> None:
    module = import_proto(model_saying("detached"), where="m.onnx")
    assert module.entry.ops[0].facets == (InTraining("detached"),)
    assert ir.parse_module(ir.print_module(module)) == module


@pytest.mark.parametrize("said", ["asleep", "padding", "padding, row = x", "frozen, row = 3", "frozen> stage<1"])
def test_a_model_file_that_says_nonsense_is_refused(said: str) -> None:
    with pytest.raises(InvalidInput, match=r"m\.onnx: .*training"):
        import_proto(model_saying(said), where="m.onnx")
