"""The grammars: the ``.lark`` files in this folder are the reference of the language, and ``load`` makes their parsers.

Lark is imported at the first load, so that importing this package costs nothing. A parser is made once per process and set of
options. ``tables.json`` holds the LALR tables of the grammars, as one version of lark makes them: reading them takes a tenth of
the time of making them. Where the grammars have changed, or lark is another, each process makes them anew;
``pytest tests/grammars --update-golden`` writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lark import Lark

FOLDER = Path(__file__).parent
TABLES = FOLDER / "tables.json"
TABLED = (("module", ("module",)), ("types", ("types", "type")), ("attributes", ("attributes", "elements")),
          ("pipeline", ("pipeline",)))  # fmt: skip
"""The grammars whose tables are kept, each with its start rules."""
_OPTIONS: Mapping[str, Any] = {"lexer": "contextual", "maybe_placeholders": False}


@cache
def load(name: str, start: str | tuple[str, ...] = "start", **options: Any) -> Lark:
    """The LALR parser of ``NAME.lark``, entered at rule ``start`` (several: chosen at each parse). ``options`` are Lark's and
    hashable; ``transformer`` is called while parsing, by rule name.

    Raises FileNotFoundError for a name without a file, lark's GrammarError for a grammar that is not LALR(1)."""
    from lark import Lark

    starts = (start,) if isinstance(start, str) else start
    tables = _tables().get(_key(name, starts)) if options.keys() <= {"transformer"} else None
    if tables is not None:
        made: Any = Lark
        parser: Lark = made._load_from_dict(tables["data"], tables["memo"], **options)  # as parsers do that lark generates
        return parser
    return Lark.open(str(FOLDER / f"{name}.lark"), parser="lalr", start=list(starts), **{**_OPTIONS, **options})


def tables_text() -> str:
    """What ``tables.json`` is to hold."""
    from lark import Lark, __version__
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    tables = {}
    for name, starts in TABLED:
        parser = Lark.open(str(FOLDER / f"{name}.lark"), parser="lalr", start=list(starts), **_OPTIONS)
        data, memo = parser.memo_serialize([TerminalDef, Rule])
        tables[_key(name, starts)] = {"data": data, "memo": memo}
    return json.dumps({"lark": __version__, "grammars": digest(), "tables": tables}, separators=(",", ":")) + "\n"


def digest() -> str:
    """The SHA-256 digest of the grammars."""
    files = sorted(FOLDER.glob("*.lark"))
    return hashlib.sha256(b"".join(file.name.encode() + b"\0" + file.read_bytes() for file in files)).hexdigest()


@cache
def _tables() -> Mapping[str, Any]:
    """The tables by grammar; none where they are of other grammars or of another lark."""
    from lark import __version__

    try:
        found = json.loads(TABLES.read_bytes(), object_pairs_hook=_with_numbers)
    except (OSError, ValueError):
        return {}
    current = found.get("lark") == __version__ and found.get("grammars") == digest()
    tables: Mapping[str, Any] = found["tables"] if current else {}
    return tables


def _with_numbers(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    """A dictionary whose keys were numbers before JSON made them text: of states and of tokens."""
    return {int(key) if key.isdigit() else key: value for key, value in pairs}


def _key(name: str, starts: tuple[str, ...]) -> str:
    return f"{name}: {' '.join(starts)}"


def syntax_error() -> type[Exception]:
    """The exception of a parser for a text that fits no rule (lark's ``UnexpectedInput``). It has ``line``, ``column``,
    ``token`` or ``char``, and ``expected`` or ``allowed``, a set of terminals."""
    from lark import UnexpectedInput

    return UnexpectedInput


__all__ = ["FOLDER", "TABLES", "digest", "load", "syntax_error", "tables_text"]
