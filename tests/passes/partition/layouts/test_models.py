"""The search on real layers: equal to the full programme, priced alike by the independent walk, and the expert plans found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ir.core.facets import BackwardTime, Time
from ir.core.types import Partial, Shard
from passes.meshes.costs.bill import Decisions
from passes.meshes.costs.price import price
from passes.partition.layouts import ShardInput, build, decisions_of, solve, truthful
from passes.partition.layouts.elimination.folded import FoldedSearch
from tests.passes.partition.layouts.exact import integer_programme
from tests.passes.partition.layouts.models import mesh, prepared, problem_of
from tests.slow_cases import slow_but

SMALL = "hidden=64,heads=8,vocab=128,seq=16,batch=8"
ZOO = ("zoo:mlp", f"zoo:bert-base,layers=2,{SMALL}", f"zoo:gpt2,layers=2,{SMALL}")
ONE_LAYER = f"zoo:bert-base,layers=1,{SMALL}"
SHARED = ("bert", "gpt2", "vit")


def check(given: ShardInput, spec: str, sizes: tuple[int, ...], training: bool) -> None:
    """Optimal, equal to the full programme, and to the bill of an independent walk."""
    plan = solve(given.problem)
    assert plan.status == "optimal"
    value, _, choices = integer_programme(given.problem, scale=1000.0 / plan.value)
    assert plan.value == pytest.approx(value, rel=1e-6)
    module, _ = prepared(spec)
    for taken in (plan.choices, choices):
        bill = price(module, module.entry, mesh(*sizes), decisions_of(given, taken), training=training)
        assert bill.total == pytest.approx(given.problem.cost(taken), rel=1e-9)
        assert bill.memory == pytest.approx(given.problem.memory(taken))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("spec", ZOO)
def test_zoo_on_one_axis(spec: str, training: bool) -> None:
    check(problem_of(spec, (8,), training=training), spec, (8,), training)


@pytest.mark.slow
def test_zoo_on_two_axes() -> None:
    check(problem_of(ONE_LAYER, (2, 2)), ONE_LAYER, (2, 2), False)


@pytest.mark.parametrize("spec", slow_but([ZOO[0], ONE_LAYER, ZOO[2]], ZOO[0]))
def test_zoo_trained_on_two_axes(spec: str) -> None:
    """Too wide for exact tables: certified to a thousandth by moving shares."""
    given = problem_of(spec, (2, 4), training=True)
    plan = solve(given.problem)
    assert plan.gap <= 1e-3
    module, _ = prepared(spec)
    bill = price(module, module.entry, mesh(2, 4), decisions_of(given, plan.choices), training=True)
    assert bill.total == pytest.approx(plan.value, rel=1e-9)


def test_resnet_on_one_axis() -> None:
    check(problem_of("zoo:resnet50", (8,)), "zoo:resnet50", (8,), False)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_shared_models_on_one_axis(name: str, shared_dir: Path) -> None:
    spec = str(shared_dir / "models" / f"{name}.onnx")
    check(problem_of(spec, (8,)), spec, (8,), False)


def test_random_choices_are_priced_alike() -> None:
    """Not only the best plan: any."""
    import numpy as np

    spec = ZOO[1]
    module, _ = prepared(spec)
    for training in (False, True):
        given = problem_of(spec, (2, 2), training=training)
        random = np.random.default_rng(0)
        for _ in range(2):
            choices = [int(random.integers(len(given.problem.node(node).seconds))) for node in range(given.problem.size)]
            told = truthful(given, choices)
            assert decisions_of(given, told) == decisions_of(given, choices)
            assert given.problem.cost(told) <= given.problem.cost(choices) * (1 + 1e-12)
            bill = price(module, module.entry, mesh(2, 2), decisions_of(given, told), training=training)
            assert bill.total == pytest.approx(given.problem.cost(told), rel=1e-9)
            assert bill.memory == pytest.approx(given.problem.memory(told))


def best(spec: str, *sizes: int, batch: int = 8, training: bool = False) -> Decisions:
    given = problem_of(spec, sizes, batch=batch, training=training)
    return decisions_of(given, solve(given.problem).choices)


def test_megatron_pair_is_found() -> None:
    """One sample through wide layers: each projection into heads or the hidden width is split by column, each back by row."""
    decisions = best("zoo:bert-base,layers=1,hidden=1024,heads=16,vocab=256,seq=8,batch=1", 8)
    kept = {name.removeprefix("@encoder.layer.0."): lies for name, lies in decisions.kept.items() if "layer.0" in name}
    columns = ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense")
    rows = ("attention.output.dense", "output.dense")
    for part in columns:
        assert kept[f"{part}.weight"] == (Shard(1),), part
    for part in rows:
        assert kept[f"{part}.weight"] == (Shard(0),), part


def test_samples_are_split_when_there_are_many() -> None:
    """Many samples of few tokens in training: every activation lies by samples, weights are reduced once."""
    spec = "zoo:mlp,batch=65536,layers=3,inputs=64,hidden=64,outputs=64"
    given = problem_of(spec, (8,), training=True)
    choices = solve(given.problem).choices
    made = {
        given.func.ops[value.maker[0]].id: given.problem.node(value.maker[0]).makes[value.maker[1]][choices[value.maker[0]]]
        for value in given.problem.values
        if value.maker[0] < len(given.func.ops)
    }
    for name, source in made.items():
        assert given.layouts[name].placements[source] == (Shard(0),), name


def test_outputs_are_no_terms() -> None:
    decisions = best(ZOO[0], 8)
    assert not any(isinstance(placement, Partial) for lies in decisions.outputs.values() for placement in lies)


@pytest.mark.slow
def test_copies_are_searched_once() -> None:
    """Tables of 64 layers are those of 8: the same plain part, one run."""
    searches = [FoldedSearch(problem_of(f"zoo:bert-base,layers={layers},{SMALL}", (8,)).problem) for layers in (8, 64)]
    assert [len(search.structure.runs) for search in searches] == [1, 1]
    assert len(searches[0].plain_nodes) == len(searches[1].plain_nodes)


@pytest.mark.slow
def test_memory_between_the_least_and_the_most() -> None:
    given = problem_of(ZOO[1], (2,), training=True)
    problem = given.problem
    loose = solve(problem)
    least = sum(float(problem.node(node).memory.min()) for node in range(problem.size))
    limit = (least + loose.memory) / 2
    plan = solve(problem, memory=limit)
    assert problem.memory(plan.choices) <= limit
    assert loose.value <= plan.bound <= plan.value
    exact, _, _ = integer_programme(problem, memory=limit, scale=1000.0 / loose.value)
    assert plan.bound <= exact * (1 + 1e-6)
    assert exact <= plan.value * (1 + 1e-6)


def test_uneven_shards_are_priced_alike() -> None:
    """Eight heads over three devices."""
    from passes.partition.layouts import build

    module, found = prepared(ZOO[1])
    given = build(module, module.entry, mesh(3), found)
    plan = solve(given.problem)
    assert plan.status == "optimal"
    bill = price(module, module.entry, mesh(3), decisions_of(given, plan.choices))
    assert bill.total == pytest.approx(plan.value, rel=1e-9)
    even = build(module, module.entry, mesh(3), found)
    assert plan.value <= solve(even.problem).value


@pytest.mark.parametrize("training", [False, True])
def test_stated_seconds_are_divided_by_search_and_price_alike(training: bool) -> None:
    """A product of 1 s takes 0.25 s on each of 4 devices that share it, a little more where each reads all of its weights, and
    whatever is chosen both say the same."""
    import numpy as np

    module, _ = prepared(ZOO[0])
    type_ = mesh(4).types[0].name
    stated = (Time(((f"@{type_}", 1.0),)), BackwardTime(((f"@{type_}", 2.0),)))
    entry = module.entry
    ops = tuple(op.with_facets(*stated) if op.name == "onnx.Gemm" else op for op in entry.ops)
    module = module.replace(entry, replace(entry, ops=ops))
    given = build(module, module.entry, mesh(4), None, training=training)
    plan = solve(given.problem)
    products = sum(op.name == "onnx.Gemm" for op in ops)
    assert products * (0.75 if training else 0.25) <= plan.value < products * (0.8 if training else 0.26)
    random = np.random.default_rng(0)
    for choices in (
        list(plan.choices),
        [int(random.integers(len(given.problem.node(n).seconds))) for n in range(given.problem.size)],
    ):
        bill = price(module, module.entry, mesh(4), decisions_of(given, choices), training=training)
        assert bill.total == pytest.approx(given.problem.cost(choices), rel=1e-9)
