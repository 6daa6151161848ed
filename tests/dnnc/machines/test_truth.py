"""The command that compares predictions with measurements says when the machine was busy, and leaves nothing behind."""

from __future__ import annotations

import os

import pytest

from ir.core.diagnostics import InvalidInput
from tests.bench.truth import machines_now, quiet_rounds


def test_rounds_that_were_not_quiet_are_told() -> None:
    assert quiet_rounds([1.0, 0.97, 0.96]) == ("3/3", False)
    assert quiet_rounds([1.0, 0.97, 0.5]) == ("2/3", True)


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_machines_that_are_none_leave_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if before is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", before)
    with pytest.raises(InvalidInput):
        machines_now("preset:nowhere", training=False)
    assert os.environ.get("XDG_CACHE_HOME") == before
