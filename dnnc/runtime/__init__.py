"""Runs a build: one process per device on ONNX Runtime, and checks it against the unsplit model.

Everything is imported at first use: a stage process imports this package too and must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnnc.runtime.check import CheckOptions, check_build
    from dnnc.runtime.errors import RuntimeFailure
    from dnnc.runtime.generate import random_inputs
    from dnnc.runtime.inputs import read_inputs, split_microbatches, write_npz
    from dnnc.runtime.npz import read_npz
    from dnnc.runtime.pipeline import Pipeline
    from dnnc.runtime.results import Event, RunResult
    from dnnc.runtime.run import RunCommand, run_build, run_command
    from dnnc.runtime.starting import RunOptions
    from dnnc.runtime.verdict import CheckReport

_HOME = {
    "CheckOptions": "check",
    "CheckReport": "verdict",
    "check_build": "check",
    "RuntimeFailure": "errors",
    "random_inputs": "generate",
    "read_inputs": "inputs",
    "read_npz": "npz",
    "split_microbatches": "inputs",
    "write_npz": "inputs",
    "Event": "results",
    "Pipeline": "pipeline",
    "RunOptions": "starting",
    "RunResult": "results",
    "RunCommand": "run",
    "run_build": "run",
    "run_command": "run",
}

__all__ = [
    "CheckOptions",
    "CheckReport",
    "Event",
    "Pipeline",
    "RunCommand",
    "RunOptions",
    "RunResult",
    "RuntimeFailure",
    "check_build",
    "random_inputs",
    "read_inputs",
    "read_npz",
    "run_build",
    "run_command",
    "split_microbatches",
    "write_npz",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dnnc.runtime.{_HOME[name]}"), name)
