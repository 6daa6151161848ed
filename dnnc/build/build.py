"""Reads a build directory: the programs of each stage, their inputs, and the channels between them.

``Build.open`` verifies the files (``dnnc.build.snapshot``) and turns ``manifest.json`` (written by
``dnnc.engines.onnxruntime.write.build``) into typed data for the runtime. It imports no ONNX library. Names in a build are
those of the inputs and outputs of the stage models, without the IR's sigil.

Invariants that ``open`` checks; InvalidInput names the one that fails:
1. stages are numbered 0 .. S-1 in order; every listed file has the bytes that were written; stage models, and the weights that
   they refer to, are listed;
2. each channel has one sender and one receiver, the sender's index is the smaller one, and both sides state the same tensor and
   type;
3. the inputs of a stage model are its ``inputs`` and the tensors of its ``receives``; its outputs are its ``outputs`` and the
   tensors of its ``sends`` (each once, however many channels carry it);
4. inputs and outputs of the model have the same types in its stages; the plan has the same stages;
5. devices can follow the schedule (``ir/ops/row_faults.py``): each does each action of its stages once, without a deadlock.

A stage on a mesh has a program for each member instead of one model (``dnnc/build/members.py``):
6. both ends of a channel between stages of one mesh shape hold the same part of its tensor; else it crosses whole.

Layout of the directory: ``manifest.json``, ``plan.json``, ``plan.ir``, ``annotated.onnx``, ``session.json``, ``trace.json``,
``report.html``, ``stages/stageK.onnx``, or ``stages/stageK.memberI.segmentJ.onnx`` for a stage on a mesh, and the weights in
``stages/weights.data`` and ``parts.data`` (shared) or ``stageK.data``, ``stageK.memberI.data`` and ``whole.data`` (per stage).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dnnc.build.collective import Collective
from dnnc.build.faults import (
    BrokenChannel,
    BrokenSchedule,
    BrokenStage,
    BuildForTraining,
    ChannelUsedTwice,
    InvalidManifest,
    NotOnnx,
    PlanOnly,
    ProfilePlanOnly,
    TensorCrossesTwice,
    TrainingPlanOnly,
    UnpairedChannel,
    WeightsNotInBuild,
    WrongEntry,
)
from dnnc.build.members import Known, MemberProgram, in_numbers, matches, stage_faults
from dnnc.build.plan_reader import plan_from_json
from dnnc.build.snapshot import MANIFEST, Progress, Snapshot
from dnnc.onnx.protobuf.places import locations
from dnnc.onnx.providers import ON_CPU, Provider
from ir.core.diagnostics import Diagnostic, Fault, InvalidInput
from ir.core.module import Action, Module, Plan, Schedule
from ir.core.ranges import MOST_MICROBATCHES
from ir.core.types import DType, TensorType, Type, type_bytes
from ir.ops import rows
from ir.ops.row_faults import faults
from ir.ops.rows import Flow
from ir.verifier.decisions import COMM_MODELS
from ir.verifier.machines import MOST_CORES, OPTION, PROVIDER

PROGRAM = "plan.ir"
PLAN = "plan.json"
TORCH = "torch"
"""The engine that the manifest of a build for training names; other builds are for ONNX Runtime and name none."""
INPUTS = "inputs.npz"
"""The arrays that ``compile --inputs`` was given, one microbatch."""
ANNOTATED = "annotated.onnx"
"""The unsplit model, with the placement as annotations."""


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """Name and type of an input or output of a model, as in ONNX. ``dtype``: numpy's name, ``""`` when the value is no tensor.
    ``shape``: a number, a name (symbolic) or None (unknown) per dimension; None when the rank is unknown. ``type``: IR text."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    type: str

    @classmethod
    def of(cls, name: str, type_: Type) -> ValueInfo:
        """That of the value called ``name`` (no sigil), without its layout."""
        if isinstance(type_, TensorType):
            type_ = replace(type_, layout=None)
            return cls(name, type_.dtype.numpy_name, type_.shape, str(type_))
        return cls(name, "", None, str(type_))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "type": self.type}


