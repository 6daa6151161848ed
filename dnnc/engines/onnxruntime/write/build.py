"""The build directory: stage models, weights, annotated model, plan, trace and manifest, written whole or not at all.

What is in it (``dnnc/build/build.py`` reads it back)::

    manifest.json    versions, source, stages with their channels, size and digest of every other file but the trace; its own
    plan.json        the decision, to read, edit and replay (``dnnc.build.plan_json``)
    plan.ir          the whole final module as text, what repeats in it folded
    trace.json       the predicted timeline, for Perfetto; a run may add the measured one
    annotated.onnx   the unsplit model with the placement as annotations (``annotate.py``)
    inputs.npz       the arrays of ``compile --inputs``, where they are not too large to be kept
    session.json     how one ONNX Runtime session runs that as the plan says, where one session can (``one_session.py``)
    stages/          stageK.onnx, and weights.data (``shared``) or stageK.data (``per-stage``)

A stage on a mesh has a model for each segment of each member in the place of one (``segments.py``); ``stages/`` then also holds
parts.data (``shared``) or stageK.memberI.data (``per-stage``), and, per stage, whole.data: what only annotated.onnx reads.

Invariants: equal inputs give equal bytes, whatever the place and the time: no dates, no absolute paths; a model's external
data lies in its own folder or below it, as ONNX asks; memory needed does not grow with the weights.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dnnc.build.build import ANNOTATED, INPUTS, PLAN, PROGRAM, Channel, ValueInfo, schedule_to_json
from dnnc.build.plan_json import bare, plan_text, plan_to_json
from dnnc.build.snapshot import MANIFEST, SCHEMA, sealed
from dnnc.build.timeline import predicted
from dnnc.build.trace import to_perfetto
from dnnc.build.transaction import refuse_foreign, whole_directory
from dnnc.engines.onnxruntime.faults import ModelNotWritten, NoStagePrograms, StageOnNoDevice, UnknownWeights, WeightWithoutData
from dnnc.engines.onnxruntime.write.annotate import annotate, annotation_faults
from dnnc.engines.onnxruntime.write.branches import forget_shapes
from dnnc.engines.onnxruntime.write.one_session import SESSION, session_settings
from dnnc.engines.onnxruntime.write.overwritten import copy_overwritten
from dnnc.engines.onnxruntime.write.weights_file import in_file, layout, moved, write_weights
from dnnc.onnx.providers import Provider
from dnnc.onnx.weights import WeightFiles, WeightSource, check_weights, files_of, read_resource
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Declared, External, Func, Inline, Module, Plan, Program, Resource, Schedule, Stage
from ir.core.ops import Value
from ir.core.topology import Topology
from ir.system.digests import digest_weights
from ir.system.scratch import PARTIAL, locked_folder, partials, refuse_special, remove_dead
from ir.system.signals import termination_raises
from passes.model.graph import cuts_of, reads
from passes.model.spmd import local_programs

if TYPE_CHECKING:
    from dnnc.engines.onnxruntime.write.segments import MeshStage

Progress: TypeAlias = Callable[[str, float | None], None]
WEIGHTS = ("shared", "per-stage", "none")
SHARED_FILE = "weights.data"
WHOLE_FILE = "whole.data"
TRACE = "trace.json"


def write_build(
    module: Module,
    data: WeightSource,
    source: str,
    out: Path,
    *,
    weights: str = "shared",
    progress: Progress = lambda label, fraction: None,
    test: Callable[[Iterable[Path]], None] | None = None,
    made_by: str = "",
    given: bytes | None = None,
) -> dict[str, Any]:
    """Writes the build of a lowered module to ``out`` and returns its manifest.

    ``data`` is where external resources lie; ``source`` the model as the user named it (``zoo:...`` or a path). ``weights``:
    ``shared`` (one file, each weight once), ``per-stage`` (a file for each stage, for shipping), ``none`` (models that refer to
    a file that is not written). ``plan_only`` writes no models at all. ``test`` gets the models of all stages once they lie
    there, if they have their weights, and raises to have nothing written. ``made_by``: the comment lines that ``plan.ir``
    begins with. ``given``: the ``.npz`` of the inputs that the plan was made for, empty where it is too large to be kept.

    Raises UsageError when ``out`` is someone else's directory, InvalidInput when data is missing, a file of it was
    written to since it was opened, or the disk refuses; then ``out`` is as it was before.
    """
    if weights not in WEIGHTS:
        raise UsageError(UnknownWeights(weights, tuple(WEIGHTS)), where="--weights")
    stages = tuple(module.of_type(Stage))
    if not stages:
        raise InvalidInput(NoStagePrograms(), where=module.name)
    unplaced = [stage.index for stage in stages if not stage.devices]
    if unplaced:
        raise InvalidInput(StageOnNoDevice(unplaced[0]), where=module.name)
    check_target(out)
    with whole_directory(out, is_build, MANIFEST) as target:
        progress("write the plan", None)
        write_plan_files(module, target, made_by)
        _write_json(target / TRACE, to_perfetto({"predicted": predicted(module)}), compact=True)
        files = files_of(data)
        cut = _write_models(module, stages, files, target, weights, progress)
        topology = module.first(Topology)
        if topology is not None and (settings := session_settings(stages, topology, ANNOTATED)) is not None:
            _write_json(target / SESSION, settings)
        if test is not None and weights != "none":
            progress("load the programs", None)
            test(sorted((target / "stages").glob("*.onnx")))
        if given:
            (target / INPUTS).write_bytes(given)
        progress("digest", None)
        manifest = _manifest(module, stages, target, weights, source_of(source, out, files), cut, given)
        _write_json(target / MANIFEST, manifest)
        files.confirm()
        progress("flush to the disk", None)
    return manifest


def write_plan(module: Module, out: Path, made_by: str = "") -> dict[str, Any]:
    """Writes the plan alone: ``plan.json``, ``plan.ir`` and, where it is scheduled, ``trace.json``, with a manifest without
    stages, and returns that. Such a directory is replaced like a build but cannot
    be run. Raises as ``write_build``."""
    check_target(out)
    with whole_directory(out, is_build, MANIFEST) as target:
        write_plan_files(module, target, made_by)
        if module.first(Schedule) is not None:
            _write_json(target / TRACE, to_perfetto({"predicted": predicted(module)}), compact=True)
        manifest = _manifest(module, (), target, "none", {"spec": "", "sha256": ""}, {})
        _write_json(target / MANIFEST, manifest)
    return manifest


def write_model(
    module: Module, data: WeightSource, out: Path, *, progress: Progress = lambda label, fraction: None
) -> tuple[Path, ...]:
    """Writes the entry function as one ONNX file and its larger weights to ``OUT.data`` beside it; returns what was written.
    ``data`` is where external resources lie. Raises InvalidInput when data is missing, the disk refuses, or
    ``out`` is there and is no file."""
    refuse_special(out)
    resources = module.resources
    used = [[resources[name] for name in _resource_names(module.entry) if name in resources]]
    _refuse_declared(used, "shared")
    places = layout(used[0], f"{out.name}.data")
    files = files_of(data)
    kept = moved(_inlined(module, used, files), places)
    remove_dead(partials(out.parent, out.name))
    try:
        with termination_raises(), locked_folder(out.parent, f".{out.name}.", PARTIAL) as temporary:
            _save(kept, module.entry, temporary / out.name)
            if places:
                write_weights(temporary / f"{out.name}.data", resources, places, files, progress)
            files.confirm()
            # The model last: it is what a reader looks for.
            written = tuple(out.with_name(name) for name in ([f"{out.name}.data"] if places else []) + [out.name])
            for path in written:
                os.replace(temporary / path.name, path)
    except OSError as error:
        raise InvalidInput(ModelNotWritten(error.strerror or str(error)), where=str(out)) from error
    return written


def check_target(out: Path) -> None:
    """Raises UsageError when a build may not be written to ``out``: it is a file, or a directory of someone else's. To be asked
    before the long work."""
    refuse_foreign(Path(os.path.abspath(out)), is_build)


def is_build(folder: Path) -> bool:
    """Whether ``folder`` was written by this module, in this or another version."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and str(manifest.get("schema", "")).startswith("dnnc.build/")


