"""What a bound is a bound of: a digest of everything that the value of a plan depends on but the plan itself.

Two modules with the same digest have the same plans with the same values, so a bound proven for one holds for the other. That
is how the proof of a plan outlives its editing: ``plan.json`` keeps the digest beside the bound, and a replay on the same
problem keeps the bound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir import print_module
from ir.core.facets import DECISIONS
from ir.core.module import Declared, Func, Module, Resource
from ir.core.objectives import THROUGHPUT
from ir.core.topology import Topology


@dataclass(frozen=True, slots=True)
class Among:
    """The plans that a bound is of: those of so many ``stages`` (0: any number), each of at most so many ``replicas`` (0: any
    number), which at inference may have unlike ``turns``."""

    stages: int = 0
    replicas: int = 1
    turns: bool = False

    def __str__(self) -> str:
        of_stages = f" in {self.stages} stages" if self.stages else ""
        of_turns = " turns" if self.turns else ""
        return of_stages + {0: " replicas", 1: ""}.get(self.replicas, f" {self.replicas} replicas") + of_turns


def of_objective(objective: str) -> str:
    """What tells problems of an objective from those of a stream, which minimise another number of the same plans."""
    return f" {objective}" if objective != THROUGHPUT.name else ""


def problem_digests(module: Module, comm: str, among: Sequence[Among]) -> list[str]:
    """Of each of ``among`` the digest of a bound of these plans: ``sha256:...`` of the entry function without decisions, the
    other functions, the types of the resources (not their data), the topology, ``comm``, and which plans they are."""
    entry = module.entry
    ops = tuple(replace(op, facets=tuple(f for f in op.facets if type(f) not in DECISIONS)) for op in entry.ops)
    symbols = tuple(
        replace(symbol, ops=ops, attributes=())
        if symbol is entry
        else replace(symbol, data=Declared(), digest="", facets=())
        if isinstance(symbol, Resource)
        else symbol
        for symbol in module.symbols
        if isinstance(symbol, Func | Resource | Topology)
    )
    text = print_module(Module("@problem", symbols), aliases=False) + comm
    shared, found = hashlib.sha256(text.encode()), []
    for plans in among:
        digest = shared.copy()
        digest.update(str(plans).encode())
        found.append(f"sha256:{digest.hexdigest()}")
    return found
