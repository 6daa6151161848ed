"""Writes the directory of a training build, whole or not at all.

plan.json, plan.ir, trace.json, report.html   as in every build; the ranks read plan.ir
stages/stageK.py                 the functions of a program (``stage_file``)
weights.safetensors              the weights before the first step, as a checkpoint of training
manifest.json                    versions, source, size and digest of every file
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dnnc.build.snapshot import MANIFEST, TORCH
from dnnc.build.timeline import predicted
from dnnc.build.trace import to_perfetto
from dnnc.build.training import Step, file_name, tensor_type
from dnnc.build.transaction import whole_directory
from dnnc.engines.onnxruntime.faults import WeightWithoutData
from dnnc.engines.onnxruntime.write.build import (
    TRACE,
    check_target,
    is_build,
    manifest_of,
    source_of,
    write_plan_files,
    write_report,
)
from dnnc.engines.torch.checkpoint import INITIAL, Part, Position, from_array, write_tensors
from dnnc.engines.torch.write.stage_file import program_source, title_of
from dnnc.onnx import DIALECTS
from dnnc.onnx.weights import WeightFiles, WeightSource, files_of, read_resource
from ir.core.diagnostics import InvalidInput
from ir.core.module import Declared, Module, Program, Splat
from ir.core.ops import all_reads


def write_training_build(
    module: Module,
    data: WeightSource,
    source: str,
    out: Path,
    *,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
    made_by: str = "",
    report: bool = True,
) -> dict[str, Any]:
    """Writes the build of a scheduled and lowered training step to ``out`` and returns its manifest.

    ``data``: where external weights are; ``source``: the model as the user named it; ``made_by``: the first comment of
    ``plan.ir``. Raises UsageError if dnnc did not write the directory ``out``, InvalidInput for an op that cannot be written
    as PyTorch, a weight without data, or a failure to write; then ``out`` is unchanged."""
    step = Step.of(module, DIALECTS, module.name)
    check_target(out)
    with whole_directory(out, is_build, MANIFEST) as target:
        progress("write the plan", None)
        write_plan_files(module, target, made_by)
        trace = to_perfetto({"predicted": predicted(module)})
        (target / TRACE).write_text(json.dumps(trace, ensure_ascii=False) + "\n", encoding="utf-8")
        if report:
            write_report(module, target)
        (target / "stages").mkdir()
        for stage in step.stages:
            for program in (program for program in step.module.of_type(Program) if program.stage == stage.name):
                source_text = program_source(step.module, program, title_of(stage, program))
                (target / file_name(step, stage, program)).write_text(source_text, encoding="utf-8")
        progress("write the weights", None)
        sources = files_of(data)
        _write_weights(step, sources, target / INITIAL)
        progress("digest", None)
        manifest = manifest_of(module, target, TORCH, source_of(source, out, sources), {"weights": "shared"})
        sources.confirm()
        (target / MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return manifest


def _write_weights(step: Step, files: WeightFiles, path: Path) -> None:
    """Writes all resources that a program reads, or that the unsplit model reads, with which ``dnnc train --check`` compares.
    A splat, such as initial optimizer state, is left out: plan.ir has its value. One weight is in memory at a time."""
    import numpy as np
    import torch

    used = {name for rank in range(len(step.devices)) for name in step.held(rank)}
    used.update(name for op in step.module.entry.ops for name in all_reads(op))
    parts = {}
    for name, resource in step.resources.items():
        if name not in used or isinstance(resource.data, Splat):
            continue
        if isinstance(resource.data, Declared):
            raise InvalidInput(WeightWithoutData(), where=name)
        type_ = tensor_type(resource.type)
        parts[name[1:]] = Part.whole(type_.dtype, (int(dim) for dim in type_.shape or ()))  # type: ignore[arg-type]

    def read(name: str) -> torch.Tensor:
        array = read_resource(step.resources[f"@{name}"], files)
        return from_array(np.array(array, order="C"))  # np.ascontiguousarray would give scalars a dimension

    write_tensors(path, parts, read, Position())
