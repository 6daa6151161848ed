"""The ops of a model as plans see them, with their costs: what ``dnnc profile`` measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dnnc.driver import pass_context, with_topology
from dnnc.kinds import PIPELINE, SHARDED_PIPELINE
from ir.diagnostics import DiagnosticSink, UsageError
from ir.limits import Limits
from ir.module import Module
from ir.topology import Topology


def costed(
    model: str,
    machines: str,
    dims: Mapping[str, int | str],
    limits: Limits,
    sink: DiagnosticSink,
    progress: Callable[[str, float | None], None],
) -> tuple[list[Module], Path, Topology]:
    """The modules behind the pass ``cost`` of a plan in stages, and, for several devices, of one on meshes, whose ops differ;
    the folder of the model's data; the topology. Raises InvalidInput, and UsageError for a profiled workload."""
    from dnnc.frontends import free_symbols, load_model, may_be_profile, require_static
    from dnnc.machine import machines_of
    from passes.framework.manager import PassManager
    from passes.framework.pipeline import parse_pipeline
    from passes.model.folding import expand

    if may_be_profile(model):
        raise UsageError(f"{model} is a workload, which states its seconds", hint="profile an ONNX model")
    progress("load the model", None)
    topology = machines_of(machines, sink, progress)
    imported = load_model(model, dims, sink, allow_missing_weights=True, limits=limits)
    module = with_topology(expand(imported.module), topology)
    if free_symbols(module.entry):
        require_static(module, model)
    found = []
    for text in (PIPELINE, SHARDED_PIPELINE) if len(topology.devices) > 1 else (PIPELINE,):
        steps = parse_pipeline(text)
        until = next(number for number, step in enumerate(steps) if step.name == "cost")
        found.append(PassManager(steps[: until + 1], expanded=True).run(module, pass_context(sink, progress)))
    return found, imported.folder, topology


__all__ = ["costed"]
