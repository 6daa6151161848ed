"""The unsplit model to compare with, with additional values as outputs: the original model if it still exists.

A reference holds the bytes of an ONNX model. Its external weights stay in their files, which are opened once: the files whose
digests were verified are those that run. Nothing is written beside the original. Models without an ONNX file (``zoo:...``, IR
text) are built again, or exported, into a folder of the caller.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dnnc.build.build import ANNOTATED, Build, Source
from dnnc.check.faults import FileChanged
from dnnc.compile.load import load_model
from dnnc.engines.onnxruntime.write.overwritten import copy_overwritten
from dnnc.onnx.model import ImportedModel
from dnnc.onnx.weights import WeightFiles
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.names import unique
from ir.system.digests import OpenFile, has_digest
from ir.system.files import open_input

if TYPE_CHECKING:
    import onnx

RUNTIME_IR_VERSION = 13
"""Newest IR version that onnxruntime 1.31 reads. Later versions only add features, so older models keep their meaning."""


@dataclass(frozen=True, slots=True)
class Reference:
    """``model``: its bytes; ``files``: the open files with its external data, by location; ``title``: its name in messages;
    ``present``: those wanted values that it has, all of them outputs."""

    model: bytes
    files: Mapping[str, OpenFile]
    title: str
    original: bool
    present: frozenset[str]

    @property
    def weights(self) -> dict[str, int]:
        """File descriptors by location."""
        return {name: file.descriptor for name, file in self.files.items()}

    def confirm(self) -> None:
        """Raises InvalidInput if a file was written to since it was opened. Called after the reference has run."""
        for name, file in self.files.items():
            if file.was_written():
                raise InvalidInput(FileChanged(name), where=self.title)


def references(build: Build, wanted: Iterable[str], scratch: Path) -> Iterator[Reference]:
    """References for the ``wanted`` values: the original model, then ``annotated.onnx``, without those that cannot be loaded.
    ``scratch``: an empty folder that exists as long as they are used."""
    names = tuple(wanted)
    original = _original(build, names, scratch)
    if isinstance(original, Reference):
        yield original
    if (own := own_copy(build, names)) is not None:
        yield own


def own_copy(build: Build, names: tuple[str, ...]) -> Reference | None:
    """``annotated.onnx`` as a reference for these values; None where it does not open."""
    title = "annotated.onnx, the unsplit model of the build"
    try:
        return _open(build.files.read(ANNOTATED), "protobuf", build.files.files_for(ANNOTATED), names, title, False)
    except Exception:  # errors of protobuf have no types; models over 2 GB it cannot write
        return None


def why_not_the_original(build: Build) -> str:
    """Why ``references`` has no original model, as words of a message."""
    spec = build.source.spec
    if spec.startswith("zoo:"):
        return f"{spec} cannot be made again"
    if not spec or not build.source.sha256:
        return "the build names no model, as one that was in memory has no file"
    path = _source_path(build)
    try:
        with open_input(path, "the original model") as file:
            changed = _digest(file.read()) != build.source.sha256
    except InvalidInput as error:
        return f"the original model {path} is gone: {error.diagnostics[0].message}"
    if changed:
        return f"the original model {path} has changed since"
    weights = _weights(build)
    return weights if isinstance(weights, str) else f"the original model {path} does not open"


def _original(build: Build, names: tuple[str, ...], scratch: Path) -> Reference | None:
    """The model that was compiled; None if its file is gone or has other bytes."""
    spec = build.source.spec
    try:
        if spec.startswith("zoo:"):
            exported = _exported(lambda: load_model(spec, {}, DiagnosticSink()), scratch)
            return _open(*exported, names, f"the model {spec} (made again)", True)
        path = _source_path(build)
        with open_input(path, "the original model") as file:
            data = file.read()
        weights = _weights(build)
        if not spec or _digest(data) != build.source.sha256 or isinstance(weights, str):
            return None
        if path.suffix == ".ir":
            return _open(*_exported(lambda: _text(build), scratch), names, f"the original {path} (as ONNX)", True)
        from onnx.serialization import registry

        format_ = registry.get_format_from_file_extension(path.suffix) or "protobuf"
        return _open(data, format_, weights, names, f"the original model {path}", True)
    except OSError:  # of the scratch folder: the disk is full
        raise
    except Exception:  # InvalidInput, or protobuf's errors as above
        return None


class Sourced(Protocol):
    """What says where a model came from: a build."""

    @property
    def folder(self) -> Path: ...

    @property
    def source(self) -> Source: ...


def _source_path(build: Sourced) -> Path:
    return Path(os.path.normpath(build.folder.absolute() / build.source.spec))


def _weights(build: Sourced) -> dict[str, OpenFile] | str:
    """The files with the weights of the original, by location; if they are gone or have changed, a sentence that says so."""
    files = {}
    for name, digest in build.source.data.items():
        path = _source_path(build).parent / name
        try:
            files[name] = OpenFile(open_input(path, "weights of the original model"), digest)
        except InvalidInput as error:
            return f"the weights of the original in {path} are gone: {error.diagnostics[0].message}"
        if not has_digest(files[name].file, digest):
            return f"the weights of the original in {path} have changed since"
    return files


def original_weights(build: Sourced) -> WeightFiles | None:
    """The files of the weights of the model that was compiled; None where one is gone or has other bytes."""
    path = _source_path(build)
    if not build.source.sha256:
        return None
    try:
        own = OpenFile(open_input(path, "the original model"), build.source.sha256)
    except InvalidInput:
        return None
    weights = _weights(build)
    if isinstance(weights, str) or not has_digest(own.file, build.source.sha256):
        return None
    return WeightFiles(path.parent, {path.name: own, **weights})


def _text(build: Build) -> ImportedModel:
    """The IR text that was compiled. Raises InvalidInput if it changed after its digest was verified."""
    path = _source_path(build)
    imported = load_model(str(path), {}, DiagnosticSink())
    if imported.files.digests() != {**build.source.data, path.name: build.source.sha256}:
        raise InvalidInput(FileChanged(path.name), where=str(path))
    return imported


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _open(
    data: bytes, format_: str, files: Mapping[str, OpenFile], wanted: tuple[str, ...], title: str, original: bool
) -> Reference:
    import onnx

    model = onnx.load_model_from_string(data, format=format_)
    present = add_outputs(model, wanted)
    distinguish_nodes(model.graph)
    copy_overwritten(model)
    if model.ir_version > RUNTIME_IR_VERSION:
        model.ir_version = RUNTIME_IR_VERSION
    return Reference(model.SerializeToString(), files, title, original, present)


def part(
    reference: Reference, given: Mapping[str, tuple[int, tuple[int | None, ...]]], wanted: Iterable[str]
) -> Reference | None:
    """The part of a reference that computes ``wanted`` from the values ``given`` (element type and shape of each) and, if these
    do not suffice, from inputs of the model. None if it computes none of the wanted values."""
    import onnx

    model = onnx.load_model_from_string(reference.model)
    graph = model.graph
    maker = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    names = tuple(name for name in wanted if name in maker)
    if not names:
        return None
    needed: set[int] = set()
    read: set[str] = set()
    waiting = [maker[name] for name in names]
    while waiting:
        number = waiting.pop()
        if number in needed:
            continue
        needed.add(number)
        fresh = set(reads_of(graph.node[number])) - read
        read |= fresh
        waiting += [maker[name] for name in fresh if name in maker and name not in given]
    nodes = [graph.node[number] for number in sorted(needed)]
    inputs = [value for value in graph.input if value.name in read]
    there = {value.name for value in inputs}
    for name, (element, shape) in given.items():
        if name in read and name not in there and name in maker:
            inputs.append(onnx.helper.make_tensor_value_info(name, element, shape))
    outputs = [value for value in graph.output if value.name in names]
    initializers = [tensor for tensor in graph.initializer if tensor.name in read]
    computed = {name for node in nodes for name in node.output} - given.keys()
    types = [value for value in graph.value_info if value.name in computed]
    sparse = [tensor for tensor in graph.sparse_initializer if tensor.values.name in read]
    cut = onnx.helper.make_graph(
        nodes, graph.name or "part", inputs, outputs, initializers, value_info=types, sparse_initializer=sparse
    )
    model.graph.CopyFrom(cut)
    return replace(reference, model=model.SerializeToString(), present=frozenset(names))


def reads_of(node: onnx.NodeProto) -> Iterator[str]:
    """Names of the values that a node and its subgraphs read."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from reads_of(inner)
            yield from (value.name for value in graph.output)


