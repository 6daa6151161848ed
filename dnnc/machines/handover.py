"""Measures hand-over: what a device spends on each microbatch where several work, besides computing.

Two stages that compute next to nothing run in a stream, by the same processes as in ``dnnc run``: the seconds of a microbatch
there, less those of computing, are what the busier one of them spends on being woken, on receiving, and on sending.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ir
from dnnc.build.build import Build, Channel, Source, StageProgram, ValueInfo
from dnnc.build.snapshot import Snapshot
from dnnc.engines.onnxruntime.starter.pipeline import Pipeline
from dnnc.engines.onnxruntime.write.labelled import labelled_model
from dnnc.machines.probes import Sample
from ir.core.module import Action, Plan, PlanStage, Schedule
from ir.core.types import DType, TensorType

WIDTH = 256
"""Elements of the tensors: their bytes cost nothing beside the hand-over."""
ROUNDS, STREAM = 5, 200
"""Rounds, and microbatches of each."""
_TEXT = """module @probe {{ir_version = 10, opset.onnx = 20}} {{
func @main(%{given} : tensor<{width}xf32>) -> (%{made} : tensor<{width}xf32>) {{
%{made} = onnx.Neg(%{given}) : tensor<{width}xf32>
}} }}"""


def handover(scratch: Path) -> Sample:
    """Seconds of the hand-over of a microbatch, of two devices of this machine."""
    seconds = []
    with Pipeline(_build(scratch)) as pipeline:
        given = [{"v0": np.ones(WIDTH, np.float32)}] * STREAM
        pipeline.run(given, events=False)
        for _ in range(ROUNDS):
            result = pipeline.run(given)
            seconds.append(max(0.0, 1 / result.throughput - max(result.stage_seconds)))
    return Sample.of(seconds)


def _build(scratch: Path) -> Build:
    """Two stages in a row, on a device each."""
    type_ = TensorType(DType.F32, (WIDTH,))
    values = tuple(ValueInfo.of(f"v{number}", type_) for number in range(3))
    channel = Channel.of(0, "v1", type_, 0, 1)
    models: dict[str, bytes] = {}
    programs: list[StageProgram] = []
    for stage in range(2):
        text = _TEXT.format(given=f"v{stage}", made=f"v{stage + 1}", width=WIDTH)
        name, device = f"stages/stage{stage}.onnx", (f"cpu{stage}",)
        models[name] = labelled_model(ir.parse_module(text), scratch)[0]
        ends = (values[:1], (), (), (channel,)) if stage == 0 else ((), values[2:], (channel,), ())
        programs.append(StageProgram(stage, device, "cpu", name, *ends))
    rows = (
        ("cpu0", (Action("F", 0, 1), Action("send", 0, 1, 0))),
        ("cpu1", (Action("recv", 1, 0, 0), Action("F", 1, 0))),
    )
    stages = tuple(PlanStage(program.index, "cpu", program.devices, 1) for program in programs)
    plan = Plan("@plan", "throughput", "sum", 0.0, 0.0, 0.0, "within-gap", 0.0, stages)
    schedule = Schedule("@schedule", "stream", rows, periodic=True)
    files = Snapshot(scratch, {}, models, {})
    return Build(files, plan, tuple(programs), values[:1], values[2:], "shared", Source("", ""), schedule)
