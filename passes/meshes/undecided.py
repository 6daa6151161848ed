"""A module without what was decided about it, which passes that decide stages begin with, so that deciding again is as deciding
once; and one without its backward pass."""

from __future__ import annotations

import operator
from dataclasses import replace

from ir.core.facets import FORWARD, Group, ShardRule, StageSet, phase_of
from ir.core.module import Func, Mesh, Module, Plan, Program, Resource, Schedule, Stage
from ir.core.ops import Op
from ir.core.types import without_layout
from ir.ops.grads import ASSIGN
from ir.ops.opdefs import RESHARD
from passes.graph.graph import reads, renamed
from passes.meshes.reshard_ops import bare_value, plain


def undecided(module: Module, *, copies: bool = False) -> Module:
    """The module as it was before ``partition``: no layouts, strategies, stages, meshes, plan, and no groups of ops, which
    modules of earlier versions have. With ``copies``, the ops that
    are a stage's own copies of others are still in it. An entry or a module about which nothing was decided is the same
    object."""
    old = module.entry
    func = plain(module).entry
    if not copies:
        func = _originals(func)
    func = replace(
        func,
        ops=tuple(map(_op, func.ops)),
        results=tuple(map(bare_value, func.results)),
        attributes=tuple((key, value) for key, value in func.attributes if not key.startswith(("shard.", "contract."))),
    )
    symbols = tuple(
        (old if func == old else func)
        if symbol is old
        else replace(symbol, type=without_layout(symbol.type))
        if isinstance(symbol, Resource) and without_layout(symbol.type) is not symbol.type
        else symbol
        for symbol in module.without(Plan, Mesh, Stage, Program, Schedule).symbols
    )
    same = len(symbols) == len(module.symbols) and all(map(operator.is_, symbols, module.symbols))
    return module if same else replace(module, symbols=symbols)


def undifferentiated(module: Module) -> Module:
    """The module without the ops that ``differentiate`` adds: what a plan decides is of the forward pass."""
    ops = [op for op in module.entry.ops if phase_of(op.facets) == FORWARD and op.name != ASSIGN]
    if len(ops) == len(module.entry.ops):
        return module
    read = {name for op in ops for name in reads(op)} | {value.name for value in module.entry.results}
    ops = [op for op in ops if op.name != RESHARD or any(value.name in read for value in op.results)]
    return module.replace(module.entry, replace(module.entry, ops=tuple(ops)))


def copied(func: Func) -> dict[str, str]:
    """By id of each op that is a stage's own copy, the id of the op that it is of."""
    told = next((attribute.value for key, attribute in func.attributes if key == "shard.copies"), ())
    names = map(str, told) if isinstance(told, tuple) else iter(())
    return dict(zip(names, names, strict=False))


def _originals(func: Func) -> Func:
    """The function without copies: their readers read the ops that they are of."""
    of = copied(func)
    if not of:
        return func
    ops = {op.id: op for op in func.ops}
    names = {
        copy.name: value.name
        for one, other in of.items()
        if one in ops and other in ops
        for copy, value in zip(ops[one].results, ops[other].results, strict=False)
    }
    return replace(func, ops=renamed((op for op in func.ops if op.id not in names), names))


def _op(op: Op) -> Op:
    facets = tuple([facet for facet in op.facets if not isinstance(facet, ShardRule | StageSet | Group)])
    results = tuple([bare_value(value) for value in op.results])
    unchanged = len(facets) == len(op.facets) and all(one is other for one, other in zip(results, op.results, strict=True))
    return op if unchanged else replace(op, facets=facets, results=results)
