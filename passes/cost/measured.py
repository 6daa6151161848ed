"""What a run of the model on given inputs (``context.measure``) adds to what types and formulas say.

Ops whose types say no size get a ``Measured`` facet. They also get the seconds that they took, but for products and what a
runtime fuses into them: the time of a Loop or a ``NonMaxSuppression`` depends on values in ways that no count of bytes tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ir.facets import Cost, Measured, Time
from ir.module import Module
from ir.ops import Op
from ir.topology import Topology
from ir.types import TensorType
from passes.framework.base import Measurements
from passes.model.op_time import may_fuse, op_seconds


def with_measurements(module: Module, measured: Measurements) -> Module:
    """The module with a ``Measured`` facet on every op, of regions too, that has regions, or a result whose type says no
    size."""

    def ops_of(ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(map(op_of, ops))

    def op_of(op: Op) -> Op:
        regions = tuple((key, replace(region, ops=ops_of(region.ops))) for key, region in op.regions)
        op = replace(op, regions=regions)
        unsized = any(isinstance(value.type, TensorType) and value.type.elements is None for value in op.results)
        if not (unsized or regions) or op.id not in measured.runs:
            return op
        shapes = tuple(measured.shapes.get(value.name, "?") for value in op.results)
        return op.with_facets(Measured(shapes, measured.runs[op.id]))

    entry = module.entry
    return module.replace(entry, replace(entry, ops=ops_of(entry.ops)))


def with_seconds(module: Module, measured: Measurements) -> Module:
    """The module with the measured ``Time`` of the entry function's ops that have a ``Measured`` facet; on device types other
    than a CPU their facts say how long they take."""
    topology = module.first(Topology)
    if topology is None:
        return module

    def op_of(op: Op) -> Op:
        cost = op.facet(Cost)
        depends = op.facet(Measured) is not None and cost is not None and not (_is_product(cost) or may_fuse(op))
        if not depends or op.id not in measured.seconds:
            return op
        seconds = {
            f"@{type_.name}": measured.seconds[op.id] if type_.kind == "cpu" else op_seconds(op, type_)
            for type_ in topology.types
        }
        return op.with_facets(Time(tuple(sorted(seconds.items()))))

    entry = module.entry
    return module.replace(entry, replace(entry, ops=tuple(map(op_of, entry.ops))))


def _is_product(cost: Cost) -> bool:
    """Whether the runtime has optimisations for the op that the measured run went without."""
    return cost.kind.startswith(("conv", "matmul"))


__all__ = ["with_measurements", "with_seconds"]
