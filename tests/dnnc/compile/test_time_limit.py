"""A time limit that ends a search before its counted work does: the plan so far is kept, its bound holds, and this is told,
but of a plan that is proven to be optimal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dnnc.check.witness.verify import verify_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.workloads.solve import SolveOptions, solve_file
from ir.core.diagnostics import DiagnosticSink
from passes.solvers.work import counts
from tests.dnnc.workloads.workload_files import PROFILE, edge, node, placement, text_of

MODEL = "zoo:mlp,layers=6,hidden=1024,batch=64"
DEEP = "zoo:gpt2,layers=2,hidden=256,heads=8,vocab=512,seq=64,batch=4"
CUT = {
    MODEL: ("latency", "training", "any split", "stages on meshes"),
    DEEP: ("latency", "training", "any split", "a mesh", "stages on meshes"),
}
"""Kinds of plans that no time at all proves to be optimal."""
MODELS: dict[str, dict[str, Any]] = {
    "throughput": {"mesh": "none"},
    "latency": {"objective": "latency", "pieces": 2},
    "training": {"objective": "training"},
    "any split": {"split": "any"},
    "a mesh": {"mesh": "2x2"},
    "stages on meshes": {"mesh": "auto", "stages": 0},
}
PROFILES: dict[str, dict[str, Any]] = {
    "throughput": {},
    "any split": {"split": "any"},
    "latency": {"objective": "latency"},
    "training": {"objective": "training"},
    "pipedream": {"objective": "pipedream", "accelerators": 2},
}


def told(sink: DiagnosticSink) -> bool:
    return any(one.code == "W1027" and one.where == "--time-limit 0" for one in sink.diagnostics)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("model", [MODEL, DEEP])
def test_a_compilation_that_was_cut_says_so_and_has_a_plan(kind: str, model: str, tmp_path: Path) -> None:
    sink = DiagnosticSink()
    options = CompileOptions(model, "preset:cpu-4", tmp_path / "b", plan_only=True, time_limit=0.0, **MODELS[kind])
    plan = compile_model(options, sink=sink).plan
    assert told(sink) == (plan.status != "optimal")
    assert plan.status == ("within-gap" if kind in CUT[model] else "optimal")
    assert sum(stage.ops for stage in plan.stages) > 0
    assert 0 <= plan.bound <= plan.value < float("inf")
    assert plan.bound > 0 or kind != "latency", "what no plan is below without a search"


def test_a_latency_that_was_cut_before_any_plan_ends_with_its_first(tmp_path: Path) -> None:
    """It had gone on for ten more seconds of work, in which it compared labels without counting them."""
    model, worked = "zoo:gpt2,layers=2,hidden=64,heads=4,vocab=100,seq=8", []
    for limit in (0.0, None):
        before = counts().get("step", 0.0)
        asked: dict[str, Any] = {"plan_only": True, "objective": "latency", "pieces": 2, "mesh": "none", "time_limit": limit}
        plan = compile_model(
            CompileOptions(model, "preset:2xa100x4", tmp_path / str(limit), **asked), sink=DiagnosticSink()
        ).plan
        worked.append(counts()["step"] - before)
        assert 0 < plan.bound <= plan.value < float("inf")
    assert 3 * worked[0] < worked[1]


def lanes(training: bool) -> str:
    """Two lanes of six nodes, in training with as many backward ones."""
    nodes, edges = [], []
    for lane in range(2):
        for v in range(6):
            nodes.append(node(10 * lane + v, 1.0 + v % 3, colorClass=10 * lane + v, isBackwardNode=False))
            edges += [edge(10 * lane + v - 1, 10 * lane + v, 0.1)] if v else []
            if training:
                nodes.append(node(100 + 10 * lane + v, 2.0, colorClass=10 * lane + v, isBackwardNode=True))
                edges += [edge(100 + 10 * lane + v, 100 + 10 * lane + v - 1, 0.1)] if v else []
    return text_of(placement(nodes, edges, maxFPGAs=3, maxCPUs=1))


@pytest.mark.parametrize("kind", PROFILES)
def test_a_split_that_was_cut_says_so_and_is_one(kind: str, tmp_path: Path) -> None:
    path, sink = tmp_path / "workload", DiagnosticSink()
    path.write_text(PROFILE if kind == "pipedream" else lanes(kind == "training"))
    found = solve_file(SolveOptions(str(path), time_limit=0.0, **PROFILES[kind]), sink=sink)
    assert told(sink) == (found.status != "optimal")
    assert sum(len(device.nodes) for device in found.devices) > 0
    assert 0 <= found.bound <= found.objective < float("inf")


UNEQUAL = """
version = 1
[types.fast]
kind = "gpu"
rates = { f32 = "10 TFLOP/s" }
memory_bandwidth = "500 GB/s"
memory = "8 GiB"
[types.slow]
kind = "gpu"
rates = { f32 = "2 TFLOP/s" }
memory_bandwidth = "200 GB/s"
memory = "8 GiB"
[[devices]]
name = "f{0..1}"
type = "fast"
[[devices]]
name = "s{0..1}"
type = "slow"
[[links]]
mesh = "*"
bandwidth = "10 GB/s"
latency = "5 us"
"""


@pytest.mark.parametrize("objective", ["throughput", pytest.param("training", marks=pytest.mark.slow)])
def test_on_unequal_devices_a_search_that_was_left_out_has_a_bound(objective: str, tmp_path: Path) -> None:
    """It had been 0. No plan of a whole search is below it, and ``verify-plan`` finds nothing wrong."""
    (tmp_path / "m.toml").write_text(UNEQUAL)
    plans = {}
    for limit in (0.0, None):
        out = tmp_path / str(limit)
        asked: dict[str, Any] = {"plan_only": True, "objective": objective, "time_limit": limit}
        options = CompileOptions(MODEL, str(tmp_path / "m.toml"), out, **asked)
        plans[limit] = compile_model(options, sink=DiagnosticSink()).plan
        assert not verify_build(out).violations
    assert 0 < plans[0.0].bound <= plans[None].value
