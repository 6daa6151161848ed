"""Rules on whole models: every op has one, and the expert plan of a transformer block is a path through them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.onnx.model import free_symbols
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.types import Partial, Placement, Replicate, Shard
from ir.layout_rules import LayoutRule, Strategy, coverage, rules
from passes.framework.base import PassContext
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.canonicalize.unfuse import UnfusePass
from tests.ir.layout_rules.test_backward import LINEAR, SMOOTH

FAMILIES = (
    "bert-base,layers=1,hidden=64,heads=4,vocab=100",
    "gpt2,layers=1,hidden=64,heads=4,vocab=100",
    "llama-70b,layers=1,hidden=64,heads=8,kv_heads=4,vocab=100,seq=16",
    "mixtral-8x7b,layers=1,hidden=64,heads=8,kv_heads=4,vocab=100,seq=16",
    "mixtral-8x7b,layers=1,hidden=64,heads=8,kv_heads=4,vocab=100,seq=16,routing=capacity",
    "mlp",
    "resnet50",
    "t5-base,layers=1,hidden=64,heads=4,vocab=100,seq=16",
    "vit-base,layers=1,hidden=64,heads=4,image=32,patch=8,classes=16",
)
ZOO = ("bert-base,layers=2,hidden=64,heads=4,vocab=100", "gpt2,layers=2,hidden=64,heads=4,vocab=100", "mlp", "resnet50")
CACHED = "llama-70b,layers=2,hidden=128,heads=8,kv_heads=4,vocab=100,batch=4,context=16"
EXPERTS = "mixtral-8x7b,layers=2,hidden=128,heads=8,kv_heads=4,vocab=96,batch=4,context=16,cache=inplace,weights=int4"
SHARED = ("bert", "gpt2", "llama", "vit", "resnet")


@functools.cache
def imported(spec: str, batch: int = 4) -> Module:
    """A model, every free dimension bound: the batch comes last where the exporter named two."""
    free = sorted(free_symbols(load_model(spec, {}, DiagnosticSink()).module.entry) if spec.startswith("zoo:") else named(spec))
    sizes = {name: batch if name in (free[-1], "s43") else 8 for name in free}  # s43: bert's batch by its mask
    return load_model(spec, sizes, DiagnosticSink()).module


def canonical(module: Module) -> Module:
    return CanonicalizePass().run(module, pass_context(DiagnosticSink()))


def named(path: str) -> set[str]:
    """The names of dimensions of the inputs of a file, which to read takes less than to import the model once more."""
    inputs = onnx.load(path, load_external_data=False).graph.input
    return {dim.dim_param for one in inputs for dim in one.type.tensor_type.shape.dim if dim.dim_param}


@functools.cache
def canonical_of(spec: str, batch: int = 4) -> Module:
    return canonical(imported(spec, batch))


@pytest.mark.parametrize("name", ZOO)
def test_every_op_of_the_zoo_has_a_rule(name: str) -> None:
    assert coverage(imported(f"zoo:{name}")) == {}
    assert coverage(canonical_of(f"zoo:{name}")) == {}


@pytest.mark.parametrize("name", SHARED)
def test_every_op_of_the_shared_models_has_a_rule(name: str, shared_dir: Path) -> None:
    spec = str(shared_dir / "models" / f"{name}.onnx")
    assert coverage(imported(spec)) == {}
    assert coverage(canonical_of(spec)) == {}


@pytest.mark.parametrize("name", [*(f"zoo:{name}" for name in FAMILIES), *SHARED])
def test_every_op_that_is_left_is_tested_backward(name: str, request: pytest.FixtureRequest) -> None:
    """Behind ``unfuse``: a rule for each op, and a case of its gradients for each that has any."""
    spec = name if name.startswith("zoo:") else str(request.getfixturevalue("shared_dir") / "models" / f"{name}.onnx")
    module = UnfusePass().run(canonical_of(spec), PassContext())
    assert coverage(module) == {}
    differentiable = {op.name for op, rule in rules(module) if rule is not None and any(rule.differentiable[0])}
    assert differentiable - {case.name for case in LINEAR + SMOOTH} == set()


def test_heads_and_hidden_units_stay_split_through_a_block() -> None:
    """Column, then row: with the projections split by column, all that follows runs on shards up to the next product, which
    leaves a sum, in attention as in the feed-forward part. Two reductions a layer, as Megatron has them."""
    module = canonical_of("zoo:bert-base,layers=1,hidden=64,heads=4,vocab=100")
    partial = dict(walk(module, 4, column=("query", "key", "value", "intermediate.dense")))
    sums = [name for name, placement in partial.items() if placement == Partial("sum")]
    assert len(sums) == 2, sums


@pytest.mark.parametrize("cache", ["concat", "inplace", "inplace,weights=int4"])
def test_heads_and_their_caches_stay_split_through_a_step(cache: str) -> None:
    """Two reductions a layer; each member keeps the caches of its heads."""
    module = canonical_of(f"zoo:{CACHED},cache={cache}")
    assert coverage(module) == {}
    left = dict(walk(module, 4, column=("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")))
    assert sum(placement == Partial("sum") for placement in left.values()) == 2 * 2
    assert {left[result.name] for result in module.entry.results[1:]} == {Shard(1)}


def test_experts_of_packed_weights_have_a_rule() -> None:
    assert coverage(canonical_of(f"zoo:{EXPERTS}")) == {}


def test_grouped_heads_stay_split_in_an_export(shared_dir: Path) -> None:
    """The same through repeated keys and rotary embedding. With one sample: the exporter merges samples and heads into one
    dimension, of which heads are no contiguous part if there are more."""
    module = canonical_of(str(shared_dir / "models" / "llama.onnx"), batch=1)
    partial = dict(walk(module, 2, column=("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")))
    assert sum(placement == Partial("sum") for placement in partial.values()) == 2 * 4


@pytest.mark.parametrize("name", [*(f"zoo:{name},batch=4" for name in ZOO), *SHARED])
def test_samples_stay_split_through_a_model(name: str, request: pytest.FixtureRequest) -> None:
    """Data parallel: with the first input split by samples, every op follows and nothing is left to reduce, up to the outputs.
    Masks stay whole: exporters pick their rows by numbers that count all samples."""
    zoo = name.startswith("zoo:")
    module = canonical_of(name if zoo else str(request.getfixturevalue("shared_dir") / "models" / f"{name}.onnx"))
    left = dict(walk(module, 4, first=Shard(0)))
    assert not [name for name, placement in left.items() if isinstance(placement, Partial)]
    assert {left[result.name] for result in module.entry.results} == {Shard(0)}


def walk(
    module: Module, count: int, column: tuple[str, ...] = (), first: Placement | None = None
) -> Iterator[tuple[str, Placement]]:
    """Each result with the placement in which its op leaves it, over an axis of ``count``.

    The products of ``column`` (by location) are split by column, every other op follows its operands, weights take whatever
    the op asks, and a sum is reduced at once."""
    held: dict[str, Placement] = {arg.name: Replicate() for arg in module.entry.args}
    if first is not None:
        held[module.entry.args[0].name] = first
    for op, rule in rules(module):
        assert rule is not None
        wanted = column if op.name in ("onnx.MatMul", "onnx.com.microsoft.MatMulNBits") else ()
        scope = f"{op.location.scope} {op.location.node} {op.id}"
        chosen = next(
            strategy
            for strategy in reversed(rule.strategies(count))
            if (strategy.name == "n" if any(part in scope for part in wanted) else follows(op, rule, strategy, held))
        )
        for value, placement in zip(op.results, chosen.results, strict=True):
            yield value.name, placement
            held[value.name] = Replicate() if isinstance(placement, Partial) else placement


def follows(op: Op, rule: LayoutRule, strategy: Strategy, held: dict[str, Placement]) -> bool:
    """Whether the strategy takes every operand as it is held, slicing replicated ones beside a sharded one."""
    pairs = [(held[name], wanted) for name, wanted in zip(op.operands, strategy.operands, strict=True) if name in held]
    kept = all(have == wanted or (have == Replicate() and isinstance(wanted, Shard)) for have, wanted in pairs)
    return kept and (strategy.name == "replicate" or any(isinstance(have, Shard) for have, _ in pairs))
