"""Aliases: a facet, a location or bytes that a printed module repeats get a name, ``#cost3``, defined once behind the module.

Exporters derive the names of a node and its scope from the name of its first result. A location is therefore spelled by rules
where they hold (``loc("main", slashed, parent)``), so that all ops of a model share a few spellings and so a few aliases.
Aliases exist in the text only: the module that is read has the facets and locations themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from ir.core.facets import Facet, facet_text
from ir.core.module import Func, Module, Program, Stage
from ir.core.names import quote_text
from ir.core.ops import UNKNOWN_LOCATION, Location, Op, all_ops
from ir.text.renaming import Renaming

RULES: Final[dict[str, Callable[[str], str]]] = {
    "same": lambda name: name,
    "slashed": lambda name: "/" + name.replace(".", "/"),
    "stem": lambda name: name.rpartition("_output_")[0],
    "parent": lambda name: name.rpartition(".")[0],
}
"""Rules that derive the name of a node or a scope from the name of the op's first result, without its sigil: the same name;
``/h/0/attn`` from ``h.0.attn``; ``/MatMul`` from ``/MatMul_output_0``; ``h.0`` from ``h.0.attn``."""
CALL, REST = "dnnc.call", ".."
_NODE, _SCOPE = ("same", "slashed", "stem"), ("parent",)
LEAST_FACET = 45
"""A facet of fewer characters gets no alias: looking it up would cost a reader more than reading it."""
LEAST_LOCATION = 20
"""A location of fewer characters gets no alias."""
LEAST_SHARED = 3
"""Ops that must share the spelling of a location before it has an alias, or is one by rules."""


class Aliases:
    """The aliases of one module's text. With ``used=False`` there are none, and no location is spelled by rules."""

    def __init__(self, module: Module, used: bool = True) -> None:
        self.used = used
        self._facets: dict[str, str] = {}
        self._locations: dict[str, str] = {}
        self._ruled: dict[str, str] = {}
        self._texts: dict[int, str] = {}
        self._data: list[str] = []
        self._calls: dict[str, tuple[str, ...]] = {}
        bodies = [symbol.ops for symbol in module.symbols if isinstance(symbol, Func | Stage | Program)] if used else []
        ops = [op for body in bodies for op in all_ops(body)]
        facets = Counter(text for op in ops for facet in op.facets if len(text := self._text(facet)) >= LEAST_FACET)
        numbers: Counter[str] = Counter()
        for text, count in facets.items():
            if count > 1:
                keyword = text.partition("<")[0]
                self._facets[text] = f"#{keyword}{numbers[keyword]}"
                numbers[keyword] += 1
        ruled = Counter(ruled_text(op) for op in ops)
        self._ruled = {text: text for text, count in ruled.items() if count >= LEAST_SHARED and len(text) >= LEAST_LOCATION}
        for text, count in Counter(self._spelled(op) for op in ops).items():
            if count >= LEAST_SHARED and len(text) >= LEAST_LOCATION:
                self._locations[text] = f"#loc{len(self._locations)}"

    def location(self, op: Op) -> str:
        """How the location of ``op`` is printed."""
        text = self._spelled(op)
        return self._locations.get(text, text)

    def facet(self, facet: Facet) -> str:
        """How ``facet`` of an op is printed."""
        text = self._text(facet)
        return self._facets.get(text, text)

    def operands(self, op: Op) -> tuple[str, ...]:
        """The operands of the next call, as it is printed: those that follow from the first call of its function are ``..``."""
        callee = op.get("callee", "")
        if not self.used or op.operands is (first := self._calls.setdefault(callee, op.operands)):
            return op.operands
        pairs = op.get("rename", ())
        if len(first) != len(op.operands) or not isinstance(pairs, tuple) or len(pairs) % 2:
            return op.operands
        renaming, count = Renaming(pairs), len(first)
        while count and renaming.name(first[count - 1]) == op.operands[count - 1]:
            count -= 1
        return (*op.operands[:count], REST) if count < len(first) - 1 else op.operands

    def data(self, text: str) -> str:
        """The alias of raw data, which is told behind the module."""
        self._data.append(text)
        return f"#data{len(self._data) - 1}"

    def definitions(self) -> list[str]:
        """The lines that say what each alias stands for."""
        named = [f"{alias} = {text}" for texts in (self._facets, self._locations) for text, alias in texts.items()]
        return [*named, *[f"#data{number} = {text}" for number, text in enumerate(self._data)]]

    def _spelled(self, op: Op) -> str:
        if self._ruled and (text := self._ruled.get(ruled_text(op))):
            return text
        return location_text(op.location)

    def _text(self, facet: Facet) -> str:
        """The text of a facet that the module keeps alive: equal facets are usually one object."""
        text = self._texts.get(id(facet))
        if text is None:
            text = self._texts[id(facet)] = facet_text(facet)
        return text


def location_text(location: Location) -> str:
    """``loc("path", "node", "scope")`` with empty texts at the end left out; ``loc(?)`` when unknown."""
    if location == UNKNOWN_LOCATION:
        return "loc(?)"
    return _location_text(location, quote_text(location.node), quote_text(location.scope))


def ruled_text(op: Op) -> str:
    """As ``location_text``, with the rule that gives the node, and the scope, in the place of the text where one does."""
    location = op.location
    if location == UNKNOWN_LOCATION:
        return "loc(?)"
    name = op.results[0].name[1:] if op.results else ""
    return _location_text(location, _ruled(name, location.node, _NODE), _ruled(name, location.scope, _SCOPE))


def _ruled(name: str, text: str, rules: Iterable[str]) -> str:
    return next((rule for rule in rules if text and RULES[rule](name) == text), None) or quote_text(text)


def _location_text(location: Location, node: str, scope: str) -> str:
    parts = [quote_text(location.path), node, scope]
    used = 3 if location.scope else 2 if location.node else 1
    return f"loc({', '.join(parts[:used])})"
