"""Parsing JSON that somebody else wrote: the one door for plans, splits, workloads and topologies in JSON.

What ``json.loads`` lets through is refused here, each with its place where one is known: a key that stands twice in one object,
NaN and infinity, half of a character (a lone surrogate), nesting that a recursive reader could not follow.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ir.core.diagnostics import InvalidInput, Span
from ir.text.faults import InvalidJson, JsonHalfCharacter, JsonKeyTwice, JsonNotANumber, JsonNumberTooLong, JsonTooDeep

MOST_DEPTH = 100
"""Objects and lists inside one another; no document nests ten."""


def parse_json(text: str, where: str, *, hint: str = "") -> Any:
    """What ``text`` holds, without its byte order mark. Raises InvalidInput for text that is not JSON, or none as above."""
    text = text.removeprefix("\ufeff")
    try:
        data = json.loads(text, object_pairs_hook=_once, parse_constant=_constant)
    except json.JSONDecodeError as error:
        start = text.rfind("\n", 0, error.pos) + 1
        end = text.find("\n", error.pos)
        span = Span(error.lineno, error.colno, 1, text[start : end if end >= 0 else len(text)])
        raise InvalidInput(InvalidJson(error.msg, hint), where=where, span=span) from None
    except _KeyTwiceError as error:
        raise InvalidInput(JsonKeyTwice(str(error), hint), where=where) from None
    except _ConstantError as error:
        raise InvalidInput(JsonNotANumber(str(error), hint), where=where) from None
    except ValueError:
        raise InvalidInput(JsonNumberTooLong(hint), where=where) from None
    except RecursionError:
        data = None
        deep = True
    else:
        deep = _deep(data)
    if deep:
        raise InvalidInput(JsonTooDeep(MOST_DEPTH, hint), where=where)
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidInput(JsonHalfCharacter(hint), where=where) from None
    return data


class _KeyTwiceError(ValueError):
    """The key that an object has twice."""


class _ConstantError(ValueError):
    """NaN or an infinity."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _KeyTwiceError(twice[:80])
    return entries


def _constant(name: str) -> NoReturn:
    raise _ConstantError(name)


def _deep(data: Any) -> bool:
    """Whether more than ``MOST_DEPTH`` objects and lists hold one another."""
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(MOST_DEPTH):
        level = [item for holder in level for item in (holder.values() if isinstance(holder, dict) else holder)]
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
    return True
