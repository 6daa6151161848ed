"""What nothing reads: ops without a reader, resources without one; and equal small constants, kept once.

An op is needed when the body yields one of its results, a needed op reads one, or it acts on the world (``comm``). Arguments
stay: they are the model's interface.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ir.core.module import Func, Inline, Module, Resource, ResourceData, Splat, Stage
from ir.core.ops import Op
from ir.core.types import Type, type_bytes
from passes.graph.graph import reads

MERGED_BYTES = 1024
"""Equal constants up to this size become one; larger ones may be weights that only happen to be equal."""


def live_ops(ops: Iterable[Op], yielded: Iterable[str]) -> tuple[Op, ...]:
    """The needed ops of a body that yields ``yielded``, the same inside their regions."""
    needed = set(yielded)
    kept: list[Op] = []
    for op in reversed(tuple(ops)):
        acts = op.dialect == "comm" or not op.results
        if not acts and not any(value.name in needed for value in op.results):
            continue
        if op.regions:
            regions = tuple((key, replace(region, ops=live_ops(region.ops, region.results))) for key, region in op.regions)
            op = op if regions == op.regions else replace(op, regions=regions)
        needed.update(reads(op))
        kept.append(op)
    return tuple(reversed(kept))


def used_symbols(module: Module) -> set[str]:
    """Names that functions and stages read or yield."""
    used: set[str] = set()
    for symbol in module.symbols:
        if isinstance(symbol, Func | Stage):
            used.update(value.name for value in symbol.results)
            for op in symbol.ops:
                used.update(reads(op))
    return used


def equal_constants(resources: Iterable[Resource]) -> dict[str, str]:
    """For each small constant with an equal one before it, that one's name."""
    first: dict[tuple[Type, ResourceData], str] = {}
    found: dict[str, str] = {}
    for resource in resources:
        size = type_bytes(resource.type)
        if isinstance(resource.data, Inline | Splat) and size is not None and size <= MERGED_BYTES and not resource.facets:
            # A Splat of -0.0 equals one of 0.0 for Python.
            data = resource.data if isinstance(resource.data, Inline) else Inline(repr(resource.data.value).encode())
            kept = first.setdefault((resource.type, data), resource.name)
            if kept != resource.name:
                found[resource.name] = kept
    return found
