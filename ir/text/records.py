"""Records: the parts of topologies, schedules and plans as ``{key = value, ..}``, driven by their dataclasses.

A field prints and reads by its annotation, so a field added to one of those dataclasses is in the language at once. A field
that prints like its default is left out; one without a default is always there. Order is that of the dataclass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, TypeVar

from ir.core.names import quote_key, quote_text, quote_word
from ir.core.outcomes import translated

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Codec:
    """How one kind of field prints and reads; ``read`` raises ValueError; ``words`` says what was expected."""

    print: Callable[[Any], str]
    read: Callable[[Any], Any]
    words: str


class RecordFault(ValueError):
    """A field that does not fit; ``key`` is the field, empty when one is missing."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Table(tuple[tuple[str, Any], ...]):
    """A parsed ``{key = value, ..}``: unlike a parsed list, which is a plain tuple."""


def record_text(record: Any, leave_out: Collection[str] = ()) -> str:
    """``{key = value, ..}`` of a dataclass; empty text when every field has its default."""
    items = ", ".join(record_items(record, leave_out))
    return f"{{{items}}}" if items else ""


def record_items(record: Any, leave_out: Collection[str] = ()) -> list[str]:
    """``key = value`` of each field that does not print like its default."""
    items = []
    for field, codec, default in _schema(type(record)):
        if field.name not in leave_out:
            text = codec.print(getattr(record, field.name))
            if text != default:
                items.append(f"{quote_key(field.name)} = {text}")
    return items


def read_record(cls: type[T], items: Iterable[tuple[str, Any]], given: Mapping[str, Any]) -> T:
    """The ``cls`` with fields ``given`` and those that ``items`` spell (parsed values). Raises RecordFault."""
    codecs = {field.name: codec for field, codec, _ in _schema(cls)}
    allowed = [name for name in codecs if name not in given]
    values = dict(given)
    for key, value in items:
        if key not in allowed:
            raise RecordFault(f"unknown field '{key}'; expected one of {', '.join(allowed)}", key)
        if key in values:
            raise RecordFault(f"field '{key}' stands twice", key)
        try:
            values[key] = codecs[key].read(value)
        except (TypeError, ValueError, OverflowError):
            raise RecordFault(f"field '{key}' must be {codecs[key].words}", key) from None
    missing = [field.name for field, _, default in _schema(cls) if default is None and field.name not in values]
    if missing:
        raise RecordFault(f"field '{missing[0]}' is missing")
    return cls(**values)


_SCHEMAS: dict[type[Any], tuple[tuple[Field[Any], Codec, str | None], ...]] = {}


def _schema(cls: type[Any]) -> tuple[tuple[Field[Any], Codec, str | None], ...]:
    """Per field: it, its codec, and the text of its default (None without one)."""
    schema = _SCHEMAS.get(cls)
    if schema is None:
        rows = []
        for field in fields(cls):
            codec = CODECS.get(str(field.type))
            if codec is not None:
                rows.append((field, codec, None if field.default is MISSING else codec.print(field.default)))
        schema = _SCHEMAS[cls] = tuple(rows)
    return schema


def _int(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(value)
    return value


def _float(value: Any) -> float:
    if value in ("inf", "nan"):
        return math.inf if value == "inf" else math.nan
    if type(value) not in (int, float):
        raise ValueError(value)
    return float(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return str(value)


def _bool(value: Any) -> bool:
    return (False, True)[("false", "true").index(value)]


def _optional_int(value: Any) -> int | None:
    return None if value == "none" else _int(value)


def _optional_float(value: Any) -> float | None:
    return None if value == "none" else _float(value)


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, Table) or not isinstance(value, tuple):
        raise ValueError(value)
    return tuple(_str(item) for item in value)


def _integers(value: Any) -> tuple[int, ...]:
    if isinstance(value, Table) or not isinstance(value, tuple):
        raise ValueError(value)
    return tuple(_int(item) for item in value)


def _table(read: Callable[[Any], Any]) -> Callable[[Any], tuple[tuple[str, Any], ...]]:
    def read_table(value: Any) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, Table):
            raise ValueError(value)
        return tuple((key, read(item)) for key, item in value)

    return read_table


def _print_table(text: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda pairs: f"{{{', '.join(f'{quote_key(key)} = {text(value)}' for key, value in pairs)}}}"


def _numbers(value: Any) -> tuple[float, ...]:
    if isinstance(value, Table) or not isinstance(value, tuple):
        raise ValueError(value)
    return tuple(_float(item) for item in value)


def float_text(value: float) -> str:
    """A float as the shortest text that reads back equal."""
    return repr(float(value))


def words_text(words: Iterable[str]) -> str:
    """``[a, b]``."""
    return f"[{', '.join(map(quote_word, words))}]"


def numbers_text(values: Iterable[float]) -> str:
    """``[0.5, 2.0]``."""
    return f"[{', '.join(map(float_text, values))}]"


def integers_text(values: Iterable[int]) -> str:
    """``[1, 2]``."""
    return f"[{', '.join(str(int(value)) for value in values)}]"


CODECS: dict[str, Codec] = {
    "int": Codec(lambda v: str(int(v)), _int, "an integer"),
    "float": Codec(float_text, _float, "a number"),
    "str": Codec(quote_word, _str, "a word or text"),
    "Outcome": Codec(quote_word, lambda v: translated(_str(v)), "a word or text"),  # the verifier judges it
    "bool": Codec(lambda v: "true" if v else "false", _bool, "true or false"),
    "int | None": Codec(lambda v: "none" if v is None else str(int(v)), _optional_int, "an integer or none"),
    "float | None": Codec(lambda v: "none" if v is None else float_text(v), _optional_float, "a number or none"),
    "tuple[int, ...]": Codec(integers_text, _integers, "a list of integers such as [1, 2]"),
    "tuple[float, ...]": Codec(numbers_text, _numbers, "a list of numbers such as [0.5, 2.0]"),
    "tuple[str, ...]": Codec(words_text, _words, "a list of words such as [a, b]"),
    "tuple[tuple[str, float], ...]": Codec(_print_table(float_text), _table(_float), "a table of numbers such as {a = 1.0}"),
    "tuple[tuple[str, int], ...]": Codec(_print_table(str), _table(_int), "a table of integers such as {a = 1}"),
    "tuple[tuple[str, str], ...]": Codec(_print_table(quote_text), _table(_str), 'a table of texts such as {a = "b"}'),
}
