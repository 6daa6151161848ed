"""Writes a build directory, whole or not at all. ``dnnc/build/build.py`` reads it.

What is in it::

    manifest.json    versions, source; digest of itself and of every other file but the trace and the report
    plan.json        the plan, to read, edit and replay (``dnnc.build.plan_json``)
    plan.ir          the final module as text, repeated blocks folded, with the programs that devices run
    prompt.ir        of a decoder, the same of its prompt program, which takes several tokens at once
    trace.json       the predicted timeline, for Perfetto; a run may add the measured one
    report.html      the plan as a web page (``dnnc.report.page``)
    annotated.onnx   the unsplit model with the stage of each node (``annotate.py``)
    inputs.npz       the arrays of ``compile --inputs``, unless they are too large
    session.json     settings with which one ONNX Runtime session follows the plan, where one can (``one_session.py``)
    genai_config.json  with ``--genai``: the stages as a pipeline of onnxruntime-genai, with the tokenizer's files
    stages/          stageK.onnx, and weights.data (``--weights shared``) or stageK.data (``per-stage``); of a decoder,
                     stageK.prompt.onnx over the same weights, and with ``--genai`` stageK.open.onnx

A stage on a mesh has a model for each segment of each member instead of stageK.onnx. ``stages/`` then also
has the members' parts of weights: parts.data (``shared``) or stageK.memberI.data (``per-stage``). With ``per-stage``,
whole.data has the whole weights of all stages on meshes, which only annotated.onnx reads.

Invariants: equal inputs give equal bytes, so a build has no dates and no absolute paths; external data is in the folder of its
model or below, as ONNX asks; memory does not grow with the weights.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from dnnc.build.build import ANNOTATED, INPUTS, PLAN, PROGRAM
from dnnc.build.decoding import PROMPT, open_name, prompt_name
from dnnc.build.members import model_name
from dnnc.build.plan_json import plan_text, plan_to_json
from dnnc.build.segments import StageSegments, cut_stages, with_segments
from dnnc.build.snapshot import MANIFEST, ONNXRUNTIME, SCHEMA, sealed
from dnnc.build.timeline import predicted
from dnnc.build.trace import to_perfetto
from dnnc.build.transaction import refuse_foreign, whole_directory
from dnnc.engines.onnxruntime.faults import ModelNotWritten, NoStagePrograms, StageOnNoDevice, UnknownWeights, WeightWithoutData
from dnnc.engines.onnxruntime.write.annotate import annotate, annotation_faults
from dnnc.engines.onnxruntime.write.branches import forget_shapes
from dnnc.engines.onnxruntime.write.one_session import SESSION, session_settings
from dnnc.engines.onnxruntime.write.overwritten import copy_overwritten
from dnnc.engines.onnxruntime.write.weights_file import in_file, layout, with_places, write_weights
from dnnc.onnx.weights import WeightFiles, WeightSource, check_weights, files_of, read_resource
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Declared, External, Func, Inline, Module, Program, Resource, Schedule, Stage, State
from ir.core.names import bare
from ir.core.topology import Topology
from ir.system.digests import digest_weights
from ir.system.scratch import PARTIAL, locked_folder, partials, refuse_special, remove_dead
from ir.system.signals import termination_raises
from passes.graph.graph import reads

if TYPE_CHECKING:
    from dnnc.engines.onnxruntime.write.members import MeshPrograms

Progress: TypeAlias = Callable[[str, float | None], None]
Naming: TypeAlias = Callable[[str], str]
"""The file of a stage's model at other sizes, from that of its step."""
WEIGHTS = ("shared", "per-stage", "none")
SHARED_FILE = "weights.data"
WHOLE_FILE = "whole.data"
TRACE = "trace.json"
REPORT = "report.html"


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
    inputs: bytes | None = None,
    report: bool = True,
    prompt: Module | None = None,
    opened: Module | None = None,
    beside: Mapping[str, bytes] = MappingProxyType({}),
) -> dict[str, Any]:
    """Writes the build of a lowered module to ``out`` and returns its manifest.

    - ``data``: holds the data of external resources; ``source``: the model as the user named it (``zoo:...`` or a path);
    - ``weights``: ``shared`` (one file for all stages), ``per-stage`` (a file for each stage, to ship it to its device) or
      ``none`` (the models refer to a file that is not written);
    - ``test``: called with the paths of all models in ``stages/``, unless ``weights`` is ``none``; if it raises, nothing is
      written;
    - ``made_by``: the first lines of ``plan.ir``, comments;
    - ``prompt``: the module with the stages of the prompt program, over the same weights; ``opened``: of those with open sizes;
    - ``beside``: further files of the build, by name;
    - ``inputs``: the ``.npz`` of ``compile --inputs``; empty where it is too large for a build, None where there was none.

    Raises UsageError when ``out`` is a file or a directory that is no build, InvalidInput when data is missing or was changed
    after it was opened, or when the disk refuses; then ``out`` is as before.
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
        cut = cut_stages(module)
        write_plan_files(module, target, made_by, cut)
        if prompt is not None:
            (target / PROMPT).write_text(made_by + _module_text(prompt, cut_stages(prompt)), encoding="utf-8")
        _write_json(target / TRACE, to_perfetto({"predicted": predicted(module)}), compact=True)
        if report:
            write_report(module, target)
        files = files_of(data)
        others = {prompt_name: prompt, open_name: opened}
        _write_models(
            module, cut, files, target, weights, progress, {name: one for name, one in others.items() if one is not None}
        )
        for name, content in beside.items():
            (target / name).write_bytes(content)
        topology = module.first(Topology)
        if topology is not None and (settings := session_settings(stages, topology, ANNOTATED)) is not None:
            _write_json(target / SESSION, settings)
        if test is not None and weights != "none":
            progress("load the programs", None)
            test(sorted((target / "stages").glob("*.onnx")))
        if inputs:
            (target / INPUTS).write_bytes(inputs)
        progress("digest", None)
        entries = {"weights": weights, **({} if inputs is None else {"given": bool(inputs)})}
        manifest = manifest_of(module, target, ONNXRUNTIME, source_of(source, out, files), entries)
        _write_json(target / MANIFEST, manifest)
        files.confirm()
        progress("flush to the disk", None)
    return manifest


def write_plan(module: Module, out: Path, made_by: str = "", *, report: bool = True) -> dict[str, Any]:
    """Writes a build that cannot run: ``plan.json``, ``plan.ir``, ``trace.json`` if the plan has a schedule, ``report.html``,
    and a manifest that names no engine. Returns the manifest. Raises as ``write_build``."""
    check_target(out)
    with whole_directory(out, is_build, MANIFEST) as target:
        write_plan_files(module, target, made_by)
        if module.first(Schedule) is not None:
            _write_json(target / TRACE, to_perfetto({"predicted": predicted(module)}), compact=True)
        if report:
            write_report(module, target)
        manifest = manifest_of(module, target, "", {"spec": "", "sha256": ""}, {"weights": "none"})
        _write_json(target / MANIFEST, manifest)
    return manifest


def write_model(
    module: Module, data: WeightSource, out: Path, *, progress: Progress = lambda label, fraction: None
) -> tuple[Path, ...]:
    """Writes the entry function as the ONNX file ``out`` and its larger weights to ``OUT.data`` beside it; returns the paths of
    the files. ``data``: holds the data of external resources. Raises InvalidInput when data is missing, the disk refuses, or
    ``out`` exists and is no file."""
    refuse_special(out)
    resources = module.resources
    used = [_stored(resources, module.entry)]
    _refuse_declared(used, "shared")
    places = layout(used[0], f"{out.name}.data")
    files = files_of(data)
    complete = with_places(_inlined(module, used, files), places)
    remove_dead(partials(out.parent, out.name))
    try:
        with termination_raises(), locked_folder(out.parent, f".{out.name}.", PARTIAL) as temporary:
            _save(complete, module.entry, temporary / out.name)
            if places:
                write_weights(temporary / f"{out.name}.data", resources, places, files, progress)
            files.confirm()
            # The model last, because readers look for it.
            written = tuple(out.with_name(name) for name in ([f"{out.name}.data"] if places else []) + [out.name])
            for path in written:
                os.replace(temporary / path.name, path)
    except OSError as error:
        raise InvalidInput(ModelNotWritten(error.strerror or str(error)), where=str(out)) from error
    return written


def check_target(out: Path) -> None:
    """Raises UsageError when a build may not be written to ``out``: it is a file, or a directory that is no build. Call it
    before long work."""
    refuse_foreign(Path(os.path.abspath(out)), is_build)


def is_build(folder: Path) -> bool:
    """Whether ``folder`` is a build, of this or another version of dnnc."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and str(manifest.get("schema", "")).startswith("dnnc.build/")