def write_plan_files(module: Module, target: Path, made_by: str) -> None:
    """``plan.ir`` and ``plan.json``."""
    from ir import print_module
    from passes.model.folding import fold

    decided = module.without(Program)  # they follow from the stages
    (target / PROGRAM).write_text(made_by + print_module(fold(decided)), encoding="utf-8")
    (target / PLAN).write_text(f"{plan_text(plan_to_json(module))}\n", encoding="utf-8")


def _write_models(
    module: Module, stages: tuple[Stage, ...], files: WeightFiles, target: Path, weights: str, progress: Progress
) -> dict[int, MeshStage]:
    """Stage models, their weights, and the annotated model. Returns the stages on meshes, as they were cut."""
    (target / "stages").mkdir()
    resources = module.resources
    functions = [None if stage.mesh else _function(module, stage) for stage in stages]
    used = [
        [resources[name] for name in (_mesh_resources(stage) if func is None else _resource_names(func)) if name in resources]
        for stage, func in zip(stages, functions, strict=True)
    ]
    _refuse_declared(used, weights)
    if weights != "none":
        check_weights(replace(module, symbols=tuple({r.name: r for of_stage in used for r in of_stage}.values())), files)
    if weights == "per-stage":
        on_mesh = layout((r for stage, own in zip(stages, used, strict=True) if stage.mesh for r in own), WHOLE_FILE)
        places = [
            on_mesh if stage.mesh else layout(of_stage, f"stage{stage.index}.data")
            for stage, of_stage in zip(stages, used, strict=True)
        ]
    else:
        every = {resource.name for of_stage in used for resource in of_stage}
        places = [layout((r for r in resources.values() if r.name in every), SHARED_FILE)] * len(stages)
    kept = _inlined(module, used, files)
    for stage, func, place in zip(stages, functions, places, strict=True):
        if func is not None:
            _save(moved(kept, place), func, target / "stages" / f"stage{stage.index}.onnx", program=True)
    if weights != "none":
        for file in sorted({place.file for of_stage in places for place in of_stage.values()}):
            here = next(of_stage for of_stage in places if any(place.file == file for place in of_stage.values()))
            write_weights(target / "stages" / file, resources, here, files, progress)
    cut: dict[int, MeshStage] = {}
    if any(stage.mesh for stage in stages):
        from dnnc.engines.onnxruntime.write.members import write_members

        cut = write_members(kept, stages, places, target, weights, progress, partial(_save, program=True))
    anywhere: dict[str, External] = {}
    for of_stage in reversed(places):  # a weight that several stages hold is read from the first
        anywhere.update(of_stage)
    _save(moved(kept, anywhere, "stages/"), module.entry, target / ANNOTATED, stages)
    return cut


