"""The ranks of a host as forks of one process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dnnc.engines.torch.launch.forking import Rank, can_fork, forked
from ir.system.child import module_environment

pytestmark = pytest.mark.skipif(not can_fork(), reason="needs Linux")


@pytest.fixture(autouse=True)
def warm_ranks() -> None:
    """Here templates start as they do for users."""


def test_where_the_template_fails_it_is_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here torch does not load: its exit status is the one to tell."""
    (tmp_path / "torch.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    read_end, write_end = os.pipe()
    with os.fdopen(read_end), os.fdopen(write_end, "w") as errors:
        (process,) = forked([], [], [], errors.fileno(), errors.fileno(), module_environment())
    assert not isinstance(process, Rank)
    assert process.wait() == 7


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_the_status_of_a_rank_is_that_of_a_process(code: str, status: int) -> None:
    assert Rank(os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", code], os.environ)).wait() == status
