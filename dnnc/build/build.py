"""Reads a build directory: the programs of each stage, their inputs, and the channels between them.

``Build.open`` verifies the files (``dnnc.build.snapshot``) and makes typed data for the runtime of ``plan.ir``, which says all
that runs: the machines, the stages, the programs of their devices, the schedule and the plan. ``plan.json`` is to be edited and
replayed, and the runtime reads its entry ``decoding`` alone (``dnnc.build.decoding``); ``manifest.json`` has digests, and where
the model came from.

What the runtime needs stands in a few lines of ``plan.ir``, so ``outline`` parses these alone: no resources and no bodies of
functions and stages. A program there consists of messages, collectives and ``dnnc.segment``, each an ONNX model of ``stages/``.
Names in a build are those of the inputs and outputs of these models, without the IR's sigil.

Invariants that ``open`` checks; InvalidInput names the one that fails:
1. every listed file has the bytes that were written; stage models, and the weights that they refer to, are listed;
2. the outline of ``plan.ir`` satisfies the verifier of the IR: machines, channels, programs, schedule and plan fit each other;
3. inputs and outputs of the model have the same types in its stages;
4. the values of a member of a mesh fit its segments and collectives (``dnnc/build/members.py``).

The plan.ir of a ``dnnc.build/1``, which older versions wrote, has no programs: they are made again of its stages, which takes
seconds. What its manifest says of stages besides is not read.

Layout of the directory: ``manifest.json``, ``plan.json``, ``plan.ir``, ``annotated.onnx``, ``session.json``, ``trace.json``,
``report.html``, ``stages/stageK.onnx`` (of a decoder ``prompt.ir`` and ``stageK.prompt.onnx`` too), or
``stages/stageK.memberI.segmentJ.onnx`` for a stage on a mesh, and the weights in
``stages/weights.data`` and ``parts.data`` (shared) or ``stageK.data``, ``stageK.memberI.data`` and ``whole.data`` (per stage).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.build.collective import Collective
from dnnc.build.decoding import PROMPT, Decoding, prompt_name
from dnnc.build.faults import (
    BrokenStage,
    BuildForTraining,
    InvalidManifest,
    InvalidPrograms,
    ModuleWithoutPlan,
    NotOnnx,
    PlanOnly,
    ProfilePlanOnly,
    TrainingPlanOnly,
    WeightsNotInBuild,
)
from dnnc.build.members import Known, MemberProgram, model_name, read_members, stage_faults
from dnnc.build.snapshot import MANIFEST, ONNXRUNTIME, Progress, Snapshot
from dnnc.onnx.protobuf.places import locations
from dnnc.onnx.providers import ON_CPU, Provider
from ir.core.diagnostics import Diagnostic, Fault, InvalidInput
from ir.core.module import Func, Mesh, Module, Plan, Program, Schedule, Stage
from ir.core.names import bare
from ir.core.ops import Value
from ir.core.topology import Topology
from ir.core.types import TensorType, Type, type_bytes
from ir.ops import rows
from ir.ops.opdefs import CORE, SEGMENT, is_collective
from ir.ops.rows import Flow
from passes.meshes import LocalProgram, local_programs

if TYPE_CHECKING:
    from ir.text.parser import ParseResult

PROGRAM = "plan.ir"
PLAN = "plan.json"
INPUTS = "inputs.npz"
"""The arrays that ``compile --inputs`` was given, one microbatch."""
SIZE = "size."
"""What the names of attributes of a module begin with that are the range of a dimension: ``size.seq = [1, 512]``."""
ANNOTATED = "annotated.onnx"
"""The unsplit model, with the placement as annotations."""


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """Name and type of an input or output of a model, as in ONNX. ``dtype``: numpy's name, ``""`` when the value is no tensor.
    ``shape``: a number, a name (symbolic) or None (unknown) per dimension; None when the rank is unknown. ``type``: IR text.
    ``ranges``: of an input of a build, the least and the largest size of the names that it was compiled for a range of.
    ``parts``: equal parts of its bytes, of which a microbatch may use the first ones alone, while a build generates tokens."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    type: str
    ranges: tuple[tuple[str, int, int], ...] = ()
    parts: int = 1

    @classmethod
    def of(cls, name: str, type_: Type) -> ValueInfo:
        """That of the value called ``name`` (no sigil), without its layout."""
        if isinstance(type_, TensorType):
            type_ = replace(type_, layout=None)
            return cls(name, type_.dtype.numpy_name, type_.shape, str(type_))
        return cls(name, "", None, str(type_))


