"""Stages on meshes, written: a model for each segment of each member, and the files of the parts of weights that they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dnnc.engines.onnxruntime.write.member_weights import PARTS_FILE, Held, PartsFile, Progress, hold
from dnnc.engines.onnxruntime.write.segments import MeshStage, cut_stage, model_name
from ir.core.module import External, Func, Mesh, Module, Stage


def write_members(
    module: Module,
    stages: tuple[Stage, ...],
    places: list[dict[str, External]],
    target: Path,
    weights: str,
    progress: Progress,
    save: Callable[[Module, Func, Path], None],
) -> dict[int, MeshStage]:
    """Writes the members' programs of all stages on meshes to the build at ``target``, in which the whole weights lie at
    ``places``; returns the stages by index. Resources of no place have their data in the module; ``save`` writes an ONNX model.
    Raises InvalidInput for what cannot be run."""
    files: dict[str, PartsFile] = {}
    written: dict[int, MeshStage] = {}
    holders: list[tuple[Stage, MeshStage, list[Held]]] = []
    meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    for stage, wholes in zip(stages, places, strict=True):
        if not stage.mesh:
            continue
        progress(f"cut stage {stage.index} into segments", None)
        written[stage.index] = cut = cut_stage(module, stage, meshes[stage.mesh])
        holders.append((stage, cut, _holds(module, stage, cut, wholes, target, weights, files)))
    for file in files.values():
        if weights != "none":
            file.write(target / "stages", progress)
    for stage, cut, holds in holders:
        for model in cut.models:
            local = replace(module, symbols=holds[model.member].settled())
            save(local, model.func, target / "stages" / model_name(stage, model.member, model.level))
    return written


def _holds(
    module: Module,
    stage: Stage,
    cut: MeshStage,
    wholes: Mapping[str, External],
    target: Path,
    weights: str,
    files: dict[str, PartsFile],
) -> list[Held]:
    """What each member of a stage holds; parts that are to be written are added to ``files``."""
    found = []
    for member, parts in enumerate(cut.held):
        name = f"stage{stage.index}.member{member}.data" if weights == "per-stage" else PARTS_FILE
        file = files.setdefault(name, PartsFile(name))
        held = hold(
            parts,
            module.resources,
            wholes,
            file,
            stages=target / "stages",
            own=weights == "per-stage",
            written=weights != "none",
        )
        found.append(held)
    return found


__all__ = ["write_members"]
