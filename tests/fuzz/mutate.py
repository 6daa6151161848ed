"""Mutations of text, JSON-like trees and bytes, all drawn from a ``random.Random``: the same seed gives the same input."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    65536,
    10**6,
    2**31 - 1,
    2**31,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**25,
    10**400,
)
FLOATS = (0.0, -0.0, 1e-320, 0.5, -1.5, 1e15, 1e300, 1.7e308, float("inf"), float("-inf"), float("nan"))
STRINGS = (
    *(
        "",
        " ",
        "0",
        "-",
        ".",
        "..",
        "/",
        "a/../../b",
        "x" * 5000,
        "%",
        "@",
        "%s",
        "{0}",
        "'",
        '"',
        "\\",
        "$(id)",
        "cpu0",
        "__class__",
    ),
    *("\x00", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\r", "\n", "a\nb", "\u202egnp.exe", "\ufeff", "\u2028", "\x9b31m"),
    *("NaN", "inf", "1e999", "nan GB/s", "1e400 GiB", "-3 GiB", "9" * 400, "0x10", "1_000", "\u0663", "é", "名", "\U0001f600"),
)

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[%@]?[A-Za-z_][\w./$-]*|-?\d[\w.+-]*|\s+|.', re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d.e+-]*\Z")


def some(rng: Random, most: int = 4) -> int:
    """How many mutations to make: one most often."""
    return min(most, 1 + int(rng.expovariate(1.0)))


def hostile(rng: Random) -> Any:
    """A value that a document may hold and no reader expects."""
    containers: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": ""}, [0] * 300, {"name": []})
    return rng.choice((rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice(STRINGS), rng.choice(containers)))


def number_text(rng: Random) -> str:
    """A number as a text may spell it."""
    return rng.choice(
        (str(rng.choice(INTEGERS)), repr(rng.choice(FLOATS)), "1e999", "-1e999", "0x7f", "1.", ".5", "00", "1e", "9" * 5000)
    )


# --- text -----------------------------------------------------------------------------------------------------------


def mutate_text(rng: Random, text: str, others: Sequence[str] = ()) -> str:
    """``text`` after a few changes of its tokens, its lines, or both; ``others`` lend lines."""
    gentle = rng.random() < 0.6  # most readers refuse most of what the other changes make
    for _ in range(some(rng)):
        change = _kin_token if gentle else rng.choice(_CHANGES)
        text = _splice(rng, text, rng.choice(others)) if others and rng.random() < 0.1 else change(rng, text)
    return text


def mutate_bytes(rng: Random, data: bytes) -> bytes:
    """``data`` after a few changes of its bytes: flipped, cut, repeated, inserted."""
    changed = bytearray(data)
    for _ in range(some(rng)):
        at = rng.randrange(len(changed) + 1)
        to = min(len(changed), at + rng.choice((1, 2, 4, 8, 64, 1024)))
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at:to]
            case 2:
                changed[at:at] = changed[at:to] * rng.choice((1, 2, 50))
            case 3:
                changed[at:at] = rng.choice((b"\x00", b"\xff\xfe", b"\xc3\x28", b"\xff" * 9, b"\xed\xa0\x80", b"\x80" * 12))
            case 4:
                del changed[at:]
    return bytes(changed)


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _places(tokens: list[str]) -> list[int]:
    return [i for i, token in enumerate(tokens) if not token.isspace()] or [0]


def _swap_token(rng: Random, text: str) -> str:
    """One token becomes another of its kind, or something hostile."""
    if not (tokens := _tokens(text)):
        return text
    at = rng.choice(_places(tokens))
    token = tokens[at]
    if _NUMBER.match(token):
        tokens[at] = number_text(rng)
    elif token.startswith('"'):
        tokens[at] = rng.choice((_quoted(rng.choice(STRINGS)), f'"{rng.choice(STRINGS)}"', token[:-1], number_text(rng)))
    else:
        tokens[at] = rng.choice((*STRINGS, number_text(rng), token * 2, token[:-1], token + "x"))
    return "".join(tokens)


def _quoted(text: str) -> str:
    return '"' + text.encode("unicode_escape").decode().replace('"', '\\"') + '"'


def _borrow_token(rng: Random, text: str) -> str:
    if not (tokens := _tokens(text)):
        return text
    places = _places(tokens)
    tokens[rng.choice(places)] = tokens[rng.choice(places)]
    return "".join(tokens)


def _kin_token(rng: Random, text: str) -> str:
    """One token becomes another of its kind that stands in the text, or a small number: what is made is mostly well formed."""
    if not (tokens := _tokens(text)):
        return text
    at = rng.choice(_places(tokens))
    kind = _kind(tokens[at])
    if kind == "number" and rng.random() < 0.5:
        tokens[at] = rng.choice(("0", "1", "2", "3", "4", "5", "7", "16", "1000", "-1", "0.5", "1e9", "9223372036854775807"))
    else:
        tokens[at] = rng.choice([token for token in tokens if _kind(token) == kind])
    return "".join(tokens)


def _kind(token: str) -> str:
    """What a token is, as far as its first character tells."""
    if _NUMBER.match(token):
        return "number"
    return "word" if token[0].isalpha() else token[0]


def _drop_token(rng: Random, text: str) -> str:
    if not (tokens := _tokens(text)):
        return text
    del tokens[rng.choice(_places(tokens))]
    return "".join(tokens)


def _repeat_token(rng: Random, text: str) -> str:
    if not (tokens := _tokens(text)):
        return text
    at = rng.choice(_places(tokens))
    tokens[at] = tokens[at] * rng.choice((2, 3, 5000))
    return "".join(tokens)


def _lines(rng: Random, text: str) -> str:
    """Lines dropped, doubled, swapped or repeated often."""
    lines = text.split("\n")
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(to, lines[at])
        case 2:
            lines[at], lines[to] = lines[to], lines[at]
        case 3:
            lines[at:at] = [lines[at]] * rng.choice((2, 30, 300))
        case 4:
            del lines[min(at, to) : max(at, to)]
    return "\n".join(lines)


def _nest(rng: Random, text: str) -> str:
    """A bracket opened very often, closed or not."""
    at = rng.randrange(len(text) + 1)
    depth = rng.choice((3, 100, 20000))
    opening, closing = rng.choice(
        (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"), ("-", ""), ("seq<", ">"), ('"', '"'), ("{a = ", "}"))
    )
    return text[:at] + opening * depth + (closing * depth if rng.random() < 0.5 else "") + text[at:]


def _insert(rng: Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(STRINGS) + text[at:]


def _splice(rng: Random, text: str, other: str) -> str:
    """A run of lines of another text in the middle of this one."""
    lines, lent = text.split("\n"), other.split("\n")
    at, first = rng.randrange(len(lines) + 1), rng.randrange(len(lent))
    lines[at:at] = lent[first : first + rng.randint(1, 8)]
    return "\n".join(lines)


_CHANGES = (_swap_token, _swap_token, _borrow_token, _drop_token, _repeat_token, _lines, _lines, _nest, _insert)

# --- trees ----------------------------------------------------------------------------------------------------------

Container = dict[str, Any] | list[Any]


def mutate_tree(rng: Random, tree: Any) -> Any:
    """A copy of a tree of dicts, lists and scalars after a few changes of its values, keys and order."""
    tree = copy.deepcopy(tree)
    for _ in range(some(rng)):
        places = list(_slots(tree))
        if not places:
            return hostile(rng)
        holder, key = rng.choice(places)
        value = holder[key]  # type: ignore[index]
        if rng.random() < 0.5:
            holder[key] = _scalar(rng, value)  # type: ignore[index]
            continue
        match rng.randrange(6):
            case 0:
                del holder[key]  # type: ignore[arg-type]
            case 1:
                other, where = rng.choice(places)
                holder[key] = copy.deepcopy(other[where])  # type: ignore[index]
            case 2 if isinstance(holder, dict):
                holder[rng.choice(STRINGS)] = holder.pop(key)  # type: ignore[arg-type]
            case 2 | 3 if isinstance(holder, list):
                holder[key:key] = [copy.deepcopy(value) for _ in range(rng.choice((1, 1, 2, 40)))]  # type: ignore[misc]
            case 3:
                holder[key] = [copy.deepcopy(value)]  # type: ignore[index]
            case 4:
                holder[key] = hostile(rng)  # type: ignore[index]
            case _:
                holder[key] = nested(rng.choice((2, 20, 100)), value)  # type: ignore[index]
    return tree


def nested(depth: int, inside: Any) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


def _slots(tree: Any) -> Iterator[tuple[Container, str | int]]:
    """Every place of the tree that holds a value: its container and its key there."""
    todo = [tree]
    while todo:
        holder = todo.pop()
        if isinstance(holder, dict | list):
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                yield holder, key
                todo.append(holder[key])  # type: ignore[index]


def _scalar(rng: Random, value: Any) -> Any:
    """Another value of the same type, mostly."""
    match value:
        case bool():
            return not value
        case int():
            return rng.choice(
                (*INTEGERS, value + 1, value - 1, -value, str(value), float(max(-1 << 1000, min(value, 1 << 1000))))
            )
        case float():
            return rng.choice((*FLOATS, -value, value * 2, 10**400))
        case str():
            return rng.choice(
                (*STRINGS, value + " ", value[:-1], value.upper(), value * 3, re.sub(r"\d+", number_text(rng), value, count=1))
            )
    return hostile(rng)
