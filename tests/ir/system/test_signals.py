"""Requests to end, where an exception would be lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

import numpy as np
import pytest

from ir.system.signals import Terminated, termination_raises


def test_ctrl_c_within_what_numpy_calls_from_c_stays_an_interrupt() -> None:
    """Raised there, it would be told as a TypeError of the comparison."""
    pressed: list[str] = []
    before = sys.gettrace()

    def press(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code.co_name == "_promote_fields":
            sys.settrace(before)
            pressed.append(event)
            os.kill(os.getpid(), signal.SIGINT)

    def compare() -> None:
        rows = np.array([(1, 2), (3, 4)], dtype=[("a", int), ("b", int)])
        sys.settrace(press)
        try:
            assert (rows[1:] != rows[:-1]).all()
        finally:
            sys.settrace(before)
        time.sleep(10.0)

    with termination_raises(), pytest.raises(KeyboardInterrupt):
        compare()
    assert pressed == ["call"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_that_python_drops_in_a_finalizer_comes_again(number: signal.Signals) -> None:
    class Closing:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            time.sleep(0.001)  # where the handler runs, and its exception is dropped

    def drop() -> None:
        Closing()
        time.sleep(10.0)

    hook = sys.unraisablehook
    with termination_raises(), pytest.raises((Terminated, KeyboardInterrupt)) as ended:
        drop()
    assert sys.unraisablehook is hook
    if number == signal.SIGTERM:
        assert isinstance(ended.value, Terminated)
        assert ended.value.number == number
