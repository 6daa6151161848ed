"""An interrupt from the keyboard leaves the best plan of the search over the lattice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dnnc.cli import main
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import ExitCode
from ir.core.module import Plan
from passes.framework.base import PassContext
from passes.partition.bridge import lattice_search
from passes.partition.lattice.search.throughput import solve
from passes.partition.partition_pass import PartitionPass
from tests.passes.partition.bridge.test_steps import chain

MLP = "zoo:mlp,layers=3,hidden=64,inputs=64,outputs=64,batch=16"
MACHINES = "preset:2xrtx3090x2"


@pytest.mark.parametrize("options", [(), ("--objective", "training", "--loss", "mse:y")])
def test_a_plan_at_hand_is_written(options, tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    searches = []

    def interrupted(*given):  # type: ignore[no-untyped-def]
        searches.append(given)
        return replace(solve(*given), interrupted=True)

    monkeypatch.setattr(lattice_search, "solve", interrupted)
    out = tmp_path / "plan"
    assert (
        main(["compile", MLP, "-t", MACHINES, "--mesh", "none", "--plan-only", "-q", "-o", str(out), *options])
        == ExitCode.INTERRUPTED
    )
    assert (out / "plan.json").exists()
    assert len(searches) <= 2  # no further number of stages is tried


def test_a_search_of_fewer_devices_leaves_the_plan_of_all(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """An interrupt before a search has a plan is passed on, and had taken the plans of the searches before along."""
    searches = []

    def interrupted(*given):  # type: ignore[no-untyped-def]
        searches.append(given)
        if len(searches) > 1:
            raise KeyboardInterrupt
        return solve(*given)

    monkeypatch.setattr(lattice_search, "solve", interrupted)
    context = PassContext(dialects=DIALECTS)
    search = PartitionPass(objective="training", mesh="none", microbatches=3, stages=2, replicas=0)
    assert search.run(chain([8, 8, 2048], 5), context).first(Plan) is not None
    assert len(searches) == 2
    assert context.statistics["partition"]["interrupted"]
