"""``Node``: the view of a node that the rule of its result types gets; and arithmetic on dimensions.

A rule takes a ``Node`` and returns the shapes of its results, in order. Element types follow from the signature: a result of
type variable ``T`` has the element type of the first operand of type ``T``, unless the rule sets one. onnx's inference calls
the rules, so they see the types, attributes and constants that it knows by then.

A dimension that depends on data is None. If a node does not fit its rule (a missing attribute, a wrong rank), all its results
stay without a type: an error would stop the inference of the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from onnx import TensorProto, defs, helper, numpy_helper
from onnx.shape_inference import InferenceContext

from dnnc.onnx.types import ELEMENT_NUMBERS, SCHEMA_NAMES
from ir.core.types import Dim

Shape: TypeAlias = tuple[Dim, ...]
Formals: TypeAlias = Sequence[defs.OpSchema.FormalParameter]


_MOST_NUMBERS = 64
"""Elements of the longest constant that a rule reads: pads of any rank."""


class UnknownError(ValueError):
    """A value that a rule needs is not known, or the node is invalid."""


class Node:
    """A node as its rule sees it. Methods that read raise UnknownError for a value that is not known."""

    def __init__(self, context: InferenceContext) -> None:
        self.context = context
        self.elements: dict[int, int] = {}

    def present(self, operand: int) -> bool:
        return operand < self.context.get_num_inputs() and self.context.has_input(operand)

    def shape(self, operand: int) -> Shape:
        type_ = self.context.get_input_type(operand) if self.present(operand) else None
        if type_ is None or not type_.tensor_type.HasField("shape"):
            raise UnknownError(f"operand {operand} has no shape")
        return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in type_.tensor_type.shape.dim)

    def element(self, operand: int) -> int:
        """The ``TensorProto.DataType`` of the operand; 0 where it is not known."""
        type_ = self.context.get_input_type(operand) if self.present(operand) else None
        return 0 if type_ is None else int(type_.tensor_type.elem_type)

    def set_element(self, result: int, number: int) -> None:
        """Sets the element type of a result, a ``TensorProto.DataType``."""
        self.elements[result] = number

    def number(self, key: str, default: int | None = None) -> int:
        attribute = self.context.get_attribute(key)
        if attribute is not None:
            return int(attribute.i)
        if default is None:
            raise UnknownError(f"no attribute {key}")
        return default

    def listed(self, key: str) -> tuple[int, ...]:
        """An attribute that lists numbers; empty where it is absent."""
        attribute = self.context.get_attribute(key)
        return () if attribute is None else tuple(attribute.ints)

    def text(self, key: str, default: str = "") -> str:
        attribute = self.context.get_attribute(key)
        return default if attribute is None else attribute.s.decode("utf-8", "replace")

    def numbers(self, operand: int) -> list[int]:
        """The elements of a small constant integer operand, such as pads or axes."""
        tensor = self.context.get_input_data(operand) if self.present(operand) else None
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL or math.prod(tensor.dims) > _MOST_NUMBERS:
            raise UnknownError(f"operand {operand} is no small constant")
        return [int(number) for number in np.asarray(numpy_helper.to_array(tensor)).reshape(-1)]


Rule: TypeAlias = Callable[[Node], Sequence[Shape]]


def inference(rule: Rule, inputs: Formals, outputs: Formals) -> Callable[[InferenceContext], None]:
    """The function that onnx calls for a node of a schema with these formal parameters."""

    def infer(context: InferenceContext) -> None:
        node = Node(context)
        try:
            shapes = rule(node)
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return
        for index, shape in zip(range(context.get_num_outputs()), shapes, strict=False):
            element = node.elements.get(index) or _element(node, outputs[index].type_str, inputs)
            if element and all(not isinstance(dim, int) or 0 <= dim < 1 << 63 for dim in shape):
                context.set_output_type(index, helper.make_tensor_type_proto(element, shape))

    return infer


def _element(node: Node, kind: str, inputs: Formals) -> int:
    """The element type of a result whose type in the signature is ``kind``: a fixed one, or that of the first operand of this
    type variable; 0 where that is not known."""
    if kind in _FIXED:
        return _FIXED[kind]
    same = (node.element(index) for index, formal in enumerate(inputs) if formal.type_str == kind)
    return next(filter(None, same), 0)


_FIXED = {f"tensor({name})": ELEMENT_NUMBERS[dtype] for dtype, name in SCHEMA_NAMES.items()}
"""A type in a signature that is no variable -> its ``TensorProto.DataType``."""


def plus(first: Dim, second: Dim) -> Dim:
    """The sum of two dimensions: a number, or text such as ``past + 1``; None where one is unknown or itself such text."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    if first == 0:
        return second
    if second == 0:
        return first
    terms = [str(dim) for dim in (first, second)]
    simple = all(isinstance(dim, int) or (dim is not None and dim.isidentifier()) for dim in (first, second))
    return " + ".join(terms) if simple else None


def times(dim: Dim, factor: int) -> Dim:
    if isinstance(dim, int):
        return dim * factor
    return dim if factor == 1 else None


def part(dim: Dim, count: int) -> Dim:
    """One of ``count`` equal parts of a dimension."""
    if count == 1:
        return dim
    if not isinstance(dim, int):
        return None
    if count < 1 or dim % count:
        raise UnknownError(f"{dim} has no {count} equal parts")
    return dim // count


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise UnknownError(f"axis {axis} of rank {rank}")
    return axis % rank


def ranked(shape: Shape, *ranks: int) -> Shape:
    if len(shape) not in ranks:
        raise UnknownError(f"rank {len(shape)}")
    return shape


def broadcast(*shapes: Shape) -> Shape:
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(map(_common, zip(*aligned, strict=True)))


def _common(dims: Iterable[Dim]) -> Dim:
    """The dimension that these broadcast to; None where names differ."""
    others = [dim for dim in dims if dim != 1]
    numbers = {dim for dim in others if isinstance(dim, int)}
    if len(numbers) > 1:
        raise UnknownError(f"{numbers} do not broadcast")
    if numbers:
        return numbers.pop()  # names and unknown dimensions beside it are equal to it or 1
    return 1 if not others else others[0] if len(set(others)) == 1 else None
