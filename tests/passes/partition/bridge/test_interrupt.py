"""An interrupt from the keyboard leaves the best plan of the search over the lattice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dnnc.cli import main
from ir.core.diagnostics import ExitCode
from passes.partition.bridge import lattice_search
from passes.partition.lattice.search.throughput import solve

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
