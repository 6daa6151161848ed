"""Types that a graph states of its values, and what two statements about one value come to."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from onnx import GraphProto

from dnnc.onnx.types import tensor_type, type_of
from ir.core import dims as dimensions
from ir.core.types import UNKNOWN, Dim, MapType, OptionalType, SeqType, TensorType, Type, UnknownType


def is_complete(type_: Type) -> bool:
    """Whether the type says element type, rank, and a number or name for every dimension."""
    if isinstance(type_, TensorType):
        return type_.shape is not None and None not in type_.shape
    return not isinstance(type_, UnknownType) and not (isinstance(type_, SeqType) and isinstance(type_.element, UnknownType))


def has_rank(type_: Type) -> bool:
    """Whether the type says at least element type and rank."""
    if isinstance(type_, TensorType):
        return type_.shape is not None
    return is_complete(type_)


def is_static(type_: Type) -> bool:
    """Whether every dimension is a number."""
    return is_complete(type_) and (not isinstance(type_, TensorType) or type_.elements is not None)


def graph_types(graph: GraphProto) -> dict[str, Type]:
    """Known types of a graph's values. Annotations that say nothing are left out."""
    types = {value.name: type_of(value.type) for value in (*graph.value_info, *graph.output, *graph.input)}
    for tensor in graph.initializer:
        types[tensor.name] = tensor_type(tensor)
    return {name: type_ for name, type_ in types.items() if not isinstance(type_, UnknownType)}


def join(one: Type, other: Type) -> Type:
    """What a value surely is that is of one of two types: other ranks leave the shape open, other sizes a dimension."""
    if one == other:
        return one
    match one, other:
        case TensorType(), TensorType() if (one.dtype, one.sparse) == (other.dtype, other.sparse):
            if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
                return replace(one, shape=None)
            return replace(one, shape=tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)))
        case SeqType(), SeqType():
            return SeqType(join(one.element, other.element))
        case OptionalType(), OptionalType():
            return OptionalType(join(one.element, other.element))
    return UNKNOWN


def better(proven: Type | None, stated: Type) -> Type:
    """``proven``, and where it leaves something open what is ``stated``; of two that cannot both be true the proven one."""
    if proven is None or isinstance(proven, UnknownType):
        return stated
    if contradicts(stated, proven):
        return proven
    match proven, stated:
        case TensorType(), TensorType():
            if proven.shape is None or stated.shape is None:
                return proven if proven.shape is not None else replace(proven, shape=stated.shape)
            return replace(proven, shape=tuple(map(_better_dim, proven.shape, stated.shape)))
        case SeqType(), SeqType():
            return SeqType(better(proven.element, stated.element))
        case OptionalType(), OptionalType():
            return OptionalType(better(proven.element, stated.element))
    return proven


def _better_dim(proven: Dim, stated: Dim) -> Dim:
    return stated if proven is None or (isinstance(proven, str) and isinstance(stated, int)) else proven


def contradicts(one: Type, other: Type) -> bool:
    """Whether no value is of both types. Names of dimensions may stand for any number; an optional may hold its element."""
    match one, other:
        case (UnknownType(), _) | (_, UnknownType()):
            return False
        case TensorType(), TensorType():
            if one.shape is None or other.shape is None:
                return one.dtype is not other.dtype
            pairs = zip(one.shape, other.shape, strict=False)
            return (
                one.dtype is not other.dtype
                or len(one.shape) != len(other.shape)
                or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
            )
        case (SeqType(element=a), SeqType(element=b)) | (OptionalType(element=a), OptionalType(element=b)):
            return contradicts(a, b)
        case (OptionalType(element=a), b) | (b, OptionalType(element=a)):
            return contradicts(a, b)
        case MapType(), MapType():
            return one.key is not other.key or contradicts(one.value, other.value)
    return type(one) is not type(other)


def with_names(type_: Type, names: Set[str]) -> Type:
    """The type with dimensions of other names than these left open."""
    match type_:
        case TensorType() if type_.shape is not None:
            return replace(type_, shape=tuple(None if _symbols(dim) - names else dim for dim in type_.shape))
        case SeqType():
            return SeqType(with_names(type_.element, names))
        case OptionalType():
            return OptionalType(with_names(type_.element, names))
    return type_


def _symbols(dim: Dim) -> Set[str]:
    return frozenset(dimensions.symbols(dim)) if isinstance(dim, str) else frozenset()


def without_shape(type_: Type) -> Type:
    """The type of the same elements with no word about shapes."""
    match type_:
        case TensorType():
            return replace(type_, shape=None)
        case SeqType():
            return SeqType(without_shape(type_.element))
        case OptionalType():
            return OptionalType(without_shape(type_.element))
    return type_
