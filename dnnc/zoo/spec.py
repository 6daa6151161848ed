"""From ``zoo:NAME,option=value,...`` to a model and its options.

Options need no shell quoting: words, digits, ``,``, ``.`` and ``=``. Every fault is told at once, each by an InvalidInput that
points at it and lists what there is. An option whose default is 0 is derived from the others where it is left at 0: by the
model's ``complete``, which also says what is wrong with options together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dnnc.zoo.graph import Graph
from ir.core.diagnostics import Diagnostic, InvalidInput, Span

LIMIT = 1 << 20
"""Largest value of an option; ``layers`` has one of its own."""
MOST_LAYERS = 10_000

Value = int | str


@dataclass(frozen=True, slots=True)
class Option:
    """A number with its default, or one word of ``choices``."""

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """The value of every option of a model."""

    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> int:
        return int(self.values[name])

    def word(self, name: str) -> str:
        return str(self.values[name])


Write = Callable[[Graph, Options], list[str]]
"""Writes the model to a graph; returns the names of its outputs."""
Complete = Callable[[dict[str, Value]], list[str]]
"""Puts numbers in the place of zeros that stand for "derive it"; returns what is wrong with the options together."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the zoo."""

    name: str
    summary: str
    write: Write
    options: tuple[Option, ...]
    complete: Complete = lambda values: []


def parse_spec(spec: str, entries: Sequence[Entry]) -> tuple[Entry, dict[str, Value], Options]:
    """The entry, the options given, and all options with their values. Raises InvalidInput with every fault found."""
    text = spec if spec.startswith("zoo:") else f"zoo:{spec}"
    name, *parts = text.removeprefix("zoo:").split(",")
    entry = next((entry for entry in entries if entry.name == name), None)
    if entry is None:
        raise InvalidInput(_at(text, 4, name, _unknown(name, entries), "`dnnc zoo list` prints models and options"))
    faults: list[Diagnostic] = []
    given: dict[str, Value] = {}
    start = 5 + len(name)
    for part in parts:
        fault = _read_option(entry, part, given)
        if fault:
            faults.append(_at(text, start, part, fault))
        start += len(part) + 1
    values = {option.name: given.get(option.name, option.default) for option in entry.options}
    if not faults:
        faults += [_at(text, 4, text[4:], fault) for fault in entry.complete(values)]
    if faults:
        raise InvalidInput(faults)
    return entry, given, Options(values)


def _unknown(name: str, entries: Sequence[Entry]) -> str:
    names = [entry.name for entry in entries]
    longer = [other for other in names if name and other.startswith(name)]
    near = longer or difflib.get_close_matches(name, names, n=1)
    expected = f"did you mean {' or '.join(map(repr, near))}?" if near else f"expected one of: {', '.join(names)}"
    return f"unknown zoo model {name!r}; {expected}"


def _read_option(entry: Entry, part: str, given: dict[str, Value]) -> str:
    """Reads ``key=value`` into ``given``; returns what is wrong, or nothing."""
    key, equals, value = part.partition("=")
    option = next((option for option in entry.options if option.name == key), None)
    if option is None or not equals:
        listed = ", ".join(f"{option.name}={option.default}" for option in entry.options)
        near = difflib.get_close_matches(key, [option.name for option in entry.options], n=1)
        found = f"unknown option {key!r} of zoo:{entry.name}" if option is None else f"option {key!r} has no value"
        hint = f"did you mean {near[0]!r}? " if near and option is None else ""
        return f"{found}; {hint}its options, with defaults: {listed}"
    if key in given:
        return f"option {key!r} is given twice"
    if option.choices:
        if value not in option.choices:
            return f"found {value!r} for {key}, expected one of: {', '.join(option.choices)}"
        given[key] = value
        return ""
    least, most = (0 if option.default == 0 else 1), (MOST_LAYERS if key == "layers" else LIMIT)
    if not re.fullmatch(r"[0-9]{1,12}", value) or not least <= int(value) <= most:
        return f"found {value!r} for {key}, expected a whole number from {least} to {most}"
    given[key] = int(value)
    return ""


def _at(text: str, start: int, part: str, message: str, hint: str = "") -> Diagnostic:
    return Diagnostic(message, text, Span(1, start + 1, max(1, len(part)), text), hint)
