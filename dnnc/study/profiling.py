"""The operators that ``dnnc profile`` measures: those of a model as plans contain them, with their costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dnnc.compile.context import pass_context, with_topology
from dnnc.compile.flags import CompileOptions
from dnnc.compile.options import PIPELINE, asks_training, build_pipeline, for_meshes, of_zoo
from dnnc.compile.training import require_engine, require_loss
from dnnc.study.faults import WorkloadProfiled
from ir.core.diagnostics import DiagnosticSink, UsageError
from ir.core.module import Module
from ir.core.topology import Topology

if TYPE_CHECKING:
    from dnnc.onnx.weights import WeightFiles


def costed(
    options: CompileOptions, sink: DiagnosticSink, progress: Callable[[str, float | None], None]
) -> tuple[list[Module], WeightFiles, Topology]:
    """Modules after the pass ``cost``: of the pipeline for stages and, for several devices, of that for meshes, whose ops
    differ; a training step has one. Also the files of the model's data, and the topology. Raises InvalidInput, and UsageError
    for a profiled workload and for a training step without a loss or PyTorch."""
    from dnnc.compile.load import load_model, may_be_profile
    from dnnc.machines import machines_of
    from dnnc.onnx.model import require_bound
    from passes.framework.manager import PassManager
    from passes.framework.pipeline import parse_pipeline
    from passes.graph.folding import expand

    if may_be_profile(options.model):
        raise UsageError(WorkloadProfiled(options.model))
    training = asks_training(options)
    pipelines = [] if training else [parse_pipeline(PIPELINE), for_meshes(parse_pipeline(PIPELINE))]
    if not training:
        build_pipeline(options)  # refuses options that only a training step has
    progress("load the model", None)
    topology = machines_of(options.topology, sink, progress)
    imported = load_model(options.model, options.largest, sink, allow_missing_weights=True, limits=options.limits)
    imported.files.digests()  # verified before its weights are read
    module = with_topology(expand(imported.module), topology)
    require_bound(module, options.model)
    if training:
        options = of_zoo(options, module.entry)
        require_loss(options.training, module.entry)
        require_engine()
        pipelines = [build_pipeline(options)]
    modules = []
    for steps in pipelines if len(topology.devices) > 1 else pipelines[:1]:
        until = next(number for number, step in enumerate(steps) if step.name == "cost")
        modules.append(PassManager(steps[: until + 1], expanded=True).run(module, pass_context(sink, progress)))
    return modules, imported.files, topology
