"""Lets ``preset:local`` find numbers in the user's cache, so that no test measures this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.machines import read_facts
from dnnc.machines.cache import cache_file, keep
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink


def measured_before(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``cache`` the user's cache, in which ``preset:local,devices=2`` has the numbers of ``preset:cpu-2``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    keep(cache_file(read_facts(), 2), load_topology("preset:cpu-2,cores=2,memory=8GiB", DiagnosticSink()), {})