@dataclass(frozen=True, slots=True)
class Channel:
    """A tensor that stage ``source`` sends to stage ``target`` once per microbatch. ``nbytes``: bytes per microbatch with
    sub-byte elements packed, None where the type does not tell (symbolic dims, strings, sequences). ``parts``: as of
    ``ValueInfo``."""

    id: int
    tensor: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    source: int
    target: int
    nbytes: int | None
    type: str
    parts: int = 1

    @classmethod
    def of(cls, id_: int, name: str, type_: Type, source: int, target: int) -> Channel:
        """The channel ``id_`` that carries the value called ``name`` (no sigil)."""
        port = ValueInfo.of(name, type_)
        known = type_bytes(type_) if port.dtype != "string" else None
        return cls(id_, name, port.dtype, port.shape, source, target, known, port.type)


@dataclass(frozen=True, slots=True)
class StageProgram:
    """The program of one stage: the ONNX model ``model`` (its name in the build) on ``devices`` (replicas; ``device`` is the
    first); or, where it has ``members``, theirs, one on each of ``devices``, the mesh of ``axes`` (name and size) row by row.
    It has no ``model`` then, and ``collectives`` in the order in which all members take part in them.

    ``turns``: the position of the replica that has each turn, microbatch m being that of turn m modulo their number; empty
    where each replica has one. ``serves``: while the build generates tokens, of each group of sequences the position of the
    replica whose process has its states; empty where replicas take microbatches in turn."""

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
    turns: tuple[int, ...] = ()
    serves: tuple[int, ...] = ()

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
    several. ``cpus``: the host of every CPU device of the topology, in its order, also of those without a stage. ``given``:
    whether the inputs of ``compile --inputs`` are in it; None where there were none. ``decoding``: the states, None where there
    are none; they are among no ``inputs`` and ``outputs``. ``prompt``: the stages of the prompt program, where some are on
    meshes, else none."""

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
    cpus: Mapping[str, str] = field(default_factory=dict)
    given: bool | None = None
    decoding: Decoding | None = None
    prompt: tuple[StageProgram, ...] = ()

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
            serves=tuple(stage.turns for stage in self.stages),
        )

    @classmethod
    def open(cls, folder: str | Path, progress: Progress = lambda label, fraction: None) -> Build:
        """The build in ``folder``. Raises InvalidInput when it is no build, when a file differs from what was written, or when
        another schema wrote it."""
        return cls.of(Snapshot.open(folder, progress))

    @classmethod
    def of(cls, files: Snapshot) -> Build:
        """The build whose files these are. Raises InvalidInput."""
        require_programs(files)
        if files.engine != ONNXRUNTIME:
            raise InvalidInput(BuildForTraining(str(files.folder)), where=str(files.folder))
        weights, given, source = _entry(files, "weights", str), files.manifest.get("given"), read_source(files)
        module = outline(files)
        if module.first(Program) is None:
            module = _with_programs(files)
        _verify(module, files)
        decoding = read_decoding(files)
        inside = {name for state in decoding.states for name in (state.name, state.result)} if decoding is not None else set()
        try:
            build = cls(
                files=files,
                plan=_plan(module, files),
                stages=tuple(_without(stage, inside) for stage in _stages(module)),
                inputs=tuple(port for port in map(_port, module.entry.args) if port.name not in inside),
                outputs=tuple(port for port in map(_port, module.entry.results) if port.name not in inside),
                decoding=decoding,
                prompt=_prompt(files, decoding, inside),
                weights=weights,
                source=source,
                schedule=_schedule(module),
                given=None if given is None else bool(given),
                **_machines(module),
            )
            if decoding is not None:
                decoding.require_served([1 if stage.members else len(stage.devices) for stage in build.stages])
            problems = [*_missing_files(build), *_broken_stages(build)]
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidInput(InvalidPrograms(reason), where=files.where(PROGRAM)) from error
        if problems:
            raise InvalidInput(problems)
        ranges = ranges_of(module)
        return replace(build, inputs=tuple(replace(port, ranges=ranges) for port in build.inputs)) if ranges else build

    def model(self, name: str) -> tuple[bytes, dict[str, int]]:
        """An ONNX model of the build, and the open files of the weights that it may refer to, by location."""
        return self.files.read(name), self.files.weights_for(name)

    def program(self) -> Module:
        """The module of ``plan.ir``, expanded. Raises InvalidInput."""
        from ir import parse_module
        from passes.graph.folding import expand

        return expand(parse_module(self.files.text(PROGRAM), self.files.where(PROGRAM)))

    def constants(self) -> list[str]:
        """Names of the model's constants. Raises InvalidInput."""
        return [name[1:] for name in self.program().resources]