def write_plan_files(module: Module, target: Path, made_by: str, cut: Sequence[StageSegments] = ()) -> None:
    """Writes ``plan.ir``, with the programs of the stages ``cut``, and ``plan.json``."""
    (target / PROGRAM).write_text(made_by + _module_text(module, cut), encoding="utf-8")
    (target / PLAN).write_text(f"{plan_text(plan_to_json(module))}\n", encoding="utf-8")


def _module_text(module: Module, cut: Sequence[StageSegments]) -> str:
    """The text of a module, what repeats folded, with the programs of the stages ``cut``."""
    from ir import print_module
    from passes.graph.folding import fold

    return print_module(with_segments(fold(module.without(Program)), cut))


def write_report(module: Module, target: Path) -> None:
    """``report.html``."""
    from dnnc.report.page import page

    (target / REPORT).write_text(page(module), encoding="utf-8")


def _write_models(
    module: Module,
    cut: Sequence[StageSegments],
    files: WeightFiles,
    target: Path,
    weights: str,
    progress: Progress,
    others: Mapping[Naming, Module],
) -> None:
    """Writes the stage models, those of the ``others``, their weights, and the annotated model."""
    (target / "stages").mkdir()
    resources, stages = module.resources, tuple(own.stage for own in cut)
    functions = [None if own.stage.mesh else own.models[0].func for own in cut]
    used = [_stored(resources, stage if func is None else func) for stage, func in zip(stages, functions, strict=True)]
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
        names = {resource.name for of_stage in used for resource in of_stage}
        places = [layout((r for r in resources.values() if r.name in names), SHARED_FILE)] * len(stages)
    inlined = _inlined(module, used, files)
    for stage, func, stage_places in zip(stages, functions, places, strict=True):
        if func is not None:
            _save(with_places(inlined, stage_places), func, target / model_name(stage.index), program=True)
    on_meshes = [one for item in others.items() for one in _write_other(*item, resources, places, files, target)]
    if weights != "none":
        by_file = {place.file: stage_places for stage_places in reversed(places) for place in stage_places.values()}
        for file, places_in_file in sorted(by_file.items()):
            write_weights(target / "stages" / file, resources, places_in_file, files, progress)
    if any(stage.mesh for stage in stages):
        from dnnc.engines.onnxruntime.write.members import MeshPrograms, write_members

        every = [MeshPrograms(inlined, cut, places), *on_meshes]
        write_members(every, target, weights, progress, partial(_save, program=True))
    first_places: dict[str, External] = {}
    for stage_places in reversed(places):  # a weight of several stages is read from the file of the first
        first_places.update(stage_places)
    _save(with_places(inlined, first_places, "stages/"), module.entry, target / ANNOTATED, stages)


