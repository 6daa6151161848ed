"""Names: the spelling of identifiers, and when they need quotes.

A name in the IR carries its sigil: ``%x`` is a value, ``@w`` a symbol of the module. Names come from ONNX and may hold
any character; a name made of other than ``A-Z a-z 0-9 _ . / : $ -``, or ending in a colon, is printed in double quotes after
the sigil, with JSON escapes. The absent operand is the empty string, printed ``_``. Keys (of attributes, regions) and words
(devices, kinds, methods: names without a sigil) are quoted where they would read as something else.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from ir.core.diagnostics import visible_json

_BARE = re.compile(r"[A-Za-z0-9_./:$\-]*[A-Za-z0-9_./$\-]\Z")
_BARE_KEY = re.compile(r"(?:[A-Za-z]|_[A-Za-z0-9_.\-])[A-Za-z0-9_.\-]*\Z")
_BARE_WORD = re.compile(r"@?[A-Za-z_][A-Za-z0-9_./:$\-]*\Z")
_BARE_DIM = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_FEW = 64
"""Copies of a name that are counted one by one; many thousands are counted by doubling."""
ABSENT = ""
"""The operand of an optional input that is not given."""


def quote_text(text: str) -> str:
    """A string as the IR spells it: double quotes, JSON escapes, also of what a terminal, an editor or an encoder would act on;
    other non-ASCII is kept."""
    return visible_json(json.dumps(text, ensure_ascii=False))


def unquote_text(quoted: str) -> str:
    """The string that a quoted text spells. Raises ValueError for a bad escape, and for one of half a character."""
    if "\\" not in quoted:
        return quoted[1:-1]
    text: str = json.loads(quoted, strict=False)
    text.encode()  # a lone surrogate: no file and no terminal can hold it
    return text


@lru_cache(maxsize=1 << 12)
def quote_key(key: str) -> str:
    """Text of a key: of an attribute, a region, a table."""
    return key if _BARE_KEY.match(key) else quote_text(key)


@lru_cache(maxsize=1 << 12)
def quote_word(word: str) -> str:
    """Text of a name without a sigil (a device, a method); quoted where it would read as a number or several words."""
    return word if _BARE_WORD.match(word) else quote_text(word)


@lru_cache(maxsize=1 << 17)
def quote_name(name: str) -> str:
    """Text of a value or symbol name, sigil included; ``_`` for the absent operand."""
    if name == ABSENT:
        return "_"
    bare = name[1:]
    return name if _BARE.match(bare) else name[0] + quote_text(bare)


quote_symbol = quote_name


def quote_dim(dim: int | str | None) -> str:
    """Text of a dimension; expressions and odd names are quoted. ``x`` alone would read as a separator."""
    if dim is None:
        return "?"
    if isinstance(dim, int):
        return str(dim)
    return dim if _BARE_DIM.match(dim) and dim != "x" else quote_text(dim)


def bare(name: str) -> str:
    """A name without its sigil."""
    return name[1:] if name[:1] in "%@" else name


def unique(name: str, taken: set[str]) -> str:
    """``name``, or ``name_1``, ``name_2``... : one not in ``taken``, which then holds it too; the first while these are few."""
    candidate, count = name, 0
    while candidate in taken and count < _FEW:
        count += 1
        candidate = f"{name}_{count}"
    if candidate in taken:
        candidate = f"{name}_{_free(name, taken)}"
    taken.add(candidate)
    return candidate


def _free(name: str, taken: set[str]) -> int:
    """A number whose predecessor is taken and that is not itself, found by doubling and halving."""
    low, high = _FEW, 2 * _FEW
    while f"{name}_{high}" in taken:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f"{name}_{middle}" in taken else (low, middle)
    return high
