"""Writes the stages on meshes: a model for each segment of each member, and the members' parts of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dnnc.build.members import collective_faults, collectives_of, model_name
from dnnc.build.segments import StageSegments
from dnnc.engines.onnxruntime.faults import ValueNotExchanged
from dnnc.engines.onnxruntime.write.member_weights import PARTS_FILE, MemberWeights, PartsFile, Progress, member_weights
from ir.core.diagnostics import InvalidInput
from ir.core.module import External, Func, Mesh, Module


@dataclass(frozen=True, slots=True)
class MeshPrograms:
    """The programs of ``module``, of which some stages are on meshes. ``places[i]``: of the stage ``cut[i]``, the place of each
    whole weight that is in a file; other resources have their data in the module. ``named``: the name of a model in the build,
    from that of the step program."""

    module: Module
    cut: Sequence[StageSegments]
    places: Sequence[Mapping[str, External]]
    named: Callable[[str], str] = str


def write_members(
    every: Sequence[MeshPrograms], target: Path, weights: str, progress: Progress, save: Callable[[Module, Func, Path], None]
) -> None:
    """Writes the models of all stages on meshes to the build at ``target``, over the same parts of weights.

    ``weights``: ``shared``, ``per-stage`` or ``none``. ``save``: writes a function as an ONNX model. Raises InvalidInput for a
    value that members cannot exchange."""
    files: dict[str, PartsFile] = {}
    to_save: list[tuple[MeshPrograms, StageSegments, list[MemberWeights]]] = []
    for programs in every:
        module, meshes = programs.module, {mesh.name: mesh for mesh in programs.module.of_type(Mesh)}
        for stage, wholes in zip(programs.cut, programs.places, strict=True):
            if stage.stage.mesh:
                _require_exchangeable(stage, meshes[stage.stage.mesh])
                to_save.append((programs, stage, _weights_of_members(module, stage, wholes, target, weights, files)))
    for file in files.values():
        if weights != "none":
            file.write(target / "stages", progress)
    for programs, stage, of_members in to_save:
        for model in stage.models:
            local = replace(programs.module, symbols=of_members[model.member].located())
            save(local, model.func, target / programs.named(model_name(stage.stage.index, model.level, model.member)))


def _require_exchangeable(cut: StageSegments, mesh: Mesh) -> None:
    """Raises InvalidInput for a value that members cannot exchange."""
    for collective in collectives_of(cut.members, mesh):
        for fault in collective_faults(collective, len(cut.members)):
            where = f"stage {cut.stage.index}, value '{collective.operand}'"
            raise InvalidInput(ValueNotExchanged(fault), where=where)


def _weights_of_members(
    module: Module,
    cut: StageSegments,
    wholes: Mapping[str, External],
    target: Path,
    weights: str,
    files: dict[str, PartsFile],
) -> list[MemberWeights]:
    """The weights of each member of a stage; adds the parts that are to be written to ``files``, by file name."""
    of_members = []
    for member, program in enumerate(cut.members):
        name = f"stage{cut.stage.index}.member{member}.data" if weights == "per-stage" else PARTS_FILE
        file = files.setdefault(name, PartsFile(name))
        weights_of_member = member_weights(
            program.parts,
            module.resources,
            wholes,
            file,
            stages=target / "stages",
            own_file=weights == "per-stage",
            written=weights != "none",
        )
        of_members.append(weights_of_member)
    return of_members
