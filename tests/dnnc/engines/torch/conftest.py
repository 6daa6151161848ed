"""Trainings of these tests start their ranks from one warm process (``warm_template``)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dnnc.engines.torch.launch import forking, starting
from tests.dnnc.engines.torch.warm_template import Warm


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()


@pytest.fixture(autouse=True)
def warm_ranks(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "subprocess", SimpleNamespace(Popen=warm.popen, DEVNULL=subprocess.DEVNULL))
    monkeypatch.setattr(starting, "FEWEST_FORKED", 1)
