"""Names: the spelling of identifiers, and when they need quotes.

A name in the IR carries its sigil: ``%x`` is a value, ``@w`` a symbol of the module. Names come from ONNX and may hold
any character; a name made of other than ``A-Z a-z 0-9 _ . / : $ -`` is printed in double quotes after the sigil, with
JSON escapes. The absent operand is the empty string, printed ``_``.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

_BARE = re.compile(r"[A-Za-z0-9_./:$\-]+\Z")
_BARE_DIM = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
ABSENT = ""
"""The operand of an optional input that is not given."""


def quote_text(text: str) -> str:
    """A string as the IR spells it: double quotes, JSON escapes, non-ASCII kept."""
    return json.dumps(text, ensure_ascii=False)


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


def unique(name: str, taken: set[str]) -> str:
    """``name``, or ``name_1``, ``name_2``... : the first not in ``taken``, which then holds it too."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate
