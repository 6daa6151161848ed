"""A strategy of TAG's search as a plan of dnnc, and the command that makes it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.cli import main
from dnnc.compile.context import pass_context
from dnnc.search_tag.actions import Action, How
from dnnc.search_tag.bridge import Expressed, expressed
from dnnc.search_tag.network import initial, prior_arrays
from dnnc.search_tag.simulator import Simulator
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import ShardRule
from ir.core.module import Module, Plan
from passes.framework.manager import PassManager
from tests.dnnc.search_tag.machines import simulator, text

MODEL = "zoo:mlp,layers=3,hidden=64,batch=8"
"""Gemm, Relu, Gemm, Relu, Gemm, each an op group."""
ASKED = ("--objective", "training", "--search", "tag", "--plan-only")
BOTH, FAST, SLOW = (0, 1), (0,), (1,)


@pytest.fixture(scope="module")
def mlp() -> Simulator:
    return simulator(MODEL)


def plans(simulation: Simulator, *of_ops: Action) -> tuple[Expressed, ...]:
    strategy = [of_ops[0]] * simulation.workload.count
    for group, action in zip(simulation.workload.group_of, of_ops, strict=True):
        strategy[group] = action
    return expressed(simulation, strategy)


def replayed(simulation: Simulator, plan: Expressed) -> tuple[Module, Plan]:
    module = simulation.workload.module.extend([simulation.workload.topology])
    made = PassManager((plan.replay,), expanded=True).run(module, pass_context(DiagnosticSink()))
    stated = made.first(Plan)
    assert stated is not None
    return made, stated


def whole_ops(module: Module) -> list[bool]:
    """Of each op of the model, whether it runs whole on every device."""
    rules = [op.facet(ShardRule) for op in module.entry.ops]
    return [rule.rule == "replicate" for rule in rules if rule is not None]


def test_disjoint_sets_of_devices_are_stages(mlp: Simulator) -> None:
    slow, fast = Action(SLOW, How.ALL_REDUCE), Action(FAST, How.ALL_REDUCE)
    stages, mesh = plans(mlp, slow, slow, fast, fast, fast)
    assert stages.text == "stages on 1, 2 devices; projected: nothing"
    made, plan = replayed(mlp, stages)
    assert [stage.devices for stage in plan.stages] == [("q-0",), ("p-0", "p-1")]
    assert [stage.ops for stage in plan.stages] == [2, 3]
    assert whole_ops(made) == [False, False, False]  # of the mesh
    assert mesh.text == "one stage on 1 devices; projected: 3 of 5 op groups moved to other devices"


def test_sets_that_need_each_other_both_ways_go_to_one_mesh(mlp: Simulator) -> None:
    slow, fast = Action(SLOW, How.ALL_REDUCE), Action(FAST, How.PS)
    (mesh,) = plans(mlp, fast, slow, fast, fast, fast)
    changed = "4 of 5 op groups from ps to all-reduce, 1 of 5 op groups moved to other devices"
    assert mesh.text == f"one stage on 2 devices; projected: {changed}"


def test_a_duplicate_runs_whole_and_others_split_the_batch(mlp: Simulator) -> None:
    split, whole = Action(BOTH, How.ALL_REDUCE), Action(BOTH, How.DUPLICATE)
    (mesh,) = plans(mlp, split, split, split, whole, whole)
    made, plan = replayed(mlp, mesh)
    assert [stage.devices for stage in plan.stages] == [("p-0", "p-1", "q-0")]
    assert whole_ops(made) == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_a_batch_that_does_not_reach_all_devices_is_done_whole() -> None:
    two = simulator("zoo:mlp,layers=1,batch=2")
    (mesh,) = expressed(two, [Action(BOTH, How.ALL_REDUCE)] * two.workload.count)
    assert mesh.text == "one stage on 3 devices; projected: 1 of 1 ops done whole"


def test_one_mesh_costs_what_the_simulator_says_but_for_what_overlaps() -> None:
    """Both count the same seconds of compute: on one device nothing else is left."""
    one = simulator(MODEL, text(fast=0.5))
    strategy = [Action(SLOW, How.ALL_REDUCE)] * one.workload.count
    _, plan = replayed(one, expressed(one, strategy)[0])
    assert plan.value == pytest.approx(one.run(strategy).seconds, rel=1e-9)


def compiled(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> dict[str, Any]:
    machines = folder / "machines.toml"
    machines.write_text(text(), encoding="utf-8")
    asked = ["compile", MODEL, "-t", str(machines), "-o", str(folder / "b"), *ASKED, "--json", *more]
    code = main(asked)
    told = capsys.readouterr()
    assert code == 0, told.err
    found: dict[str, Any] = json.loads(told.out)
    return found


def test_the_command_plans_bounds_and_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compiled(capsys, tmp_path, "--iterations", "40")
    assert found["bound"] <= found["objective"]
    assert found["certificate"]["plan"].startswith("TAG's tree search, 40 iterations, uniform prior: ")
    again = compiled(capsys, tmp_path, "--iterations", "40")
    assert again["stages"] == found["stages"]
    prior = tmp_path / "prior.npz"
    np.savez(prior, allow_pickle=False, **prior_arrays(initial(0)))
    trained = compiled(capsys, tmp_path, "--iterations", "40", "--search-prior", str(prior))
    assert "40 iterations, trained prior" in trained["certificate"]["plan"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--search", "tag"), 2, "--search tag: only with --objective training"),
        (("--objective", "training", "--iterations", "5"), 2, "--iterations: only with --search tag"),
        (("--objective", "training", "--search-prior", "p.npz"), 2, "--search-prior: only with --search tag"),
        ((*ASKED, "--mesh", "2"), 2, "--search tag cannot go with --mesh"),
        ((*ASKED, "--stages", "2"), 2, "error[E1003]: --search tag cannot go with --stages"),
        ((*ASKED, "--search-prior", "{folder}/none.npz"), 3, "none.npz"),
        ((*ASKED, "--search-prior", "{folder}/text.npz"), 3, "text.npz"),
    ],
)
def test_what_makes_no_sense_is_told(
    options: tuple[str, ...], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.npz").write_text("no arrays", encoding="utf-8")
    given = [option.format(folder=tmp_path) for option in options]
    assert main(["compile", MODEL, "-t", "preset:cpu-2,cores=2", "-o", str(tmp_path / "b"), *given]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("safetensors") is None, reason="needs dnnc[train]")
def test_a_build_of_the_plan_trains_as_the_unsplit_model_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "b")
    asked = ["--objective", "training", "--search", "tag", "--iterations", "20"]
    assert main(["compile", MODEL, "-t", "preset:cpu-2,cores=2", "-o", out, *asked]) == 0, capsys.readouterr().err
    assert main(["train", out, "--steps", "2", "--check"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_a_prior_is_trained_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    prior = tmp_path / "prior.npz"
    asked = ["tag", "train", "-o", str(prior), "--model", MODEL, "--steps", "2", "--topologies", "2", "--json"]
    assert main(asked) == 0, capsys.readouterr().err
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["case"] for step in steps] == [f"{MODEL} on topology 0", f"{MODEL} on topology 1"]
    compiled(capsys, tmp_path, "--iterations", "20", "--search-prior", str(prior))
