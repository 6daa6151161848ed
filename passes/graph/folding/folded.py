"""A module with its repeats as blocks, and a module folded again behind a pass that looked at ops one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.core.module import Func, Module, Stage, Symbol
from ir.core.ops import Op
from ir.system.collector import collector_paused
from passes.graph.folding.marks import CALL, CALLEE, NAMES, PLACES, RENAME
from passes.graph.folding.names import assigned, locations
from passes.graph.folding.outline import outline
from passes.graph.folding.restore import expand
from passes.graph.folding.structure import Folding, folding
from passes.graph.folding.taken import taking


def fold(module: Module) -> Module:
    """``module`` as the pass ``fold`` writes it; ``expand`` undoes it."""
    module = expand(module)
    funcs = list(module.of_type(Func))
    return folded(module, funcs, [folding(func, module) for func in funcs])


@collector_paused()
def folded(module: Module, funcs: Sequence[Func], found: Sequence[Folding]) -> Module:
    """``module``, nothing of which is folded, with the repeats ``found`` of its ``funcs`` as blocks behind the last of these,
    and with stages that say which ops they take; itself where there are neither."""
    taken, resources = {symbol.name for symbol in module.symbols}, module.resources
    written: dict[str, Func] = {}
    blocks: list[Func] = []
    for func, repeats in zip(funcs, found, strict=True):
        written[func.name], added = outline(repeats, resources, taken) if repeats.blocks else (func, ())
        blocks += added
    return taking(_with_blocks(module, written, blocks), funcs[0]) if funcs else module


def refolded(module: Module, expanded: Module, result: Module) -> Module:
    """``result``, which a pass made of ``expanded``, folded as ``module`` is; ``expanded`` is ``expand(module)``, the same
    object where nothing is folded. Where the functions were left alone, they are as in ``module``."""
    result = _with_fitting_calls(expanded, result)
    if expanded is module:
        return result
    before, after = list(expanded.of_type(Func)), list(result.of_type(Func))
    names = {func.name for func in before}
    if [id(func) for func in before] != [id(func) for func in after]:
        return fold(result)
    own = {func.name: func for func in module.of_type(Func)}
    return taking(_with_blocks(result, own, [func for func in own.values() if func.name not in names]), after[0])


def _with_blocks(module: Module, written: dict[str, Func], blocks: Sequence[Func]) -> Module:
    """``module`` with its functions as ``written``, and ``blocks`` behind them; itself without blocks."""
    if not blocks:
        return module
    symbols: list[Symbol] = []
    last = 0
    for symbol in module.symbols:
        symbols.append(written[symbol.name] if isinstance(symbol, Func) else symbol)
        if isinstance(symbol, Func):
            last = len(symbols)
    return Module(module.name, (*symbols[:last], *blocks, *symbols[last:]), module.attributes)


def _with_fitting_calls(before: Module, after: Module) -> Module:
    """``after`` without what calls that are left say of their copies (``marks``), where the function that they call has other
    ops than in ``before``: the lists fit the ops that were there."""
    if before is after or sum(1 for _ in after.of_type(Func)) < 2:
        return after
    had = {func.name: func for func in before.of_type(Func)}
    changed = {func.name for func in after.of_type(Func) if (old := had.get(func.name)) is None or not _same_names(old, func)}
    if not changed:
        return after

    def fitting(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(map(one, ops))

    def one(op: Op) -> Op:
        if op.regions:
            return replace(op, regions=tuple((key, replace(region, ops=fitting(region.ops))) for key, region in op.regions))
        if op.name != CALL or op.get(CALLEE) not in changed:
            return op
        return replace(op, attributes=tuple(item for item in op.attributes if item[0] not in (NAMES, RENAME, *PLACES)))

    symbols = tuple(replace(s, ops=fitting(s.ops)) if isinstance(s, Func | Stage) else s for s in after.symbols)
    return replace(after, symbols=symbols)


def _same_names(one: Func, other: Func) -> bool:
    """Whether two functions assign the same names in the same order, in the same places."""
    return one.ops is other.ops or (
        list(assigned(one.ops)) == list(assigned(other.ops)) and list(locations(one.ops)) == list(locations(other.ops))
    )
