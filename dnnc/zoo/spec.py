"""Parses ``zoo:NAME,option=value,...`` into a model and its options.

Options need no shell quoting: they consist of words, digits, ``,``, ``.`` and ``=``. The prefix ``zoo:`` may be left out. A
number is from 1 to ``LIMIT``, but ``layers`` at most ``MOST_LAYERS``. A number whose default is 0 may also be 0: the model's
``complete`` then derives it from the other options. ``complete`` also reports options that contradict each other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dnnc.zoo.faults import NoSuchChoice, NotInRange, OptionTwice, OptionWithoutValue, UnknownModel, UnknownOption
from dnnc.zoo.graph import Graph
from ir.core.diagnostics import Diagnostic, Fault, InvalidInput, Span

LIMIT = 1 << 20
"""Largest value of a number, except ``layers``."""
MOST_LAYERS = 10_000
"""Largest value of ``layers``."""

Value = int | str


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a model: one of the words ``choices``, or a number where there are none."""

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """The value of every option of a model: ``options["hidden"]`` of a number, ``options.word("kind")`` of a word."""

    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> int:
        return int(self.values[name])

    def word(self, name: str) -> str:
        return str(self.values[name])


Write = Callable[[Graph, Options], list[str]]
"""Adds the ops of a model with these options to a graph; returns the names of the model's outputs."""
Complete = Callable[[dict[str, Value]], list[Fault]]
"""Replaces, in the dict of all options, each 0 that means "derive it"; returns a fault for each contradiction between them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the zoo."""

    name: str
    summary: str
    write: Write
    options: tuple[Option, ...]
    complete: Complete = lambda values: []


def parse_spec(spec: str, entries: Sequence[Entry]) -> tuple[Entry, dict[str, Value], Options]:
    """The entry, the options that ``spec`` states, and all options of the model, completed. Raises InvalidInput with every
    fault of single options and its position or, where there is none, with every contradiction between options."""
    entry, stated = stated_options(spec, entries)
    values = {option.name: stated.get(option.name, option.default) for option in entry.options}
    if faults := entry.complete(values):
        text = _full(spec)
        raise InvalidInput([_at(text, 4, text[4:], fault) for fault in faults])
    return entry, stated, Options(values)


def stated_options(spec: str, entries: Sequence[Entry]) -> tuple[Entry, dict[str, Value]]:
    """The entry, and the options that ``spec`` states. Raises InvalidInput with every fault of single options and its
    position."""
    text = _full(spec)
    name, *parts = text.removeprefix("zoo:").split(",")
    entry = next((entry for entry in entries if entry.name == name), None)
    if entry is None:
        raise InvalidInput(_at(text, 4, name, _unknown(name, entries)))
    faults: list[Diagnostic] = []
    stated: dict[str, Value] = {}
    start = 5 + len(name)
    for part in parts:
        fault = _read_option(entry, part, stated)
        if fault:
            faults.append(_at(text, start, part, fault))
        start += len(part) + 1
    if faults:
        raise InvalidInput(faults)
    return entry, stated


def _full(spec: str) -> str:
    return spec if spec.startswith("zoo:") else f"zoo:{spec}"


def _unknown(name: str, entries: Sequence[Entry]) -> Fault:
    """The fault of a name that no entry has; it suggests names that begin so, or else the most similar one."""
    names = [entry.name for entry in entries]
    longer = [other for other in names if name and other.startswith(name)]
    near = longer or difflib.get_close_matches(name, names, n=1)
    return UnknownModel(name, tuple(near), tuple(names))


def _read_option(entry: Entry, part: str, stated: dict[str, Value]) -> Fault | None:
    """Adds option ``part``, ``key=value``, to ``stated``; returns a fault if it is invalid."""
    key, equals, value = part.partition("=")
    option = next((option for option in entry.options if option.name == key), None)
    if option is None or not equals:
        options = tuple(f"{option.name}={option.default}" for option in entry.options)
        if option is not None:
            return OptionWithoutValue(key, options)
        near = difflib.get_close_matches(key, [option.name for option in entry.options], n=1)
        return UnknownOption(key, entry.name, near[0] if near else "", options)
    if key in stated:
        return OptionTwice(key)
    if option.choices:
        if value not in option.choices:
            return NoSuchChoice(key, value, option.choices)
        stated[key] = value
        return None
    least, most = (0 if option.default == 0 else 1), (MOST_LAYERS if key == "layers" else LIMIT)
    if not re.fullmatch(r"[0-9]{1,12}", value) or not least <= int(value) <= most:
        return NotInRange(key, value, least, most)
    stated[key] = int(value)
    return None


def _at(text: str, start: int, part: str, fault: Fault) -> Diagnostic:
    """The fault, placed at ``part``, which begins at offset ``start`` of ``text``."""
    return fault.at(text, Span(1, start + 1, max(1, len(part)), text))
