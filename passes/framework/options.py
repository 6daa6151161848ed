"""Options of a pass: the fields of its dataclass, as pipeline text spells them and as a person reads them.

An option is ``str``, ``int``, ``float``, ``bool``, ``tuple[str | int | float, ...]``, or one of these ``| None`` (spelled
``none``). Field ``fold_bytes`` is option ``fold-bytes``. Every option has a default.

Invariant: ``option_value`` of the tokens of ``value_text(value)`` is ``value``.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
from typing import Any, Union, get_args, get_origin

_WORD = re.compile(r'[^\s,{}\[\]"=]+\Z')


def option_name(field: str) -> str:
    return field.replace("_", "-")


def value_text(value: object) -> str:
    """How pipeline text spells an option's value."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case tuple():
            return f"[{','.join(map(value_text, value))}]"
        case str() if _WORD.match(value) and value != "none":
            return value
    return json.dumps(str(value), ensure_ascii=False)


def type_text(hint: Any) -> str:
    """An option's type for a person: ``int``, ``list of str``, ``float or none``."""
    if get_origin(hint) is tuple:
        return f"list of {type_text(get_args(hint)[0])}"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(type_text, get_args(hint)))
    return "none" if hint is type(None) else str(hint.__name__)


def option_value(value: Any, hint: Any) -> object:
    """The Python value of type ``hint`` that a token or a list of them spells. Raises ValueError: expected, found."""
    if get_origin(hint) in (Union, types.UnionType):
        choices = get_args(hint)
        if value == "none" and type(None) in choices:
            return None
        (hint,) = (choice for choice in choices if choice is not type(None))
    if get_origin(hint) is tuple:
        # One value is a list of one: `dims=batch=8` needs no brackets.
        items = value.children if hasattr(value, "children") else [value]
        return tuple(option_value(item, get_args(hint)[0]) for item in items if item is not None)
    if value is None:
        if hint is bool:
            return True
        raise ValueError(f"expected {_EXPECTED[hint]}, found nothing")
    if hasattr(value, "children"):
        raise ValueError(f"expected {_EXPECTED[hint]}, found a list")
    text = json.loads(value) if value.startswith('"') else str(value)
    if hint is str:
        return text
    try:
        if hint is bool:
            return {"true": True, "false": False}[text]
        return int(text) if hint is int else float(text)
    except (KeyError, ValueError):
        raise ValueError(f"expected {_EXPECTED[hint]}, found '{text}'") from None


_EXPECTED = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def default_of(field: dataclasses.Field[object]) -> object:
    """The default of a pass's field. Every option has one: a pass's name alone is valid pipeline text."""
    if field.default is not dataclasses.MISSING:
        return field.default
    assert field.default_factory is not dataclasses.MISSING, f"option {field.name} has no default"
    return field.default_factory()
