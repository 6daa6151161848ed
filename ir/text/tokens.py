"""Reads tokens: names, types, attributes, facets, locations and numbers, with the place of each fault inside its token.

``TokenReader`` is the lower half of the ``Reader``, which builds what the rules of ``module.lark`` describe.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from sys import intern
from typing import Any

from ir.core.attributes import Attributes
from ir.core.diagnostics import Fault
from ir.core.facets import Facet, Facets, parse_facet
from ir.core.names import unquote_text
from ir.core.ops import UNKNOWN_LOCATION, Location
from ir.core.ranges import whole
from ir.core.types import UNKNOWN, Type
from ir.text import faults
from ir.text.aliases import REST, RULES

MAX_DEPTH = 64
"""Regions nested deeper than this are refused: printing and checking recurse."""

_NAME_TOKEN = re.compile(r'([%@])"((?:[^"\\\n]|\\.)*)"|[%@][A-Za-z0-9_./:$\-]+|_')
_STRING_TOKEN = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"')
_FACET_TEXT = r'[a-z_]+(?:<[^<>"]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^<>"]*)*>)?'
_FACET_TOKEN = re.compile(r"#[a-z_]+[0-9]*|" + _FACET_TEXT)
_REST = re.compile(r"(?:^|\s*,\s*)\.\.$")
_LOCATION_PART = re.compile(_STRING_TOKEN.pattern + "|[a-z]+")
_ALIAS = re.compile(
    r"^[ \t]*(#[a-z_]+[0-9]*)[ \t]*=[ \t]*"
    rf'(loc\((?:[^"()\n]|{_STRING_TOKEN.pattern})*\)|(?:hex|base64)"[^"\n]*"|{_FACET_TEXT})',
    re.MULTILINE,
)
"""The definition of an alias: no other line begins so."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in ``length`` characters from ``position``."""

    position: int
    length: int
    fault: Fault


class TextFaultError(ValueError):
    """A fault inside a token, in ``length`` characters, ``offset`` behind the token's start."""

    def __init__(self, fault: Fault, offset: int = 0, length: int = 1) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.offset = offset
        self.length = length


