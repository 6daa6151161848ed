"""Writes the stages on meshes: a model for each segment of each member, and the members' parts of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dnnc.engines.onnxruntime.write.member_weights import PARTS_FILE, MemberWeights, PartsFile, Progress, member_weights
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
    """Writes the members' programs of all stages on meshes to the build at ``target``; returns these stages by index.

    ``places[i]``: of ``stages[i]``, the place of each whole weight that is in a file; other resources have their data in the
    module. ``weights``: ``shared``, ``per-stage`` or ``none``. ``save``: writes a function as an ONNX model. Raises
    InvalidInput for a value that members cannot exchange."""
    files: dict[str, PartsFile] = {}
    mesh_stages: dict[int, MeshStage] = {}
    to_save: list[tuple[Stage, MeshStage, list[MemberWeights]]] = []
    meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    for stage, wholes in zip(stages, places, strict=True):
        if not stage.mesh:
            continue
        progress(f"cut stage {stage.index} into segments", None)
        mesh_stages[stage.index] = mesh_stage = cut_stage(module, stage, meshes[stage.mesh])
        to_save.append((stage, mesh_stage, _weights_of_members(module, stage, mesh_stage, wholes, target, weights, files)))
    for file in files.values():
        if weights != "none":
            file.write(target / "stages", progress)
    for stage, mesh_stage, of_members in to_save:
        for model in mesh_stage.models:
            local = replace(module, symbols=of_members[model.member].located())
            save(local, model.func, target / "stages" / model_name(stage, model.member, model.level))
    return mesh_stages


def _weights_of_members(
    module: Module,
    stage: Stage,
    mesh_stage: MeshStage,
    wholes: Mapping[str, External],
    target: Path,
    weights: str,
    files: dict[str, PartsFile],
) -> list[MemberWeights]:
    """The weights of each member of a stage; adds the parts that are to be written to ``files``, by file name."""
    of_members = []
    for member, parts in enumerate(mesh_stage.parts):
        name = f"stage{stage.index}.member{member}.data" if weights == "per-stage" else PARTS_FILE
        file = files.setdefault(name, PartsFile(name))
        weights_of_member = member_weights(
            parts,
            module.resources,
            wholes,
            file,
            stages=target / "stages",
            own_file=weights == "per-stage",
            written=weights != "none",
        )
        of_members.append(weights_of_member)
    return of_members


__all__ = ["write_members"]
