"""The unsplit model as a program to compare with: the original where it is still there, with further values as outputs.

A reference is bytes of an ONNX model whose external weights stay where they are; nothing is written beside the original.
Models that are no file (``zoo:...``) are made again into a folder of the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dnnc.backend.build import Build
from ir.diagnostics import DiagnosticSink, DnncError
from ir.names import unique

if TYPE_CHECKING:
    import onnx

RUNTIME_IR_VERSION = 13
"""Newest IR version that onnxruntime 1.31 reads; what later versions add does not change what older models mean."""


@dataclass(frozen=True, slots=True)
class Reference:
    """``model``: the bytes; ``folder``: where its external data lies; ``title``: what it is, for a person. ``present``: the
    wanted values that it has, all of them outputs."""

    model: bytes
    folder: str
    title: str
    original: bool
    present: frozenset[str]


def references(build: Build, wanted: Iterable[str], scratch: Path) -> Iterator[Reference]:
    """References for ``wanted`` values, the best first: the original model, then ``annotated.onnx``. ``scratch``: an empty
    folder that lives as long as they are used. What cannot be loaded is passed over."""
    names = tuple(wanted)
    original = build.source.path(build.folder)
    if original is not None and original.suffix != ".ir":
        found = _open(original, names, f"the original model {original}", True)
        if found is not None:
            yield found
    elif build.source.spec.startswith("zoo:"):
        made = _make_zoo(build.source.spec, scratch)
        found = _open(made, names, f"the model {build.source.spec}, made again", True) if made is not None else None
        if found is not None:
            yield found
    found = _open(build.annotated, names, "annotated.onnx, the unsplit model of the build", False)
    if found is not None:
        yield found


def _open(path: Path, wanted: tuple[str, ...], title: str, original: bool) -> Reference | None:
    import onnx

    try:
        model = onnx.load_model(str(path), load_external_data=False)
        present = add_outputs(model, wanted)
        distinguish_nodes(model.graph)
        if model.ir_version > RUNTIME_IR_VERSION:
            model.ir_version = RUNTIME_IR_VERSION
        return Reference(model.SerializeToString(), str(path.parent.absolute()), title, original, present)
    except Exception:  # protobuf's errors, of a package without types; over its 2 GB limit it cannot write
        return None


def add_outputs(model: onnx.ModelProto, wanted: Iterable[str]) -> frozenset[str]:
    """Makes the values called ``wanted`` outputs of the model, in place; returns those that it has. Types are left to
    inference."""
    import onnx

    made = {name for node in model.graph.node for name in node.output if name}
    given = {value.name for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    known = {value.name: value for value in model.graph.value_info}
    for name in dict.fromkeys(wanted):
        if name in made and name not in outputs:
            model.graph.output.append(known.get(name) or onnx.ValueInfoProto(name=name))
            outputs.add(name)
    return frozenset(name for name in wanted if name in outputs or name in given)


def distinguish_nodes(graph: onnx.GraphProto) -> None:
    """Makes node names unique, in place: onnxruntime refuses a graph that uses one twice, ONNX does not."""
    names: set[str] = set()
    for node in graph.node:
        if node.name:
            node.name = unique(node.name, names)


def _make_zoo(spec: str, scratch: Path) -> Path | None:
    """Exports a zoo model with its weights to ``scratch``; None when it cannot be made."""
    import onnx_ir

    from dnnc.backend.export import export_func
    from dnnc.frontends import load_model

    try:
        imported = load_model(spec, {}, DiagnosticSink())
        model = export_func(imported.module, imported.module.entry)
    except DnncError:
        return None
    path = scratch / "reference.onnx"
    onnx_ir.save(model, path, external_data="reference.data")
    return path
