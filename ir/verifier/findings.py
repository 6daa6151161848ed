"""Findings: the faults of one verification, with their places in the text, and look-ups that several checks share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ir.core.diagnostics import Diagnostic, Span
from ir.core.module import Mesh, Module, Plan, PlanStage, Program, Stage, Symbol
from ir.core.names import quote_name
from ir.core.ops import Op, Region
from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from ir.ops.opdefs import Dialects
from ir.verifier.faults import BrokenInvariant, MoreBrokenInvariants

if TYPE_CHECKING:
    from ir.text.parser import SourceMap

Part: TypeAlias = Region | DeviceType | Device | Host | Switch | Link | Route | PlanStage
"""Parts of symbols that have a line of their own."""
LIMIT = 100
"""Faults kept: a broken pass breaks every op, and a person reads the first."""


class Findings:
    """Collects faults. ``symbols`` holds the first symbol of each name; ops are defined by ``dialects``."""

    def __init__(self, module: Module, source_map: SourceMap | None, dialects: Dialects) -> None:
        self.module = module
        self.source_map = source_map
        self.dialects = dialects
        self.symbols: dict[str, Symbol] = {}
        for symbol in module.symbols:
            self.symbols.setdefault(symbol.name, symbol)
        self.meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
        self.unsound: set[str] = set()  # names of the meshes that break INV15: parts on them cannot be told
        self.topology: Topology | None = module.first(Topology)
        self.plan: Plan | None = module.first(Plan)
        self.stages: tuple[Stage, ...] = tuple(module.of_type(Stage))
        self.diagnostics: list[Diagnostic] = []
        self.dropped = 0

    def body(self, stage: Stage) -> tuple[Op, ...]:
        """The ops of a stage, or of its first program where the module leaves out the stage's own."""
        return stage.ops or next((program.ops for program in self.module.of_type(Program) if program.stage == stage.name), ())

    def add(
        self,
        code: str,
        message: str,
        symbol: Symbol | None,
        op: Op | None = None,
        *,
        part: Part | None = None,
        about: str = "",
        hint: str = "",
    ) -> None:
        """A fault of invariant ``code`` in ``symbol``, in its ``op`` or its ``part``; ``about`` is the name in that line to
        point at."""
        if len(self.diagnostics) >= LIMIT:
            self.dropped += 1
            return
        span = self.span(part or op, about) or self.span(symbol, about) or self.span(self.module, "")
        if self.source_map is not None and span is not None:
            where = self.source_map.where
        else:
            where = symbol.name if symbol is not None else self.module.name
            if op is not None:
                where += f", {op.id}" + (f" = {op.name}" if op.results else "")
        self.diagnostics.append(BrokenInvariant(code, message, hint).at(where, span))

    def span(self, item: Op | Symbol | Part | Module | None, about: str) -> Span | None:
        if self.source_map is None or item is None:
            return None
        span = self.source_map.span(item)
        if span is None:
            return None
        start = span.column - 1
        if about:
            at = span.source_line.find(quote_name(about) if about[0] in "%@" else about, start)
            if at >= 0:
                return Span(span.line, at + 1, len(about), span.source_line)
        first = span.source_line[start:].split(" ", 1)[0]
        return Span(span.line, span.column, max(1, len(first)), span.source_line)

    def sorted(self) -> list[Diagnostic]:
        """The faults by place in the text; in the order of the checks without a text."""
        diagnostics = sorted(self.diagnostics, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0))
        if self.dropped:
            diagnostics.append(MoreBrokenInvariants(self.dropped).at(self.module.name))
        return diagnostics