class TokenReader:
    """Reads tokens of one text after the other. ``types``, ``attributes`` and ``elements`` read the inside of those tokens;
    ``begin`` is called before each text."""

    def __init__(
        self,
        types: Callable[[str], tuple[Type, ...]],
        attributes: Callable[[str], Attributes],
        elements: Callable[[str], list[str]],
        begin: Callable[[], None],
    ) -> None:
        self._begin = begin
        self._types, self._attributes, self._elements = types, attributes, elements
        self.begin()

    def begin(self, text: str = "") -> None:
        """Starts on ``text``, whose aliases may be used before they are defined."""
        self.findings: list[Finding] = []
        self.aliases = {match[1]: match[2] for match in _ALIAS.finditer(text)}
        self.alias_facets: dict[str, Facet | None] = {}
        self._begin()

    def fault(self, token: Any, fault: Fault, *, offset: int = 0, length: int | None = None) -> None:
        """Records a fault in ``length`` characters (default: all) from ``offset`` in the token."""
        self.findings.append(Finding(token.start_pos + offset, len(token) if length is None else length, fault))

    def text(self, token: Any) -> str:
        """The text that a quoted token spells."""
        try:
            return unquote_text(token)
        except ValueError:
            self.fault(token, faults.BadEscape("a quoted text"))
            return str(token)

    def word_or_text(self, token: Any) -> str:
        return self.text(token) if token[0] == '"' else str(token)

    def name(self, token: Any) -> str:
        """A value, a symbol or the absent operand."""
        if token == "_":
            return ""
        if token[1:2] == '"':
            try:
                return str(token[0]) + unquote_text(token[1:])
            except ValueError:
                self.fault(token, faults.BadEscape("a quoted name"))
        return intern(str(token))

    def names(self, token: Any, inside: str) -> tuple[str, ...]:
        """The names of a list of names."""
        if inside.endswith(REST) and (rest := _REST.search(inside)):
            return (*self.names(token, inside[: rest.start()]), REST)
        if '"' in inside:
            names = []
            for match in _NAME_TOKEN.finditer(inside):
                text = match[0]
                try:
                    names.append("" if text == "_" else text[0] + unquote_text(text[1:]) if match[1] else text)
                except ValueError:
                    self.fault(token, faults.BadEscape(f"the quoted name {text}"), offset=token.find(text), length=len(text))
                    names.append(text)
            return tuple(names)
        if "_" in inside:
            return tuple([intern(name) if name != "_" else "" for name in map(str.strip, inside.split(","))])
        return tuple([intern(name.strip()) for name in inside.split(",")]) if inside else ()

    def types(self, token: Any) -> tuple[Type, ...]:
        try:
            return self._types(token[1:].strip())
        except TextFaultError as error:
            skipped = 1 + len(token[1:]) - len(token[1:].lstrip())
            self.fault(token, error.fault, offset=skipped + error.offset, length=error.length)
            return ()

    def one_type(self, token: Any) -> Type:
        types = self.types(token)
        if len(types) > 1:
            self.fault(token, faults.NotOneType(len(types)))
        return types[0] if types else UNKNOWN

    def attributes(self, token: Any) -> Attributes:
        try:
            return self._attributes(str(token))
        except TextFaultError as error:
            self.fault(token, error.fault, offset=error.offset, length=error.length)
            return ()

    def facets(self, token: Any) -> Facets:
        facets = []
        for match in _FACET_TOKEN.finditer(token):
            try:
                if match[0][0] != "#":
                    facets.append(parse_facet(match[0]))
                elif facet := self.named_facet(token, match):
                    facets.append(facet)
            except ValueError as error:
                self.fault(token, faults.InvalidFacet(str(error)), offset=match.start(), length=len(match[0]))
        if len(facets) > 1:
            facets.sort(key=_keyword)
        return tuple(facets)

    def named_facet(self, token: Any, match: re.Match[str]) -> Facet | None:
        """The facet that an alias names; None where its definition does not read, which is told there."""
        alias = match[0]
        if alias not in self.aliases:
            self.fault(token, faults.UndefinedAlias(alias), offset=match.start(), length=len(alias))
        if alias not in self.alias_facets:
            try:
                self.alias_facets[alias] = parse_facet(self.aliases.get(alias, ""))
            except ValueError:
                self.alias_facets[alias] = None
        return self.alias_facets[alias]

    def location(self, token: Any, names: tuple[str, ...] = ()) -> Location:
        """The location of the op whose results are ``names``."""
        text = str(token)
        if text[0] == "#":
            if text not in self.aliases:
                self.fault(token, faults.UndefinedAlias(text))
            text = self.aliases.get(text, "")
        if text == "loc(?)" or text[:4] != "loc(":  # the definition of a wrong alias is told in its own place
            return UNKNOWN_LOCATION
        parts = [match[0] for match in _LOCATION_PART.finditer(text, len("loc("))]
        if len(parts) > 3:
            self.fault(token, faults.LocationTooLong(len(parts)))
        try:
            return Location(*[self.location_part(token, part, names) for part in parts[:3]])
        except ValueError:
            self.fault(token, faults.BadEscape("a location"))
            return UNKNOWN_LOCATION

    def location_part(self, token: Any, part: str, names: tuple[str, ...]) -> str:
        """A text in quotes, or what a rule gives for the op's first result. Raises ValueError for a bad escape."""
        if part[0] == '"':
            return unquote_text(part)
        if part not in RULES:
            self.fault(token, faults.UnknownLocationPart(part, tuple(RULES)))
            return ""
        if not names:
            self.fault(token, faults.LocationWithoutResult(part))
            return ""
        return RULES[part](names[0][1:])

    def number_of(self, token: Any) -> int | float:
        text = str(token)
        if not text.lstrip("+-").isdecimal():
            return float(text)
        try:
            return whole(text)
        except ValueError as error:
            self.fault(token, faults.InvalidNumber(str(error)))
            return 0

    def int_of(self, token: Any) -> int:
        value = self.number_of(token)
        if isinstance(value, float):
            self.fault(token, faults.NotAnInteger(str(token)))
            return 0
        return value


def _keyword(facet: Facet) -> str:
    return facet.keyword
