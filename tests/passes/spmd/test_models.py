"""Members together compute what the entry function computes: zoo and shared models, planned by search and at random."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ir.module import Plan
from passes.shard.named import STRATEGIES
from passes.spmd import count
from tests.passes.spmd.planning import check_runs, prepared, random_plan, searched

SMALL = "layers=1,hidden=64,heads=4,vocab=100,seq=8,batch=4"
ZOO = ("zoo:mlp", f"zoo:bert-base,{SMALL}", f"zoo:gpt2,{SMALL}")
SHARED = ("bert", "gpt2", "llama", "vit", "resnet")


@pytest.mark.parametrize("mesh", ["2", "4", "2x2"])
@pytest.mark.parametrize("spec", ZOO)
def test_the_best_plan(spec: str, mesh: str) -> None:
    module, folder = prepared(spec)
    check_runs(module, searched(module, mesh), folder)


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2)])
@pytest.mark.parametrize("spec", ZOO)
def test_any_plan(spec: str, sizes: tuple[int, ...]) -> None:
    """Random choices: every strategy of every op is met sooner or later, with every conversion."""
    module, folder = prepared(spec)
    for seed in range(2):
        check_runs(module, random_plan(module, [sizes], np.random.default_rng(seed))[0], folder, seed)


@pytest.mark.parametrize("mesh", ["2", "2x2"])
@pytest.mark.parametrize("name", SHARED)
def test_the_best_plan_of_exports(name: str, mesh: str, shared_dir: Path) -> None:
    module, folder = prepared(str(shared_dir / "models" / f"{name}.onnx"))
    check_runs(module, searched(module, mesh), folder)


@pytest.mark.parametrize(("mesh", "stages"), [("2", 2), ("2x2", 2), ("", 2), ("", 3)])
@pytest.mark.parametrize("spec", ZOO)
def test_stages(spec: str, mesh: str, stages: int) -> None:
    """Stages on meshes, of equal and of any shape; what is counted of each is what its stage of the plan says."""
    module, folder = prepared(spec)
    decided = searched(module, mesh, devices=8, stages=stages)
    result = check_runs(module, decided, folder)
    plan = result.first(Plan)
    assert plan is not None
    assert len(plan.stages) == stages
    for stage in plan.stages:
        found = math.fsum(one.seconds for one in count(result) if one.stage == stage.index)
        assert found == pytest.approx(stage.collectives, rel=1e-9)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("spec", ZOO[1:])
def test_plans_by_name(spec: str, name: str) -> None:
    module, folder = prepared(spec)
    decided = searched(module, "2x2", strategy=name)
    result = check_runs(module, decided, folder)
    plan = result.first(Plan)
    assert plan is not None
    assert math.fsum(one.seconds for one in count(result)) == pytest.approx(plan.stages[0].collectives, rel=1e-9)
