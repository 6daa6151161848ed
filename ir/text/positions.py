"""Where each key and value of a TOML or JSON text stands, for diagnostics.

Neither ``tomllib`` nor ``json`` tells. This scanner only runs on text that one of them has accepted, so it looks for
structure and checks nothing. A path is the sequence of keys and list indices that leads to a value.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TypeAlias

from ir.core.diagnostics import Span

Path: TypeAlias = tuple[str | int, ...]


@dataclass(slots=True)
class Positions:
    """Character ranges of keys and values by path, with the text they are in."""

    text: str
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _lines: list[int] = field(default_factory=list)

    def value(self, path: Path) -> Span:
        """Place of the value at ``path``, or of the nearest thing around it that has one."""
        while path:
            place = self.values.get(path) or self.keys.get(path)
            if place:
                return self.span(*place)
            path = path[:-1]
        return self.span(0, 0)

    def key(self, path: Path) -> Span:
        """Place of the key that ends ``path``, or of its value."""
        place = self.keys.get(path)
        return self.span(*place) if place else self.value(path)

    def span(self, start: int, end: int) -> Span:
        """The span of characters ``start`` to ``end``, cut at the end of the first line."""
        if not self._lines:
            self._lines = [0, *(match.end() for match in re.finditer("\n", self.text))]
        line = bisect_right(self._lines, start) - 1
        begin = self._lines[line]
        stop = self.text.find("\n", begin)
        stop = len(self.text) if stop < 0 else stop
        return Span(line + 1, start - begin + 1, max(1, min(end, stop) - start), self.text[begin:stop].rstrip("\r"))


def positions(text: str, syntax: str) -> Positions:
    """Positions in a valid text; ``syntax`` is ``toml`` or ``json``."""
    scanner = _Scanner(Positions(text))
    if syntax == "json":
        scanner.skip()
        scanner.value(())
    else:
        scanner.document()
    return scanner.found


_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]|#[^\n]*)*")
_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_BARE_KEY = re.compile(r"[^\s.=:\]\"'{},]+")
_SCALAR = re.compile(r"[^,\]}\n#]*")


@dataclass(slots=True)
class _Scanner:
    found: Positions
    at: int = 0

    def skip(self) -> None:
        match = _SPACE.match(self.found.text, self.at)
        self.at = match.end() if match else self.at

    def looking_at(self, token: str) -> bool:
        return self.found.text.startswith(token, self.at)

    def document(self) -> None:
        """A TOML document: headers and ``key = value`` lines."""
        table: Path = ()
        lengths: dict[Path, int] = {}  # of arrays of tables
        while True:
            self.skip()
            if self.at >= len(self.found.text):
                return
            if self.looking_at("["):
                array = self.looking_at("[[")
                start = self.at
                self.at += 2 if array else 1
                keys = self.dotted_key()
                self.at += 2 if array else 1
                table = ()
                for number, (key, place) in enumerate(keys):
                    table = (*table, key)
                    last = number == len(keys) - 1
                    if not last:  # a table that no header of its own needs to name
                        self.found.keys.setdefault(table, place)
                    if array and last:
                        lengths[table] = lengths.get(table, 0) + 1
                        self.found.values.setdefault(table, (start, self.at))
                    if table in lengths:
                        table = (*table, lengths[table] - 1)
                self.found.values.setdefault(table, (start, self.at))
                self.found.keys.setdefault(table, keys[-1][1] if keys else (start, self.at))
            else:
                self.pair(table)

    def pair(self, parent: Path) -> None:
        path = parent
        for key, place in self.dotted_key():
            path = (*path, key)
            self.found.keys.setdefault(path, place)
        self.skip()
        self.at += 1  # '=' or ':'
        self.skip()
        self.value(path)

    def dotted_key(self) -> list[tuple[str, tuple[int, int]]]:
        keys: list[tuple[str, tuple[int, int]]] = []
        while True:
            self.skip()
            match = _STRING.match(self.found.text, self.at) or _BARE_KEY.match(self.found.text, self.at)
            if match is None:
                self.at += 1
                return keys
            self.at = match.end()
            keys.append((_plain(match.group()), match.span()))
            self.skip()
            if not self.looking_at("."):
                return keys
            self.at += 1

    def value(self, path: Path) -> None:
        start, text = self.at, self.found.text
        if self.looking_at("{") or self.looking_at("["):
            inline = self.looking_at("{")
            self.at += 1
            number = 0
            while True:
                self.skip()
                if self.at >= len(text) or text[self.at] in "]}":
                    self.at += 1
                    break
                if text[self.at] == ",":
                    self.at += 1
                elif inline:
                    self.pair(path)
                else:
                    self.value((*path, number))
                    number += 1
        elif match := _STRING.match(text, self.at):
            self.at = match.end()
        elif match := _SCALAR.match(text, self.at):
            self.at += max(1, len(match.group().rstrip()))
        self.found.values[path] = (start, self.at)


def _plain(key: str) -> str:
    """A key without its quotes and escapes."""
    if key[0] == "'":
        return key[1:-1]
    if key[0] == '"':
        try:
            return str(json.loads(key))
        except ValueError:
            return key[1:-1]
    return key
