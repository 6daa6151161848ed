"""Commands that signals end leave nothing: each signal once there is something to clean up, one at any moment.

Many moments: ``python -m tests.fuzz kills``.
"""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.kills import COMMANDS, SIGNALS, box, trial


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
def test_every_signal_at_any_moment_leaves_nothing(kind: str, tmp_path: Path) -> None:
    prepared, rng = box(kind, tmp_path / "box"), Random(2)
    numbers = SIGNALS if kind == "compile" else (signal.SIGTERM, signal.SIGKILL)  # one handler has all that can be handled
    for number, moment in [*((number, "mess") for number in numbers), *([(signal.SIGKILL, "any")] * (kind == "compile"))]:
        faults, code = trial(prepared, number, moment, rng)
        assert faults == [], (number, moment)
        assert code != 0 or (kind, moment) != ("check", "mess"), "it was over before the signal came"
