"""Ops that compute the same in every run (masks, positions): every stage that needs them has its own, so they never cross.

An op is *constant* where it reads nothing but what constant ops make and constants that are small or repeat one number, is not
random, and no result of it is one of the function or is captured by the body of another op. Nor is what ends a chain of
epilogues (``fused``) because several ops read it, if one of these could be fused: alone with it in a stage it would be, and
what an op costs must not hang on where others are. A constant op belongs to no unit: a run holds those it reads.
Written down, all stages but the first have copies of it, under names of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ir.module import Func
from ir.names import unique
from ir.operators import RANDOM, has
from ir.ops import Op, Value
from passes.model.graph import reads
from passes.model.op_time import epilogues, is_head, may_fuse
from passes.model.spmd.staged import Staged

T = TypeVar("T")


def constants_of(func: Func, weights: Collection[str]) -> frozenset[int]:
    """Positions of the constant ops of ``func``; ``weights``: resources that are neither small nor repeat one number."""
    kept = {value.name for value in func.results}
    for op in func.ops:
        kept.update(name for name in reads(op) if name not in op.operands)
    known, found = set[str](), set[int]()
    ends = _ends(func)
    for position, op in enumerate(func.ops):
        if position in ends or op.regions or has(op, RANDOM) or not op.name.startswith("onnx."):
            continue
        steady = all(name in known or (name.startswith("@") and name not in weights) for name in reads(op))
        if steady and not any(value.name in kept for value in op.results):
            found.add(position)
            known.update(value.name for value in op.results)
    return frozenset(found)


def _ends(func: Func) -> set[int]:
    """Positions of what is of a chain, and is read by several ops of which one could be fused."""
    readers: dict[str, set[int]] = {}
    for position, op in enumerate(func.ops):
        for name in op.operands:
            readers.setdefault(name, set()).add(position)
    fused = epilogues(func.ops, [value.name for value in func.results])
    found = set()
    for position, op in enumerate(func.ops):
        if position in fused or is_head(op):
            its = readers.get(op.results[0].name, ())
            if len(its) > 1 and any(may_fuse(func.ops[reader]) for reader in its):
                found.add(position)
    return found


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


__all__ = ["constants_of", "own_copies"]
