"""Reads an ONNX model of a build as ops, by ONNX's rules of scope, without inference and without changes.

A name is assigned once, in its graph or one around it; one that is visible already makes the model unreadable. Ops get names
that are unique in the model; initializers, and constants outside of regions, are no ops but have their bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from dnnc.check.proof.terms import CONSTANT, Content, constant_of, content, content_of
from dnnc.onnx.attributes import attribute_of
from dnnc.onnx.importer.graphs import subgraphs
from dnnc.onnx.types import dense_of, tensor_type
from ir.core.attributes import Attribute
from ir.core.names import unique
from ir.core.ops import Location, Op, Region, Value
from ir.core.types import TensorType


class Unreadable(ValueError):
    """A model that this reader does not understand; the text says why."""


@dataclass(slots=True)
class Text:
    """A model: ``ops`` in order, those of ``inputs`` and ``constants`` its free names. ``outputs``: of each output the value.
    ``opsets``: by domain, ``onnx`` for the default one."""

    name: str
    opsets: dict[str, int]
    inputs: tuple[str, ...]
    outputs: dict[str, str]
    ops: tuple[Op, ...]
    constants: dict[str, Content] = field(default_factory=dict)

    def signature(self) -> object:
        """What two models have in common that differ by the bytes of constants alone."""
        constants = tuple((name, one.dtype, one.shape) for name, one in self.constants.items())
        return tuple(sorted(self.opsets.items())), self.inputs, tuple(self.outputs.items()), self.ops, constants


def read_segment(name: str, data: bytes, weights: Mapping[str, int]) -> Text:
    """The model of these bytes. ``weights``: descriptors of the files that it refers to. Raises Unreadable."""
    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # protobuf's DecodeError, of a package without types
        raise Unreadable(f"{name} is no ONNX model") from None
    return _Reader(name, model, weights).text


def initializers(data: bytes) -> dict[str, TensorProto]:
    """The initializers of the main graph of a model, by name."""
    return {tensor.name: tensor for tensor in onnx.load_model_from_string(data).graph.initializer}


class _Reader:
    def __init__(self, name: str, model: ModelProto, weights: Mapping[str, int]) -> None:
        self.name, self.weights = name, weights
        if model.functions:
            raise Unreadable(f"{name} has functions of its own")
        opsets = {
            entry.domain if entry.domain not in ("", "ai.onnx") else "onnx": entry.version for entry in model.opset_import
        }
        graph = model.graph
        self.taken: set[str] = set()
        self.constants: dict[str, Content] = {}
        scope: dict[str, str] = {}
        inputs = tuple(self.assign(value.name, scope) for value in graph.input)
        ops = tuple(self.ops(graph, scope))
        outputs = {value.name: self.name_of(value.name, scope) for value in graph.output}
        self.text = Text(name, opsets, inputs, outputs, ops, self.constants)

    def ops(self, graph: GraphProto, scope: dict[str, str], inside: bool = False) -> Iterator[Op]:
        """The ops of a graph; ``scope``: what names mean, to which it adds its own; ``inside``: whether it is a region."""
        if graph.sparse_initializer:
            raise Unreadable(f"{self.name} has sparse initializers")
        for tensor in graph.initializer:
            self.constants[self.assign(tensor.name, scope)] = self.content(tensor)
        for node in graph.node:
            op = self.op(node, scope)
            dense = constant_of(op) if op.name == CONSTANT and not inside else None
            if dense is not None:
                self.constants[op.results[0].name] = content_of(dense)
            else:
                yield op

    def op(self, node: NodeProto, scope: dict[str, str]) -> Op:
        regions = tuple(sorted((key, self.region(inner, scope)) for key, inner in subgraphs(node)))
        domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}."
        return Op(
            f"onnx.{domain}{node.op_type}",
            tuple(self.name_of(name, scope) for name in node.input),
            tuple(Value(self.assign(name, scope) if name else "") for name in node.output),
            self.attributes(node),
            regions,
            (),
            Location("", node.name),
        )

    def region(self, graph: GraphProto, outer: Mapping[str, str]) -> Region:
        scope = dict(outer)
        args = []
        for value in graph.input:
            args.append(Value(self.assign(value.name, scope)))
        ops = tuple(self.ops(graph, scope, inside=True))
        return Region(tuple(args), ops, tuple(self.name_of(value.name, scope) for value in graph.output))

    def assign(self, name: str, scope: dict[str, str]) -> str:
        """The name of a new value, which ``scope`` then has."""
        if name in scope:
            raise Unreadable(f"{self.name} assigns '{name}' twice, or in a graph inside the one that has it")
        scope[name] = unique(name, self.taken)
        return scope[name]

    def name_of(self, name: str, scope: Mapping[str, str]) -> str:
        if name and name not in scope:
            raise Unreadable(f"{self.name} reads '{name}', which nothing before it makes")
        return scope[name] if name else ""

    def attributes(self, node: NodeProto) -> tuple[tuple[str, Attribute], ...]:
        made = {}
        for proto in node.attribute:
            if proto.ref_attr_name:
                raise Unreadable(f"{self.name} refers to an attribute of a function")
            try:
                attribute = attribute_of(proto)
            except (ValueError, TypeError) as error:
                raise Unreadable(f"{self.name}, node '{node.name}', attribute '{proto.name}': {error}") from None
            if proto.name in made:
                raise Unreadable(f"{self.name}, node '{node.name}' has the attribute '{proto.name}' twice")
            if attribute is not None:
                made[proto.name] = attribute
        return tuple(sorted(made.items()))

    def content(self, tensor: TensorProto) -> Content:
        try:
            type_, data = tensor_data(tensor, self.weights)
        except (ValueError, TypeError) as error:
            raise Unreadable(f"{self.name}, initializer '{tensor.name}': {error}") from None
        return content(type_.dtype, tuple(tensor.dims), data)


def tensor_data(tensor: TensorProto, weights: Mapping[str, int]) -> tuple[TensorType, bytes | bytearray | tuple[bytes, ...]]:
    """Type and data of a tensor, which may lie in one of the files of ``weights``. Raises ValueError."""
    if tensor.data_location != TensorProto.EXTERNAL:
        dense = dense_of(tensor)
        return dense.type, dense.data
    type_ = tensor_type(tensor)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    descriptor = weights.get(entries.get("location", ""))
    offset, length = entries.get("offset", "0"), entries.get("length", str(type_.nbytes))
    if descriptor is None or not (offset.isdigit() and length == str(type_.nbytes)):
        raise ValueError("its data is not in the build")
    data = read_exactly(descriptor, int(offset), int(length))
    if data is None:
        raise ValueError("its file ends before its data")
    return type_, data


def read_exactly(descriptor: int, offset: int, length: int) -> bytearray | None:
    """These bytes of a file; None where it ends before them."""
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = os.preadv(descriptor, [view[done : done + (1 << 26)]], offset + done)
        if not count:
            return None
        done += count
    return data
