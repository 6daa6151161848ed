"""What a bound is a bound of: a digest of everything that the value of a plan depends on but the plan itself.

Two modules with the same digest have the same plans with the same values, so a bound proven for one holds for the other. That
is how the proof of a plan outlives its editing: ``plan.json`` keeps the digest beside the bound, and a replay on the same
problem keeps the bound.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from ir import print_module
from ir.core.facets import DECISIONS
from ir.core.module import Declared, Func, Module, Resource
from ir.core.topology import Topology


def problem_digest(module: Module, comm: str, *, replicas: bool = False) -> str:
    """``sha256:...`` of the entry function without decisions, the other functions, the types of the resources (not their data),
    the topology, ``comm``, and whether stages may have ``replicas``."""
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
    text = print_module(Module("@problem", symbols), aliases=False) + comm + (" replicas" if replicas else "")
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
