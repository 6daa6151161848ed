"""Facets: what passes learn or decide about an op, typed, printed after its result types, one op a line.

A facet is a frozen dataclass with a ``keyword``; an op holds at most one of each, sorted by keyword. Its text is
``keyword<item, ...>``: bare items for positional fields, ``key = value`` for the others; a flag is the keyword alone.
*Facts* (``Cost``, ``Time``, ``Transfer``, ``Color``, ``Phase``) are true whatever the devices or are measured on them;
*decisions* (``Group``, ``StageSet``, ``ShardRule``, ``Recompute``, ``Sync``) are choices of a pass and may change.
Facts may stand in a function called more than once; decisions may not (verifier).

``facet_text`` and ``facet_from_items`` are the only two places that know the spelling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ir.names import quote_name, quote_text


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one execution of an op, independent of devices.

    ``flops`` counts 2 per multiply-add. ``read`` and ``write`` are bytes of operands (weights included) and results;
    ``weight`` the part of ``read`` that is resources. The training parts: flops of the gradient of the inputs and of the
    weights, and bytes kept from the forward pass for them. ``kind`` names the formula: a class of ops that runs at one
    efficiency (``matmul``, ``conv``, ``elementwise``, ``move``...); ``default`` marks ops without a formula, counted by
    bytes only.
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


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds per device type, sorted by type name (``@gpu``); a type that is missing cannot run the op."""

    keyword: ClassVar[str] = "time"
    seconds: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds to move each result over a device's port: for workloads that state them. One number per result."""

    keyword: ClassVar[str] = "transfer"
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Color:
    """Ops of one colour must share a device."""

    keyword: ClassVar[str] = "color"
    color: int


@dataclass(frozen=True, slots=True)
class Phase:
    """``fw`` or ``bw``: the side of an explicit training graph that the op belongs to."""

    keyword: ClassVar[str] = "phase"
    phase: str


@dataclass(frozen=True, slots=True)
class Group:
    """Node of the contracted graph that the op belongs to."""

    keyword: ClassVar[str] = "group"
    group: int


@dataclass(frozen=True, slots=True)
class StageSet:
    """Stages that run the op, ascending; more than one when it is replicated."""

    keyword: ClassVar[str] = "stage"
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardRule:
    """Name of the layout rule, of those its OpDef offers, that the op follows."""

    keyword: ClassVar[str] = "shard"
    rule: str


@dataclass(frozen=True, slots=True)
class Recompute:
    """The op's results are computed again in the backward pass instead of being kept."""

    keyword: ClassVar[str] = "recompute"


@dataclass(frozen=True, slots=True)
class Sync:
    """On a resource: how its gradient is synchronised between replicas, and in which bucket."""

    keyword: ClassVar[str] = "sync"
    method: str
    compression: str = "none"
    bucket: int = 0


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """On a resource: bytes of optimizer state kept beside it."""

    keyword: ClassVar[str] = "optimizer"
    name: str
    size: int = 0


Facet: TypeAlias = Cost | Time | Transfer | Color | Phase | Group | StageSet | ShardRule | Recompute | Sync | OptimizerState
Facets: TypeAlias = tuple[Facet, ...]

FACETS: dict[str, type[Facet]] = {
    cls.keyword: cls
    for cls in (Cost, Time, Transfer, Color, Phase, Group, StageSet, ShardRule, Recompute, Sync, OptimizerState)
}

FacetItem: TypeAlias = tuple[str | None, int | float | str]
"""One item of a facet's text: its key (None when positional) and its number, word or name."""


def with_facet(facets: Facets, facet: Facet) -> Facets:
    """``facets`` with ``facet`` in place of the one of its kind, still sorted."""
    kept = [f for f in facets if f.keyword != facet.keyword]
    return tuple(sorted([*kept, facet], key=lambda f: f.keyword))


def without_facet(facets: Facets, keyword: str) -> Facets:
    """``facets`` without the one of this keyword."""
    return tuple(f for f in facets if f.keyword != keyword)


def number_text(value: float) -> str:
    """The shortest text that reads back as exactly this number; ``inf`` and ``nan`` spelled so."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "nan"
    return repr(float(value))


def facet_text(facet: Facet) -> str:
    """Text of a facet; zero fields of ``cost`` are left out, its ``kind`` is not."""
    match facet:
        case Recompute():
            return facet.keyword
        case Cost():
            names = ("flops", "read", "write", "weight", "input_grad", "weight_grad", "saved")
            items = [f"{name} = {getattr(facet, name)}" for name in names if getattr(facet, name)]
            items.append(f"kind = {facet.kind}")
        case Time():
            items = [f"{quote_name(name)} = {number_text(value)}" for name, value in facet.seconds]
        case Transfer():
            items = [number_text(value) for value in facet.seconds]
        case Color() | Group():
            items = [str(facet.color if isinstance(facet, Color) else facet.group)]
        case Phase():
            items = [facet.phase]
        case StageSet():
            items = [str(stage) for stage in facet.stages]
        case ShardRule():
            items = [quote_text(facet.rule)]
        case Sync():
            items = [f"method = {facet.method}", f"compression = {facet.compression}", f"bucket = {facet.bucket}"]
        case OptimizerState():
            items = [f"name = {facet.name}", f"size = {facet.size}"]
    return f"{facet.keyword}<{', '.join(items)}>"


def facet_from_items(keyword: str, items: list[FacetItem]) -> Facet:
    """The facet that ``keyword<items>`` spells. Raises ValueError with what was expected."""
    values = [value for key, value in items if key is None]
    named = {key: value for key, value in items if key is not None}
    cls = FACETS.get(keyword)
    if cls is None:
        raise ValueError(f"unknown facet '{keyword}'; expected one of {', '.join(sorted(FACETS))}")
    try:
        if cls is Time:
            return Time(tuple(sorted((str(key), float(value)) for key, value in named.items())))
        if cls is Transfer:
            return Transfer(tuple(float(value) for value in values))
        if cls is StageSet:
            return StageSet(tuple(int(value) for value in values))
        return cls(*values, **named)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        fields = ", ".join(cls.__dataclass_fields__)
        raise ValueError(f"facet '{keyword}' does not take these items; it has: {fields or 'none'}") from error
