"""Models and meshes for tests of the search: small layers, slow links, so that every way of splitting has its price."""

from __future__ import annotations

from functools import lru_cache

from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.topology import DeviceType
from passes.costs.exchange import Speed
from passes.graph.folding import Folding, folding
from passes.meshes.mesh import Axis, DeviceMesh
from passes.partition.layouts import ShardInput, build
from passes.prepare.cost import CostPass
from tests.ir.layout_rules.test_models import canonical, imported

CHIP = DeviceType("chip", "gpu", (("f32", 1e12),), 1e11, None, 0.0)


def mesh(*sizes: int, bandwidth: float = 1e10, latency: float = 0.0) -> DeviceMesh:
    """Axes of equal links between equal chips."""
    return DeviceMesh(tuple(Axis("xyz"[i], size, Speed(bandwidth, latency)) for i, size in enumerate(sizes)), (), (CHIP,))


@lru_cache(maxsize=8)
def prepared(spec: str, batch: int = 8) -> tuple[Module, Folding]:
    """A model with costs, and its repeats."""
    module = CostPass().run(canonical(imported(spec, batch)), pass_context(DiagnosticSink()))
    return module, folding(module.entry, module)


def problem_of(spec: str, sizes: tuple[int, ...], *, batch: int = 8, training: bool = False) -> ShardInput:
    module, found = prepared(spec, batch)
    return build(module, module.entry, mesh(*sizes), found, training=training)


__all__ = ["CHIP", "mesh", "prepared", "problem_of"]
