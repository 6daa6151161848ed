"""What a person is told of machines that are not what a plan takes them for: shared cores, and GPUs that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnc.cli import main
from dnnc.cli.console import show_warnings
from ir.diagnostics import Diagnostic, Severity

MODEL = "zoo:mlp,hidden=256,batch=64,layers=8,weights=random"


def test_workers_that_share_cores_promise_no_more_than_the_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["compile", MODEL, "-t", "preset:cpu-3,cores=2,memory=8GiB", "--stages", "3", "-o", str(out)]) == 0
    told, warned = capsys.readouterr()
    assert "3 workers share 2 cores" in told
    assert "3 workers share 2 cores, so each is 1.5 times slower than alone" in warned
    plan = json.loads((out / "plan.json").read_text())
    assert plan["certificate"]["cores"] == "3 workers share 2 cores"
    assert plan["single"] / plan["value"] <= 2
    assert main(["compile", MODEL, "-t", "preset:cpu-3,cores=4,memory=8GiB", "--stages", "3", "-o", str(out)]) == 0
    told, warned = capsys.readouterr()
    assert "workers share" not in told + warned
    assert "cores" not in json.loads((out / "plan.json").read_text())["certificate"]


@pytest.mark.slow
def test_a_run_says_that_its_predictions_are_of_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for preset, names in (("h100x2", ["h100"]), ("cpu-1", [])):
        assert main(["compile", MODEL, "-t", f"preset:{preset}", "-o", str(out), "-q"]) == 0
        assert main(["run", str(out)]) == 0
        told, warned = capsys.readouterr()
        assert ("its predictions are of h100" in warned) == bool(names)
        assert (" on h100)" in told) == bool(names)
        assert main(["run", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["predicted_for"] == names


def test_the_same_warning_is_printed_once_with_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = "it fits no formula", "it has no size"
    places = [(one, "%a"), (other, "%b"), (one, "%c"), (one, "%d")]
    show_warnings([Diagnostic(message, where, severity=Severity.WARNING) for message, where in places])
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["%a: warning: it fits no formula (and 2 more such)", "%b: warning: it has no size"]
