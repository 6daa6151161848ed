"""Checks a collective of a program. Workers do not import this: it needs the IR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dnnc.build.collective import Collective
from dnnc.onnx.elements import BFLOAT16, BY_NUMBER, Element, packed
from ir.core.types import REDUCTIONS
from ir.ops.opdefs import COLLECTIVES


def collective_faults(one: Collective, members: int) -> Iterator[str]:
    """What is wrong with a collective of a stage with so many members; nothing when it is right."""
    step = COLLECTIVES.get(one.kind)
    if step is None:
        yield f"collective '{one.kind}' is unknown, one of {', '.join(COLLECTIVES)} expected"
        return
    element = BY_NUMBER.get(one.element)
    if element is None or packed(element):
        yield f"a collective cannot move elements of type {one.element if element is None else element.name}"
        return
    if one.level < 0:
        yield f"a level is at least 0, not {one.level}"
    if sorted(member for group in one.groups for member in group) != list(range(members)):
        yield f"groups {[list(group) for group in one.groups]} do not hold each of {members} members once"
        return
    if len(one.operands) != members or len(one.results) != members:
        yield f"{len(one.operands)} operands and {len(one.results)} results found, {members} members expected"
        return
    if any(dim < 0 for shape in (*one.operands, *one.results) for dim in shape):
        yield "a dimension is below 0"
        return
    if step.reduces:
        if one.reduction not in REDUCTIONS:
            yield f"reduction '{one.reduction}' is unknown, one of {', '.join(REDUCTIONS)} expected"
        elif not reducible(element, one.reduction):
            yield f"no {one.reduction} of elements of type {element.name}"
    for name, dim, needed in (
        ("split", one.split, bool(step.split)),
        ("join", one.join, bool(step.join)),
    ):
        ranks = {len(shape) for shape in (*one.operands, *one.results)}
        if len(ranks) != 1 or not (0 <= dim < min(ranks) if needed else dim == -1):
            yield f"{name} dimension {dim} does not fit shapes {_texts(one.operands)}"
            return
    for group in one.groups:
        yield from _group_faults(one, group)


def _group_faults(one: Collective, group: tuple[int, ...]) -> Iterator[str]:
    operands, results = [one.operands[m] for m in group], [one.results[m] for m in group]
    wanted = [list(shape) for shape in operands]
    if one.split >= 0:  # what a member gives is cut into parts as long as the results
        lengths = [shape[one.split] for shape in results]
        if any(shape[one.split] != sum(lengths) for shape in operands):
            yield f"parts of {lengths} along dimension {one.split} are not those of {_texts(operands)}"
        for shape, length in zip(wanted, lengths, strict=True):
            shape[one.split] = length
    if one.join >= 0:
        total = sum(shape[one.join] for shape in operands)
        for shape in wanted:
            shape[one.join] = total
    else:
        wanted = [[d if i == one.split else wanted[0][i] for i, d in enumerate(shape)] for shape in wanted]
    if [list(shape) for shape in results] != wanted or (one.join < 0 and len(set(operands)) != 1):
        yield f"{one.kind} of {_texts(operands)} gives {_texts(map(tuple, wanted))}, not {_texts(results)}"


def _texts(shapes: Any) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


def reducible(element: Element, reduction: str) -> bool:
    """Whether elements can be added up, or compared."""
    if element.name == "bool":
        return reduction == "max"
    if element.name.startswith("complex"):
        return reduction == "sum"
    return element.number == BFLOAT16 or (element.carrier == element.name)
