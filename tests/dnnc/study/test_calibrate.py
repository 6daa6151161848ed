"""Numbers of machines fitted to measured plans: known ones are found again, and rows that tell nothing change nothing."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.build.snapshot import Snapshot
from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.training import TrainingOptions
from dnnc.machines.topology import load_topology
from dnnc.study.calibrate import bounded, calibrated, machines_at, numbers_of
from dnnc.study.runs import MeasuredRun, StatedPlan, append_row, read_rows, read_stated, require_appendable
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.topology import Topology

MACHINES = """version = 1
[types.core]
rates = { f32 = "100 GFLOP/s", f64 = "50 GFLOP/s" }
memory_bandwidth = "20 GB/s"
overhead = "4 us"
efficiency = { matmul = 0.8, default = 0.2 }
[[devices]]
name = "c{0..3}"
type = "core"
[[links]]
name = "bus"
ends = ["host", "devices of host"]
bandwidth = "4 GB/s"
latency = "10 us"
shared = true
"""
TWO = MACHINES.replace("{0..3}", "{0..1}")
WIDE = "zoo:mlp,hidden=1024,batch=64"
PLANS: dict[str, tuple[str, dict[str, object]]] = {
    "alone": (WIDE, {"stages": 1, "mesh": "none"}),
    "two": (WIDE, {"stages": 2, "mesh": "none"}),
    "mesh": (WIDE, {"mesh": "4", "stages": None}),
    "data": (WIDE, {"mesh": "2", "stages": None, "strategy": "data"}),
    "narrow": ("zoo:mlp,hidden=64,layers=8,batch=1", {"stages": 1, "mesh": "none"}),
    "narrow two": ("zoo:mlp,hidden=64,layers=8,batch=2", {"stages": 2, "mesh": "none"}),
    "vector": ("zoo:mlp,hidden=2048,batch=1", {"stages": 1, "mesh": "none"}),
    "other": ("zoo:mlp,hidden=512,batch=128", {"stages": 2, "mesh": "none"}),
    "other mesh": ("zoo:mlp,hidden=1024,layers=5,batch=256", {"mesh": "2", "stages": None, "strategy": "megatron"}),
    "bert": ("zoo:bert-base,layers=1,hidden=64,heads=2,seq=32,vocab=500", {"stages": 2, "mesh": "none"}),
}
"""Plans by name; those of the last three are not fitted."""
FEW = ("alone", "two", "narrow", "narrow two")
HELD_OUT = ("other", "other mesh", "bert")
TRUE = {"rates": 1.7, "memory_bandwidth": 1.3, "overhead": 2.5, "bandwidth": 2.0, "latency": 3.0}
"""Factors on the seconds of the machines as they really are."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StatedPlan]:
    folder = tmp_path_factory.mktemp("plans")
    (folder / "four.toml").write_text(MACHINES)
    for name, (model, options) in PLANS.items():
        asked = CompileOptions(model, str(folder / "four.toml"), folder / name, plan_only=True, **options)  # type: ignore[arg-type]
        compile_model(asked)
    return {name: read_stated(MeasuredRun(folder / name, "", 1.0, name)) for name in PLANS}


@pytest.fixture(scope="module")
def true(plans: dict[str, StatedPlan]) -> Callable[[StatedPlan], float]:
    """Seconds of a plan on the machines as they really are."""
    machines = truth(plans["two"].topology)
    return lambda plan: plan.seconds_on(machines)


def truth(topology: Topology) -> Topology:
    numbers = numbers_of("core", [topology], Path("rows"))
    return machines_at(topology, numbers, [TRUE.get(number.key, number.now) for number in numbers])


