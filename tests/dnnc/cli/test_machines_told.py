"""What a person is told of machines that are not what a plan takes them for: shared cores, and GPUs that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnc.cli import main
from dnnc.cli.console import show_warnings
from ir.core.diagnostics import Diagnostic, Severity
from tests.dnnc.sealing import older

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
def test_one_user_is_served_no_slower_than_by_one_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four workers at half speed were the best plan of these, and slower than one with a core to itself."""
    model = "zoo:llama-7b,layers=2,hidden=192,heads=4,kv_heads=4,ffn=512,vocab=1000,cache=inplace,weights=declared"
    told = ["--objective", "token-latency", "--context", "1024", "--plan-only", "-t", "preset:cpu-4,cores=2,memory=8GiB"]
    assert main(["compile", model, *told, "-o", str(tmp_path / "out")]) == 0
    assert "4 workers would share 2 cores: no faster than as many workers as cores" in capsys.readouterr().out
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["value"] <= plan["single"]
    assert main(["compile", model, *told, "--mesh", "4", "-o", str(tmp_path / "four")]) == 0
    assert json.loads((tmp_path / "four" / "plan.json").read_text())["certificate"]["cores"] == "4 workers share 2 cores"


@pytest.mark.slow
def test_a_run_says_that_its_predictions_are_of_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for preset, names in (("h100x2", ["h100"]), ("cpu-1", [])):
        assert main(["compile", MODEL, "-t", f"preset:{preset}", "-o", str(out), "-q"]) == 0
        assert main(["run", str(out), *(["--emulate"] if names else [])]) == 0
        told, warned = capsys.readouterr()
        assert ("its predictions are of h100" in warned) == bool(names)
        assert (" on h100)" in told) == bool(names)
        assert main(["run", str(out), "--json", "--emulate"]) == 0
        assert json.loads(capsys.readouterr().out)["predicted_for"] == names


def test_the_same_warning_is_printed_once_with_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = "it fits no formula", "it has no size"
    places = [(one, "%a"), (other, "%b"), (one, "%c"), (one, "%d")]
    show_warnings([Diagnostic(message, where, severity=Severity.WARNING) for message, where in places])
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["%a: warning: it fits no formula (and 2 more such)", "%b: warning: it has no size"]


TWO_HOSTS = """version = 1
types.core = "preset:cpu-1"
hosts = [{name = "p"}, {name = "q"}]
devices = [{name = "p0", type = "core", host = "p"}, {name = "q0", type = "core", host = "q"}]
links = [{ends = ["p0", "q0"], bandwidth = "20 GB/s", latency = "2 us"}]
"""
OTHERS = """version = 1
types.cuda = {like = "preset:cpu-1", kind = "gpu"PROVIDER}
devices = [{name = "g0", type = "cuda"}, {name = "g1", type = "cuda"}]
links = [{ends = ["g0", "g1"], bandwidth = "20 GB/s", latency = "2 us"}]
"""
CUDA = ', provider = "CUDAExecutionProvider"'
SMALL = "zoo:mlp,layers=2,hidden=16,batch=4"
STEP = ("--objective", "training", "--microbatches", "2")


@pytest.mark.parametrize(
    ("machines", "step", "missing"),
    [
        (TWO_HOSTS, (), "it is for 2 hosts, p, q, and runs on one machine"),
        (TWO_HOSTS, STEP, "it is for 2 hosts, p, q, and runs on one machine"),
        (OTHERS.replace("PROVIDER", ""), (), "it is for devices of type cuda (gpu: g0, g1), and here is none"),
        (OTHERS.replace("PROVIDER", ""), STEP, "ranks of a training run on the CPU"),
        (OTHERS.replace("PROVIDER", CUDA), STEP, "ranks of a training run on the CPU"),
    ],
)
def test_nothing_runs_elsewhere_in_silence(
    machines: str, step: tuple[str, ...], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "machines.toml").write_text(machines)
    build = str(tmp_path / "build")
    pipeline = ("--stages", "2", "--mesh", "none", "--replicas", "1")
    assert main(["compile", SMALL, "-t", str(tmp_path / "machines.toml"), *step, *pipeline, "-q", "-o", build]) == 0
    capsys.readouterr()
    for command in (["train", build], ["train", build, "--check"]) if step else (["run", build], ["check", build]):
        assert main(command) == 3
        told = capsys.readouterr().err
        assert missing in told
        assert "--emulate runs it on one host" in told
    rows = tmp_path / "rows.csv"
    count = ("--steps", "3") if step else ("--microbatches", "8")
    assert main(["train" if step else "run", build, "--emulate", *count, "--runs", str(rows)]) == 2
    assert "an emulated run is not recorded" in capsys.readouterr().err
    assert not rows.exists()


@pytest.mark.parametrize(
    ("machines", "missing"),
    [
        (TWO_HOSTS, "it is for 2 hosts, p, q, and runs on one machine"),
        (OTHERS.replace("PROVIDER", ""), "it is for devices of type cuda (gpu: g0, g1), and here is none"),
        ("preset:cpu-2", ""),
    ],
)
def test_a_build_of_an_earlier_version_does_not_run_elsewhere_either(
    machines: str, missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its programs are made again of its plan, which knows the machines."""
    topology, build = tmp_path / "machines.toml", tmp_path / "build"
    topology.write_text(machines)
    on = machines if machines.startswith("preset:") else str(topology)
    assert main(["compile", SMALL, "-t", on, "--stages", "2", "--mesh", "none", "-q", "-o", str(build)]) == 0
    older(build)
    assert main(["run", str(build), "-q"]) == (3 if missing else 0)
    assert missing in capsys.readouterr().err


def test_what_is_for_other_machines_is_emulated_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "machines.toml").write_text(TWO_HOSTS)
    build = str(tmp_path / "build")
    assert main(["compile", SMALL, "-t", str(tmp_path / "machines.toml"), "--stages", "2", "-q", "-o", build]) == 0
    assert main(["run", build, "--emulate", "-q"]) == main(["check", build, "--emulate", "-q"]) == 0


def test_one_machine_is_no_profile_of_two_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines, out = tmp_path / "machines.toml", tmp_path / "profile.json"
    for text, told in (
        (TWO_HOSTS, "it has CPUs on 2 hosts, p, q, and this is one machine"),
        (OTHERS.replace("PROVIDER", ""), "it has no CPU"),
    ):
        machines.write_text(text)
        assert main(["profile", SMALL, "-t", str(machines), "-o", str(out), "-q"]) == 3
        assert told in capsys.readouterr().err
        assert not out.exists()