def _write_other(
    named: Naming,
    other: Module,
    step: Mapping[str, Resource],
    places: Sequence[Mapping[str, External]],
    files: WeightFiles,
    target: Path,
) -> list[MeshPrograms]:
    """Writes the models of the stages at ``other`` sizes, ``named`` after those of the step; returns what is to be written of
    stages on meshes. ``step``: the resources of the step, which lie in the file of a stage at ``places``; resources that the
    step does not have stand in the models."""
    from dnnc.engines.onnxruntime.write.members import MeshPrograms

    resources, on_meshes = other.resources, list[MeshPrograms]()
    cut = {one.stage.index: one for one in cut_stages(other)}
    for stage, of_stage in zip(other.of_type(Stage), places, strict=True):
        used = _stored(resources, stage)
        same = {r.name for r in used if r.name in step and replace(r, facets=step[r.name].facets) == step[r.name]}
        shared = {name: place for name, place in of_stage.items() if name in same}
        own = _with_data(other, {resource.name for resource in used} - shared.keys(), files)
        if stage.mesh:
            on_meshes.append(MeshPrograms(own, [cut[stage.index]], [shared], named))
            continue
        _save(with_places(own, shared), stage, target / named(model_name(stage.index)), program=True)
    return on_meshes


def _save(module: Module, func: Func | Stage, path: Path, stages: tuple[Stage, ...] = (), *, program: bool = False) -> None:
    """Writes ``func`` as an ONNX model, annotated with ``stages`` if there are any; external weights are references.
    ``program``: a device runs the model many times, so no run may change the weights."""
    import onnx
    import onnx_ir

    from dnnc.engines.onnxruntime.write.export import export_func

    model = export_func(module, func)
    if stages and isinstance(func, Func):
        annotate(model, func, stages, module)
    proto = onnx_ir.to_proto(model)
    if stages and (faults := annotation_faults(proto, len(stages))):
        raise AssertionError(f"{path.name}: {'; '.join(faults[:3])}")
    forget_shapes(proto)
    if program:
        copy_overwritten(proto)
    onnx.save_model(proto, str(path))


