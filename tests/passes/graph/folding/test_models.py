"""Real models: every layer folds, and what is folded still computes the same numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ir
from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.zoo import build
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.types import DType, TensorType
from passes.framework.base import PassContext
from passes.framework.pipeline import parse_pipeline
from passes.graph.folding import expand
from passes.prepare.fold import FoldPass
from tests.passes.graph.folding.graphs import of, op_names, round_trip
from tests.passes.running import Arrays, assert_same_bits, run

ZOO = {
    "bert-base,layers=12,hidden=24,vocab=50": ("onnx.Softmax", 12),
    "gpt2,layers=12,hidden=24,vocab=50": ("onnx.Softmax", 12),
    "mlp,layers=9,hidden=16": ("onnx.Relu", 7),
}
"""Model of the zoo: an op that each layer has once, and the copies of the layer. The first and last layers of the multilayer
perceptron have other shapes than those between them."""

SHARED = {
    "bert": ("onnx.Softmax", 4),
    "gpt2": ("onnx.Softmax", 4),
    "llama": ("onnx.Softmax", 4),
    "vit": ("onnx.Softmax", 4),
}


def prepared(module: Module, passes: str = "canonicalize") -> Module:
    for step in parse_pipeline(passes):
        module = step.run(module, pass_context(DiagnosticSink()))
    return module


def layers(module: Module, op: str) -> int:
    """Copies of the largest block in which ``op`` stands once."""
    found = of(module)
    sizes = [
        (block.size, len(block.copies)) for block in found.blocks if op_names(found.func, block.copies[0].ops).count(op) == 1
    ]
    return max(sizes)[1]


@pytest.mark.parametrize("spec", ZOO)
def test_every_layer_of_the_zoo(spec: str) -> None:
    op, copies = ZOO[spec]
    module = prepared(build(spec), "canonicalize,cost")
    assert layers(module, op) == copies
    folded = round_trip(module)
    assert all(op.facets for op in folded.entry.ops)


def test_stages_of_a_residual_network() -> None:
    """The blocks of a stage after its first: 2, 3, 5 and 2."""
    found = of(prepared(build("resnet50,width=8,image=32")))
    blocks = [len(block.copies) for block in found.blocks if op_names(found.func, block.copies[0].ops).count("onnx.Conv") == 3]
    assert sorted(blocks) == [2, 2, 3, 5]


@pytest.mark.parametrize("name", SHARED)
def test_every_layer_of_an_exported_model(name: str, shared_dir: Path) -> None:
    op, copies = SHARED[name]
    module = prepared(load_model(str(shared_dir / "models" / f"{name}.onnx"), {}, DiagnosticSink()).module)
    assert layers(module, op) == copies
    round_trip(module)


def inputs(module: Module) -> Iterator[tuple[str, np.ndarray]]:
    """Seeded values of every argument: small positive integers, normal floats."""
    for value in module.entry.args:
        assert isinstance(value.type, TensorType)
        shape = tuple(dim for dim in value.type.shape or () if isinstance(dim, int))
        seed = int.from_bytes(hashlib.sha256(value.name.encode()).digest()[:4], "little")
        rng = np.random.default_rng(seed)
        if value.type.dtype is DType.F32:
            yield value.name[1:], rng.standard_normal(shape, dtype=np.float32)
        else:
            yield value.name[1:], rng.integers(0, 2, shape)


def numbers(module: Module, folder: Path) -> Arrays:
    return run(module, dict(inputs(module)), folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SHARED, "resnet"])
def test_exported_models_compute_the_same(name: str, shared_dir: Path) -> None:
    """The folded module (the export expands it), and it expanded, bit for bit."""
    folder = shared_dir / "models"
    model = load_model(str(folder / f"{name}.onnx"), {}, DiagnosticSink()).module
    free = {dim for value in model.entry.args if isinstance(value.type, TensorType) for dim in value.type.shape or ()}
    dims = dict.fromkeys(sorted(dim for dim in free if isinstance(dim, str)), 4)
    module = prepared(load_model(str(folder / f"{name}.onnx"), dims, DiagnosticSink()).module)
    expected = numbers(module, folder)
    folded = FoldPass().run(module, PassContext())
    assert folded is not module
    assert_same_bits(expected, numbers(folded, folder))
    assert_same_bits(expected, numbers(expand(folded), folder))


@pytest.mark.parametrize("spec", ["bert-base,layers=3,hidden=24,vocab=50,seq=8", "mlp,layers=6,hidden=16"])
def test_zoo_computes_the_same(spec: str, tmp_path: Path) -> None:
    module = prepared(build(spec))
    folded = FoldPass().run(module, PassContext())
    assert_same_bits(numbers(module, tmp_path), numbers(folded, tmp_path))


def test_a_fold_of_a_folded_text_is_the_same() -> None:
    """Names of bodies and marks survive the text."""
    module = prepared(build("bert-base,layers=3,hidden=24,vocab=50"))
    folded = FoldPass().run(module, PassContext())
    read = ir.parse_module(ir.print_module(folded))
    assert FoldPass().run(read, PassContext()) == folded
    assert expand(read) == module


def test_costs_add_up() -> None:
    """The costs of ops and calls of the folded entry are those of the expanded one."""
    from ir.core.facets import Cost

    module = prepared(build("gpt2,layers=4,hidden=24,vocab=50"), "canonicalize,cost")
    folded = FoldPass().run(module, PassContext())

    def total(module: Module) -> Cost:
        costs = [op.facet(Cost, Cost()) for op in module.entry.ops]
        names = [name for name in Cost.__dataclass_fields__ if name not in ("kind", "keyword")]
        return replace(Cost(), **{name: sum(getattr(cost, name) for cost in costs) for name in names})

    assert total(folded) == total(module)


def test_both_stacks_of_an_encoder_decoder() -> None:
    """What the stacks share across the borders of their layers occurs more often than the layers of either."""
    found = of(prepared(build("t5-base,layers=8")))
    stacks = {
        op_names(found.func, block.copies[0].ops).count("onnx.Softmax"): len(block.copies)
        for block in found.blocks
        if block.chains and any(len(chain.copies) == 8 for chain in block.chains)
    }
    assert stacks == {1: 8, 2: 8}
