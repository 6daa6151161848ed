"""The model as nodes: each distinct value of the entry function with a number, and the ops that make them.

A ``comm.reshard`` is another name for its operand: it changes where a value lies, not what it is. Equal computations are one
node. What an op draws at random, and what an operator without a definition makes, is a node of its own: it equals nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dnnc.check.proof.terms import (
    ABSENT,
    CONSTANT,
    Content,
    Key,
    Terms,
    constant_key,
    constant_of,
    content,
    content_of,
    op_key,
    structure_of,
    unknown_of,
    version,
)
from ir.core.module import Func, Inline, Module, Resource, Splat
from ir.core.ops import Op
from ir.core.types import TensorType, Type, without_layout
from ir.layout_rules import Numbers, resource_numbers
from ir.ops.boxes import shape_of
from ir.ops.opdefs import RESHARD, module_opsets


@dataclass(frozen=True, slots=True)
class Application:
    """An op of the model. ``operands`` are nodes (``ABSENT`` for one that is not given; what its regions capture last),
    ``results`` too; ``structure``: of its regions. ``unknown``: why nothing can be said of its results, empty where it can."""

    number: int
    op: Op
    version: int | None
    operands: tuple[int, ...]
    results: tuple[int, ...]
    structure: Key
    unknown: str = ""


@dataclass(slots=True)
class Model:
    """``names``: the first name of each node, ``types`` its type, ``node_of`` the node of each name; ``makers``: the op that
    makes it; ``readers``: the numbers of ops that read it. ``contents``: constants that are known, ``resources`` and weights by
    node."""

    opsets: Mapping[str, int]
    args: tuple[str, ...] = ()
    outputs: tuple[tuple[str, int], ...] = ()
    names: list[str] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    node_of: dict[str, int] = field(default_factory=dict)
    makers: dict[int, Application] = field(default_factory=dict)
    contents: dict[int, Content] = field(default_factory=dict)
    resources: dict[int, Resource] = field(default_factory=dict)
    applications: list[Application] = field(default_factory=list)

    def numbers(self, node: int) -> Numbers | None:
        """The elements of a small constant that layout rules read."""
        resource = self.resources.get(node)
        if resource is not None:
            return resource_numbers(resource)
        return self.contents[node].numbers() if node in self.contents else None


def read_model(module: Module, func: Func) -> Model:
    """The model that ``func`` of ``module`` is, without calls."""
    return _Reader(module, func).model


class _Reader:
    def __init__(self, module: Module, func: Func) -> None:
        self.model = Model(module_opsets(module), tuple(arg.name for arg in func.args))
        self.terms = Terms()
        self.resources = module.resources
        for arg in func.args:
            self.model.node_of[arg.name] = self.node(("input", arg.name), arg.name, arg.type)
        for op in func.ops:
            self.op(op)
        self.model.outputs = tuple((value.name, self.resolve(value.name)) for value in func.results)

    def node(self, key: Key, name: str, type_: Type) -> int:
        number = self.terms.number(key)
        model = self.model
        if number == len(model.names):
            model.names.append(name)
            model.types.append(without_layout(type_))
            model.readers.append([])
        return number

    def resolve(self, name: str) -> int:
        """The node of a name. A resource becomes one at its first use."""
        if not name:
            return ABSENT
        node = self.model.node_of.get(name)
        if node is None:
            resource = self.resources[name]
            node = self.model.node_of[name] = self.node(("resource", name), name, resource.type)
            self.model.resources[node] = resource
            if (known := _known(resource)) is not None:
                self.model.contents[node] = known
        return node

    def op(self, op: Op) -> None:
        model = self.model
        if op.name == RESHARD:
            model.node_of[op.results[0].name] = self.resolve(op.operands[0])
            return
        dense = constant_of(op) if op.name == CONSTANT else None
        if dense is not None:
            value = op.results[0]
            made = content_of(dense)
            node = model.node_of[value.name] = self.node(constant_key((made,)), value.name, dense.type)
            model.contents[node] = made
            return
        structure, captured, inside = structure_of(op, model.opsets, self.resolve)
        operands = (*map(self.resolve, op.operands), *captured)
        known = version(op, model.opsets)
        key = op_key(op, known, operands, structure)
        if unknown := unknown_of(op, known, inside):
            key = (*key, len(model.names))  # equal to nothing
        results = []
        for place, value in enumerate(op.results):
            if not value.name:
                results.append(ABSENT)
                continue
            results.append(self.node(("result", key, place), value.name, value.type))
            model.node_of[value.name] = results[-1]
        if all(node in model.makers for node in results if node != ABSENT):
            return  # an equal computation is there
        application = Application(len(model.applications), op, known, operands, tuple(results), structure, unknown)
        model.applications.append(application)
        model.makers.update((node, application) for node in results if node != ABSENT)
        for node in dict.fromkeys(operands):
            if node != ABSENT:
                model.readers[node].append(application.number)


def _known(resource: Resource) -> Content | None:
    """The content of a constant that the text holds and layout rules may read."""
    shape, type_ = shape_of(resource.type), resource.type
    if shape is None or not isinstance(type_, TensorType) or resource_numbers(resource) is None:
        return None
    match resource.data:
        case Inline(data):
            return content(type_.dtype, shape, data)
        case Splat(value):
            import numpy as np

            from dnnc.onnx.arrays import numpy_dtype, to_data

            return content(type_.dtype, shape, to_data(np.full(shape, value, numpy_dtype(type_.dtype)), type_.dtype))
    return None
