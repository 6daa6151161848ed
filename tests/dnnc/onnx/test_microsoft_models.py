"""A decoder of onnxruntime-genai and a BERT of the transformer optimizer, through the compiler: all sizes known, about even
halves, and the same numbers as the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

from dnnc.build.build import Build
from dnnc.check.check import CheckOptions, check_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.data.generate import random_inputs
from dnnc.onnx.importer.inference.value_types import is_static
from dnnc.onnx.importer.read import import_proto
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import ShardRule
from ir.core.module import Func
from passes import PassContext
from passes.prepare.cost import CostPass
from tests.dnnc.onnx.microsoft_models import bert, decoder
from tests.dnnc.onnx.test_models import compile_and_check

TOKENS = {"batch_size": 1, "sequence_length": 3, "past_sequence_length": 5, "total_sequence_length": 8}
TEXTS = {"batch_size": 2, "sequence_length": 12}
MODELS = pytest.mark.parametrize(("build", "dims"), [(decoder, TOKENS), (bert, TEXTS)], ids=["decoder", "bert"])


def saved(build: Callable[[], ModelProto], folder: Path) -> str:
    path = folder / "model.onnx"
    onnx.save(build(), str(path))
    return str(path)


@MODELS
def test_every_size_and_cost_is_known(build: Callable[[], ModelProto], dims: dict[str, int]) -> None:
    sink = DiagnosticSink()
    context = PassContext(sink=sink)
    module = CostPass().run(import_proto(build(), where="m", dims=dims, sink=sink), context)
    assert [value.name for op in module.entry.ops for value in op.results if value.name and not is_static(value.type)] == []
    assert context.statistics["cost"]["by_default"] == 0
    assert not sink.diagnostics


@MODELS
def test_sizes_have_names_while_dims_are_open(build: Callable[[], ModelProto], dims: dict[str, int]) -> None:
    module = import_proto(build(), where="m")
    named = {value.name: value.type.shape for value in module.entry.results}
    rows = ("batch_size", "sequence_length")
    assert next(iter(named.values()))[:2] == rows
    caches = [shape for name, shape in named.items() if "present" in name]
    assert all(shape == ("batch_size", 2, "total_sequence_length", 16) for shape in caches)


@MODELS
def test_halves_are_even_and_compute_the_same(build: Callable[[], ModelProto], dims: dict[str, int], tmp_path: Path) -> None:
    out = tmp_path / "build"
    compile_and_check(saved(build, tmp_path), 2, out, dims)
    seconds = [stage.compute for stage in Build.open(out).plan.stages]
    assert max(seconds) < 1.25 * min(seconds), seconds


WIDE = {"batch_size": 1, "sequence_length": 16, "past_sequence_length": 4, "total_sequence_length": 20}


def wide_decoder() -> ModelProto:
    """One whose products are worth to be split."""
    return decoder(layers=2, heads=8, width=64, inner=1024, words=512)


@pytest.mark.parametrize("strategy", [pytest.param("", marks=pytest.mark.slow), "megatron"])
def test_grouped_queries_and_packed_weights_split_over_a_mesh(strategy: str, tmp_path: Path) -> None:
    """Heads with their rows of the packed projections, and blocks of the product after them."""
    found = rules_on_a_mesh(wide_decoder, WIDE, tmp_path, strategy)
    assert found >= {("GroupQueryAttention", "heads"), ("MatMulNBits", "n"), ("MatMulNBits", "k")}


def test_fused_attention_splits_over_a_mesh_by_samples(tmp_path: Path) -> None:
    found = rules_on_a_mesh(bert, {**TEXTS, "batch_size": 64}, tmp_path)
    names = ("Attention", "EmbedLayerNormalization")
    assert found >= {(name, "batch") for name in names}


def rules_on_a_mesh(
    build: Callable[[], ModelProto], dims: dict[str, int], folder: Path, strategy: str = ""
) -> set[tuple[str, str]]:
    """Splits a model over a mesh of two, which must be worth it, and checks what it computes. Gives the operators with the
    rules that split them."""
    model, out = saved(build, folder), folder / "build"
    options = CompileOptions(model=model, topology="preset:cpu-2", out=out, dims=dims, mesh="2", strategy=strategy)
    result = compile_model(options)
    assert result.plan.value < 0.75 * result.plan.single
    report = check_build(out, CheckOptions(samples=1))
    assert report.passed, report.error()
    ops = [op for func in Build.open(out).program().of_type(Func) for op in func.ops]
    decided = [(op.name.rpartition(".")[2], op.facet(ShardRule)) for op in ops]
    return {(name, facet.rule) for name, facet in decided if facet is not None}


def test_random_inputs_of_a_decoder_are_positions_that_exist(tmp_path: Path) -> None:
    """A mask of fewer positions than there are queries would put the first of them before the start of the cache."""
    out = tmp_path / "build"
    model = saved(decoder, tmp_path)
    compile_model(CompileOptions(model=model, topology="preset:cpu-2", out=out, dims=TOKENS, stages=2))
    inputs = random_inputs(Build.open(out))
    assert (inputs["attention_mask"] == 1).all()
    assert (inputs["input_ids"] < 96).all()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert all(np.isfinite(array).all() for array in session.run(None, inputs))
