"""Facets: typed facts and decisions of passes about an op, printed after its result types.

A facet is a frozen dataclass with a ``keyword``; an op holds at most one of each, sorted by keyword. Its text is
``keyword<item, ...>``: bare items for positional fields, ``key = value`` for the others.
*Facts* (``Cost``, ``Time``, ``BackwardTime``, ``Transfer``, ``Measured``, ``Color``, ``Direction``, ``Phase``,
``InTraining``) do not depend on the plan, or are measured; *decisions* (``Group``, ``StageSet``, ``ShardRule``,
``Sync``) are choices of a pass and may change. Facts may stand in a function called more than once; decisions only in one that
``fold`` wrote as a variant (INV10).

``facet_text`` and ``parse_facet`` are the only two places that know the spelling.
"""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from ir.core.names import quote_text, quote_word, unquote_text
from ir.core.ranges import COUNTED, whole


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one execution of an op, independent of devices.

    ``flops`` counts 2 per multiply-add. ``read`` and ``write`` are bytes of operands (weights included) and results;
    ``weight`` the part of ``read`` that is resources. The training parts: flops of the gradient of the inputs and of the
    weights, and bytes kept from the forward pass for them. ``kind`` names the formula: a class of ops that runs at one
    efficiency (``matmul``, ``conv``, ``elementwise``, ``move``...); ``default`` marks ops without a formula, counted by
    bytes only. ``scalar`` counts what ONNX Runtime's CPU kernel of the op does one element or one row after the other, in steps
    of a plain loop; only device types with a ``scalar_rate`` take time for them.
    """

    keyword: ClassVar[str] = "cost"
    flops: int = 0
    read: int = 0
    write: int = 0
    weight: int = 0
    input_grad: int = 0
    weight_grad: int = 0
    saved: int = 0
    kind: str = "default"
    scalar: int = 0


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds per device type, sorted by type name (``@gpu``); a type that is missing cannot run the op."""

    keyword: ClassVar[str] = "time"
    seconds: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class BackwardTime:
    """Seconds of the op's backward pass per device type, sorted by type name: for workloads that state both passes of a node
    instead of holding explicit backward nodes (``Direction``), and for ops of a model whose passes were measured."""

    keyword: ClassVar[str] = "backward"
    seconds: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds to move each result over a device's port: for workloads that state them. One number per result."""

    keyword: ClassVar[str] = "transfer"
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one run of the model on a user's inputs: for an op whose types do not state the sizes of its results, an
    op with regions, or an op inside them. ``shapes``: of each result, ``1x100x4``, empty for a scalar, ``?`` where it was not
    measured. ``runs``: how often the op ran; one count per turn of a loop, 0 in a branch that was not taken. Other inputs may
    give other sizes, so types stay as they are."""

    keyword: ClassVar[str] = "measured"
    shapes: tuple[str, ...]
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Color:
    """Ops of one colour must share a device."""

    keyword: ClassVar[str] = "color"
    color: int


@dataclass(frozen=True, slots=True)
class Direction:
    """``fw`` or ``bw``: the side of an explicit training graph that the op belongs to."""

    keyword: ClassVar[str] = "pass"
    direction: str


@dataclass(frozen=True, slots=True)
class Phase:
    """When an op of a training step runs: ``F`` forward, ``I`` for gradients of values, ``W`` for gradients of weights alone,
    each once a microbatch; ``U``, the update, once a step. An op without one is of ``F``, and that is never written."""

    keyword: ClassVar[str] = "phase"
    phase: str


IN_TRAINING = ("frozen", "detached", "padding")
FROM_TORCH = "dnnc.from_torch"
"""The producer of a model file in which every initializer is a parameter or a buffer of its own: nothing has to be guessed from
names, and no exporter stored equal ones once."""


@dataclass(frozen=True, slots=True)
class InTraining:
    """How the framework of the model treats an op or a resource in training, where the op itself does not say it. ``frozen``:
    the resource does not train; the batch normalisation takes its running averages and leaves them. ``detached``: no gradient
    passes the Identity. ``padding``: row ``row`` of the table that the Gather reads gets no gradient."""

    keyword: ClassVar[str] = "training"
    rule: str
    row: int = -1


@dataclass(frozen=True, slots=True)
class Group:
    """A group of ops, as earlier versions wrote it; passes that decide stages drop it."""

    keyword: ClassVar[str] = "group"
    group: int


@dataclass(frozen=True, slots=True)
class StageSet:
    """Stages that run the op, ascending; more than one when it is replicated."""

    keyword: ClassVar[str] = "stage"
    stages: tuple[int, ...]


SEPARATOR = "; "
"""Between the names of strategies in ``shard<..>``, one per axis."""
WHOLE = "replicate"
"""The name of the strategy of an op that runs whole on every member."""


@dataclass(frozen=True, slots=True)
class ShardRule:
    """Name of the layout rule, of those its OpDef offers, that the op follows."""

    keyword: ClassVar[str] = "shard"
    rule: str


SYNCS = ("all_reduce", "reduce_scatter", "sfb", "ps", "auto")
"""How members that hold the same weight agree on its gradient: the methods of ``sync``; ``auto`` asks the plan to choose."""


@dataclass(frozen=True, slots=True)
class Sync:
    """On a resource: how its gradient is synchronised between replicas, and in which bucket. ``server``: of the method ``ps``,
    the place along the axis of the member that makes the sum; -1: not chosen."""

    keyword: ClassVar[str] = "sync"
    method: str
    compression: str = "none"
    bucket: int = 0
    server: int = -1


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """On a resource that is trained: its optimizer, and the bytes that updates keep beside it. ``learning_rate`` and
    ``weight_decay``: those of its group of parameters; -1 where they are those of the step."""

    keyword: ClassVar[str] = "optimizer"
    name: str
    size: int = 0
    learning_rate: float = -1.0
    weight_decay: float = -1.0

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of its group."""
        found = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        return {name: value for name, value in found.items() if value >= 0}


