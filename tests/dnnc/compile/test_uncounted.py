"""What a plan says of inputs and outputs that lie in the host's memory, and of starting stages that take little time."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.training import TrainingOptions
from dnnc.report.plan import plan_headline
from ir.core.module import Plan

MODEL = "zoo:mlp,layers=2,hidden=64,batch=32"
BYTES = 4 * 32 * (784 + 10)
WIRED = """version = 1
[types]
gpu = "preset:h100"
[[hosts]]
name = "here"
[[devices]]
name = "gpu0"
type = "gpu"
host = "here"
[[links]]
ends = ["here", "gpu0"]
bandwidth = "1 MB/s"
latency = "10 us"
"""


START = "what starting each run of a stage costs"


def uncounted(topology: str, tmp_path: Path, objective: str = "throughput", model: str = MODEL, dtype: str = "") -> str:
    training = TrainingOptions(loss="mse:y", dtype=dtype) if objective == "training" else TrainingOptions()
    options = CompileOptions(
        model, topology, tmp_path / "b", objective=objective, training=training, plan_only=True, report=False
    )
    plan = compile_model(options).module.first(Plan)
    assert plan is not None
    told = dict(plan.certificate).get("uncounted", "")
    assert (f"  not counted: {told}" in plan_headline(plan)) == bool(told)
    return told


def test_bytes_and_their_seconds_on_the_link_to_the_host(tmp_path: Path) -> None:
    (tmp_path / "wired.toml").write_text(WIRED)
    told = uncounted(str(tmp_path / "wired.toml"), tmp_path)
    assert (
        told
        == f"inputs and outputs to and from the host's memory, {BYTES / 1024:.3g} KiB: {BYTES / 1e3:.3g} ms at 1 MB/s; {START}"
    )


def test_bytes_alone_where_no_link_is_stated(tmp_path: Path) -> None:
    told = uncounted("preset:h100", tmp_path)
    assert told == f"inputs and outputs to and from the host's memory, {BYTES / 1024:.3g} KiB; {START}"


def test_starting_a_stage_that_takes_long_is_not_told(tmp_path: Path) -> None:
    """Products of some ms; eight replicas of it too, however short the plan's value."""
    model = "zoo:mlp,layers=2,hidden=64,batch=1048576"
    for topology in ("preset:h100", "preset:h100x8"):
        assert START not in uncounted(topology, tmp_path, model=model)
    assert START in uncounted("preset:h100x8", tmp_path)


def test_starting_a_stage_is_told_of_cpus_that_state_no_hand_over(tmp_path: Path) -> None:
    text = WIRED.replace('"preset:h100"', '{kind = "cpu", rates = {f32 = "9 TFLOP/s"}, memory_bandwidth = "9 TB/s"}')
    (tmp_path / "cpu.toml").write_text(text)
    assert uncounted(str(tmp_path / "cpu.toml"), tmp_path) == START
    (tmp_path / "cpu.toml").write_text(text.replace('"9 TB/s"}', '"9 TB/s", handover = "50 us"}'))
    assert uncounted(str(tmp_path / "cpu.toml"), tmp_path) == ""


@pytest.mark.parametrize(("topology", "objective"), [("preset:cpu-2,cores=2", "throughput"), ("preset:h100", "training")])
def test_nothing_on_cpus_and_in_training(topology: str, objective: str, tmp_path: Path) -> None:
    assert uncounted(topology, tmp_path, objective) == ""


CORE = """version = 1
[types.core]
kind = "cpu"
rates = { f32 = "100 GFLOP/s", f16 = "100 GFLOP/s", bf16 = "100 GFLOP/s" }
memory_bandwidth = "10 GB/s"
[[devices]]
name = "core0"
type = "core"
"""


@pytest.mark.parametrize(("dtype", "told"), [("bf16", ""), ("f16", "how PyTorch multiplies f16 on a CPU")])
def test_narrow_products_of_a_training_step_on_a_cpu(dtype: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "core.toml").write_text(CORE)
    found = uncounted(str(tmp_path / "core.toml"), tmp_path, "training", dtype=dtype)
    assert found.startswith(told)
    assert bool(found) == bool(told)
    assert not uncounted("preset:h100", tmp_path / "gpu", "training", dtype=dtype)
