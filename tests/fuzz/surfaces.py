"""The table of surfaces: every kind of file that a command reads."""

from __future__ import annotations

from tests.fuzz import arrays, builds, ir_text, onnx_models, plans, topologies, workloads

SURFACES = {
    module.SURFACE.name: module.SURFACE for module in (ir_text, onnx_models, topologies, plans, builds, workloads, arrays)
}
