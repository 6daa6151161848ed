"""A whole training step of a model as ops of the IR, run in torch, against torch's autograd on the forward program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.onnx import DIALECTS
from dnnc.onnx.model import free_symbols
from dnnc.onnx.weights import read_resource
from ir import DiagnosticSink, Func, Module, OptimizerState, Resource, TensorType, verify
from ir.core.facets import phase_of
from passes.differentiate import DifferentiatePass
from passes.prepare.canonicalize import CanonicalizePass
from passes.training import TrainingPass

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
backend: Any = pytest.importorskip("dnnc.engines.torch.statements.run", reason="the extra 'train' is not installed")

ZOO = (
    "bert-base,layers=1,hidden=32,heads=2,vocab=50",
    "gpt2,layers=1,hidden=32,heads=2,vocab=50",
    "llama-70b,layers=1,hidden=32,heads=4,kv_heads=2,vocab=50,seq=8",
    "mlp",
    "t5-base,layers=1,hidden=32,heads=2,vocab=50,seq=8",
    "vit-base,layers=1,hidden=32,heads=2,image=16,patch=8,classes=8",
)
SHARED = ("bert", "gpt2", "llama", "resnet", "vit")


def _constants(module: Module) -> tuple[str, ...]:
    """Numbers of the program's text that have a name: their gradients are sums that cancel."""
    return tuple(r.name[1:] for r in module.of_type(Resource) if r.name.startswith("@mask."))


def training_step(spec: str) -> tuple[Module, Module, Path]:
    """The forward pass with its loss, and the differentiated program."""
    sink = DiagnosticSink()
    free = sorted(free_symbols(load_model(spec, {}, sink).module.entry))
    sizes = {name: 2 if name in (free[-1], "s43") else 8 for name in free}
    loaded = load_model(spec, sizes, sink)
    context = pass_context(sink)
    output = next(value for value in loaded.module.entry.results if isinstance(value.type, TensorType))
    module = TrainingPass(loss=f"mse:{output.name[1:]}", optimizer="sgd", frozen=_constants(loaded.module)).run(
        loaded.module, context
    )
    module = CanonicalizePass().run(module, context)
    after = DifferentiatePass(learning_rate=1.0).run(module, context)
    assert verify(after, dialects=DIALECTS) == []
    return module, after, loaded.files


def values_of(module: Module, folder: Path) -> dict[str, Any]:
    """Weights as the model holds them; arguments at random."""
    random = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for resource in module.of_type(Resource):
        found[resource.name] = torch.from_numpy(np.array(read_resource(resource, folder)))
    for argument in module.entry.args:
        assert isinstance(argument.type, TensorType)
        shape = tuple(int(str(dim)) for dim in argument.type.shape or ())
        if argument.type.dtype.is_float:
            found[argument.name] = torch.from_numpy(random.normal(size=shape).astype(np.float32))
        else:
            high = 2 if "mask" in argument.name or "type" in argument.name else 40
            low = 1 if "mask" in argument.name else 0
            found[argument.name] = torch.from_numpy(random.integers(low, high, shape))
    return found


def check(spec: str) -> None:
    before, after, folder = training_step(spec)
    values = values_of(after, folder)
    trained = [r.name for r in before.of_type(Resource) if any(isinstance(f, OptimizerState) for f in r.facets)]
    leaves = {name: values[name].clone().requires_grad_() for name in trained}
    (loss,) = backend.run_function(before.entry, before, {**values, **leaves})
    wanted = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    (found,) = backend.run_function(after.entry, after, values)
    torch.testing.assert_close(found, loss.detach(), rtol=1e-5, atol=1e-6)
    assert trained
    for (name, leaf), gradient in zip(leaves.items(), wanted, strict=True):
        if gradient is not None:
            step = leaf.detach() - values[name]
            scale = float(gradient.abs().max()) + float(leaf.detach().abs().max()) * 1e-3
            assert float((step - gradient).abs().max()) <= 1e-4 * scale, name


@pytest.mark.parametrize("spec", ZOO)
def test_a_step_of_the_zoo(spec: str) -> None:
    check(f"zoo:{spec}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_a_step_of_the_shared_models(name: str, shared_dir: Path) -> None:
    check(str(shared_dir / "models" / f"{name}.onnx"))


def test_phases_are_written() -> None:
    _, after, _ = training_step("zoo:mlp")
    assert isinstance(after.entry, Func)
    assert {phase_of(op.facets) for op in after.entry.ops} == {"F", "I", "W", "U"}
