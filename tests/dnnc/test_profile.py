"""``dnnc profile``: what it writes, reads back and refuses, and what plans make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dnnc.cli import main
from dnnc.driver import pass_context
from dnnc.machine.profile import read_profile
from ir.diagnostics import DiagnosticSink, InvalidInput
from ir.facets import Time
from ir.module import Module
from passes.model.op_time import body_seconds
from passes.model.profiled import Profile, key_of, segments_of, types_of, with_profile

MODEL = "zoo:mlp,layers=4,hidden=64,batch=4"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "-o", str(path), "-q"]) == 0
    return path


def costed() -> Module:
    from dnnc.profiling import costed
    from ir.limits import LIMITS

    (module,), _, _ = costed(MODEL, "preset:cpu-1", {}, LIMITS, DiagnosticSink(), lambda label, fraction: None)
    return module


def test_a_plan_says_that_all_its_seconds_were_measured(measured: Path, tmp_path: Path) -> None:
    command = ["compile", MODEL, "-t", "preset:cpu-1", "--profile", str(measured), "--plan-only", "-q"]
    assert main([*command, "-o", str(tmp_path / "plan")]) == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert plan["certificate"]["seconds"].startswith("100.0% measured, 0.0% scaled, 0.0% modelled on ")


def test_what_is_known_is_not_measured_again(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = measured.read_text()
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "-o", str(measured)]) == 0
    assert measured.read_text() == before
    assert "measured 0 kinds of operators" in capsys.readouterr().err


def test_copies_of_a_layer_have_one_key_and_its_epilogues_no_seconds() -> None:
    module = costed()
    entry, types = module.entry, types_of(module, module.entry)
    segments = segments_of(entry)
    keys = [key_of([entry.ops[i] for i in segment], types) for segment in segments]
    assert sorted(i for segment in segments for i in segment) == list(range(len(entry.ops)))
    assert any(len(segment) > 1 for segment in segments)
    assert len(set(keys)) < len(keys)
    type_ = pass_type(module)
    told, origins = with_profile(module, Profile({(type_.name, key): 0.5 for key in keys if key}))
    seconds = body_seconds(told.entry.ops, type_)
    assert sum(seconds) == pytest.approx(len(segments) * (0.5 + type_.overhead))
    assert origins[type_.name].modelled == origins[type_.name].scaled == 0


def test_classes_with_too_few_measured_ops_keep_the_model() -> None:
    module = costed()
    entry, types, type_ = module.entry, types_of(module, module.entry), pass_type(module)
    first = key_of([entry.ops[i] for i in segments_of(entry)[0]], types)
    told, origins = with_profile(module, Profile({(type_.name, first or ""): 0.5}))
    assert origins[type_.name].scaled == 0
    assert origins[type_.name].modelled > 0
    assert any(op.facet(Time) is None for op in told.entry.ops)
    assert with_profile(module, Profile({("other", first or ""): 0.5}))[0] == replace(module)


def pass_type(module: Module) -> Any:
    from ir.topology import Topology

    topology = module.first(Topology)
    assert topology is not None
    assert pass_context(DiagnosticSink()).profile is None
    return topology.types[0]


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"schema": "dnnc.profile/9"}, "schema"),
        ({"machine": {"processor": "x"}}, "machine"),
        ({"more": 1}, "the profile"),
        ({"segments": [{"device_type": "core", "key": "k", "seconds": -1.0, "spread": 0.0, "runs": 1}]}, "segments[0].seconds"),
        ({"segments": [{"device_type": "core", "key": "k", "seconds": 1.0, "spread": 0.0, "runs": True}]}, "segments[0].runs"),
        ({"segments": [{"device_type": "core", "key": "k", "seconds": 1, "spread": 0, "runs": 1}] * 2}, "segments[1]"),
    ],
)
def test_faults_of_a_file_are_told_with_their_place(tmp_path: Path, change: dict[str, Any], at: str) -> None:
    path = tmp_path / "profile.json"
    machine = {"processor": "x", "onnxruntime": "1"}
    path.write_text(json.dumps({"schema": "dnnc.profile/1", "machine": machine, "segments": [], **change}))
    with pytest.raises(InvalidInput) as error:
        read_profile(path)
    assert error.value.diagnostics[0].where == f"{path}: {at}"


def test_profiles_of_other_machines_and_of_training_are_refused(measured: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(measured.read_text().replace('"processor": "', '"processor": "another '))
    out = str(tmp_path / "out.json")
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "--merge", str(other), "-o", out, "-q"]) == 3
    assert main(["profile", MODEL, "-t", "preset:h100x1", "-o", out, "-q"]) == 2
    assert not Path(out).exists()
    command = ["compile", MODEL, "-t", "preset:cpu-1", "--profile", str(measured), "-o", out, "-q"]
    assert main([*command, "--objective", "training"]) == 2
