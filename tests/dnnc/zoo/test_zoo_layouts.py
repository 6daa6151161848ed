"""Models of the zoo under layout rules: every op has one, shards compute the same, and expert plans are paths through them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.zoo import build
from ir.core.types import Partial, Replicate, Shard
from ir.layout_rules import coverage, rules
from tests.dnnc.zoo.zoo_models import SMALL
from tests.ir.layout_rules.test_models import canonical, walk
from tests.ir.layout_rules.test_plans import compare

NAMES = tuple(name for name in SMALL if name not in ("mlp", "resnet50"))
COLUMNS = {
    "gpt3-175b": ("query", "key", "value", "c_fc"),
    "llama-70b": ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    "t5-base": ("self/q", "self/k", "self/v", "cross/q", "cross/k", "cross/v", "ff/wi"),
    "t5-large": ("self/q", "self/k", "self/v", "cross/q", "cross/k", "cross/v", "ff/wi_0", "ff/wi_1"),
    "vit-base": ("query", "key", "value", "fc1"),
}
"""Products that Megatron splits by column."""


def small(name: str, batch: int, layers: int = 1) -> str:
    return f"{SMALL[name].replace('layers=2', f'layers={layers}')},batch={batch}"


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", SMALL)
def test_every_op_has_a_rule(name: str, batch: int) -> None:
    module = build(f"{SMALL[name].replace('mlp,batch=2,', 'mlp,')},batch={batch}")
    assert coverage(module) == {}
    assert coverage(canonical(module)) == {}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "inception-v3")) for name in NAMES])
def test_shards_compute_the_same(name: str) -> None:
    compare(build(small(name, 4)), Path())


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", COLUMNS)
def test_two_reductions_a_layer(name: str, batch: int) -> None:
    """Columns, then rows: between the two products nothing is exchanged, for heads as for hidden units. A decoder layer of T5
    has three such pairs."""
    left = dict(walk(canonical(build(small(name, batch, 2))), 2, column=COLUMNS[name]))
    sums = [value for value, placement in left.items() if isinstance(placement, Partial)]
    assert len(sums) == (10 if name.startswith("t5") else 4), sums


@pytest.mark.parametrize("name", NAMES)
def test_samples_stay_split(name: str) -> None:
    """Data parallel: nothing is left to reduce up to the outputs."""
    module = canonical(build(small(name, 4)))
    left = dict(walk(module, 4, first=Shard(0)))
    assert not [value for value, placement in left.items() if isinstance(placement, Partial)]
    assert {left[result.name] for result in module.entry.results} == {Shard(0)}


def test_experts_are_apart() -> None:
    """With the experts' weights split by expert, all up to the sum over experts runs on shards."""
    held = {}
    for op, rule in rules(canonical(build(small("mixtral-8x7b", 1)))):
        assert rule is not None
        if ".moe." not in op.results[0].name or ".router" in op.results[0].name:
            continue
        by_weight = [Shard(0) if name.endswith(("gate.weight", "up.weight", "down.weight")) else None for name in op.operands]
        wanted = [held.get(name, own) for name, own in zip(op.operands, by_weight, strict=True)]
        chosen = next(
            s
            for s in rule.strategies(4)
            if s.name != "replicate" or not any(wanted)
            if all(want is None or want == has for want, has in zip(wanted, s.operands, strict=True))
        )
        if any(wanted):
            held.update((value.name, placement) for value, placement in zip(op.results, chosen.results, strict=True))
    assert held["%model.layers.0.moe.down"] == Shard(1)
    assert held["%model.layers.0.moe.sum"] == Partial("sum")
    assert Replicate() not in held.values()
