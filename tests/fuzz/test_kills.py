"""Commands that signals end leave nothing: a few cases in every run, each signal at each kind of moment in the slow test.

Many moments: ``python -m tests.fuzz kills``.
"""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.kills import COMMANDS, SIGNALS, box, trial


@pytest.mark.slow
def test_a_signal_at_work_leaves_nothing(tmp_path: Path) -> None:
    prepared = box("check", tmp_path / "box", timed=False)
    for number in (signal.SIGTERM, signal.SIGKILL):
        faults, code = trial(prepared, number, "mess", Random(1))
        assert faults == []
        assert code != 0, "it was over before the signal came"


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
def test_every_signal_at_any_moment_leaves_nothing(kind: str, tmp_path: Path) -> None:
    prepared, rng = box(kind, tmp_path / "box"), Random(2)
    for number, moment in [*((number, "mess") for number in SIGNALS), (signal.SIGTERM, "any"), (signal.SIGKILL, "any")]:
        faults, _ = trial(prepared, number, moment, rng)
        assert faults == [], (number, moment)
