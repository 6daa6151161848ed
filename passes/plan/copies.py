"""Ops that several stages compute for themselves: written down, each stage but the first has copies, under other names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ir.core.module import Func
from ir.core.names import unique
from ir.core.ops import Op, Value
from passes.meshes.staged import Staged

T = TypeVar("T")


def own_copies(func: Func, stages: Sequence[Staged], taken: Iterable[str]) -> tuple[Func, list[Staged], list[tuple[str, str]]]:
    """The function in which no op is in two stages, the stages of it, and of each copy its id and that of the op that it is of.
    ``taken``: names that are not to be used."""
    holders: dict[int, list[int]] = {}
    for number, stage in enumerate(stages):
        for position in stage.ops:
            holders.setdefault(position, []).append(number)
    if all(len(numbers) == 1 for numbers in holders.values()):
        return func, list(stages), []
    names = {*taken, *(value.name for op in func.ops for value in op.results)}
    renamed: list[dict[str, str]] = [{} for _ in stages]
    ids: list[dict[str, str]] = [{} for _ in stages]
    own: list[list[int]] = [[] for _ in stages]
    ops: list[Op] = []
    copies = []
    for position, op in enumerate(func.ops):
        for turn, number in enumerate(holders.get(position, ())):
            changed = renamed[number]
            if turn:
                changed.update((v.name, unique(f"{v.name}.stage{number}", names)) for v in op.results if v.name)
            operands = tuple(changed.get(name, name) for name in op.operands)
            results = tuple(Value(changed.get(v.name, v.name), v.type) for v in op.results)
            own[number].append(len(ops))
            ops.append(replace(op, operands=operands, results=results))
            ids[number][op.id] = ops[-1].id
            if turn:
                copies.append((ops[-1].id, op.id))
    told = []
    for number, stage in enumerate(stages):
        bill, decisions, changed = stage.bill, stage.decisions, renamed[number]
        told.append(
            replace(
                stage,
                ops=tuple(own[number]),
                decisions=replace(decisions, strategies={ids[number][i]: s for i, s in decisions.strategies.items()}),
                bill=replace(
                    bill,
                    lies=_under(bill.lies, changed),
                    asked=_under(bill.asked, changed),
                    reads={
                        ids[number].get(i, i): [(changed.get(name, name), lies) for name, lies in rows]
                        for i, rows in bill.reads.items()
                    },
                    work={ids[number].get(i, i): seconds for i, seconds in bill.work.items()},
                    collectives=[replace(one, value=changed.get(one.value, one.value)) for one in bill.collectives],
                ),
            )
        )
    return replace(func, ops=tuple(ops)), told, copies


def _under(table: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    return {names.get(name, name): row for name, row in table.items()}
