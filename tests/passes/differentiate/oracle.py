"""Gradients of whole models by torch's autograd, and by the ops of ``differentiate`` run one by one in torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from dnnc.engines.torch.check.unsplit import forward_only
from dnnc.engines.torch.statements.run import run_function
from dnnc.onnx.arrays import numpy_dtype, to_array
from dnnc.onnx.importer.bodies import OnnxBodies
from dnnc.onnx.importer.evaluate import OnnxEvaluator
from dnnc.onnx.opdefs import DIALECTS
from ir import Inline, Module, OptimizerState, Random, Resource, Splat, TensorType, Value
from ir.core.facets import UPDATE, phase_of
from passes.framework.base import PassContext
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from tests.passes.differentiate.numeric import gradients_of

Tensors = dict[str, torch.Tensor]


def context() -> PassContext:
    return PassContext(evaluate=OnnxEvaluator(), bodies=OnnxBodies(), dialects=DIALECTS)


def values_of(module: Module, seed: int = 0, classes: int = 5) -> Tensors:
    """Every argument and resource: constants as they are, weights and floats at random, integers below ``classes``."""
    random = np.random.default_rng(seed)
    values = {}
    for resource in module.of_type(Resource):
        assert isinstance(resource.type, TensorType)
        values[resource.name] = _tensor(resource, random)
    for arg in module.entry.args:
        assert isinstance(arg.type, TensorType)
        shape = [dim for dim in arg.type.shape or () if isinstance(dim, int)]
        array = random.normal(size=shape) if arg.type.dtype.is_float else random.integers(0, classes, shape)
        values[arg.name] = torch.tensor(np.asarray(array, numpy_dtype(arg.type.dtype)))
    return values


def _tensor(resource: Resource, random: np.random.Generator) -> torch.Tensor:
    type_ = resource.type
    assert isinstance(type_, TensorType)
    shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    match resource.data:
        case Inline(data):
            array = to_array(type_, data)
        case Splat(value):
            array = np.full(shape, value)
        case Random(scale=scale, mean=mean):
            array = random.normal(size=shape) * max(scale, 0.1) + mean
        case _:
            array = random.normal(size=shape) * 0.1
    if any(isinstance(facet, OptimizerState) for facet in resource.facets):
        array = array + random.normal(size=shape) * 0.05
    return torch.tensor(np.array(array, numpy_dtype(type_.dtype)))


def by_autograd(after: Module, values: Mapping[str, torch.Tensor]) -> tuple[float, Tensors]:
    """Loss and gradients of the trained resources, as the oracle of ``dnnc train --check`` has them."""
    trained = [r.name for r in after.of_type(Resource) if any(isinstance(f, OptimizerState) for f in r.facets)]
    leaves = {name: value.clone().requires_grad_(name in trained) for name, value in values.items()}
    (loss,) = run_function(forward_only(after), after, leaves)
    gradients = torch.autograd.grad(loss, [leaves[name] for name in trained], allow_unused=True)
    return loss.item(), {
        n: g if g is not None else torch.zeros_like(leaves[n]) for n, g in zip(trained, gradients, strict=True)
    }


def by_ops(after: Module, values: Mapping[str, torch.Tensor]) -> tuple[float, Tensors]:
    """Loss and gradients of the trained resources, of the ops of phases F, I and W; parts of several stages are added up."""
    func = after.entry
    ops = tuple(op for op in func.ops if phase_of(op.facets) != UPDATE and op.results)
    types = {value.name: value.type for op in ops for value in op.results}
    parts = gradients_of(func)
    names = [name for several in parts.values() for name in several]
    results = (func.results[0], *(Value(name, types[name]) for name in names))
    loss, *found = run_function(replace(func, ops=ops, results=results), after, values)
    by_name = dict(zip(names, found, strict=True))
    return float(loss), {weight: torch.stack([by_name[name] for name in several]).sum(0) for weight, several in parts.items()}


def compare(after: Module, values: Mapping[str, torch.Tensor], tolerance: float = 1e-6) -> None:
    """The two agree on the loss and on every gradient, relative to the largest element of it (epsilons are IEEE single)."""
    wanted_loss, wanted = by_autograd(after, values)
    loss, found = by_ops(after, values)
    assert np.isclose(loss, wanted_loss, rtol=tolerance)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        scale = float(gradient.abs().max())
        assert found[name].shape == gradient.shape, name
        assert float((found[name] - gradient).abs().max()) <= tolerance * max(scale, 1e-3), name


def differentiated(module: Module, pipeline: str) -> Module:
    """The module after these passes, each verified."""
    return PassManager(parse_pipeline(pipeline)).run(module, context())
