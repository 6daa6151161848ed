"""Small ONNX models for the frontend's tests, from ONNX text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import parser

from dnnc.onnx import import_model
from dnnc.onnx.model import used_names
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.types import TensorType

HEAD = '<ir_version: 10, opset_import: ["": 20]>\n'


def model(body: str, head: str = HEAD) -> onnx.ModelProto:
    """The model of ONNX text; ``head`` goes before a body that starts with the graph's name."""
    return parser.parse_model(head + body)


def save(proto: onnx.ModelProto, folder: Path, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def load(
    proto: onnx.ModelProto, folder: Path, dims: Mapping[str, int | str] | None = None, sink: DiagnosticSink | None = None
) -> Module:
    """The module of a model after a trip through a file."""
    path = save(proto, folder)
    return import_model(path, dims=dims or {}, sink=sink if sink is not None else DiagnosticSink()).module


def op(module: Module, id_: str) -> Op:
    """The op of the entry function, regions included, whose first result is ``id_``."""

    def search(ops: tuple[Op, ...]) -> Op | None:
        for item in ops:
            if item.id == id_:
                return item
            for _, region in item.regions:
                if found := search(region.ops):
                    return found
        return None

    found = search(module.entry.ops)
    assert found is not None, id_
    return found


def unknown_shapes(module: Module) -> list[str]:
    """The names of read tensors without a static shape."""
    func = module.entry
    used = used_names(func)
    tensors = [(value.name, value.type) for op in func.ops for value in op.results if isinstance(value.type, TensorType)]
    return [name for name, type_ in tensors if name in used and type_.elements is None]
