"""Inference on ONNX Runtime: writes a build, and runs it with one process per device.

- ``write``: writes the build of a lowered module;
- ``engine``: the interfaces of an engine: launcher, transport, executor;
- ``run``: the command ``dnnc run``; ``starter``: starts the processes of a build, feeds them and collects outputs and times;
- ``errors``: how a run fails;
- ``worker``: the process of a device; ``rows``: how it follows its row of the schedule; ``member``: the program of a mesh's
  member;
- ``decoding``: language models, whose caches stay in the processes of their stages;
- ``session``: ONNX Runtime sessions; ``transport``: how processes exchange tensors;
- ``probe``: a process that measures its cores; ``faults``: what is refused, and why.

Names are imported at first use: the process of a device imports this package too and must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ir.system.lazy import exports

if TYPE_CHECKING:
    from dnnc.engines.onnxruntime.errors import RuntimeFailure
    from dnnc.engines.onnxruntime.run import RunCommand, run_build, run_command
    from dnnc.engines.onnxruntime.starter.pipeline import Pipeline
    from dnnc.engines.onnxruntime.starter.results import Event, RunResult
    from dnnc.engines.onnxruntime.starter.starting import RunOptions

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

__getattr__ = exports(
    __name__,
    {
        "errors": "RuntimeFailure",
        "starter.results": "Event RunResult",
        "run": "RunCommand run_build run_command",
        "starter.pipeline": "Pipeline",
        "starter.starting": "RunOptions",
    },
)