def add_outputs(model: onnx.ModelProto, wanted: Iterable[str]) -> frozenset[str]:
    """Turns ``wanted`` values into outputs of the model, in place, and returns the names that it has. Their types are left to
    inference."""
    import onnx

    computed = {name for node in model.graph.node for name in node.output if name}
    inputs = {value.name for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    known = {value.name: value for value in model.graph.value_info}
    for name in dict.fromkeys(wanted):
        if name in computed and name not in outputs:
            model.graph.output.append(known.get(name) or onnx.ValueInfoProto(name=name))
            outputs.add(name)
    return frozenset(name for name in wanted if name in outputs or name in inputs)


def distinguish_nodes(graph: onnx.GraphProto) -> None:
    """Makes node names unique, in place. ONNX permits equal names, onnxruntime refuses them."""
    names: set[str] = set()
    for node in graph.node:
        if node.name:
            node.name = unique(node.name, names)


def _exported(load: Callable[[], ImportedModel], scratch: Path) -> tuple[bytes, str, dict[str, OpenFile]]:
    """A zoo model or IR text as an ONNX model, its format, and the file in ``scratch`` with its weights. Raises DnncError if it
    cannot be built."""
    import onnx_ir

    from dnnc.engines.onnxruntime.write.export import export_func, lazy_tensors

    path, beside = scratch / "reference.onnx", "reference.data"
    if not path.exists():
        imported = load()
        tensors = lazy_tensors(imported.files)
        onnx_ir.save(export_func(imported.module, imported.module.entry, tensors=tensors), path, external_data=beside)
    data = scratch / beside
    files = {beside: OpenFile(open_input(data, "weights"))} if data.exists() else {}
    return path.read_bytes(), "protobuf", files
