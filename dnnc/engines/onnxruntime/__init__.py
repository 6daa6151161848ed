"""Inference on ONNX Runtime: a build is written (``write``), and run with one process per device.

- ``engine``: the three interfaces of an engine: what starts processes, moves values, computes;
- ``run``, ``pipeline``, ``results``: a run from arrays to arrays; ``starting``, ``processes``, ``errors``: its processes;
- ``worker``, ``rows``, ``member``: a device as a process, which follows its row of the schedule;
- ``session``: a model in an ONNX Runtime session; ``transport``: values from process to process;
- ``probe``: a process that measures what its cores do.

Everything is imported at first use: a stage process imports this package too and must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnnc.engines.onnxruntime.errors import RuntimeFailure
    from dnnc.engines.onnxruntime.pipeline import Pipeline
    from dnnc.engines.onnxruntime.results import Event, RunResult
    from dnnc.engines.onnxruntime.run import RunCommand, run_build, run_command
    from dnnc.engines.onnxruntime.starting import RunOptions

_HOME = {
    "RuntimeFailure": "errors",
    "Event": "results",
    "Pipeline": "pipeline",
    "RunOptions": "starting",
    "RunResult": "results",
    "RunCommand": "run",
    "run_build": "run",
    "run_command": "run",
}

__all__ = [
    "Event",
    "Pipeline",
    "RunCommand",
    "RunOptions",
    "RunResult",
    "RuntimeFailure",
    "run_build",
    "run_command",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dnnc.engines.onnxruntime.{_HOME[name]}"), name)