def read_program(files: Snapshot, name: str = PROGRAM) -> Module:
    """The module of ``plan.ir``, or of the file ``name``, as it was written, not expanded. Raises InvalidInput for text that is
    no valid IR."""
    from dnnc.onnx import DIALECTS
    from ir import load_module

    return load_module(files.text(name), files.where(name), dialects=DIALECTS)


def outline(files: Snapshot) -> Module:
    """What ``plan.ir`` says of machines, stages, programs, schedule and plan, and the signatures of its functions. It is not
    verified. Raises InvalidInput for text that is no IR."""
    return _outline(files.text(PROGRAM), files.where(PROGRAM)).module


@lru_cache(maxsize=2)
def _outline(text: str, where: str) -> ParseResult:
    from ir import parse

    lines, symbol, inside = [], "", False
    for line in takewhile(lambda line: line != "}", text.split("\n")):  # behind the module are aliases, which bodies use
        if line[:2] == "  " and line[2:3].isalpha():
            symbol = line.split(maxsplit=1)[0]
        inside = inside and line != "  }"
        lines.append("" if inside or symbol in ("resource", "like") else line)  # so that each line keeps its number
        inside = inside or (symbol in ("func", "stage") and line[-1:] == "{")
    return parse("\n".join([*lines, "}\n"]), where)


def ranges_of(module: Module) -> tuple[tuple[str, int, int], ...]:
    """Dimensions that a module leaves open, with the least and the largest size that it was compiled for."""
    return tuple((key.removeprefix(SIZE), *attribute.value) for key, attribute in module.attributes if key.startswith(SIZE))


def plan_of(files: Snapshot) -> Plan:
    """The plan of ``plan.ir``. Raises InvalidInput where there is none."""
    return _plan(outline(files), files)


def _plan(module: Module, files: Snapshot) -> Plan:
    plan = module.first(Plan)
    if plan is None:
        raise InvalidInput(ModuleWithoutPlan(), where=files.where(PROGRAM))
    return plan


def require_programs(files: Snapshot) -> None:
    """Raises InvalidInput where the directory holds a plan and no programs; the faults differ in how the plan becomes a
    build."""
    if files.engine:
        return
    plan = plan_of(files)
    fault: Fault = TrainingPlanOnly() if plan.minimises.trains else PlanOnly(files.where(PLAN))
    raise InvalidInput(ProfilePlanOnly() if "profile" in dict(plan.certificate) else fault, where=str(files.folder))


def _entry(files: Snapshot, key: str, kind: type[Any]) -> Any:
    """An entry of the manifest. Raises InvalidInput where it is of another kind."""
    value = files.manifest.get(key)
    if not isinstance(value, kind):
        raise InvalidInput(InvalidManifest(f"'{key}' is missing or of a wrong kind"), where=files.where(MANIFEST))
    return value


def read_source(files: Snapshot) -> Source:
    """Where the model of a build came from. Raises InvalidInput where the manifest does not say where the model came from."""
    entry = _entry(files, "source", dict)
    data = entry.get("data", {})
    if not isinstance(data, dict):
        raise InvalidInput(InvalidManifest("'data' of 'source' is no object"), where=files.where(MANIFEST))
    return Source(str(entry.get("spec", "")), str(entry.get("sha256", "")), data)


