"""The grammars: the ``.lark`` files in this folder are the reference of the language, and ``load`` makes their parsers.

Lark is imported at the first load, so that importing this package costs nothing. A loaded grammar is built once per process and
set of options.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lark import Lark

FOLDER = Path(__file__).parent


@cache
def load(name: str, start: str | tuple[str, ...] = "start", **options: Any) -> Lark:
    """The LALR parser of ``NAME.lark``, entered at rule ``start`` (several: chosen at each parse). ``options`` are Lark's and
    hashable; ``transformer`` is called while parsing, by rule name.

    Raises FileNotFoundError for a name without a file, lark's GrammarError for a grammar that is not LALR(1)."""
    from lark import Lark

    starts = [start] if isinstance(start, str) else list(start)
    options = {"lexer": "contextual", "maybe_placeholders": False, **options}
    return Lark.open(str(FOLDER / f"{name}.lark"), parser="lalr", start=starts, **options)


def syntax_error() -> type[Exception]:
    """The exception of a parser for a text that fits no rule (lark's ``UnexpectedInput``). It has ``line``, ``column``,
    ``token`` or ``char``, and ``expected`` or ``allowed``, a set of terminals."""
    from lark import UnexpectedInput

    return UnexpectedInput


__all__ = ["FOLDER", "load", "syntax_error"]