def _function(module: Module, stage: Stage) -> Func:
    """What a device runs of a stage without a mesh, as a function without ``comm`` ops: what it receives is an argument, behind
    the model's inputs; what it sends is a result, behind the model's outputs, each tensor once."""
    program = local_programs(module, stage)[0]
    received = tuple(Value(part.name, part.type) for part in program.receives)
    left = {part.name: part.type for part in (*program.outputs, *program.sends)}
    results = tuple(Value(name, type_) for name, type_ in left.items())
    return Func(stage.name, (*program.args, *received), results, program.ops, stage.attributes)


def _save(module: Module, func: Func, path: Path, stages: tuple[Stage, ...] = (), *, program: bool = False) -> None:
    """Writes ``func`` as an ONNX model, annotated with ``stages`` when they are given; weights stay where the module says.
    ``program``: it is what a device runs, again and again."""
    import onnx
    import onnx_ir

    from dnnc.engines.onnxruntime.write.export import export_func

    model = export_func(module, func)
    if stages:
        annotate(model, func, stages, module)
    proto = onnx_ir.to_proto(model)
    if stages and (faults := annotation_faults(proto, len(stages))):
        raise AssertionError(f"{path.name}: {'; '.join(faults[:3])}")
    forget_shapes(proto)
    if program:
        copy_overwritten(proto)
    onnx.save_model(proto, str(path))


def _resource_names(func: Func) -> Iterable[str]:
    """Resources that ``func`` reads or hands through, in order of first use."""
    found = dict.fromkeys(name for op in func.ops for name in reads(op) if name[0] == "@")
    found.update(dict.fromkeys(value.name for value in func.results if value.name[0] == "@"))
    return found


def _mesh_resources(stage: Stage) -> Iterable[str]:
    """Resources that the members of a stage read or hand through, those of collectives included, in order of first use."""
    found = dict.fromkeys(name for op in stage.ops for name in reads(op) if name[0] == "@")
    found.update(dict.fromkeys(value.name for value in stage.results if value.name[0] == "@"))
    return found


def _refuse_declared(used: list[list[Resource]], weights: str) -> None:
    for of_stage in used:
        for resource in of_stage:
            if isinstance(resource.data, Declared) and (weights != "none" or not in_file(resource)):
                raise InvalidInput(WeightWithoutData(), where=resource.name)


def _inlined(module: Module, used: list[list[Resource]], files: WeightFiles) -> Module:
    """The module with the data of resources that stay in the models read into them."""
    from dnnc.onnx.arrays import to_data

    small = {r.name for of_stage in used for r in of_stage if not in_file(r) and not isinstance(r.data, Inline)}
    symbols = tuple(
        replace(s, data=Inline(to_data(read_resource(s, files)))) if isinstance(s, Resource) and s.name in small else s
        for s in module.symbols
    )
    return replace(module, symbols=symbols)


