"""Chains: what follows a product or convolution of a function element by element, fused into it where no layout is between.

``passes.model.op_time`` says what an epilogue is and costs. In a lowered program it is one where the value that it follows by,
a *link*, reaches it in the layout in which the op before makes it: a collective or a slice between them writes the value to
memory. So, as numbers of a problem:

- an epilogue's node costs its fused seconds; its need of a link has one more key, the seconds that it costs more by itself,
  which is free from the sources that are of a chain and lie as needed;
- what makes a link makes it as one of a chain if it is a product or convolution, or a fused epilogue. Whether one is fused is
  a claim of its choice, which stands there twice. To claim it falsely costs more than all that follows could gain, to deny it
  is no cheaper than to say it: of choices that differ in claims alone the cheapest is the truth (``decide.truthful``).

A sum of two chains has a choice for each by which it could be fused. In training nothing is fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.core.facets import Cost, Time
from ir.core.module import Func
from ir.core.topology import DeviceType
from passes.model.op_time import epilogues, fuses, op_seconds


@dataclass(frozen=True, slots=True)
class Epilogue:
    """``ports``: the operands by which an op may follow a chain. ``false``: seconds that the claim to be fused costs where it
    is not, of an op that further epilogues follow; else 0, and nothing is claimed."""

    ports: tuple[int, ...]
    false: float


@dataclass(frozen=True, slots=True)
class Chains:
    """``epilogues``: what may be fused, by position in the function; ``links``: the values that it would follow by."""

    epilogues: dict[int, Epilogue]
    links: frozenset[str]


def chains_of(func: Func, types: Sequence[DeviceType], *, training: bool = False) -> Chains:
    """The chains of ``func`` on devices of ``types``."""
    if training or not any(map(fuses, types)):
        return Chains({}, frozenset())
    found = epilogues(func.ops, [value.name for value in func.results])
    links: dict[str, int] = {func.ops[i].operands[port]: i for i, ports in found.items() for port in ports}
    told: dict[int, Epilogue] = {}
    gain: dict[int, float] = {}  # at most, of an epilogue and all that follow it
    for i in sorted(found, reverse=True):
        op = func.ops[i]
        behind = links.get(op.results[0].name)
        stated = op.facet(Cost) is None or op.facet(Time) is not None
        gain[i] = 0.0 if stated else max(op_seconds(op, type_) for type_ in types)
        if behind is not None:
            gain[i] += gain[behind]
        told[i] = Epilogue(found[i], gain[i] if behind is not None else 0.0)
    return Chains(told, frozenset(links))


__all__ = ["Chains", "Epilogue", "chains_of"]
