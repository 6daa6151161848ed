"""Nothing large is left replicated: with fast links the search divides the work of every product, and of exported models alike.

One sample, so that there are no samples to divide by; behind ``canonicalize`` and ``unfuse``, as pipelines for meshes have it.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import Cost
from ir.core.module import Module
from ir.core.types import Shard
from ir.layout_rules import rules
from passes.graph.folding import folding
from passes.meshes.costs.bill import Decisions
from passes.partition.layouts import build, decisions_of, solve
from passes.prepare.canonicalize.unfuse import UnfusePass
from passes.prepare.cost import CostPass
from tests.ir.layout_rules.test_models import canonical, imported
from tests.passes.partition.layouts.models import mesh

SHARED = ("bert", "gpt2", "llama", "vit", "resnet")
ZOO = {
    "bert": "zoo:bert-base,layers=2,hidden=64,heads=4,vocab=128,seq=16",
    "gpt2": "zoo:gpt2,layers=2,hidden=64,heads=4,vocab=128,seq=16",
    "llama": "zoo:llama-70b,layers=2,hidden=64,heads=8,kv_heads=4,vocab=128,seq=16",
    "t5": "zoo:t5-base,layers=1,hidden=64,heads=4,vocab=128,seq=16",
    "vit": "zoo:vit-base,layers=2,hidden=64,heads=4,image=32,patch=8,classes=16",
}
FAST = 1e13
"""Bytes per second: a collective of these small tensors costs less than any op."""
LARGE = 0.002
"""Part of a model's flops from which an op is large."""


def decided(spec: str, sizes: tuple[int, ...], bandwidth: float = FAST) -> tuple[Module, Decisions]:
    module = UnfusePass().run(canonical(imported(spec, 1)), pass_context(DiagnosticSink()))
    module = CostPass().run(module, pass_context(DiagnosticSink()))
    given = build(module, module.entry, mesh(*sizes, bandwidth=bandwidth), folding(module.entry, module))
    assert given.unsharded == ()
    return module, decisions_of(given, solve(given.problem).choices)


def undivided(module: Module, decisions: Decisions, sizes: tuple[int, ...]) -> list[str]:
    """Large ops of which a device works more than its part."""
    costs = {op.id: cost.flops for op in module.entry.ops if (cost := op.facet(Cost)) is not None}
    total, found = sum(costs.values()), []
    for op, rule in rules(module):
        if costs.get(op.id, 0) < LARGE * total:
            continue
        factors = {factor.name: factor for factor in rule.factors} if rule is not None else {}
        share = 1.0
        for name, size in zip(decisions.strategies[op.id], sizes, strict=True):
            share /= size if name in factors and factors[name].divided else 1
        if share > 1 / math.prod(sizes):
            found.append(f"{op.name} {op.id} {decisions.strategies[op.id]}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2)])
@pytest.mark.parametrize("name", SHARED)
def test_exported_models(name: str, sizes: tuple[int, ...], shared_dir: Path) -> None:
    module, decisions = decided(str(shared_dir / "models" / f"{name}.onnx"), sizes)
    assert undivided(module, decisions, sizes) == []


@pytest.mark.parametrize(("name", "sizes"), [("llama", (4,)), *((name, (2, 2)) for name in ZOO)])
def test_zoo(name: str, sizes: tuple[int, ...]) -> None:
    module, decisions = decided(ZOO[name], sizes)
    assert undivided(module, decisions, sizes) == []


def test_column_then_row_through_a_fused_projection(shared_dir: Path) -> None:
    """What Megatron has for GPT, in the export: each third of the fused weight and the first of the feed-forward part by
    column, the projections behind them by row; attention by heads between them."""
    module, decisions = decided(str(shared_dir / "models" / "gpt2.onnx"), (4,), bandwidth=1e12)
    kept = {name.split(".h.", 1)[1]: lies for name, lies in decisions.kept.items() if ".h." in name and "ln_" not in name}
    for layer in range(4):
        for start in (0, 64, 128):
            assert kept[f"{layer}.attn.c_attn.weight.{start}"] == (Shard(1),)
        assert kept[f"{layer}.attn.c_proj.weight"] == (Shard(0),)
        assert kept[f"{layer}.mlp.c_fc.weight"] == (Shard(1),)
        assert kept[f"{layer}.mlp.c_proj.weight"] == (Shard(0),)
    heads = [op for op in module.entry.ops if op.name == "onnx.MatMul" and len(getattr(op.results[0].type, "shape", ())) == 4]
    assert len(heads) == 8
    assert {decisions.strategies[op.id] for op in heads} == {("b0",)}