def written(path: Path, rows: Mapping[Path, float] | Iterator[tuple[Path, float]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("build", "seconds"))
        writer.writerows(rows.items() if isinstance(rows, Mapping) else rows)
    return path


@pytest.mark.parametrize("name", ["two", "mesh", "bert"])
def test_a_plan_is_priced_again_as_it_was(plans: dict[str, StatedPlan], name: str) -> None:
    plan = plans[name]
    assert plan.seconds_on(plan.topology) == plan.value
    numbers = numbers_of("core", [plan.topology], Path())
    faster = machines_at(plan.topology, numbers, [0.5 if number.key in TRUE else number.now for number in numbers])
    assert plan.seconds_on(faster) == pytest.approx(plan.value / 2, rel=1e-6), "all rates twice, all times half"


@pytest.mark.parametrize(
    "options",
    [
        {"stages": 2},
        {"mesh": "none", "replicas": 4, "stages": 1},
        {"mesh": "2", "stages": 2, "training": {"schedule": "zb-h1"}},
        {"training": {"chunks": 2}},
        {"stages": 2, "training": {"schedule": "pipedream"}},
    ],
    ids=["stages", "replicas", "zb-h1 on meshes", "chunks", "pipedream"],
)
def test_training_is_priced_again(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "four.toml").write_text(MACHINES if "training" not in options or "mesh" in options else TWO)
    training = TrainingOptions(loss="cross-entropy:y", **options.pop("training", {}))
    asked = CompileOptions(
        "zoo:mlp,layers=6,batch=4",
        str(tmp_path / "four.toml"),
        tmp_path / "build",
        plan_only=True,
        objective="training",
        microbatches=4,
        training=training,
        **options,
    )
    compile_model(asked)
    plan = read_stated(MeasuredRun(tmp_path / "build", "", 1.0, ""))
    assert plan.seconds_on(plan.topology) == pytest.approx(plan.value, rel=1e-12)
    assert plan.seconds_on(truth(plan.topology)) > 1.2 * plan.value


@pytest.mark.slow
def test_known_numbers_are_found_again(
    plans: dict[str, StatedPlan], true: Callable[[StatedPlan], float], tmp_path: Path
) -> None:
    some = {plan.build: true(plan) for name, plan in plans.items() if name not in HELD_OUT}
    found = calibrated("core", written(tmp_path / "rows.csv", some))
    before, after = found.error(found.before), found.error(found.after)
    assert before > 0.25
    assert after < 0.02
    for name in HELD_OUT:
        seconds = plans[name].seconds_on(found.topology)
        assert abs(seconds / true(plans[name]) - 1) < 0.06 < abs(plans[name].value / true(plans[name]) - 1), name
    moved = {one.number.key: one.factor for one in found.fitted}
    assert moved["bandwidth"] == pytest.approx(TRUE["bandwidth"], rel=0.15)
    assert moved["overhead"] == pytest.approx(TRUE["overhead"], rel=0.15)
    assert found.held_out < before / 2


@pytest.mark.slow
def test_true_numbers_and_noise_stay_as_they_are(plans: dict[str, StatedPlan], tmp_path: Path) -> None:
    exact = calibrated("core", written(tmp_path / "exact.csv", {plan.build: plan.value for plan in plans.values()}))
    assert not exact.fitted
    assert exact.topology == plans["two"].topology
    noise = np.exp(np.random.default_rng(3).normal(0, 0.3, len(plans)))
    rows = {plan.build: plan.value * factor for plan, factor in zip(plans.values(), noise, strict=True)}
    noisy = calibrated("core", written(tmp_path / "noisy.csv", rows))
    assert noisy.held_out <= noisy.error(noisy.before) + 1e-12
    for plan in plans.values():
        assert abs(math.log(plan.seconds_on(noisy.topology) / plan.value)) < 0.3, "no further off than one row"


def test_the_file_gives_the_fitted_plans(
    plans: dict[str, StatedPlan],
    true: Callable[[StatedPlan], float],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = written(tmp_path / "rows.csv", {plans[name].build: true(plans[name]) for name in FEW})
    assert main(["calibrate", "core", str(rows), "-o", str(tmp_path / "new.toml"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["error"]["after"] < 0.05 < told["error"]["before"]
    text = (tmp_path / "new.toml").read_text()
    assert "# Calibrated: mean error of 4 rows of 4 plans: before" in text
    assert "# calibrated; was 100 GFLOP/s" in text or "calibrated; was matmul 0.8" in text
    new = load_topology(str(tmp_path / "new.toml"), DiagnosticSink())
    by_build = {row["build"]: row["after"] for row in told["rows"]}
    for plan in (plans[name] for name in FEW):
        assert plan.seconds_on(replace(new, name=plan.topology.name)) == pytest.approx(by_build[str(plan.build)], rel=1e-9)
    assert main(["compile", WIDE, "-t", str(tmp_path / "new.toml"), "-o", str(tmp_path / "build"), "--plan-only", "-q"]) == 0


@pytest.mark.slow
def test_a_run_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three builds run here, each by real processes; then one is compiled again, and its row is of another plan."""
    rows = tmp_path / "measured" / "rows.csv"
    rows.parent.mkdir()
    for name, more in (("one", []), ("two", ["--stages", "2"]), ("wide", [])):
        model = "zoo:mlp,hidden=256,batch=2" if name == "wide" else "zoo:mlp,batch=4"
        compiled = ["compile", model, "-t", "preset:cpu-2,cores=2", "--mesh", "none", *(more or ["--stages", "1"]), "-q"]
        assert main([*compiled, "-o", str(tmp_path / name)]) == 0
        assert main(["run", str(tmp_path / name), "-m", "8", "--warmup", "1", "--runs", str(rows), "-q"]) == 0
    read = read_rows(rows)
    assert [row.build.resolve() for row in read] == [tmp_path / name for name in ("one", "two", "wide")]
    assert all(row.plan and 1e-6 < row.seconds < 1 for row in read)
    assert main(["calibrate", "core", str(rows)]) == 0
    capsys.readouterr()
    assert main(["run", str(tmp_path / "two"), "-m", "2", "--runs", str(rows), "-q"]) == 2
    assert "do not fill the pipeline" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "two"), "-m", "8", "--runs", str(tmp_path / "none" / "rows.csv"), "-q"]) == 3
    assert "its folder does not exist" in capsys.readouterr().err
    assert len(read_rows(rows)) == 3
    assert main(["compile", "zoo:mlp", "-t", "preset:cpu-2,cores=2", "-q", "-o", str(tmp_path / "one")]) == 0
    assert main(["calibrate", "core", str(rows)]) == 3
    assert f"{rows}:2: error[E1113]: {tmp_path}" in (told := capsys.readouterr().err)
    assert "holds another plan than the one that was measured" in told


def test_a_row_goes_below_the_columns_that_there_are(plans: dict[str, StatedPlan], tmp_path: Path) -> None:
    for text in ("seconds,note,build\n", ""):
        (tmp_path / "rows.csv").write_text(text)
        append_row(tmp_path / "rows.csv", Snapshot.open(plans["two"].build), 0.25)
        append_row(tmp_path / "rows.csv", Snapshot.open(plans["alone"].build), 0.5)
        rows = read_rows(tmp_path / "rows.csv")
        assert [(row.build, row.seconds) for row in rows] == [(plans["two"].build, 0.25), (plans["alone"].build, 0.5)]


@pytest.mark.parametrize("end", ["", "\n"])
def test_no_row_goes_into_an_open_quote(tmp_path: Path, end: str) -> None:
    (tmp_path / "rows.csv").write_text(f'build,plan,seconds\na,,1\nb,,"1{end}')
    with pytest.raises(InvalidInput, match=r"rows\.csv:3: error\[E1105\]: the file is no CSV: unexpected end of data"):
        require_appendable(tmp_path / "rows.csv")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r", "\n\n"])
def test_a_row_is_a_line_of_its_own(plans: dict[str, StatedPlan], tmp_path: Path, end: str) -> None:
    """An editor may have left out the last end of a line."""
    (tmp_path / "rows.csv").write_bytes(f"build,seconds\nx,1{end}".encode())
    append_row(tmp_path / "rows.csv", Snapshot.open(plans["two"].build), 0.25)
    assert [(row.build, row.seconds) for row in read_rows(tmp_path / "rows.csv")] == [
        (tmp_path / "x", 1.0),
        (plans["two"].build, 0.25),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ":1: error[E1101]: expected one column 'build' in the first line"),
        ("build,build,seconds\n", ":1: error[E1101]: expected one column 'build'"),
        ("build,plan\nx,\n", ":1: error[E1101]: expected one column 'seconds'"),
        ("build,seconds\n,1\n", ":2: error[E1102]: the row names no build"),
        ("build,seconds\n\nx,fast\n", ":3: error[E1104]: expected seconds as a number above 0, found 'fast'"),
        ("build,seconds\nx\n", ":2: error[E1104]: expected seconds as a number above 0, found ''"),
        ("build,seconds\nx,0\nx,nan\nx,-1\n", ":4: error[E1104]: expected seconds as a number above 0, found '-1'"),
        ("build,seconds\nnone,1\n", ":2: error[E1110]: there is no build "),
        ('build,seconds\n"x,1\n', ":2: error[E1105]: the file is no CSV: unexpected end of data"),
        ('build,plan,seconds\na,,1\nb,,"1\nc,,2\n', ":3: error[E1105]: the file is no CSV: unexpected end of data"),
        ("build,seconds\na\0b,1\n", ":2: error[E1103]: 'a\\x00b' is no path"),
        (f"build,seconds,{'x' * 200000}\n", ":1: error[E1105]: the file is no CSV"),
    ],
)
def test_bad_rows_are_told_with_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert main(["calibrate", "core", str(tmp_path / "rows.csv"), "-o", str(tmp_path / "new.toml")]) == 3
    assert f"{tmp_path / 'rows.csv'}{told}" in capsys.readouterr().err
    assert not (tmp_path / "new.toml").exists()


@given(seed=st.integers(0, 10**6), count=st.integers(1, 6))
@settings(max_examples=60)
def test_the_least_between_bounds(seed: int, count: int) -> None:
    """No step from there within the bounds goes down."""
    random = np.random.default_rng(seed)
    a = random.normal(size=(int(random.integers(1, 9)), count))
    h, b = a.T @ a + 1e-4 * np.eye(count), random.normal(size=count) * 3
    least = random.normal(size=count)
    most = least + random.exponential(size=count)
    x = bounded(h, b, least, most)
    assert (least <= x).all()
    assert (x <= most).all()
    slope = h @ x - b
    down = np.where(x > least, np.maximum(slope, 0), 0) + np.where(x < most, np.maximum(-slope, 0), 0)
    assert down.max() < 1e-6 * max(1.0, float(np.abs(b).max()))


def test_what_cannot_be_fitted_is_told(
    plans: dict[str, StatedPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = [plan.build for plan in plans.values()]
    few = written(tmp_path / "few.csv", iter([(builds[0], 1.0), (builds[0], 1.1), (builds[1], 1.0)]))
    assert main(["calibrate", "core", str(few)]) == 3
    assert "E1120]: measured plans in the file: 2, at least 3 are needed" in capsys.readouterr().err
    three = written(tmp_path / "three.csv", dict.fromkeys(builds[:3], 1.0))
    assert main(["calibrate", "a100", str(three)]) == 2
    assert "no plan is for devices of type 'a100'" in (told := capsys.readouterr().err)
    assert "hint: there are: core" in told
    assert main(["calibrate", "core", str(three), "-t", "preset:cpu-2,cores=2"]) == 3
    assert "the plans state different numbers of type 'core'" in capsys.readouterr().err
