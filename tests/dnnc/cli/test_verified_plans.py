"""Commands that only read a build hold what they read against its digests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from dnnc.build.snapshot import Snapshot
from dnnc.cli import main
from dnnc.study.runs import append_row, digest, read_rows

MODEL = "zoo:mlp,layers=3,hidden=8,inputs=8,outputs=8,batch=4"
TRAINING = ("--objective", "training", "--loss", "mse:y", "--microbatches", "2")
KINDS = {"inference": (), "plan": ("--plan-only",), "training": TRAINING, "training plan": (*TRAINING, "--plan-only")}


@pytest.fixture(scope="module", params=KINDS)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "training" and not all(map(importlib.util.find_spec, ("torch", "safetensors"))):
        pytest.skip("the extra 'train' is not installed")
    out = tmp_path_factory.mktemp("builds") / "build"
    asked = ["compile", MODEL, "-t", "preset:cpu-2", "--stages", "2", "-q", "-o", str(out)]
    assert main([*asked, *KINDS[request.param]]) == 0
    return out


def test_an_edited_plan_is_not_told(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor what stands beside it: a build is told of as a whole."""
    forms: list[list[str]] = [
        ["inspect", str(build)],
        ["inspect", str(build), "--short"],
        ["inspect", str(build), "--json"],
        ["simulate", str(build)],
    ]
    if any((build / "stages").glob("*")):
        forms += [["inspect", str(build), "--programs"], ["inspect", str(build), "--programs", "--short"]]
    for form in forms:
        assert main(form) == 0
    for name in ("plan.ir", "plan.json"):
        before = (build / name).read_text()
        (build / name).write_text(before.replace("fc2", "fc9"))
        for form in forms:
            capsys.readouterr()
            assert main(form) == 3
            out, err = capsys.readouterr()
            assert (out, f"{build / name}: error[E0307]: its bytes are not those that were written" in err) == ("", True), form
        (build / name).write_text(before)


def test_a_row_of_an_edited_plan_is_not_fitted(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, plan = tmp_path / "rows.csv", build / "plan.ir"
    rows.write_text(f"build,seconds\n{build},0.01\n")
    before = plan.read_text()
    plan.write_text(before.replace("fc2", "fc9"))
    assert main(["calibrate", "preset:cpu-2", str(rows)]) == 3
    assert f"{plan}: error[E0307]: its bytes are not those that were written" in capsys.readouterr().err
    plan.write_text(before)


def test_a_row_is_of_the_plan_that_ran(tmp_path: Path) -> None:
    """Another build came in its place meanwhile."""
    asked = ["compile", MODEL, "-t", "preset:cpu-2", "-q", "--plan-only", "-o", str(tmp_path / "b")]
    assert main([*asked, "--stages", "2"]) == 0
    ran, text = Snapshot.open(tmp_path / "b"), (tmp_path / "b/plan.ir").read_text()
    assert main([*asked, "--stages", "1"]) == 0
    append_row(tmp_path / "rows.csv", ran, 0.5)
    (row,) = read_rows(tmp_path / "rows.csv")
    assert row.plan == digest(text) != digest((tmp_path / "b/plan.ir").read_text())