Facet: TypeAlias = (
    Cost
    | Time
    | BackwardTime
    | Transfer
    | Measured
    | Color
    | Direction
    | Phase
    | Group
    | StageSet
    | ShardRule
    | Sync
    | OptimizerState
    | InTraining
)
Facets: TypeAlias = tuple[Facet, ...]

FACETS: dict[str, type[Facet]] = {
    cls.keyword: cls
    for cls in (
        Cost,
        Time,
        BackwardTime,
        Transfer,
        Measured,
        Color,
        Direction,
        Phase,
        Group,
        StageSet,
        ShardRule,
        Sync,
        OptimizerState,
        InTraining,
    )
}

FORWARD = "F"
INPUT_GRADIENT = "I"
WEIGHT_GRADIENT = "W"
UPDATE = "U"
PHASES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, UPDATE)
"""In the order in which a device runs those of one microbatch."""

DECISIONS = (Group, StageSet, ShardRule, Sync)
"""Facets that are choices of a pass; the others are facts."""

FacetItem: TypeAlias = tuple[str | None, int | float | str]
"""One item of a facet's text: its key (None when positional) and its number, word or name."""


_SHAPE = re.compile(r"\?|(?:[0-9]{1,18}(?:x[0-9]{1,18})*)?")


def is_shape(text: str) -> bool:
    """Whether ``text`` is a shape of a ``Measured`` facet."""
    return _SHAPE.fullmatch(text) is not None


def measured_shape(text: str) -> tuple[int, ...] | None:
    """The shape that ``Measured`` spells so; None for ``?``."""
    return None if text == "?" else tuple(int(dim) for dim in text.split("x") if dim)


def phase_of(facets: Facets) -> str:
    """The one of ``PHASES`` in which an op with these facets runs."""
    return next((facet.phase for facet in facets if isinstance(facet, Phase)), FORWARD)


def sync_of(facets: Facets) -> Sync:
    """How the gradient of a resource with these facets is synchronised; ``all_reduce`` by default."""
    return next((facet for facet in facets if isinstance(facet, Sync)), Sync(SYNCS[0]))


def in_phase(phase: str) -> Facets:
    """The facets of an op that has a phase and no other facet."""
    return () if phase == FORWARD else (Phase(phase),)


def with_facet(facets: Facets, facet: Facet) -> Facets:
    """``facets`` with ``facet`` in place of the one of its kind, still sorted."""
    others = [f for f in facets if f.keyword != facet.keyword]
    return tuple(sorted([*others, facet], key=lambda f: f.keyword))


def number_text(value: float) -> str:
    """The shortest text that reads back as exactly this number; ``inf`` and ``nan`` spelled so."""
    return str(int(value)) if isinstance(value, int) else repr(float(value))


def facet_text(facet: Facet) -> str:
    """Text of a facet; zero fields of ``cost`` are left out, its ``kind`` is not."""
    match facet:
        case Cost():
            names = ("flops", "scalar", "read", "write", "weight", "input_grad", "weight_grad", "saved")
            items = [f"{name} = {value}" for name in names if (value := getattr(facet, name))]
            items.append(f"kind = {quote_word(facet.kind)}")
        case Time() | BackwardTime():
            items = [f"{quote_word(name)} = {float(value)!r}" for name, value in facet.seconds]
        case Transfer():
            items = [repr(float(value)) for value in facet.seconds]
        case Measured():
            items = [quote_text(shape) for shape in facet.shapes]
            items += [f"runs = {facet.runs}"] if facet.runs != 1 else []
        case Color() | Group():
            items = [str(facet.color if isinstance(facet, Color) else facet.group)]
        case Direction():
            items = [quote_word(facet.direction)]
        case Phase():
            items = [quote_word(facet.phase)]
        case StageSet():
            items = [str(stage) for stage in facet.stages]
        case ShardRule():
            items = [quote_text(facet.rule)]
        case Sync():
            items = [
                f"method = {quote_word(facet.method)}",
                f"compression = {quote_word(facet.compression)}",
                f"bucket = {facet.bucket}",
            ]
            items += [f"server = {facet.server}"] if facet.server >= 0 else []
        case OptimizerState():
            items = [f"name = {quote_word(facet.name)}", f"size = {facet.size}"]
            items += [f"{name} = {value!r}" for name, value in facet.numbers.items()]
        case InTraining():
            items = [quote_word(facet.rule)]
            items += [f"row = {facet.row}"] if facet.row >= 0 else []
    return f"{facet.keyword}<{', '.join(items)}>"


