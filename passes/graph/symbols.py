"""Where a pass puts the symbols that it writes: in the order in which a module is printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ir.core.module import Func, Mesh, Module, Plan, Program, Resource, Schedule, Stage, Symbol
from ir.core.topology import Topology

_ORDER: tuple[type[Symbol], ...] = (Resource, Func, Topology, Mesh, Stage, Program, Schedule, Plan)


def insert_symbols(module: Module, symbols: Iterable[Symbol]) -> Module:
    """The module with ``symbols``, all of one class, behind those of its class and the classes printed before it."""
    added = tuple(symbols)
    if not added:
        return module
    rank = _ORDER.index(type(added[0]))
    position = 1 + max((i for i, symbol in enumerate(module.symbols) if _ORDER.index(type(symbol)) <= rank), default=-1)
    return replace(module, symbols=(*module.symbols[:position], *added, *module.symbols[position:]))