@dataclass(frozen=True, slots=True)
class Channel:
    """A tensor that stage ``source`` sends to stage ``target`` once per microbatch. ``nbytes``: bytes per microbatch with
    sub-byte elements packed, None where the type does not tell (symbolic dims, strings, sequences)."""

    id: int
    tensor: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    source: int
    target: int
    nbytes: int | None
    type: str

    @classmethod
    def of(cls, id_: int, name: str, type_: Type, source: int, target: int) -> Channel:
        """The channel ``id_`` that carries the value called ``name`` (no sigil)."""
        port = ValueInfo.of(name, type_)
        known = type_bytes(type_) if port.dtype != "string" else None
        return cls(id_, name, port.dtype, port.shape, source, target, known, port.type)

    def __str__(self) -> str:
        return f"'{self.tensor}' ({self.type}, {self.nbytes} bytes) from stage {self.source} to {self.target}"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "tensor": self.tensor,
            "dtype": self.dtype,
            "shape": self.shape,
            "source": self.source,
            "target": self.target,
            "nbytes": self.nbytes,
            "type": self.type,
        }


@dataclass(frozen=True, slots=True)
class StageProgram:
    """The program of one stage: the ONNX model ``model`` (its name in the build) on ``devices`` (replicas; ``device`` is the
    first); or, where it has ``members``, theirs, one on each of ``devices``, the mesh of ``axes`` (name and size) row by row.
    It has no ``model`` then, and ``collectives`` in the order in which all members take part in them."""

    index: int
    devices: tuple[str, ...]
    device_type: str
    model: str | None
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    receives: tuple[Channel, ...]
    sends: tuple[Channel, ...]
    axes: tuple[tuple[str, int], ...] = ()
    members: tuple[MemberProgram, ...] = ()
    collectives: tuple[Collective, ...] = ()

    @property
    def device(self) -> str:
        return self.devices[0]

    @property
    def models(self) -> tuple[str, ...]:
        """Names of all its ONNX models."""
        return (self.model,) if self.model else tuple(s.model for member in self.members for s in member.segments)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the model came from: ``spec`` is ``zoo:...`` or a path relative to the build directory; ``sha256`` of that file,
    empty where there was none; ``data``: digests of its files of external data, by their names beside it."""

    spec: str
    sha256: str
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Build:
    """One build directory. ``files``: its verified files. ``inputs``, ``outputs``: of the model, in its order. ``weights``: how
    they were written, ``shared``, ``per-stage`` or ``none`` (such a build cannot run). ``schedule``: the actions that each
    device repeats for a stream. ``providers``: the execution providers that device types name. ``cores``: of devices with
    several. ``given``: whether the inputs of ``compile --inputs`` are in it; None where there were none."""

    files: Snapshot
    plan: Plan
    stages: tuple[StageProgram, ...]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    weights: str
    source: Source
    schedule: Schedule
    providers: Mapping[str, Provider] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)
    given: bool | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that run a stage."""
        return tuple(dict.fromkeys(device for stage in self.stages for device in stage.devices))

    def threads(self, device: str, asked: int = 0) -> int:
        """Threads of the programs of ``device``: as many as were ``asked`` for, with 0 as many as it has cores."""
        return asked or self.cores.get(device, 1)

    def provider(self, device: str) -> Provider:
        """The execution provider that runs the programs of ``device``: the CPU's where its type names none."""
        return self.providers.get(device, ON_CPU)

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every channel once, by id."""
        return tuple(sorted((c for stage in self.stages for c in stage.receives), key=lambda c: c.id))

    @property
    def flow(self) -> Flow:
        """Stages, channels and buffers: what the actions of the schedule refer to."""
        return Flow(
            tuple(stage.devices for stage in self.stages),
            {channel.id: rows.Channel(channel.source, channel.target) for channel in self.channels},
            self.plan.comm,
            self.schedule.slots,
            frozenset(stage.index for stage in self.stages if stage.members),
        )

    @classmethod
    def open(cls, folder: str | Path, progress: Progress = lambda label, fraction: None) -> Build:
        """The build in ``folder``. Raises InvalidInput when it is no build, when a file differs from what was written, or when
        another schema wrote it."""
        return cls.of(Snapshot.open(folder, progress))

    @classmethod
    def of(cls, files: Snapshot) -> Build:
        """The build whose files these are. Raises InvalidInput."""
        where = files.where(MANIFEST)
        require_programs(files)
        if files.manifest.get("engine") == TORCH:
            raise InvalidInput(BuildForTraining(str(files.folder)), where=str(files.folder))
        try:
            build = _from_manifest(files)
            problems = _missing_files(build) or _broken_channels(build) or _broken_meshes(build) or _broken_rows(build)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidInput(InvalidManifest(reason), where=where) from error
        if problems:
            raise InvalidInput(problems)
        return build

    def model(self, name: str) -> tuple[bytes, dict[str, int]]:
        """An ONNX model of the build, and the open files of the weights that it may refer to, by location."""
        return self.files.read(name), self.files.weights_for(name)

    def program(self) -> Module:
        """The module of ``plan.ir``, expanded. Raises InvalidInput."""
        from ir import parse_module
        from passes.model.folding import expand

        return expand(parse_module(self.files.text(PROGRAM), self.files.where(PROGRAM)))

    def constants(self) -> list[str]:
        """Names of the model's constants. Raises InvalidInput."""
        return [name[1:] for name in self.program().resources]


