"""Literals: what the rules of ``types.lark`` and ``attributes.lark`` build.

Methods are named like rules and take the list of children. Callers keep results by distinct text; what a reader keeps is a
count that bounds them. They raise ValueError where a well-formed text means nothing (a float in a list of ints).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ir.core.attributes import Attribute, Attributes, AttrKind, Dense
from ir.core.names import unquote_text
from ir.core.ranges import COUNTED, whole
from ir.core.types import (
    UNKNOWN,
    BytesType,
    Dim,
    DType,
    Layout,
    MapType,
    OptionalType,
    Partial,
    Placement,
    Replicate,
    SeqType,
    Shard,
    TensorType,
    Type,
)
from ir.text.dense import bytes_from_text, dense_data

_LISTS = {
    AttrKind.INT: AttrKind.INTS,
    AttrKind.FLOAT: AttrKind.FLOATS,
    AttrKind.STRING: AttrKind.STRINGS,
    AttrKind.TENSOR: AttrKind.TENSORS,
    AttrKind.TYPE: AttrKind.TYPES,
}


MOST_RANGED = 1 << 23
"""Numbers that the ranges of one text may stand for: a text of a few lines could else fill any memory."""


class TypeReader:
    """Builds the types of one text."""

    def types(self, children: list[Any]) -> tuple[Type, ...]:
        return tuple(children)

    def tensor(self, children: list[Any]) -> TensorType:
        shape, dtype, *layout = children
        return TensorType(DType(str(dtype)), shape, layout[0] if layout else None)

    def sparse(self, children: list[Any]) -> TensorType:
        shape, dtype, *layout = children
        return TensorType(DType(str(dtype)), shape, layout[0] if layout else None, sparse=True)

    def dims(self, children: list[Any]) -> tuple[Dim, ...]:
        return tuple([_dim(token.rstrip()[:-1].rstrip()) for token in children])

    def unranked(self, children: list[Any]) -> None:
        return None

    def seq(self, children: list[Any]) -> SeqType:
        return SeqType(children[0])

    def optional(self, children: list[Any]) -> OptionalType:
        return OptionalType(children[0])

    def map(self, children: list[Any]) -> MapType:
        return MapType(DType(str(children[0])), children[1])

    def bytes(self, children: list[Any]) -> BytesType:
        return BytesType(whole(children[0]))

    def unknown(self, children: list[Any]) -> Type:
        return UNKNOWN

    def layout(self, children: list[Any]) -> Layout:
        mesh, *placements = children
        return Layout(symbol_name(mesh), tuple(placements))

    def shard(self, children: list[Any]) -> Placement:
        return Shard(whole(children[0]))

    def replicate(self, children: list[Any]) -> Placement:
        return Replicate()

    def partial(self, children: list[Any]) -> Placement:
        return Partial(str(children[0]))


class AttributeReader:
    """Builds the attributes of one text; ``types`` reads the types in it."""

    def __init__(self, types: Callable[[str], tuple[Type, ...]]) -> None:
        self._types = types
        self.begin()

    def begin(self) -> None:
        """Starts on another text: ``ranged`` numbers of it were given as ranges."""
        self.ranged = 0

    def attributes(self, children: list[tuple[str, Attribute]]) -> Attributes:
        values = dict(children)
        if len(values) != len(children):
            keys = [key for key, _ in children]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"attribute '{twice}' stands twice")
        return tuple(sorted(children, key=_key))

    def attribute(self, children: list[Any]) -> tuple[str, Attribute]:
        key, value = children
        return (unquote_text(key) if key[0] == '"' else str(key)), value

    def integer(self, children: list[Any]) -> Attribute:
        return Attribute(AttrKind.INT, whole(children[0], COUNTED))

    def real(self, children: list[Any]) -> Attribute:
        return Attribute(AttrKind.FLOAT, float(children[0]))

    def string(self, children: list[Any]) -> Attribute:
        return Attribute(AttrKind.STRING, unquote_text(children[0]))

    def raw(self, children: list[Any]) -> Attribute:
        return Attribute(AttrKind.BYTES, bytes_from_text(children[0]))

    def symbol(self, children: list[Any]) -> Attribute:
        return Attribute(AttrKind.SYMBOL, symbol_name(children[0]))

    def type(self, children: list[Any]) -> Attribute:
        return Attribute(AttrKind.TYPE, self._types(str(children[0]))[0])

    def range(self, children: list[Any]) -> list[Attribute]:
        first, last = (whole(text) for text in children[0].split(".."))
        self.ranged += max(0, last - first + 1)
        if last < first or self.ranged > MOST_RANGED:
            raise ValueError(f"expected a range that ascends, and at most {MOST_RANGED:,} numbers in ranges of one text")
        return [Attribute(AttrKind.INT, number) for number in range(first, last + 1)]

    def array(self, children: list[Any]) -> Attribute:
        children = [item for child in children for item in (child if isinstance(child, list) else (child,))]
        kinds = {attribute.kind for attribute in children}
        kind = _LISTS.get(children[0].kind)
        if kind is None or len(kinds) > 1:
            raise ValueError("a list holds values of one kind: all ints, all floats (1.0), all texts, all tensors or all types")
        return Attribute(kind, tuple([attribute.value for attribute in children]))

    def empty(self, children: list[Any]) -> Attribute:
        return Attribute(AttrKind(str(children[0])[:-2]), ())

    def dense(self, children: list[Any]) -> Attribute:
        type_token, elements = children
        type_ = self._types(str(type_token))[0]
        if not isinstance(type_, TensorType):
            raise ValueError(f"a dense value needs a tensor type, not {type_}")
        return Attribute(AttrKind.TENSOR, Dense(type_, elements_data(type_.dtype, elements)))

    def element_list(self, children: list[Any]) -> list[str]:
        return [str(child) for child in children]

    def element_bytes(self, children: list[Any]) -> str:
        return str(children[0])


def elements_data(dtype: DType, elements: list[str] | str) -> bytes | tuple[bytes, ...]:
    """Data of a list of element texts, or of raw bytes. Raises ValueError."""
    return bytes_from_text(elements) if isinstance(elements, str) else dense_data(dtype, elements)


def symbol_name(text: str) -> str:
    """The name that a symbol's text spells; ``_`` is no name."""
    if text == "_":
        return ""
    return "@" + unquote_text(text[1:]) if text[1:2] == '"' else str(text)


def _dim(text: str) -> Dim:
    if text == "?":
        return None
    if text[0] == '"':
        return unquote_text(text)
    return whole(text) if text[0].isdigit() else str(text)


def _key(item: tuple[str, Attribute]) -> str:
    return item[0]
