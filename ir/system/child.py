"""Processes of our own: how a module of these packages is started as a program.

Invariants: nothing is imported from the directory that the user stands in; the packages come from where this one did; what
the user put on ``PYTHONPATH`` by name stays there. An empty entry of ``PYTHONPATH`` stands for the current directory (most
come from ``PYTHONPATH=$PYTHONPATH:/more`` where it was unset), so empty entries are left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def module_command(module: str) -> list[str]:
    """The command that runs ``module`` as a program, with this interpreter."""
    return [*python_command(), "-m", module]


def python_command() -> list[str]:
    """The command that runs this interpreter: ``-P`` keeps the current directory off its path."""
    return [sys.executable, "-P"]


def module_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of such a command: that of this process, with ``more``."""
    path = os.pathsep.join([_ROOT, *_named_entries()])
    return {**os.environ, **(more or {}), "PYTHONPATH": path}


def _named_entries() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