def read_program(files: Snapshot) -> Module:
    """The module of ``plan.ir`` as it was written, not expanded. Raises InvalidInput for text that is no valid IR."""
    from dnnc.onnx import DIALECTS
    from ir import load_module

    return load_module(files.text(PROGRAM), files.where(PROGRAM), dialects=DIALECTS)


def require_programs(files: Snapshot) -> None:
    """Raises InvalidInput where the directory holds a plan and no programs."""
    if files.manifest.get("stages") == []:
        raise InvalidInput(_plan_only(files), where=str(files.folder))


def _plan_only(files: Snapshot) -> Fault:
    """Why there are no programs; the kinds differ in how the plan becomes a build. Raises InvalidInput for a wrong plan."""
    plan = plan_from_json(files.json(PLAN), files.where(PLAN))
    if "profile" in dict(plan.certificate):
        return ProfilePlanOnly()
    return TrainingPlanOnly() if plan.minimises.trains else PlanOnly(files.where(PLAN))


def _from_manifest(files: Snapshot) -> Build:
    manifest = files.manifest
    stages = tuple(
        StageProgram(
            index=int(stage["index"]),
            devices=tuple(map(str, stage["devices"])),
            device_type=str(stage["device_type"]),
            model=None if "members" in stage else str(stage["model"]),
            inputs=_ports(stage["inputs"]),
            outputs=_ports(stage["outputs"]),
            receives=_channels(stage["receives"]),
            sends=_channels(stage["sends"]),
            axes=tuple((str(name), int(size)) for name, size in stage.get("axes", ())),
            members=tuple(map(MemberProgram.from_json, stage.get("members", ()))),
            collectives=tuple(map(Collective.from_json, stage.get("collectives", ()))),
        )
        for stage in manifest["stages"]
    )
    if not stages or [stage.index for stage in stages] != list(range(len(stages))):
        raise ValueError(f"stages are numbered {[stage.index for stage in stages]}, expected 0, 1, ...")
    if any(not stage.devices for stage in stages):
        raise ValueError("a stage has no device")
    if any(stage.model is None and not stage.members for stage in stages):
        raise ValueError("a stage on a mesh has no members")
    source = manifest["source"]
    plan = plan_from_json(files.json(PLAN), files.where(PLAN))
    if [stage.index for stage in plan.stages] != [stage.index for stage in stages]:
        raise ValueError(f"plan.json has {len(plan.stages)} stages, the manifest {len(stages)}")
    inputs, outputs = _ports(manifest["inputs"]), _ports(manifest["outputs"])
    for stage in stages:
        for port, of_model in [*((port, inputs) for port in stage.inputs), *((port, outputs) for port in stage.outputs)]:
            if port not in of_model:
                raise ValueError(f"stage {stage.index} states '{port.name}' otherwise than the model")
    return Build(
        files=files,
        plan=plan,
        stages=stages,
        inputs=inputs,
        outputs=outputs,
        weights=str(manifest["weights"]),
        source=Source(str(source["spec"]), str(source["sha256"]), dict(source.get("data", {}))),
        schedule=_schedule(manifest["schedule"]),
        providers=_providers(manifest.get("providers", {}), {device for stage in stages for device in stage.devices}),
        cores=_cores(manifest.get("cores", {})),
        given=bool(manifest["given"]) if "given" in manifest else None,
    )


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """The actions of each device: kind, stage, microbatch and, for transfers, channel."""
    rows = {
        device: [[a.kind, a.stage, a.microbatch] + ([] if a.channel is None else [a.channel]) for a in actions]
        for device, actions in schedule.rows
    }
    return {"slots": schedule.slots, "rows": rows}


