"""Tables of aligned text: plain when piped, the same columns in rich's style on a terminal.

Numbers are right-aligned. The first line is the header. Piped text has no trailing blanks and does not depend on the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from ir.core.diagnostics import visible


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its header, and whether its cells are numbers (right-aligned)."""

    header: str
    number: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text; every row has one cell per column. Control characters in cells are escaped, since names come
    from models and machines."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(tuple(map(visible, row)) for row in self.rows))


def table_text(table: Table) -> str:
    """Plain text of the table, a newline after each line."""
    headers = tuple(column.header for column in table.columns)
    widths = [max(len(line[index]) for line in (headers, *table.rows)) for index in range(len(headers))]
    lines = []
    for line in (headers, *table.rows):
        cells = (
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(line, widths, table.columns, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def print_table(table: Table, file: TextIO | None = None) -> None:
    """Writes the table to ``file``, by default standard output: styled, with long cells folded, on a terminal, else plain."""
    file = file if file is not None else sys.stdout
    if not file.isatty():
        file.write(table_text(table))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    styled = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in table.columns:
        styled.add_column(column.header, justify="right" if column.number else "left", overflow="fold")
    for row in table.rows:
        styled.add_row(*map(Text, row))
    Console(file=file, highlight=False).print(styled)


def columns(text: str) -> tuple[Column, ...]:
    """Columns from headers separated by spaces: ``<device peak_memory``. A column whose header starts with ``<`` holds text,
    others numbers; ``_`` stands for a space within a header."""
    return tuple(Column(name.lstrip("<").replace("_", " "), not name.startswith("<")) for name in text.split())


def key_values(pairs: Sequence[tuple[str, str]]) -> str:
    """Lines ``key  value`` with the values in one column; control characters are escaped as in ``Table``."""
    shown = [(visible(key), visible(value)) for key, value in pairs]
    width = max((len(key) for key, _ in shown), default=0)
    return "".join(f"{key.ljust(width)}  {value}".rstrip() + "\n" for key, value in shown)