def _manifest(
    module: Module,
    stages: tuple[Stage, ...],
    target: Path,
    weights: str,
    source: Mapping[str, Any],
    cut: Mapping[int, MeshStage],
    given: bytes | None = None,
) -> dict[str, Any]:
    types = _device_types(module)
    channels = [
        Channel.of(id_, bare(crossing.name), crossing.tensor.type, crossing.source, crossing.target)
        for id_, crossing in enumerate(cuts_of(module.entry))
    ]
    entries = [
        {
            "index": stage.index,
            "devices": list(stage.devices),
            "device_type": types.get(stage.index, ""),
            **({} if stage.index in cut else {"model": f"stages/stage{stage.index}.onnx"}),
            "inputs": [ValueInfo.of(bare(value.name), value.type).to_json() for value in stage.args],
            "outputs": [ValueInfo.of(bare(value.name), value.type).to_json() for value in stage.results],
            "receives": [channel.to_json() for channel in channels if channel.target == stage.index],
            "sends": [channel.to_json() for channel in channels if channel.source == stage.index],
            **(cut[stage.index].to_json() if stage.index in cut else {}),
        }
        for stage in stages
    ]
    schedule = module.first(Schedule)
    rows = {"schedule": schedule_to_json(schedule)} if schedule is not None and stages else {}
    kept = {} if given is None else {"given": bool(given)}
    return sealed(manifest_of(module, target, source, {"weights": weights, "stages": entries, **rows, **kept}))


def _device_types(module: Module) -> dict[int, str]:
    return {stage.index: stage.device_type for plan in module.of_type(Plan) for stage in plan.stages}


def manifest_of(module: Module, target: Path, source: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of the build that lies in ``target``, without its own digest. ``source``: where the model came from
    (``source_of``); ``entries``: what the kind of build adds."""
    topology = module.first(Topology)
    planned = {type_.name for type_ in topology.types if type_.name in _device_types(module).values()} if topology else set()
    used = dict.fromkeys(device for stage in module.of_type(Stage) for device in stage.devices) if topology else {}
    named = {device: Provider.of(topology, device) for device in used} if topology and entries["stages"] else {}
    providers = {device: provider.to_json() for device, provider in named.items() if provider}
    types = {device: topology.device(device).type for device in used} if topology else {}
    kinds = {name: topology.type(name).kind for name in sorted({*types.values(), *planned})} if topology else {}
    hosts = sorted({topology.device(device).host for device in used}) if topology else []
    counts = {device: topology.type(topology.device(device).type).cores for device in used} if topology else {}
    cores = {device: count for device, count in counts.items() if count > 1}
    # A run adds its measured timeline to the trace: that file changes, and nothing is computed from it.
    files = sorted(path for path in target.rglob("*") if path.is_file() and path.name != TRACE)
    return {
        "schema": SCHEMA,
        "versions": _versions(),
        "source": dict(source),
        "model": bare(module.name),
        "kinds": kinds,
        **({"types": types} if any(kind != "cpu" for kind in kinds.values()) else {}),
        "hosts": hosts,
        **({"providers": providers} if providers else {}),
        **({"cores": cores} if cores else {}),
        "inputs": [ValueInfo.of(bare(value.name), value.type).to_json() for value in module.entry.args],
        "outputs": [ValueInfo.of(bare(value.name), value.type).to_json() for value in module.entry.results],
        **entries,
        "files": {
            path.relative_to(target).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in files
        },
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return digest_weights(file, alone=True)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("dnnc", "numpy", "onnx", "onnx-ir", "onnxruntime"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return dict(sorted(found.items()))


def source_of(spec: str, out: Path, files: WeightFiles) -> dict[str, Any]:
    """Where the model came from; a file is named relative to the build, so that both can move together. ``files``: those that
    the model was read from; ``data`` has the digests of the ones beside it that hold its weights."""
    if not spec or spec.startswith("zoo:"):
        return {"spec": spec, "sha256": ""}
    path = Path(os.path.abspath(spec))
    data = files.digests()
    digest = data.pop(path.name, "")
    named = Path(os.path.relpath(path, os.path.abspath(out))).as_posix()
    return {"spec": named, "sha256": digest, **({"data": data} if data else {})}


def _write_json(path: Path, data: Any, compact: bool = False) -> None:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=None if compact else 1)
    path.write_text(text + "\n", encoding="utf-8")
