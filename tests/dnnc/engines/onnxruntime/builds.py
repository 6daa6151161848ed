"""Small builds from ONNX text, one text per stage. An output of one stage that is an input of a later one becomes a channel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from dnnc.build.build import Build, Channel, Source, StageProgram, ValueInfo
from dnnc.build.snapshot import Snapshot
from ir.core.module import Action, Plan, PlanStage, Schedule
from ir.core.types import BytesType, Dim, DType, SeqType, TensorType, Type

ONNX_DTYPES = {
    onnx.TensorProto.FLOAT: DType.F32,
    onnx.TensorProto.FLOAT16: DType.F16,
    onnx.TensorProto.BFLOAT16: DType.BF16,
    onnx.TensorProto.INT64: DType.I64,
    onnx.TensorProto.INT32: DType.I32,
    onnx.TensorProto.BOOL: DType.BOOL,
    onnx.TensorProto.STRING: DType.STRING,
    onnx.TensorProto.FLOAT8E4M3FN: DType.F8E4M3FN,
}


def ir_type(proto: onnx.TypeProto) -> Type:
    if proto.HasField("sequence_type"):
        return SeqType(ir_type(proto.sequence_type.elem_type))
    if not proto.HasField("tensor_type"):
        return BytesType(0)
    tensor = proto.tensor_type
    shape: tuple[Dim, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
    return TensorType(ONNX_DTYPES[tensor.elem_type], shape)


def make_build(folder: Path, *stages: str | onnx.ModelProto, outputs: tuple[str, ...] = ()) -> Build:
    """A build with these graphs as stage models, as if it had been read from ``folder``. ``outputs``: of the whole model; empty
    for all values that no other stage reads."""
    contents: dict[str, bytes] = {}
    models = []
    for text in stages:
        header = '<ir_version: 10, opset_import: ["" : 20]>\n'
        models.append(onnx.parser.parse_model(header + text) if isinstance(text, str) else text)
    types = [{v.name: ir_type(v.type) for v in (*m.graph.input, *m.graph.output)} for m in models]
    maker = {
        v.name: index for index, m in enumerate(models) for v in m.graph.output if v.name not in {i.name for i in m.graph.input}
    }
    channels = []
    for target, model in enumerate(models):
        for value in model.graph.input:
            if value.name in maker:
                channels.append(Channel.of(len(channels), value.name, types[target][value.name], maker[value.name], target))
    sent = {c.tensor for c in channels}
    programs = []
    for index, model in enumerate(models):
        name = f"stages/stage{index}.onnx"
        contents[name] = model.SerializeToString()
        programs.append(
            StageProgram(
                index,
                (f"cpu{index}",),
                "cpu",
                name,
                tuple(ValueInfo.of(v.name, types[index][v.name]) for v in model.graph.input if v.name not in maker),
                tuple(
                    ValueInfo.of(v.name, types[index][v.name])
                    for v in model.graph.output
                    if (v.name in outputs if outputs else v.name not in sent)
                ),
                tuple(c for c in channels if c.target == index),
                tuple(c for c in channels if c.source == index),
            )
        )
    inputs = {port.name: port for program in programs for port in program.inputs}
    results = {port.name: port for program in programs for port in program.outputs}
    plan = Plan(
        "@plan",
        "throughput",
        "sum",
        1.0,
        1.0,
        1.0,
        "optimal",
        float(len(programs)),
        tuple(PlanStage(i, "cpu", (f"cpu{i}",), 1, 1.0) for i in range(len(programs))),
    )
    files = Snapshot(folder, {}, contents, {})
    ports = tuple(inputs.values()), tuple(results.values())
    return scheduled(Build(files, plan, tuple(programs), *ports, "shared", Source("", ""), Schedule("@schedule", "stream", ())))


def scheduled(build: Build) -> Build:
    """The build with the default schedule: each stage receives, runs and sends."""
    rows: dict[str, tuple[Action, ...]] = {}
    for stage in build.stages:
        ahead = len(build.stages) - 1 - stage.index
        own = tuple(Action(kind, stage.index, ahead, channel) for kind, channel in build.flow.actions(stage.index))
        for device in stage.devices:
            rows[device] = (*rows.get(device, ()), *own)
    return replace(build, schedule=Schedule("@schedule", "stream", tuple(rows.items()), periodic=True))
