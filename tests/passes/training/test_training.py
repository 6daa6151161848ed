"""What the pass makes of a model: the loss that torch computes, and the weights that a person would train."""

from __future__ import annotations

import pytest
import torch

import ir
from dnnc.engines.torch.statements.run import run_function
from dnnc.onnx.opdefs import DIALECTS
from dnnc.zoo import catalogue
from ir import OptimizerState, Resource
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.facets import Sync
from passes.costs.learning import StepLoss
from passes.framework.base import PassContext
from passes.training import TrainingPass

LOGITS = """module @m {opset.onnx = 20} {
  resource @w : tensor<4xf32> = random(normal, seed = 1)
  func @main(%x : tensor<2x3x4xf32>) -> (%y : tensor<2x3x4xf32>) {
    %y = onnx.Mul(%x, @w) : tensor<2x3x4xf32>
  }
}
"""


def test_cross_entropy_is_torchs_with_labels_that_do_not_count() -> None:
    """Of a batch in two microbatches, one of which has more of them."""
    module = ir.load_module(LOGITS, dialects=DIALECTS)
    after = TrainingPass(loss="cross-entropy:y").run(module, PassContext(dialects=DIALECTS))
    assert StepLoss.of(after.entry) == StepLoss("cross-entropy", "labels", "loss.counted")
    x, w = torch.randn(2, 2, 3, 4), torch.randn(4)
    labels = torch.tensor([[[0, -100, 3], [1, 1, -100]], [[-100, -100, -100], [-100, 2, -100]]])
    given = {"@w": w, "%loss.counted": torch.tensor(5 / 2)}
    found = [run_function(after.entry, after, {"%x": x[i], "%labels": labels[i], **given})[0] for i in (0, 1)]
    wanted = torch.nn.functional.cross_entropy((x * w).reshape(12, 4), labels.reshape(12))
    torch.testing.assert_close((found[0] + found[1]) / 2, wanted)


@pytest.mark.parametrize(("loss", "wanted"), [("mse:y", StepLoss("mse")), ("output:z", StepLoss("output"))])
def test_the_entry_says_which_loss_it_returns(loss: str, wanted: StepLoss) -> None:
    text = LOGITS.replace("-> (%y", "-> (%z : tensor<f32>, %y").replace(
        "xf32>\n  }", "xf32>\n    %z = onnx.ReduceSum(%y) {keepdims = 0} : tensor<f32>\n  }"
    )
    after = TrainingPass(loss=loss).run(ir.load_module(text, dialects=DIALECTS), PassContext(dialects=DIALECTS))
    assert StepLoss.of(after.entry) == wanted


def test_numbers_of_the_program_are_not_trained() -> None:
    module = catalogue.build("llama-7b,layers=1,hidden=16,heads=2,kv_heads=1,vocab=11,seq=4,ffn=8")
    after = TrainingPass(loss="cross-entropy:logits", optimizer="adamw").run(module, PassContext(dialects=DIALECTS))
    trained = [r for r in after.of_type(Resource) if any(isinstance(facet, OptimizerState) for facet in r.facets)]
    assert trained
    assert all(resource.name.endswith(".weight") for resource in trained)
    (embedding,) = [resource for resource in trained if "embed" in resource.name]
    assert embedding.facets == (OptimizerState("adamw", 2 * 11 * 16 * 4),)


@pytest.mark.parametrize("producer", ["", ', producer = "pytorch 2.9"', ', producer = "dnnc.from_torch pytorch 2.9"'])
def test_names_tell_of_tables_only_where_the_model_does_not(producer: str) -> None:
    """What other exporters call ``inv_freq`` is a table of theirs; ``from_torch`` states what does not train."""
    text = LOGITS.replace("{opset.onnx = 20}", f"{{opset.onnx = 20{producer}}}").replace("@w", "@rope.inv_freq")
    module, asked = ir.load_module(text, dialects=DIALECTS), TrainingPass(loss="mse:y")
    if "from_torch" in producer:
        after = asked.run(module, PassContext(dialects=DIALECTS))
        assert [one.name for one in after.of_type(Resource) if one.facets] == ["@rope.inv_freq"]
    else:
        with pytest.raises(InvalidInput, match="no weight to train"):
            asked.run(module, PassContext(dialects=DIALECTS))