_KINDS = {cls: {field.name: str(field.type) for field in fields(cls)} for cls in FACETS.values()}
_REQUIRED = {cls: [field.name for field in fields(cls) if field.default is MISSING] for cls in FACETS.values()}
_WORDS = {"int": "an integer", "float": "a number", "str": "a word or text"}
_SPELLED = {int: "int", float: "float", str: "str"}
_FACET = re.compile(r"([a-z_]+)<(.*)>\Z", re.DOTALL)
_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_ITEM = re.compile(rf'\s*(?:({_STRING}|[^\s,="]+)\s*=\s*)?({_STRING}|[^\s,="]+)\s*(?:,|\Z)')
_INT = re.compile(r"-?[0-9]+\Z")
_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?\Z")
_CONSTANTS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@lru_cache(maxsize=1 << 14)
def parse_facet(text: str) -> Facet:
    """The facet that ``text`` spells, ``keyword<items>``. Raises ValueError with what was expected."""
    match = _FACET.match(text)
    if match is None:
        raise ValueError(f"expected a facet such as cost<flops = 1> but found '{text[:40]}'")
    keyword, inside = match.groups()
    items: list[FacetItem] = []
    at = 0
    while inside and at < len(inside) and (at or inside.strip()):
        item = _ITEM.match(inside, at)
        if item is None:
            raise ValueError(
                f"facet '{keyword}': expected numbers, words or key = value, but found '{inside[at:].strip()[:40]}'"
            )
        key, value = item.groups()
        items.append((_name(key) if key else None, _scalar(value)))
        at = item.end()
    return facet_from_items(keyword, items)


def _name(text: str) -> str:
    return unquote_text(text) if text[0] == '"' else text


def _scalar(text: str) -> int | float | str:
    if _INT.match(text):
        return whole(text, COUNTED)
    return float(text) if _FLOAT.match(text) else _name(text)


def facet_from_items(keyword: str, items: list[FacetItem]) -> Facet:
    """The facet that ``keyword<items>`` spells. Raises ValueError with what was expected."""
    cls = FACETS.get(keyword)
    if cls is None:
        raise ValueError(f"unknown facet '{keyword}'; expected one of {', '.join(sorted(FACETS))}")
    values = [value for key, value in items if key is None]
    named = {key: value for key, value in items if key is not None}
    kinds = _KINDS[cls]
    try:
        if len(named) + len(values) != len(items):
            raise ValueError("a key stands twice")
        if cls is Time or cls is BackwardTime:
            if values:
                raise ValueError("expected device type = seconds")
            return cls(tuple(sorted((key, _as(value, "float")) for key, value in named.items())))
        if cls is Transfer or cls is StageSet:
            if named:
                raise ValueError("expected numbers only")
            kind = "float" if cls is Transfer else "int"
            return cls(tuple(_as(value, kind) for value in values))
        if cls is Measured:
            if named.keys() - {"runs"}:
                raise ValueError("expected the shape of each result, and runs = n")
            return cls(tuple(_as(value, "str") for value in values), _as(named.get("runs", 1), "int"))
        if len(values) > len(kinds):
            raise ValueError(f"expected at most {len(kinds)} items")
        positional = dict(zip(kinds, values, strict=False))
        if repeated := positional.keys() & named:
            raise ValueError(f"'{min(repeated)}' stands twice")
        positional |= named
        if unknown := positional.keys() - kinds:
            raise ValueError(f"it has no '{min(unknown)}'")
        for name in _REQUIRED[cls]:
            if name not in positional:
                raise ValueError(f"'{name}' is missing")
        return cls(**{name: _as(value, kinds[name]) for name, value in positional.items()})
    except ValueError as error:
        known = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise ValueError(f"facet '{keyword}': {error}; it has: {known or 'no items'}") from None


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number is too large") from None


def _as(value: int | float | str, kind: str) -> Any:
    """``value`` as the field's kind. Raises ValueError."""
    if kind == "float":
        value = _CONSTANTS.get(value, value) if isinstance(value, str) else _float(value)
    if kind != _SPELLED[type(value)]:
        raise ValueError(f"expected {_WORDS[kind]} but found '{value}'")
    return value