def read_decoding(files: Snapshot) -> Decoding | None:
    """What ``plan.json`` says of decoding; None where it says nothing. Raises InvalidInput."""
    if b'"decoding"' not in files.contents.get(PLAN, b""):
        return None
    entry = files.json(PLAN).get("decoding")
    if entry is None:
        return None
    try:
        return Decoding.from_json(entry)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"'decoding' lacks '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
        raise InvalidInput(InvalidPrograms(reason), where=files.where(PLAN)) from error


def _port(value: Value) -> ValueInfo:
    return ValueInfo.of(bare(value.name), value.type)


def _without(stage: StageProgram, inside: Collection[str]) -> StageProgram:
    """The stage without inputs and outputs of these names, which stay in its processes."""
    if not inside:
        return stage
    inputs, outputs = (tuple(p for p in ports if p.name not in inside) for ports in (stage.inputs, stage.outputs))
    members = (
        replace(
            member,
            outputs=tuple(part for part in member.outputs if part.name not in inside),
            states=tuple(part for part in member.outputs if part.name in inside),
        )
        for member in stage.members
    )
    return replace(stage, inputs=inputs, outputs=outputs, members=tuple(members))


def _with_programs(files: Snapshot) -> Module:
    """The module of a ``plan.ir`` without programs, with those that it leads to. Raises InvalidInput."""
    from dnnc.build.segments import cut_stages, with_segments
    from dnnc.onnx import DIALECTS
    from passes.framework.base import PassContext
    from passes.graph.folding import expand
    from passes.programs.localize import LocalizePass

    module = LocalizePass().run(expand(read_program(files)), PassContext(dialects=DIALECTS))
    return with_segments(module, cut_stages(module))


def _verify(module: Module, files: Snapshot) -> None:
    """Raises InvalidInput where machines, stages, programs, schedule and plan contradict each other."""
    from ir import verify

    where = files.where(PROGRAM)
    symbols = (
        replace(symbol, args=(), results=(), ops=()) if isinstance(symbol, Stage) else symbol
        for symbol in module.without(Func).symbols
    )
    faults = verify(replace(module, symbols=tuple(symbols)), _outline(files.text(PROGRAM), where).source_map, dialects=CORE)
    if faults:
        raise InvalidInput(replace(fault, where=where if fault.span else f"{where}: {fault.where}") for fault in faults)


def _schedule(module: Module) -> Schedule:
    """Raises ValueError where there is no schedule of a stream."""
    schedule = module.first(Schedule)
    if schedule is None or not schedule.periodic:
        raise ValueError("it has no schedule of a stream")
    return schedule


def _machines(module: Module) -> dict[str, Any]:
    """Execution providers of the devices of the stages, their cores and those of all CPU devices, and the hosts of these."""
    topology = module.first(Topology)
    if topology is None:
        return {}
    devices = dict.fromkeys(device for stage in module.of_type(Stage) for device in stage.devices)
    cpus = {device.name: device.host for device in topology.devices if topology.type(device.type).on_cores}
    cores = {device: topology.type(topology.device(device).type).cores for device in dict.fromkeys([*devices, *cpus])}
    return {
        "providers": {device: provider for device in devices if (provider := Provider.of(topology, device))},
        "cores": {device: count for device, count in cores.items() if count > 1},
        "cpus": cpus,
    }


def _stages(module: Module) -> tuple[StageProgram, ...]:
    """The stages of a module whose programs consist of segments."""
    stages = list(module.of_type(Stage))
    programs = {stage.index: local_programs(module, stage) for stage in stages}
    peers = {
        (op.name, op.get("channel")): int(op.get("peer"))
        for program in module.of_type(Program)
        for op in program.ops
        if op.name in ("comm.recv", "comm.send")
    }
    channels = [
        Channel.of(part.channel, bare(part.name), part.whole, peers["comm.recv", part.channel], stage.index)
        for stage in stages
        for part in programs[stage.index][0].receives
    ]
    plan = module.first(Plan)
    rows = plan.stages if plan is not None else ()
    types = {row.index: row.device_type for row in rows}
    turns = {row.index: row.serves for row in rows if not module.states}
    meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    found = (_stage(stage, programs[stage.index], channels, meshes.get(stage.mesh)) for stage in stages)
    return tuple(replace(stage, device_type=types.get(stage.index, ""), turns=turns.get(stage.index, ())) for stage in found)


