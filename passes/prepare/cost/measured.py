"""What a run of the model on given inputs (``context.measure``) adds to what types say: sizes, and how often each op of a loop
or a branch ran. Seconds follow from both by the formulas that every op has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ir.core.facets import Measured
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.types import TensorType
from passes.framework.base import Measurements


def with_measurements(module: Module, measured: Measurements) -> Module:
    """The module with a ``Measured`` facet on every op that has regions, stands in one, or has a result whose type says no
    size."""

    def ops_of(ops: Iterable[Op], inside: bool) -> tuple[Op, ...]:
        return tuple(op_of(op, inside) for op in ops)

    def op_of(op: Op, inside: bool) -> Op:
        runs = measured.runs.get(op.id, 0)
        seen = inside or bool(runs and op.regions)
        regions = tuple((key, replace(region, ops=ops_of(region.ops, seen))) for key, region in op.regions)
        op = replace(op, regions=regions)
        unsized = any(not isinstance(value.type, TensorType) or value.type.elements is None for value in op.results)
        if not (seen or (unsized and runs)):
            return op
        shapes = tuple(measured.shapes.get(value.name, "?") for value in op.results)
        return op.with_facets(Measured(shapes, runs))

    entry = module.entry
    return module.replace(entry, replace(entry, ops=ops_of(entry.ops, False)))