def test_one_of_several_outputs_is_named() -> None:
    text = LOGITS.replace("-> (", "-> (%x : tensor<2x3x4xf32>, ", 1)
    with pytest.raises(UsageError, match="the model has 2 outputs, and none is named\n  hint: outputs are x, y"):
        TrainingPass(loss="cross-entropy:").run(ir.load_module(text, dialects=DIALECTS), PassContext(dialects=DIALECTS))


def test_weights_of_16_bits_are_warned_of_with_adam() -> None:
    """Its epsilon is 0 there, and 0 / 0 is no number."""
    module = ir.load_module(LOGITS.replace("f32", "f16"), dialects=DIALECTS)
    for optimizer, warned in (("adam", True), ("sgd", False)):
        sink = DiagnosticSink()
        TrainingPass(loss="cross-entropy:y", optimizer=optimizer).run(module, PassContext(dialects=DIALECTS, sink=sink))
        assert ["epsilon is 0 in f16" in one.message for one in sink.diagnostics] == [True] * warned


def test_gradients_are_added_up_as_asked() -> None:
    module = ir.load_module(LOGITS, dialects=DIALECTS)
    for sync, wanted in (("all_reduce", ()), *((sync, (Sync(sync),)) for sync in ("reduce_scatter", "sfb", "ps", "auto"))):
        after = TrainingPass(loss="cross-entropy:y", sync=sync).run(module, PassContext(dialects=DIALECTS))
        assert tuple(facet for facet in after.resources["@w"].facets if isinstance(facet, Sync)) == wanted
    with pytest.raises(ValueError, match="sync is all_reduce or reduce_scatter or sfb or ps or auto, not 'ring'"):
        TrainingPass(loss="cross-entropy:y", sync="ring")


SHARED = """module @m {opset.onnx = 20%s} {
  resource @one : tensor<4xf32> = random(normal, seed = 1)
  resource @w : tensor<4x4xf32> = random(normal, seed = 2)
  func @main(%%x : tensor<3x4xf32>) -> (%%y : tensor<3x4xf32>) {
    %%a = onnx.LayerNormalization(%%x, @one) : tensor<3x4xf32>
    %%b = onnx.MatMul(%%a, @w) : tensor<3x4xf32>
    %%c = onnx.MatMul(%%b, @w) : tensor<3x4xf32>
    %%y = onnx.LayerNormalization(%%c, %s) : tensor<3x4xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("producer", "scale", "warned"),
    [("", "@one", True), ("", "%x0", False), (', producer = "dnnc.from_torch pytorch 2.9"', "@one", False)],
)
def test_vectors_that_several_ops_read_are_told(producer: str, scale: str, warned: bool) -> None:
    """An exporter may have stored equal ones once; matrices are shared on purpose."""
    text = SHARED % (producer, scale)
    if scale != "@one":
        text = text.replace("%x :", "%x0 : tensor<4xf32>, %x :")
    context = PassContext(dialects=DIALECTS)
    TrainingPass(loss="mse:y").run(ir.load_module(text, dialects=DIALECTS), context)
    told = [str(one) for one in context.sink.diagnostics]
    assert ["several ops read one vector, which trains as one weight: @one" in one for one in told] == [True] * warned


@pytest.mark.parametrize(
    ("opset", "op"), [(18, "Resize(%a, _, @scales)"), (10, "Resize(%a, @scales)"), (9, "Upsample(%a, @scales)")]
)
def test_scales_of_a_resize_are_not_trained(opset: int, op: str) -> None:
    module = ir.load_module(
        f"""module @m {{opset.onnx = {opset}}} {{
  resource @w : tensor<1x4xf32> = inline([0.1, 0.2, 0.3, 0.4])
  resource @scales : tensor<2xf32> = inline([1.0, 2.0])
  func @main(%x : tensor<3x4xf32>) -> (%y : tensor<3x8xf32>) {{
    %a = onnx.Mul(%x, @w) : tensor<3x4xf32>
    %y = onnx.{op} : tensor<3x8xf32>
  }}
}}
""",
        dialects=DIALECTS,
    )
    after = TrainingPass(loss="mse:y").run(module, PassContext(dialects=DIALECTS))
    trained = [r.name for r in after.of_type(Resource) if any(isinstance(facet, OptimizerState) for facet in r.facets)]
    assert trained == ["@w"]