def _stored(resources: Mapping[str, Resource], func: Func | Stage) -> list[Resource]:
    """The resources that ops read or that are results, in order of first use, without states."""
    names = dict.fromkeys(name for op in func.ops for name in reads(op) if name[0] == "@")
    names.update(dict.fromkeys(value.name for value in func.results if value.name[0] == "@"))
    return [resources[name] for name in names if name in resources and not isinstance(resources[name].data, State)]


def _refuse_declared(used: list[list[Resource]], weights: str) -> None:
    """Raises InvalidInput for a used resource without data, unless it belongs in a file that is not written."""
    for of_stage in used:
        for resource in of_stage:
            if isinstance(resource.data, Declared) and (weights != "none" or not in_file(resource)):
                raise InvalidInput(WeightWithoutData(), where=resource.name)


def _inlined(module: Module, used: list[list[Resource]], files: WeightFiles) -> Module:
    """The module with inline data for the used resources that belong in the models."""
    return _with_data(module, {r.name for of_stage in used for r in of_stage if not in_file(r)}, files)


def _with_data(module: Module, names: Collection[str], files: WeightFiles) -> Module:
    """The module with inline data for the resources called ``names``."""
    from dnnc.onnx.arrays import to_data

    symbols = tuple(
        replace(s, data=Inline(to_data(read_resource(s, files))))
        if isinstance(s, Resource) and s.name in names and not isinstance(s.data, Inline)
        else s
        for s in module.symbols
    )
    return replace(module, symbols=symbols)


def manifest_of(
    module: Module, target: Path, engine: str, source: Mapping[str, Any], entries: Mapping[str, Any]
) -> dict[str, Any]:
    """The manifest of the build in the folder ``target``. ``engine``: what runs its programs, empty for a plan alone;
    ``source``: as ``source_of`` returns it; ``entries``: entries that only builds of this engine have."""
    # The trace has no digest: a run adds its measured timeline to it. Nor has the page, which 'dnnc report' writes anew.
    files = sorted(path for path in target.rglob("*") if path.is_file() and path.name not in (TRACE, REPORT))
    manifest = {
        "schema": SCHEMA,
        "versions": _versions(),
        "source": dict(source),
        "model": bare(module.name),
        "engine": engine,
        **entries,
        "files": {
            path.relative_to(target).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in files
        },
    }
    return sealed(manifest)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return digest_weights(file, alone=True)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for name in ("dnnc", "numpy", "onnx", "onnx-ir", "onnxruntime"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return dict(sorted(versions.items()))


def source_of(spec: str, out: Path, files: WeightFiles) -> dict[str, Any]:
    """The manifest's entry on the model's source: ``spec`` (a path is relative to the build, so that both can move together),
    ``sha256`` of the model file, and in ``data`` the digests of its weight files. ``files``: the files that were read."""
    if not spec or spec.startswith("zoo:"):
        return {"spec": spec, "sha256": ""}
    path = Path(os.path.abspath(spec))
    data = files.digests()
    digest = data.pop(path.name, "")
    relative = Path(os.path.relpath(path, os.path.abspath(out))).as_posix()
    return {"spec": relative, "sha256": digest, **({"data": data} if data else {})}


def _write_json(path: Path, data: Any, compact: bool = False) -> None:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=None if compact else 1)
    path.write_text(text + "\n", encoding="utf-8")
