"""Builds what each rule of ``module.lark`` describes; the LALR parser calls it as it reduces.

A method named like a rule takes the rule's children, tokens (``str`` with ``type`` and ``start_pos``) and what other methods
returned, and returns what the rule describes. A part that follows the grammar and means nothing (an unknown facet, a field of
the wrong kind) is recorded as a fault at its place and replaced by a stand-in, or left out (None), and reading goes on: one run
shows every fault. One reader reads many texts: ``begin`` forgets the last one. ``ir.text.tokens`` reads single tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, TypeVar

from ir.core.attributes import Attribute, Attributes
from ir.core.facets import Facets
from ir.core.module import (
    Action,
    Declared,
    External,
    Func,
    Inline,
    Mesh,
    Module,
    Plan,
    PlanStage,
    Program,
    Random,
    Resource,
    Schedule,
    Splat,
    Stage,
    State,
    Symbol,
    View,
)
from ir.core.names import unquote_text
from ir.core.ops import UNKNOWN_LOCATION, Op, Region, Value
from ir.core.ranges import whole
from ir.core.shares import Shares
from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from ir.core.types import UNKNOWN, DType, TensorType, Type
from ir.text import faults
from ir.text.aliases import CALL, REST
from ir.text.dense import bytes_from_text, dense_data
from ir.text.likeness import LISTED, copies_of, with_prefix
from ir.text.records import RecordFault, Table, read_record
from ir.text.renaming import Renaming
from ir.text.tokens import MAX_DEPTH, TextFaultError, TokenReader

T = TypeVar("T")

MOST_COPIES = 1 << 20
"""The most resources that the lines ``like`` of one text may make."""

_LOC, _DATA = re.compile("#loc[0-9]*"), re.compile("#data[0-9]*")


@dataclass(frozen=True, slots=True)
class Field:
    """``key = value`` with the token of its key."""

    token: Any
    key: str
    value: Any


class Fields(list[Field]):
    """The fields of a table in braces; whether they make a record or a ``Table`` depends on the rule around them."""


@dataclass(frozen=True, slots=True)
class Part:
    """A clause for the rule around it: ``digest`` with its text, ``mesh`` with the name of a stage's mesh, ``inline`` with the
    token of data, which the resource's type tells how to read, ``row`` with a device and its actions."""

    keyword: str
    value: Any


