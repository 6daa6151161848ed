"""Mutations of protobuf messages: any field of any message inside becomes another of its type."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import onnx

from tests.fuzz.mutate import FLOATS, INTEGERS, STRINGS, mutate_bytes, some

MARK, NOT_UTF8 = "not-utf8", b"\xff\xfe\xc3\x28\xed\xa0\x80x"
"""Protobuf refuses strings that are not UTF-8; the mark is replaced in the serialised model."""


def mutate_message(rng: Random, message: Any) -> None:
    """Changes a few fields, anywhere inside the message."""
    for _ in range(some(rng)):
        places = list(_fields(message))
        _mutate_field(rng, *rng.choice(places), places)


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    """Every field that is set, and now and then one that is not, with its message, at any depth."""
    for field in message.DESCRIPTOR.fields:
        held = getattr(message, field.name)
        if field.is_repeated:
            if len(held):
                yield message, field
            for item in held if field.message_type else ():
                yield from _fields(item)
        elif message.HasField(field.name):
            yield message, field
            if field.message_type:
                yield from _fields(held)
    yield message, message.DESCRIPTOR.fields[len(message.SerializeToString()) % len(message.DESCRIPTOR.fields)]


def _mutate_field(rng: Random, message: Any, field: Any, places: list[tuple[Any, Any]]) -> None:
    if field.message_type is not None and field.is_repeated:
        _mutate_items(rng, getattr(message, field.name), places)
    elif field.message_type is not None:
        lenders = [m for m, f in places if f.message_type is None and m.DESCRIPTOR is field.message_type]
        if lenders and rng.random() < 0.6:
            getattr(message, field.name).CopyFrom(_copy_of(rng.choice(lenders)))
        else:
            message.ClearField(field.name)
    elif field.is_repeated:
        _mutate_scalars(rng, getattr(message, field.name), field)
    elif rng.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(rng, field, getattr(message, field.name), places))


def _mutate_items(rng: Random, items: Any, places: list[tuple[Any, Any]]) -> None:
    """Messages dropped, doubled, exchanged, or replaced by others of their type."""
    if not len(items):
        items.add()
        return
    at, other = rng.randrange(len(items)), rng.randrange(len(items))
    match rng.randrange(5):
        case 0:
            del items[at]
        case 1:
            for _ in range(rng.choice((1, 2, 100))):
                items.add().CopyFrom(items[at])
        case 2:
            held = _copy_of(items[at])
            items[at].CopyFrom(items[other])
            items[other].CopyFrom(held)
        case 3:
            same = [m for m, _ in places if m.DESCRIPTOR is items[at].DESCRIPTOR]
            if same:
                items[at].CopyFrom(_copy_of(rng.choice(same)))
        case 4:
            items[at].Clear()


def _copy_of(message: Any) -> Any:
    """Where one message lies inside the other, protobuf's C does not survive copying one into the other."""
    held = type(message)()
    held.CopyFrom(message)
    return held


def _mutate_scalars(rng: Random, values: Any, field: Any) -> None:
    match rng.randrange(4):
        case 0 if len(values):
            del values[rng.randrange(len(values))]
        case 1 if len(values):
            values[rng.randrange(len(values))] = _scalar(rng, field, values[0], [])
        case 2 if len(values):
            values.extend(list(values) * rng.choice((1, 3, 500)))
        case _:
            values.append(_scalar(rng, field, None, []))


def _scalar(rng: Random, field: Any, old: Any, places: list[tuple[Any, Any]]) -> Any:
    """Another value of the field's type."""
    match field.cpp_type:
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            held = bytes(old or b"")
            return rng.choice(
                (
                    b"",
                    held[:-1],
                    held + b"\0",
                    held * 2,
                    b"\xff\xfe",
                    b"\x1b[31m",
                    bytes(64),
                    mutate_bytes(rng, held),
                    "é".encode(),
                )
            )
        case field.CPPTYPE_STRING:
            lent = [
                getattr(m, f.name)
                for m, f in places
                if f.cpp_type == f.CPPTYPE_STRING and f.type == f.TYPE_STRING and not f.is_repeated
            ]
            operators = (
                "Loop",
                "If",
                "Scan",
                "Constant",
                "Gather",
                "Einsum",
                "Shape",
                "Range",
                "ConstantOfShape",
                "Expand",
                "Tile",
                "com.microsoft",
                "ai.onnx.ml",
            )
            return rng.choice((*STRINGS[:30], MARK, rng.choice(lent or [""]), rng.choice(lent or [""]), rng.choice(operators)))
        case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
            return rng.choice(FLOATS)
        case field.CPPTYPE_ENUM:
            return rng.choice([v.number for v in field.enum_type.values])
    low, high = (-(2**31), 2**31 - 1) if field.cpp_type in (field.CPPTYPE_INT32,) else (-(2**63), 2**63 - 1)
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        low = 0
    number = rng.choice((*INTEGERS, *range(30), (old or 0) + 1, (old or 0) - 1, 16, 17, 20))
    return max(low, min(high, number))


def serialised(changed: onnx.ModelProto) -> bytes:
    return changed.SerializeToString().replace(MARK.encode(), NOT_UTF8)
