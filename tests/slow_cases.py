"""Which cases of a table run with the quick tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test: all cases, of which those that are not among ``quick`` are slow."""
    every = list(cases)
    assert set(quick) <= set(every)
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in every]