class Reader(TokenReader):
    """See the module docstring."""

    def begin(self, text: str = "") -> None:
        """Forgets the last text and collects the aliases of ``text``, which may be used before they are defined."""
        super().begin(text)
        self.defined: set[str] = set()  # aliases whose definition was reached
        self.resources: list[Resource] = []  # those read in full: what ``like`` copies
        self.copies = 0  # resources made by lines ``like``
        self.calls: dict[str, tuple[str, ...]] = {}  # operands of the first call, by callee
        self.positions: dict[int, int] = {}  # offset in the text, by id of a symbol, op, region or record
        self.depths: dict[int, int] = {}  # levels of regions in an op or region, by id

    # -- module ------------------------------------------------------------------------------------------------------

    def module(self, children: list[Any]) -> Module:
        children = [child for child in children if child is not None]  # None: an alias
        attributes: Attributes = self.attributes(children[1]) if len(children) == 3 else ()
        return self.placed(children[0], Module(self.name(children[0]), tuple(children[-1]), attributes))

    def alias(self, children: list[Any]) -> None:
        """Reports what is wrong with the definition of an alias; ``begin`` has collected its text."""
        alias, text = children
        kind = {"LOCATION": "location", "BYTES": "text of bytes"}.get(text.type, "facet")
        expected = "location" if _LOC.fullmatch(alias) else "text of bytes" if _DATA.fullmatch(alias) else "facet"
        if alias in self.defined:
            self.fault(alias, faults.AliasDefinedTwice(str(alias)))
        elif text[0] == "#":
            self.fault(text, faults.AliasOfAlias(str(alias)))
        elif kind != expected:
            self.fault(text, faults.WrongAliasKind(str(alias), expected, kind))
        elif kind == "location":
            self.location(text, ("%x",))
        elif kind == "facet" and len(self.facets(text)) > 1:
            self.fault(text, faults.AliasOfSeveralFacets(str(alias)))
        self.defined.add(alias)

    def symbols(self, children: list[Any]) -> list[Symbol]:
        if not children:
            return []
        symbols: list[Symbol] = children[0]
        if isinstance(children[1], list):
            symbols += children[1]
        else:
            symbols.append(children[1])
        return symbols

    def placed(self, token: Any, symbol: T) -> T:
        """``symbol``, after ``positions`` has noted that it begins at ``token``."""
        self.positions[id(symbol)] = token.start_pos
        return symbol

    def resource(self, children: list[Any]) -> Resource:
        name, type_token, data, *rest = children
        digest = ""
        facets: Facets = ()
        for token in rest:
            if isinstance(token, Part):
                digest = token.value
            else:
                facets = self.facets(token)
        type_ = self.one_type(type_token)
        if isinstance(data, Part):
            data = self.inline_data(data.value, type_)
        elif isinstance(data, View) and isinstance(data.whole, Part):
            data = replace(data, whole=self.inline_data(data.whole.value, type_))
        resource = self.placed(name, Resource(self.name(name), type_, data, digest, facets))
        self.resources.append(resource)
        return resource

    def state(self, children: list[Any]) -> Resource:
        name, type_token, result, *rest = children
        fields = rest.pop(0) if rest and isinstance(rest[0], list) else []
        facets = self.facets(rest[0]) if rest else ()
        data = self.build(State, result, fields, result=self.text(result)) or State("")
        resource = self.placed(name, Resource(self.name(name), self.one_type(type_token), data, "", facets))
        self.resources.append(resource)
        return resource

    def like(self, children: list[Any]) -> list[Resource]:
        """The copies that a line ``like`` makes of resources read before (``ir.text.likeness``)."""
        keyword, pair, *tables = children
        if len(pair) != 2 or not all(isinstance(text, str) and text for text in pair):
            self.fault(keyword, faults.LikeWithoutNames())
            return []
        listed: dict[str, list[int]] = {}
        for field in tables[0] if tables else ():
            if field.key not in LISTED or not isinstance(field.value, tuple) or any(type(v) is not int for v in field.value):
                self.fault(field.token, faults.WrongLikeTable(" or ".join(LISTED)))
                return []
            listed[field.key] = list(field.value)
        models = with_prefix(self.resources, pair[0])
        if not models:
            self.fault(keyword, faults.NothingAlike(pair[0]))
        try:
            copies = copies_of(models, Renaming(pair), listed)
        except ValueError as error:
            self.fault(keyword, faults.WrongLikeCount(str(error)))
            return []
        self.copies += len(copies)
        if self.copies > MOST_COPIES:
            self.fault(keyword, faults.TooManyAlike(f"{MOST_COPIES:,}"))
            return []
        return [self.placed(keyword, resource) for resource in copies]

    def digest(self, children: list[Any]) -> Part:
        return Part("digest", self.text(children[0]))

    def external(self, children: list[Any]) -> External:
        file, fields = children
        return self.build(External, file, fields, file=self.text(file)) or External("", 0, 0)

    def inline(self, children: list[Any]) -> Part:
        return Part("inline", children[0])

    def inline_data(self, token: Any, type_: Type) -> Inline:
        """The data of an inline resource of type ``type_``, from elements, bytes or an alias of bytes; empty after a fault."""
        dtype = type_.dtype if isinstance(type_, TensorType) else DType.U8
        text = str(token)
        if text[0] == "#":
            if text not in self.aliases:
                self.fault(token, faults.UndefinedAlias(text))
            text = self.aliases.get(text, 'hex""')
        try:
            if text[0] == "[":
                return Inline(dense_data(dtype, self._elements(text)))
            return Inline(bytes_from_text(text))
        except TextFaultError as error:
            self.fault(token, error.fault, offset=error.offset, length=error.length)
        except ValueError as error:
            self.fault(token, faults.InvalidData(str(error)))
        return Inline(b"")

    def splat(self, children: list[Any]) -> Splat:
        token = children[0]
        if token.type == "NUMBER":
            return Splat(self.number_of(token))
        if token not in _CONSTANTS:
            self.fault(token, faults.NotANumber(str(token)))
        return Splat(_CONSTANTS.get(str(token), 0))

    def random(self, children: list[Any]) -> Random:
        distribution, fields = children
        name = self.word_or_text(distribution)
        return self.build(Random, distribution, fields, distribution=name) or Random("normal", 0)

    def declared(self, children: list[Any]) -> Declared:
        return Declared()

    def view(self, children: list[Any]) -> View:
        keyword, whole, fields = children
        return self.build(View, keyword, fields, whole=whole) or View(Declared(), (), (), ())

    def func(self, children: list[Any]) -> Func:
        name, args, results, *attributes, ops = children
        described = self.attributes(attributes[0]) if attributes else ()
        return self.placed(name, Func(self.name(name), args, results, tuple(ops), described))

    def stage(self, children: list[Any]) -> Stage:
        name, index, devices, *middle, ops = children
        mesh = middle.pop(0).value if isinstance(middle[0], Part) else ""
        args, results, *attributes = middle
        stage = Stage(
            name=self.name(name),
            index=self.int_of(index),
            devices=self.words(name, devices),
            args=args,
            results=results,
            ops=tuple(ops),
            mesh=mesh,
            attributes=self.attributes(attributes[0]) if attributes else (),
        )
        return self.placed(name, stage)

    def stage_mesh(self, children: list[Any]) -> Part:
        return Part("mesh", self.name(children[0]))

    def program(self, children: list[Any]) -> Program:
        name, stage, devices, args, results, ops = children
        program = Program(self.name(name), self.name(stage), self.words(name, devices), args, results, tuple(ops))
        return self.placed(name, program)

    def args(self, children: list[Any]) -> tuple[Value, ...]:
        return tuple(children)

    def arg(self, children: list[Any]) -> Value:
        return Value(self.name(children[0]), self.one_type(children[1]))

    # -- ops ---------------------------------------------------------------------------------------------------------

    def ops(self, children: list[Any]) -> list[Op]:
        if not children:
            return []
        ops: list[Op] = children[0]
        ops.append(children[1])
        return ops

    def op(self, children: list[Any]) -> Op:
        names: tuple[str, ...] = ()
        name: Any = None
        operands: tuple[str, ...] = ()
        attributes: Attributes = ()
        types: Any = None
        facets: Facets = ()
        location = UNKNOWN_LOCATION
        regions: tuple[tuple[str, Region], ...] = ()
        for child in children:
            if type(child) is list:
                regions = tuple(child)
                continue
            kind = child.type
            if kind == "OPERANDS":
                operands = self.names(child, child[1:-1].strip())
            elif kind == "RESULTS":
                names = self.names(child, child[:-1].rstrip())
            elif kind == "TYPES":
                types = child
            elif kind == "FACETS":
                facets = self.facets(child)
            elif kind == "LOCATION":
                location = self.location(child, names)
            elif kind == "ATTRIBUTES":
                attributes = self.attributes(child)
            else:
                name = child
        if types is not None:
            result_types = self.types(types)
            if len(result_types) != len(names):
                if result_types:
                    self.fault(types, faults.ResultTypeCount(len(names), len(result_types)))
                result_types = (*result_types, *[UNKNOWN] * len(names))
            results = tuple([Value(*pair) for pair in zip(names, result_types, strict=False)])
        else:
            if names:
                self.fault(children[0], faults.ResultsWithoutTypes())
            results = ()
        op_name = self.text(name) if name[0] == '"' else intern(str(name))
        if op_name == CALL:
            operands = self.call_operands(name, operands, dict(attributes))
        elif operands and operands[-1] == REST:
            self.fault(name, faults.RestOutsideCall())
        op = Op(op_name, operands, results, attributes, regions, facets, location)
        self.positions[id(op)] = children[0].start_pos
        if regions:
            depth = self.depths[id(op)] = 1 + max(self.depths.pop(id(region), 0) for _, region in regions)
            if depth > MAX_DEPTH:
                self.fault(name, faults.RegionsTooDeep(MAX_DEPTH))
        return op

    def call_operands(self, token: Any, operands: tuple[str, ...], attributes: dict[str, Attribute]) -> tuple[str, ...]:
        """The operands of a call. ``..`` at their end stands for the operands that the first call of the same function has from
        there on, renamed by the call's attribute ``rename``."""
        callee = attributes["callee"].value if "callee" in attributes else ""
        if operands and operands[-1] == REST:
            if callee not in self.calls:
                self.fault(token, faults.RestOfFirstCall())
            pairs = attributes["rename"].value if "rename" in attributes else ()
            if not isinstance(pairs, tuple) or len(pairs) % 2:
                pairs = ()  # told by the verifier
            renaming, count = Renaming(tuple(map(str, pairs))), len(operands) - 1
            operands = (*operands[:-1], *[renaming.name(name) for name in self.calls.get(callee, ())[count:]])
        self.calls.setdefault(callee, operands)
        return operands

    def regions(self, children: list[Any]) -> list[tuple[str, Region]]:
        if len(children) == 1:
            return [children[0]]
        regions: list[tuple[str, Region]] = children[0]
        regions.append(children[1])
        return regions

    def region(self, children: list[Any]) -> tuple[str, Region]:
        key, args, ops, *results = children
        region = Region(args, tuple(ops), self.names(results[0], str(results[0])) if results else ())
        self.placed(results[0] if results else key, region)
        self.depths[id(region)] = max((self.depths.pop(id(op), 0) for op in ops), default=0)
        return self.word_or_text(key), region

    def yields(self, children: list[Any]) -> Any:
        return children[0]

    # -- tables ------------------------------------------------------------------------------------------------------

    def table(self, children: list[Any]) -> Fields:
        return Fields(children[0] if children else ())

    def fields(self, children: list[Any]) -> Fields:
        return Fields(children)

    def field(self, children: list[Any]) -> Field:
        token, value = children
        text = token[:-1].rstrip()
        if text[0] == '"':
            try:
                text = unquote_text(text)
            except ValueError:
                self.fault(token, faults.BadEscape("a quoted key"))
        return Field(token, text, Table((f.key, f.value) for f in value) if isinstance(value, Fields) else value)

    def number(self, children: list[Any]) -> int | float:
        return self.number_of(children[0])

    def string(self, children: list[Any]) -> str:
        return self.text(children[0])

    def word(self, children: list[Any]) -> str:
        return str(children[0])

    def array(self, children: list[Any]) -> tuple[Any, ...]:
        return tuple(children)

    def build(self, cls: type[T], token: Any, fields: Iterable[Field], **given: Any) -> T | None:
        """The record ``cls(**given, **fields)``, placed at ``token``. After a fault None; the fault is reported at the wrong
        field or, where a field is missing, at ``token``."""
        fields = list(fields)
        try:
            return self.placed(token, read_record(cls, [(field.key, field.value) for field in fields], given))
        except RecordFault as error:
            tokens = [field.token for field in fields if field.key == error.key]
            self.fault(tokens[-1] if tokens else token, faults.InvalidField(str(error)))
            return None

    def words(self, token: Any, values: tuple[Any, ...]) -> tuple[str, ...]:
        """The array ``values`` as names; empty after the fault, at ``token``, that something else is among them."""
        if not all(isinstance(value, str) for value in values):
            self.fault(token, faults.NotNames())
            return ()
        return tuple(map(str, values))

    # -- machines, schedules, plans ----------------------------------------------------------------------------------

    def named(self, cls: type[T], children: list[Any]) -> T | None:
        """The record ``cls`` of a rule that has a name and then a table or nothing; None after a fault."""
        return self.build(cls, children[0], children[1] if len(children) > 1 else (), name=self.word_or_text(children[0]))

    def device_type(self, children: list[Any]) -> DeviceType | None:
        return self.named(DeviceType, children)

    def host(self, children: list[Any]) -> Host | None:
        return self.named(Host, children)

    def device(self, children: list[Any]) -> Device | None:
        return self.named(Device, children)

    def switch(self, children: list[Any]) -> Switch | None:
        return self.named(Switch, children)

    def link(self, children: list[Any]) -> Link | None:
        return self.named(Link, children)

    def route(self, children: list[Any]) -> Route | None:
        return self.build(Route, children[0], children[1])

    def topology(self, children: list[Any]) -> Topology:
        name, *parts = children
        topology = Topology(
            name=self.name(name),
            types=_only(DeviceType, parts),
            hosts=_only(Host, parts),
            devices=_only(Device, parts),
            switches=_only(Switch, parts),
            links=_only(Link, parts),
            routes=_only(Route, parts),
        )
        return self.placed(name, topology)

    def mesh(self, children: list[Any]) -> Mesh:
        name, *axes, devices = children
        sizes: list[tuple[str, int]] = []
        shares: list[Shares | None] = []
        for field in axes[0] if axes else ():
            value = field.value
            if type(value) is int:
                sizes.append((field.key, value))
                shares.append(None)
            elif isinstance(value, tuple) and value and all(type(share) is int for share in value):
                sizes.append((field.key, len(value)))
                shares.append(value)
            else:
                self.fault(field.token, faults.AxisWithoutSize(field.key))
        mesh = Mesh(self.name(name), tuple(sizes), self.words(name, devices))
        if any(along and set(along) != {1} for along in shares) and math.prod(size for _, size in sizes) == len(mesh.devices):
            mesh = replace(mesh, shares=tuple(along or mesh.along(axis) for axis, along in enumerate(shares)))
        return self.placed(name, mesh)

    def row(self, children: list[Any]) -> Part:
        device, *actions = children
        return Part("row", (self.word_or_text(device), tuple(map(self.action, actions))))

    def action(self, token: Any) -> Action:
        """The action ``KIND(STAGE, MICROBATCH)`` or ``KIND(STAGE, MICROBATCH, CHANNEL)``, with ``_`` for no microbatch."""
        kind, _, inside = token.rpartition("(")
        stage, microbatch, *channel = map(str.strip, inside[:-1].split(","))
        try:
            return Action(
                unquote_text(kind) if kind[0] == '"' else kind,
                whole(stage),
                None if microbatch == "_" else whole(microbatch),
                whole(channel[0]) if channel else None,
            )
        except ValueError:
            self.fault(token, faults.InvalidAction())
            return Action("F", 0)

    def schedule(self, children: list[Any]) -> Schedule:
        name, *entries = children
        rows = tuple(row.value for row in _only(Part, entries))
        schedule = self.build(Schedule, name, _only(Field, entries), name=self.name(name), rows=rows)
        return self.placed(name, schedule or Schedule(self.name(name), "", rows))

    def plan_stage(self, children: list[Any]) -> PlanStage | None:
        return self.build(PlanStage, children[0], children[1])

    def plan(self, children: list[Any]) -> Plan:
        name, *entries = children
        stages = _only(PlanStage, entries)
        plan = self.build(Plan, name, _only(Field, entries), name=self.name(name), stages=stages)
        return self.placed(name, plan or Plan(self.name(name), "", "", 0.0, 0.0, 0.0, "undecided", 0.0, stages))


_CONSTANTS: dict[str, int | float] = {"inf": math.inf, "nan": math.nan, "true": 1, "false": 0}


def _only(kind: type[T], parts: Iterable[Any]) -> tuple[T, ...]:
    """Those of the parts that are of ``kind`` itself, in order."""
    return tuple(part for part in parts if type(part) is kind)
