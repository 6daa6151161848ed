"""What a plan says of inputs and outputs that lie in the host's memory."""

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


def uncounted(topology: str, tmp_path: Path, objective: str = "throughput") -> str:
    training = TrainingOptions(loss="mse:y") if objective == "training" else TrainingOptions()
    options = CompileOptions(
        MODEL, topology, tmp_path / "b", objective=objective, training=training, plan_only=True, report=False
    )
    plan = compile_model(options).module.first(Plan)
    assert plan is not None
    told = dict(plan.certificate).get("uncounted", "")
    assert (f"  not counted: {told}" in plan_headline(plan)) == bool(told)
    return told


def test_bytes_and_their_seconds_on_the_link_to_the_host(tmp_path: Path) -> None:
    (tmp_path / "wired.toml").write_text(WIRED)
    told = uncounted(str(tmp_path / "wired.toml"), tmp_path)
    assert told == f"inputs and outputs to and from the host's memory, {BYTES / 1024:.3g} KiB: {BYTES / 1e3:.3g} ms at 1 MB/s"


def test_bytes_alone_where_no_link_is_stated(tmp_path: Path) -> None:
    assert uncounted("preset:h100", tmp_path) == f"inputs and outputs to and from the host's memory, {BYTES / 1024:.3g} KiB"


@pytest.mark.parametrize(("topology", "objective"), [("preset:cpu-2,cores=2", "throughput"), ("preset:h100", "training")])
def test_nothing_on_cpus_and_in_training(topology: str, objective: str, tmp_path: Path) -> None:
    assert uncounted(topology, tmp_path, objective) == ""
