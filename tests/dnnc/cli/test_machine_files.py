"""``dnnc topology detect`` and ``merge`` as a person runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.build.build import Build
from dnnc.cli import main


def test_a_detected_machine_is_compiled_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, both = tmp_path / "here.toml", tmp_path / "both.toml"
    assert main(["topology", "detect", "-o", str(file), "--devices", "1"]) == 0
    assert f"wrote {file}" in capsys.readouterr().err
    assert main(["topology", "merge", str(file), str(file), "-o", str(both), "--link", "here-here2=10Gbit/s,50us"]) == 0
    assert ", cpu0 is now here2.cpu0, memory is now here2.memory, for another file" in capsys.readouterr().err
    command = ["compile", "zoo:mlp", "-t", str(both), "-o", str(tmp_path / "build"), "--plan-only", "--mesh", "none"]
    assert main(command) == 0


def test_no_file_is_half_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "detect", "-o", str(tmp_path / "none" / "a.toml")]) == 3
    assert main(["topology", "detect", "-o", str(tmp_path / "a.json")]) == 2
    assert main(["topology", "merge", "preset:a100", "preset:t4", "-o", str(tmp_path / "a.toml")]) == 3
    assert "hint: join the hosts: --link a100--t4=" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


CORES = """version = 1

[types.pair]
kind = "cpu"
cores = 2
rates = { f32 = "100 GFLOP/s" }
memory_bandwidth = "10 GB/s"

[[devices]]
name = "one"
type = "pair"
"""


def test_a_device_of_several_cores_runs_by_as_many_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless --threads says otherwise; then what is measured is no row of the plan's."""
    machine, build = tmp_path / "machine.toml", tmp_path / "build"
    machine.write_text(CORES, encoding="utf-8")
    assert main(["compile", "zoo:mlp,hidden=8,layers=2", "-t", str(machine), "-o", str(build), "-q"]) == 0
    found = Build.open(build)
    assert [found.threads(device, asked) for device in found.devices for asked in (0, 3)] == [2, 3]
    capsys.readouterr()
    rows = str(tmp_path / "rows.csv")
    assert main(["run", str(build), "-m", "4", "--threads", "1", "--runs", rows]) == 2
    assert "with --threads 1 the run does not measure the plan, which is for 2 on 'one'" in capsys.readouterr().err
    assert main(["run", str(build), "-m", "4", "--runs", rows]) == 0


def test_a_rank_trains_by_as_many_threads_as_its_device_has_cores(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    from dnnc.build.snapshot import Snapshot
    from dnnc.engines.torch.files import read_step

    machine, build = tmp_path / "machine.toml", tmp_path / "build"
    machine.write_text(CORES, encoding="utf-8")
    asked = ["--objective", "training", "--loss", "mse:y", "-q"]
    assert main(["compile", "zoo:mlp,hidden=8,layers=2", "-t", str(machine), "-o", str(build), *asked]) == 0
    assert read_step(Snapshot.open(build)).cores(0) == 2
