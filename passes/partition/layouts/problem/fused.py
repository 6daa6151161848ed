"""Chains: element-by-element ops that are fused into the matrix product or convolution before them.

A *head* is a matrix product or convolution. An *epilogue* is an op that can be fused into the head or epilogue whose result it
alone reads (``passes.costs.op_time`` says which ops, and what they cost); that result is a *link*. A *chain* is a head and the
epilogues fused, one after another, into it. In training nothing is fused.

Fusing takes that the epilogue reads the link in the layout in which the op before makes it: a collective or a slice between
them writes the value to memory. In the numbers of a problem:

- A link has two sources for each layout: made by a chain (by a head, or by an epilogue that is fused), or not.
- An epilogue's node costs its fused seconds. Its need of the link has one more key, which costs the seconds that fusion saves,
  but nothing from the source that is made by a chain in the layout that is read.
- An epilogue that makes a link has two choices of the same strategies: one *claims* to be fused, that is, makes the link's
  source of a chain; the other does not. Where the claim is false, the key costs ``Epilogue.penalty`` instead, which is at least
  what fusing this op and all that follow it can save. Where it is true, not to claim costs no less than to claim. So of two
  choices that differ in the claim alone the cheaper one is the truth (``decide.truthful``).

An epilogue that adds the results of two chains has a choice for each of the two that it could be fused into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.core.facets import Cost, Time
from ir.core.module import Func
from ir.core.topology import DeviceType
from passes.costs.op_time import epilogues, fuses, op_seconds


@dataclass(frozen=True, slots=True)
class Epilogue:
    """An op that may be fused. ``ports``: the operands that are links. ``penalty``: of an op that makes a link, the seconds
    that a false claim costs; of others 0, since they claim nothing."""

    ports: tuple[int, ...]
    penalty: float


@dataclass(frozen=True, slots=True)
class Chains:
    """``epilogues``: by position in ``Func.ops``; ``links``: the names of the values that they may be fused by."""

    epilogues: dict[int, Epilogue]
    links: frozenset[str]


def chains_of(func: Func, types: Sequence[DeviceType], *, training: bool = False) -> Chains:
    """The chains of ``func`` on devices of ``types``; none where no type fuses."""
    if training or not any(map(fuses, types)):
        return Chains({}, frozenset())
    ports = epilogues(func.ops, [value.name for value in func.results])
    reader = {func.ops[i].operands[port]: i for i, read in ports.items() for port in read}
    fusible: dict[int, Epilogue] = {}
    saving: dict[int, float] = {}  # at least what fusing the epilogue and all that follow it saves, in seconds
    for i in sorted(ports, reverse=True):
        op = func.ops[i]
        follower = reader.get(op.results[0].name)
        stated = op.facet(Cost) is None or op.facet(Time) is not None  # not fused: ``fused_seconds``
        saving[i] = 0.0 if stated else max(op_seconds(op, type_) for type_ in types)
        if follower is not None:
            saving[i] += saving[follower]
        fusible[i] = Epilogue(ports[i], saving[i] if follower is not None else 0.0)
    return Chains(fusible, frozenset(reader))