def _schedule(data: Mapping[str, Any]) -> Schedule:
    """Raises ValueError for numbers that are none, or out of range."""
    rows = []
    for device, actions in data["rows"].items():
        for action in actions:
            kind, *numbers = action
            if not isinstance(kind, str) or not 2 <= len(numbers) <= 3 or any(type(n) is not int for n in numbers):
                raise ValueError(f"the row of '{device}' has {action!r}, expected kind, stage, microbatch and perhaps channel")
            if abs(numbers[1]) > MOST_MICROBATCHES:
                raise ValueError(f"the row of '{device}' has microbatch {numbers[1]}")
        rows.append((str(device), tuple(Action(*action) for action in actions)))
    slots = data["slots"]
    if type(slots) is not int or not 1 <= slots <= MOST_MICROBATCHES:
        raise ValueError(f"the schedule has {slots!r} slots")
    return Schedule("@schedule", "stream", tuple(rows), periodic=True, slots=slots)


def _providers(items: Mapping[str, Any], devices: set[str]) -> dict[str, Provider]:
    """Raises ValueError for what is no provider, or one of a device that no stage is on."""
    providers = {}
    for device, item in items.items():
        provider = Provider.from_json(item)
        if device not in devices:
            raise ValueError(f"it states the provider of '{device}', on which there is no stage")
        if not isinstance(provider.name, str) or not PROVIDER.fullmatch(provider.name):
            raise ValueError(f"the provider of '{device}' is no provider as onnxruntime spells them")
        for key, value in provider.options:
            if not isinstance(value, str) or not OPTION.fullmatch(value):
                raise ValueError(f"the option '{key}' of the provider of '{device}' is no text that names no file")
        providers[device] = provider
    return providers


def _cores(items: Mapping[str, Any]) -> dict[str, int]:
    """Raises ValueError for what is no number of cores."""
    for device, count in items.items():
        if type(count) is not int or not 1 <= count <= MOST_CORES:
            raise ValueError(f"'{device}' has {count!r} cores, not from 1 to {MOST_CORES}")
    return dict(items)


def _ports(items: Iterable[Mapping[str, Any]]) -> tuple[ValueInfo, ...]:
    return tuple(ValueInfo(i["name"], _dtype(i["dtype"]), _shape(i["shape"]), i["type"]) for i in items)


def _channels(items: Iterable[Mapping[str, Any]]) -> tuple[Channel, ...]:
    return tuple(
        Channel(i["id"], i["tensor"], _dtype(i["dtype"]), _shape(i["shape"]), i["source"], i["target"], i["nbytes"], i["type"])
        for i in items
    )


def _dtype(name: str) -> str:
    if name and all(name != dtype.numpy_name for dtype in DType):
        raise ValueError(f"there is no element type '{name}'")
    return name


def _shape(shape: list[int | str | None] | None) -> tuple[int | str | None, ...] | None:
    return None if shape is None else tuple(shape)


def _missing_files(build: Build) -> list[Diagnostic]:
    """Stage models that the manifest does not list, and weights that a model refers to and it does not list."""
    problems: list[Diagnostic] = []
    for model in dict.fromkeys(name for stage in build.stages for name in stage.models):
        try:
            referred = locations(build.files.read(model)) if build.weights != "none" else ()
        except InvalidInput as error:
            problems += error.diagnostics
            continue
        except ValueError as error:
            problems.append(NotOnnx(str(error)).at(build.files.where(model)))
            continue
        weights = build.files.weights_for(model)
        for name in (name for name in referred if name not in weights):
            problems.append(WeightsNotInBuild(name).at(build.files.where(model)))
    return problems