def _stage(stage: Stage, programs: tuple[LocalProgram, ...], channels: list[Channel], mesh: Mesh | None) -> StageProgram:
    steps = [op for program in programs for op in program.ops]
    if other := next((op for op in steps if op.name != SEGMENT and not is_collective(op)), None):
        raise ValueError(
            f"the program of stage {stage.index} has {other.name}; it consists of segments, messages and collectives"
        )
    if mesh is None and [op.get("level") for op in steps] != [0]:
        raise ValueError(f"stage {stage.index} is on no mesh and has {len(steps)} segments, one of level 0 expected")
    tensors = {channel.id: channel.tensor for channel in channels}
    members, collectives = read_members(programs, mesh, tensors) if mesh is not None else ((), ())
    return StageProgram(
        index=stage.index,
        devices=stage.devices,
        device_type="",
        model=None if members else model_name(stage.index),
        inputs=tuple(ValueInfo.of(bare(value.name), value.type) for value in stage.args),
        outputs=tuple(ValueInfo.of(bare(value.name), value.type) for value in stage.results),
        receives=tuple(channel for channel in channels if channel.target == stage.index),
        sends=tuple(channel for channel in channels if channel.source == stage.index),
        axes=mesh.axes if mesh is not None else (),
        members=members,
        collectives=collectives,
    )


def _prompt(files: Snapshot, decoding: Decoding | None, inside: Collection[str]) -> tuple[StageProgram, ...]:
    """The stages of the prompt program, where some are on meshes; those of others are the step's. Raises as ``outline``."""
    if decoding is None or decoding.chunk == 1 or PROMPT not in files.contents:
        return ()
    stages = _stages(_outline(files.text(PROMPT), files.where(PROMPT)).module)
    if not any(stage.members for stage in stages):
        return ()

    def named(member: MemberProgram) -> MemberProgram:
        return replace(member, segments=tuple(replace(one, model=prompt_name(one.model)) for one in member.segments))

    alone = [_without(stage, inside) for stage in stages]
    return tuple(replace(stage, members=tuple(map(named, stage.members))) for stage in alone)


def _missing_files(build: Build) -> list[Diagnostic]:
    """Stage models that the manifest does not list, and weights that a model refers to and it does not list."""
    problems: list[Diagnostic] = []
    names = dict.fromkeys(name for stage in build.stages for name in stage.models)
    if build.decoding is not None and build.decoding.chunk > 1:
        names |= dict.fromkeys(prompt_name(stage.model) for stage in build.stages if stage.model)
        names |= dict.fromkeys(name for stage in build.prompt if stage.members for name in stage.models)
    for model in names:
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


def _broken_stages(build: Build) -> list[Diagnostic]:
    """Inputs and outputs of stages that are none of the model, and what is wrong with stages on meshes."""
    where = build.files.where(PROGRAM)
    inputs: dict[str, Known] = {port.name: (port.dtype, port.shape) for port in build.inputs}
    problems = []
    for stage in build.stages:
        reasons = [f"it states '{port.name}' otherwise than the model" for port in stage.inputs if port not in build.inputs]
        reasons += [f"it states '{port.name}' otherwise than the model" for port in stage.outputs if port not in build.outputs]
        if stage.members and not reasons:
            borders: dict[tuple[str, int], Known] = {(port.name, -1): (port.dtype, port.shape) for port in stage.outputs}
            borders |= {(c.tensor, c.id): (c.dtype, c.shape) for c in (*stage.receives, *stage.sends)}
            reasons = list(stage_faults(stage.axes, stage.members, stage.collectives, inputs, borders))
        problems += [BrokenStage(stage.index, reason).at(where) for reason in reasons[:4]]
    return problems
