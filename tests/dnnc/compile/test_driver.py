"""The driver joins the parts: pipelines from options, everything in one result, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnc.compile.context import with_topology
from dnnc.compile.driver import CompileOptions, build_pipeline, compile_model
from dnnc.compile.load import load_model
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink, Infeasible, UsageError
from ir.core.module import Plan, Schedule, Stage
from ir.core.topology import Topology
from passes.framework.pipeline import parse_pipeline, pipeline_text

MODEL = "zoo:mlp,hidden=16,batch=2"


def options(out: Path, **changes: object) -> CompileOptions:
    return CompileOptions(MODEL, "preset:cpu-2,cores=2", out, **changes)  # type: ignore[arg-type]


def test_options_become_pipeline_text_that_reads_back(tmp_path: Path) -> None:
    """Names with any character survive, so a reproducer of this compile can be replayed."""
    pipeline = build_pipeline(
        options(tmp_path, cuts=("a,b", "c d"), pins={"x=y{}": "cpu0"}, stages=2, comm="overlap", time_limit=3.0)
    )
    assert parse_pipeline(pipeline_text(pipeline)) == pipeline
    partition = next(step for step in pipeline if step.name == "partition")
    assert partition.cuts == ("a,b", "c d")  # type: ignore[attr-defined]
    assert partition.pins == ("x=y{}=cpu0",)  # type: ignore[attr-defined]
    assert [step.name for step in pipeline if getattr(step, "comm", "overlap") != "overlap"] == [], "one rule for all passes"


def test_a_plan_alone_needs_no_programs(tmp_path: Path) -> None:
    names = [step.name for step in build_pipeline(options(tmp_path, plan_only=True))]
    assert names[-1] == "schedule"  # which the predicted timeline is of


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline": "canonicalize", "pins": {"a": "b"}}, "--pin"),
        ({"pipeline": "canonicalize", "cuts": ("a",)}, "--cut"),
        ({"plan": Path("plan.json"), "cuts": ("a",)}, "--cut"),
        ({"plan": Path("plan.json"), "time_limit": 1.0}, "--time-limit"),
        ({"plan": Path("plan.json"), "pipeline": "canonicalize"}, "partition"),
    ],
)
def test_options_that_contradict_each_other(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        build_pipeline(options(tmp_path, **changes))


def test_result_holds_everything(tmp_path: Path) -> None:
    said: list[str] = []
    result = compile_model(options(tmp_path / "b", stages=2), progress=lambda label, fraction: said.append(label))
    assert result.plan is result.module.first(Plan)
    assert len(list(result.module.of_type(Stage))) == 2
    assert result.module.first(Schedule) is not None
    assert json.loads(json.dumps(result.manifest)) == json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert result.statistics["partition"]["stages"] == 2
    assert result.pipeline.startswith("canonicalize,cost,fold,partition{stages=2,replicas=0,mesh=any},place")
    assert said[0] == "load the model"


def test_builds_are_equal_byte_for_byte(tmp_path: Path) -> None:
    """Whatever the place and the time; only the seconds of the search may not show anywhere."""
    for name in ("one", "two"):
        compile_model(options(tmp_path / name, stages=2))
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*") if path.is_file())
    differing = [
        str(path) for path in files if (tmp_path / "one" / path).read_bytes() != (tmp_path / "two" / path).read_bytes()
    ]
    assert differing == []


def test_a_fault_leaves_the_former_build_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "b"
    compile_model(options(out, stages=2))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(Infeasible):
        compile_model(options(out, stages=7))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_interrupted_while_it_writes_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dnnc.engines.onnxruntime.write.build as write

    def interrupt(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "write_weights", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compile_model(options(tmp_path / "new" / "b"))
    assert list(tmp_path.iterdir()) == []


def test_the_topology_is_replaced_not_added(tmp_path: Path) -> None:
    sink = DiagnosticSink()
    module = load_model(MODEL, {}, sink).module
    for preset in ("preset:cpu-2", "preset:cpu-3"):
        module = with_topology(module, load_topology(preset, sink))
    (found,) = module.of_type(Topology)
    assert len(found.devices) == 3


def test_a_replayed_plan_keeps_its_devices(tmp_path: Path) -> None:
    compile_model(options(tmp_path / "a", stages=2))
    path = tmp_path / "a" / "plan.json"
    plan = json.loads(path.read_text())
    plan["stages"][0]["device"], plan["stages"][1]["device"] = "cpu1", "cpu0"
    path.write_text(json.dumps(plan))
    result = compile_model(options(tmp_path / "b", plan=path))
    assert [stage.devices for stage in result.plan.stages] == [("cpu1",), ("cpu0",)]
    assert result.plan.value >= result.plan.bound > 0