def _broken_meshes(build: Build) -> list[Diagnostic]:
    """What is wrong with stages on meshes, and with what crosses between them."""
    where = str(build.folder / MANIFEST)
    inputs: dict[str, Known] = {port.name: (port.dtype, port.shape) for port in build.inputs}
    problems = []
    for stage in (stage for stage in build.stages if stage.members):
        borders: dict[tuple[str, int], Known] = {(port.name, -1): (port.dtype, port.shape) for port in stage.outputs}
        borders |= {(c.tensor, c.id): (c.dtype, c.shape) for c in (*stage.receives, *stage.sends)}
        faults = list(stage_faults(stage.axes, stage.members, stage.collectives, inputs, borders))
        if tuple(member.device for member in stage.members) != stage.devices:
            faults.insert(0, f"its members are not those of its devices {list(stage.devices)}")
        problems += [BrokenStage(stage.index, reason).at(where) for reason in faults[:4]]
    if problems:
        return problems
    for channel in build.channels:
        maker, reader = build.stages[channel.source], build.stages[channel.target]
        if maker.members or reader.members:
            problems += [BrokenChannel(channel.id, reason).at(where) for reason in _crossing_faults(channel, maker, reader)]
    return problems


def _crossing_faults(channel: Channel, maker: StageProgram, reader: StageProgram) -> Iterable[str]:
    """What is wrong with a channel that has a mesh at one end or both."""
    sent = [[part for part in member.sends if part.channel == channel.id] for member in maker.members]
    received = [[part for part in member.receives if part.channel == channel.id] for member in reader.members]
    if any(len(parts) != 1 for parts in sent + received):
        yield "some members do not send or receive it once"
        return
    if matches(maker.axes, reader.axes):
        pairs = [
            (one[0].box, one[0].reduction, other[0].box, other[0].reduction) for one, other in zip(sent, received, strict=True)
        ]
        if any(left != right for *left, one, two in pairs for right in ([one, two],)):
            yield "a member receives another part than the member of the same number sends"
        return
    whole = tuple((0, dim) for dim in channel.shape or ()) if in_numbers(channel.shape) else ()
    if any(parts[0].box != whole or parts[0].reduction for parts in sent + received):
        yield "between stages of different shape it must cross whole"


def _broken_rows(build: Build) -> list[Diagnostic]:
    """What keeps the rows of the schedule from being followed."""
    if build.plan.comm not in COMM_MODELS:
        return [WrongEntry(f"'comm' as one of {', '.join(COMM_MODELS)}", f"'{build.plan.comm}'").at(build.files.where(PLAN))]
    where = build.files.where(MANIFEST)
    return [BrokenSchedule(reason).at(where) for reason in faults(build.schedule, build.flow)[:4]]


def _broken_channels(build: Build) -> list[Diagnostic]:
    """Channels whose ends do not agree; where all agree, channels that should be one, or that one stage lists twice."""
    where = build.files.where(MANIFEST)
    sent = {channel.id: (stage.index, channel) for stage in build.stages for channel in stage.sends}
    received = {channel.id: (stage.index, channel) for stage in build.stages for channel in stage.receives}
    problems = []
    for id_ in sorted(sent.keys() | received.keys()):
        source, out = sent.get(id_, (-1, None))
        target, into = received.get(id_, (-1, None))
        if out is None or into is None or out != into or (out.source, out.target) != (source, target) or source >= target:
            sides = _stage_text(source), str(out or "it"), _stage_text(target), str(into or "it")
            problems.append(UnpairedChannel(id_, *sides).at(where))
    if problems:
        return problems
    crossings: set[tuple[int, int, str]] = set()
    for channel in (channel for stage in build.stages for channel in stage.receives):
        crossing = (channel.source, channel.target, channel.tensor)
        if crossing in crossings:
            return [TensorCrossesTwice(channel.tensor, channel.source, channel.target).at(where)]
        crossings.add(crossing)
    count = sum(len(stage.sends) for stage in build.stages), sum(len(stage.receives) for stage in build.stages)
    return [ChannelUsedTwice().at(where)] if count != (len(sent), len(received)) else []


def _stage_text(index: int) -> str:
    return f"stage {index}" if index >= 0 else "no stage"
