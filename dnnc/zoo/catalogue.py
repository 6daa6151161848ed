"""Which models there are, their options, and the way from ``zoo:NAME,option=value`` to a module.

Options need no shell quoting: words, digits, ``,`` and ``=``. A wrong one is an InvalidInput that points at it
and lists what there is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dnnc.zoo import models
from dnnc.zoo.graph import Graph
from ir.diagnostics import Diagnostic, InvalidInput, Span
from ir.module import Module
from ir.types import DType

DTYPES = ("f32", "f16", "bf16", "f64")
LIMIT = 1 << 20
"""Largest value of an option; ``layers`` has one of its own."""
MOST_LAYERS = 10_000
MOST_BYTES = 1 << 44
"""Of one tensor."""

Write = Callable[[Graph, Mapping[str, int]], list[str]]


@dataclass(frozen=True, slots=True)
class Option:
    """A number with its default; ``dtype`` is the one option that is a word."""

    name: str
    default: int | str
    help: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the zoo."""

    name: str
    summary: str
    write: Write
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class ZooModel:
    """``spec`` is canonical: the options that differ from the defaults, in the order of the catalogue. ``parameters`` counts
    trainable elements."""

    module: Module
    spec: str
    parameters: int


_COMMON = (Option("dtype", "f32", f"element type: {', '.join(DTYPES)}"), Option("seed", 0, "seed of the random weights"))
_BATCH = Option("batch", 1, "samples at a time")
_SEQ = Option("seq", 128, "tokens of a sample")


def entries() -> tuple[Entry, ...]:
    """Every model, by name."""
    return _ENTRIES


_ENTRIES = (
    Entry(
        "bert-base",
        "BERT base, uncased, with pooler: 109,482,240 parameters",
        models.bert,
        (
            _BATCH,
            _SEQ,
            Option("layers", 12, "encoder layers"),
            Option("hidden", 768, "width of the hidden state"),
            Option("heads", 0, "attention heads, dividing hidden; 0: the most up to 12 that do"),
            Option("intermediate", 0, "width inside the feed-forward part; 0: four times hidden"),
            Option("vocab", 30522, "tokens of the vocabulary"),
            Option("positions", 512, "longest sequence the position embedding knows"),
            *_COMMON,
        ),
    ),
    Entry(
        "gpt2",
        "GPT-2 small with its language-model head: 124,439,808 parameters",
        models.gpt2,
        (
            _BATCH,
            _SEQ,
            Option("layers", 12, "decoder layers"),
            Option("hidden", 768, "width of the hidden state"),
            Option("heads", 0, "attention heads, dividing hidden; 0: the most up to 12 that do"),
            Option("vocab", 50257, "tokens of the vocabulary"),
            Option("positions", 1024, "longest sequence the position embedding knows"),
            *_COMMON,
        ),
    ),
    Entry(
        "mlp",
        "fully connected layers with ReLU: 669,706 parameters",
        models.mlp,
        (
            Option("batch", 8, "samples at a time"),
            Option("layers", 3, "layers, the last one included"),
            Option("inputs", 784, "features of a sample"),
            Option("hidden", 512, "width of the hidden layers"),
            Option("outputs", 10, "results of a sample"),
            *_COMMON,
        ),
    ),
    Entry(
        "resnet50",
        "ResNet-50 version 1.5: 25,557,032 parameters",
        models.resnet,
        (
            _BATCH,
            Option("image", 224, "height and width of the image"),
            Option("width", 64, "channels of the first stage"),
            Option("classes", 1000, "results of a sample"),
            *_COMMON,
        ),
    ),
)


def build(spec: str) -> Module:
    """The module of ``NAME,option=value,...`` (``zoo:`` before it or not). Raises InvalidInput."""
    return build_model(spec).module


def build_model(spec: str) -> ZooModel:
    """As ``build``, with what is known of the model besides."""
    entry, given = parse_spec(spec)
    options = {option.name: given.get(option.name, option.default) for option in entry.options}
    dtype = DType(str(options.pop("dtype")))
    numbers = {key: int(value) for key, value in options.items()}
    if numbers.get("heads") == 0:
        numbers["heads"] = max(count for count in range(1, 13) if numbers["hidden"] % count == 0)
    graph = Graph(re.sub(r"\W", "_", entry.name), dtype, numbers["seed"])
    if numbers.get("intermediate") == 0:
        numbers["intermediate"] = 4 * numbers["hidden"]
    outputs = entry.write(graph, numbers)
    changed = [
        f"{option.name}={given[option.name]}"
        for option in entry.options
        if given.get(option.name, option.default) != option.default
    ]
    return ZooModel(graph.module(outputs), ",".join([f"zoo:{entry.name}", *changed]), graph.parameters)


def parse_spec(spec: str) -> tuple[Entry, dict[str, int | str]]:
    """The entry and the options given. Raises InvalidInput with every fault found."""
    text = spec if spec.startswith("zoo:") else f"zoo:{spec}"
    name, *parts = text.removeprefix("zoo:").split(",")
    entry = next((entry for entry in _ENTRIES if entry.name == name), None)
    if entry is None:
        names = [entry.name for entry in _ENTRIES]
        near = difflib.get_close_matches(name, names, n=1)
        expected = f"did you mean {near[0]!r}?" if near else f"expected one of: {', '.join(names)}"
        raise InvalidInput(
            _at(text, 4, name, f"unknown zoo model {name!r}; {expected}", "`dnnc zoo list` prints models and options")
        )
    faults: list[Diagnostic] = []
    given: dict[str, int | str] = {}
    start = 5 + len(name)
    for part in parts:
        fault = _read_option(entry, part, given)
        if fault:
            faults.append(_at(text, start, part, fault))
        start += len(part) + 1
    if not faults:
        faults += [_at(text, 4, text[4:], fault) for fault in _combined(entry, given)]
    if faults:
        raise InvalidInput(faults)
    return entry, given


def _read_option(entry: Entry, part: str, given: dict[str, int | str]) -> str:
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
    if isinstance(option.default, str):
        if value not in DTYPES:
            return f"found {value!r} for {key}, expected one of: {', '.join(DTYPES)}"
        given[key] = value
        return ""
    least, most = (0 if option.default == 0 else 1), (MOST_LAYERS if key == "layers" else LIMIT)
    if not re.fullmatch(r"[0-9]{1,12}", value) or not least <= int(value) <= most:
        return f"found {value!r} for {key}, expected a whole number from {least} to {most}"
    given[key] = int(value)
    return ""


def _combined(entry: Entry, given: Mapping[str, int | str]) -> list[str]:
    """What is wrong with the options together."""
    faults = []
    options = {option.name: given.get(option.name, option.default) for option in entry.options}
    hidden, heads = options.get("hidden"), options.get("heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads and hidden % heads:
        fits = max(count for count in range(1, heads + 1) if hidden % count == 0)
        faults.append(f"hidden={hidden} is no multiple of heads={heads}; heads={fits} would fit")
    seq, positions = options.get("seq"), options.get("positions")
    if isinstance(seq, int) and isinstance(positions, int) and seq > positions:
        faults.append(f"seq={seq} is longer than positions={positions}; add positions={seq}")
    return faults


def _at(text: str, start: int, part: str, message: str, hint: str = "") -> Diagnostic:
    return Diagnostic(message, text, Span(1, start + 1, max(1, len(part)), text), hint)
