"""A small model with weights, its lowered module, and the outputs of its stages one after another in onnxruntime."""

from __future__ import annotations

import numpy as np

from dnnc.build.build import Build
from ir.core.attributes import attributes
from ir.core.module import Func, Inline, Module, Random, Resource, Splat
from ir.core.ops import Op, Value
from ir.core.topology import Topology
from ir.core.types import DType, TensorType
from passes.framework.base import PassContext
from passes.partition.place import PlacePass
from passes.partition.replay.assign import AssignPass
from passes.programs.localize import LocalizePass
from passes.programs.lower import LowerPass
from passes.programs.schedule import SchedulePass
from tests.passes.staging import devices

SQUARE = TensorType(DType.F32, (32, 32))  # 4096 bytes
ROW = TensorType(DType.F32, (4, 32))


def model(width: int = 32) -> Module:
    """Three matrix products in a chain. The first and the last have the same weight; the bias is small enough for the
    models."""
    square, row = TensorType(DType.F32, (width, width)), TensorType(DType.F32, (4, width))

    def value(name: str) -> Value:
        return Value(name, row)

    ops = (
        Op("onnx.MatMul", ("%x", "@w0"), (value("%a"),)),
        Op("onnx.Relu", ("%a",), (value("%b"),)),
        Op("onnx.MatMul", ("%b", "@w1"), (value("%c"),)),
        Op("onnx.Add", ("%c", "@bias"), (value("%d"),)),
        Op("onnx.MatMul", ("%d", "@w0"), (value("%e"),)),
        Op("onnx.Add", ("%e", "%b"), (value("%y"),)),
    )
    func = Func("@main", (value("%x"), value("%unused")), (value("%y"), value("%b"), value("%x")), ops)
    bias = np.arange(width, dtype=np.float32)
    return Module(
        "@small",
        (
            Resource("@w0", square, Random("normal", 7, 0.1)),
            Resource("@w1", square, Splat(0.5)),
            Resource("@bias", TensorType(DType.F32, (width,)), Inline(bias.tobytes())),
            Resource("@nobody", square, Random("normal", 8)),
            func,
        ),
        attributes({"opset.onnx": 20}),
    )


def lowered(module: Module, stages: tuple[int, ...], topology: Topology | None = None, comm: str = "sum") -> Module:
    """``module`` with op i in stage ``stages[i]``, placed, scheduled, lowered and localized."""
    count = 1 + max(stages)
    module = module.extend([topology or devices(count)])
    ops = tuple(f"{stage}:{op.id}" for stage, op in zip(stages, module.entry.ops, strict=True))
    context = PassContext()
    for step in (AssignPass(ops=ops, comm=comm), PlacePass(), SchedulePass(), LowerPass(), LocalizePass()):
        module = step.run(module, context)
    return module


def run(build: Build, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs the stage models one after another in onnxruntime; returns the feeds and all values that leave a stage."""
    values = dict(feeds)
    for stage in build.stages:
        session = session_of(str(build.folder / (stage.model or "")))
        assert {i.name for i in session.get_inputs()} == {p.name for p in stage.inputs} | {c.tensor for c in stage.receives}
        outputs = [o.name for o in session.get_outputs()]
        assert set(outputs) == {p.name for p in stage.outputs} | {c.tensor for c in stage.sends}
        values.update(zip(outputs, session.run(outputs, {i.name: values[i.name] for i in session.get_inputs()}), strict=True))
    return values


def session_of(path: str):  # type: ignore[no-untyped-def]
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
