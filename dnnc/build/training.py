"""A training step as its ranks see it, derived from ``plan.ir``.

Ranks are numbered in the order of their devices in the stages. ``plan.ir`` determines everything here: the actions of each
rank, the programs that ``localize`` makes of the stages, the part of each tensor that a device holds, and senders and
receivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dnnc.build.faults import NotATensor, NotATrainingStep
from ir.core.attributes import Dense
from ir.core.diagnostics import InvalidInput
from ir.core.facets import FORWARD, UPDATE, phase_of
from ir.core.module import Action, Mesh, Module, Program, Resource, Schedule, Stage
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.core.types import DType, TensorType, Type, without_layout
from ir.ops.boxes import Box, members_along, placements_of
from ir.ops.boxes import box as box_of
from ir.ops.grads import ASSIGN
from ir.ops.loss_scale import LOSS_SCALE
from ir.ops.opdefs import Dialects
from ir.ops.optimizers import EMA, OPTIMIZERS
from ir.ops.rows import delay
from passes.graph.graph import origins
from passes.meshes import local_programs
from passes.meshes.costs.cross_mesh import Party, messages, party
from passes.meshes.program import LocalProgram


@dataclass(frozen=True, slots=True)
class Channel:
    """A tensor that crosses from ``source`` to ``target`` once per microbatch, or once per step where ``update``. The source
    calls it ``sent`` and the target ``name``; these differ where the source gathers a value to send it whole."""

    number: int
    sent: str
    name: str
    source: Stage
    target: Stage
    update: bool


@dataclass(frozen=True)
class Step:
    """A training step: a module whose stages have programs."""

    module: Module

    @classmethod
    def of(cls, module: Module, dialects: Dialects, where: str = "") -> Step:
        """The step of a module whose stages are lowered and scheduled. Raises InvalidInput where they are not."""
        from passes.framework.base import PassContext
        from passes.programs.localize import LocalizePass

        stages = tuple(module.of_type(Stage))
        if module.first(Schedule) is None or all(phase_of(op.facets) == FORWARD for stage in stages for op in stage.ops):
            raise InvalidInput(NotATrainingStep(), where=where)
        return cls(LocalizePass().run(module.without(Program), PassContext(dialects=dialects)))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(self.module.of_type(Stage))

    @cached_property
    def schedule(self) -> Schedule:
        schedule = self.module.first(Schedule)
        assert schedule is not None
        return schedule

    @property
    def microbatches(self) -> int:
        return self.schedule.microbatches

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The devices, by rank."""
        return tuple(dict.fromkeys(device for stage in self.stages for device in stage.devices))

    def cores(self, rank: int) -> int:
        """Of the device of a rank."""
        topology = self.module.first(Topology)
        return topology.type(topology.device(self.devices[rank]).type).cores if topology is not None else 1

    def cpus_beside(self, devices: Sequence[str]) -> dict[str, int]:
        """The cores of each CPU device of the hosts of ``devices``, in the topology's order, and of ``devices`` in any case."""
        topology = self.module.first(Topology)
        if topology is None:
            return dict.fromkeys(devices, 1)
        hosts = {topology.device(device).host for device in devices}
        types = {device: topology.type(device.type) for device in topology.devices}
        beside = (one for one in topology.devices if (one.host in hosts and types[one].on_cores) or one.name in devices)
        return {device.name: types[device].cores for device in beside}

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        return {device: rank for rank, device in enumerate(self.devices)}

    @cached_property
    def resources(self) -> Mapping[str, Resource]:
        return self.module.resources

    @cached_property
    def meshes(self) -> Mapping[str, Mesh]:
        return {mesh.name: mesh for mesh in self.module.of_type(Mesh)}

    @cached_property
    def averages(self) -> Mapping[str, str]:
        """The resources that are moving averages of weights, each with its weight."""
        names = origins(self.module.entry)
        updates = [op for op in self.module.entry.ops if op.name in OPTIMIZERS]
        weights = {op.results[0].name: names.get(op.operands[0], op.operands[0]) for op in updates}
        moved = [(op.operands[0], op.operands[1]) for op in self.module.entry.ops if op.name == EMA]
        return {average: weights[names.get(new, new)] for average, new in moved}

    @cached_property
    def loss_scale(self) -> tuple[str, ...]:
        """The resources that hold the scale of the loss, the steps since it changed and the skipped steps; none where the loss
        has no scale."""
        return next((op.operands[:3] for op in self.module.entry.ops if op.name == LOSS_SCALE), ())

    @cached_property
    def channels(self) -> Mapping[int, Channel]:
        """Every channel between stages, by number."""
        by_index = {stage.index: stage for stage in self.stages}
        channels = {}
        for stage in self.stages:
            for op in stage.ops:
                if op.name == "comm.recv":
                    source, value = by_index[int(op.get("peer"))], op.results[0]
                    send = self._send(source, op.get("channel"))
                    update = phase_of(send.facets) == UPDATE
                    channels[int(op.get("channel"))] = Channel(
                        op.get("channel"), send.operands[0], value.name, source, stage, update
                    )
        return channels

    def _send(self, stage: Stage, channel: int) -> Op:
        """The send on a channel."""
        return next(op for op in stage.ops if op.name == "comm.send" and op.get("channel") == channel)

    def row(self, rank: int) -> tuple[Action, ...]:
        """The actions of a rank in one step, in order."""
        return dict(self.schedule.rows)[self.devices[rank]]

    @cached_property
    def delays(self) -> Mapping[str, int]:
        """How many updates each trained weight lacks that its stage works with, by name, where rows have no flush; else
        empty."""
        if not self.schedule.periodic:
            return {}
        rows = dict(self.schedule.rows)
        return {
            op.operands[0]: delay(rows[stage.devices[0]], stage.index, self.microbatches)
            for stage in self.stages
            for op in stage.ops
            if op.name == ASSIGN and phase_of(op.facets) == UPDATE
        }

    def stages_of(self, rank: int) -> tuple[Stage, ...]:
        return tuple(stage for stage in self.stages if self.devices[rank] in stage.devices)

    def takers(self, stage: Stage, microbatch: int) -> tuple[int, ...]:
        """The ranks that work on a microbatch of a stage: the members of its mesh, or the replica whose turn it is."""
        if stage.mesh:
            return tuple(self.ranks[device] for device in stage.devices)
        return (self.ranks[stage.devices[microbatch % len(stage.devices)]],)

    def turns(self, stage: Stage, rank: int) -> tuple[int, ...]:
        """The microbatches of a stage that a rank works on."""
        return tuple(number for number in range(self.microbatches) if rank in self.takers(stage, number))

    def readers(self, channel: Channel, rank: int, microbatch: int) -> tuple[int, ...]:
        """The ranks to which a rank sends the tensor of this microbatch; the rank made it, or received it and forwards it."""
        return tuple(reader for reader, source in self._sources(channel, microbatch).items() if source == rank)

    def maker(self, channel: Channel, rank: int, microbatch: int) -> int:
        """The rank that sends the tensor of this microbatch to ``rank``."""
        return self._sources(channel, microbatch)[rank]

    def makes(self, channel: Channel, rank: int, microbatch: int) -> bool:
        """Whether a rank makes the tensor of this microbatch; a sender that does not make it forwards it."""
        return rank in self.ends(channel, microbatch)[0]

    def ends(self, channel: Channel, microbatch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks that make, and those that read, the tensor of a microbatch. A tensor that crosses once per step goes from
        the first replica of the source (all replicas have it) to all replicas of the target."""
        if channel.update:
            return self.takers(channel.source, 0), tuple(self.ranks[device] for device in channel.target.devices)
        return self.takers(channel.source, microbatch), self.takers(channel.target, microbatch)

    def _sources(self, channel: Channel, microbatch: int) -> Mapping[int, int]:
        """Sender by receiver (``passes.meshes.costs.cross_mesh``)."""
        makers, readers = self.ends(channel, microbatch)
        if channel.update or not (channel.source.mesh or channel.target.mesh):
            return {reader: makers[place % len(makers)] for place, reader in enumerate(readers)}
        key = channel.source.mesh, makers, channel.target.mesh, readers
        if key not in self._between:
            maker, reader = self._party(channel.source, makers), self._party(channel.target, readers)
            sent = messages(maker, reader, self._host_of)
            self._between[key] = {self.ranks[message.target]: self.ranks[message.source] for message in sent}
        return self._between[key]

    def _party(self, stage: Stage, ranks: tuple[int, ...]) -> Party:
        mesh = self.meshes[stage.mesh] if stage.mesh else Mesh("", (), ())
        return party(tuple(self.devices[rank] for rank in ranks), mesh)

    @cached_property
    def _between(self) -> dict[object, Mapping[int, int]]:
        """A cache of ``_sources`` for transfers with a mesh at one end, by the meshes and ranks of both ends."""
        return {}

    @cached_property
    def _host_of(self) -> Mapping[str, str]:
        topology = self.module.first(Topology)
        hosts = {device.name: device.host for device in topology.devices} if topology is not None else {}
        return {device: hosts.get(device, "") for device in self.devices}

    @cached_property
    def _local(self) -> Mapping[tuple[int, str], LocalProgram]:
        programs_by_device = {}
        for stage in self.stages:
            programs = local_programs(self.module, stage)
            for place, device in enumerate(stage.devices):
                programs_by_device[stage.index, device] = programs[place % len(programs)]
        return programs_by_device

    def local(self, stage: Stage, rank: int) -> LocalProgram:
        """The program of a rank for a stage."""
        return self._local[stage.index, self.devices[rank]]

    def program(self, stage: Stage, rank: int) -> tuple[Program, int]:
        """The program that a rank runs of a stage, and its place among the devices that run it."""
        device = self.devices[rank]
        program = next(p for p in self.module.of_type(Program) if p.stage == stage.name and device in p.devices)
        return program, program.devices.index(device)

    def held(self, rank: int) -> dict[str, Box]:
        """The part of each resource that a rank holds, by the resource's name; ``()`` for what is no tensor of known shape."""
        return {part.name: part.box for stage in self.stages_of(rank) for part in self.local(stage, rank).parts}

    def loaded(self, rank: int) -> dict[str, Box]:
        """What a rank has before the first step: what it holds, the scale of the loss and the steps since the scale changed. A
        rank that does not hold these keeps a copy, to judge its gradients."""
        return {**{name: () for name in self.loss_scale[:2]}, **self.held(rank)}

    def collectives(self, rank: int) -> Iterator[tuple[Stage, Op]]:
        """The collectives of the stages of a rank, of whole tensors with layouts."""
        for stage in self.stages_of(rank):
            yield from ((stage, op) for op in stage.ops if op.get("axis") is not None and op.get("channel") is not None)

    def rows_read(self, rank: int) -> dict[str, tuple[int, int] | None]:
        """The inputs of the model that a rank reads: first row and number of rows that it uses of each, None for all of it."""
        read: dict[str, tuple[int, int] | None] = {}
        for stage in self.stages_of(rank):
            program, place = self.program(stage, rank)
            for arg in program.args:
                name, rows = arg.name[1:], _rows_of(program, arg.name, place)
                read[name] = rows if read.setdefault(name, rows) == rows else None
        return read

    def group(self, op: Op, rank: int) -> tuple[int, ...]:
        """The ranks along the collective's axis that run it together with ``rank``."""
        mesh = self.meshes[op.get("mesh")]
        members = members_along(mesh, mesh.devices.index(self.devices[rank]), op.get("axis"))
        return tuple(self.ranks[mesh.devices[member]] for member in members)

    def groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Stage number and ranks of each group of collectives, each once. Every rank computes the same order."""
        ranks = range(len(self.devices))
        groups = {(stage.index, self.group(op, rank)): None for rank in ranks for stage, op in self.collectives(rank)}
        return tuple(groups)

    def box(self, type_: Type, op: Op, rank: int) -> Box:
        """The part of a value of a collective's mesh that a rank holds."""
        mesh = self.meshes[op.get("mesh")]
        return box_of(without_layout(type_), placements_of(type_, mesh), mesh, mesh.devices.index(self.devices[rank]))


def _rows_of(program: Program, name: str, place: int) -> tuple[int, int] | None:
    """First row and number of the rows of an argument that a program uses on the device at ``place``: where nothing but one
    slice along the first dimension reads it. None for all of them."""
    readers = [op for op in program.ops if name in op.operands]
    if len(readers) != 1 or readers[0].name != "onnx.Slice" or len(readers[0].operands) != 4:
        return None
    (slice_,) = readers
    _, start, _, axis = slice_.operands
    numbers = {value.name: op for op in program.ops for value in op.results if value.name in (start, axis)}
    type_ = tensor_type(slice_.results[0].type)
    if numbers.keys() != {start, axis} or _entry(numbers[axis], place) != 0 or not type_.shape:
        return None
    first, count = _entry(numbers[start], place), type_.shape[0]
    return (first, count) if first is not None and first >= 0 and isinstance(count, int) else None


def _entry(op: Op, place: int) -> int | None:
    """The number that a constant holds on the device at ``place``; None for what is no such constant."""
    dense = op.get("values" if op.name == "comm.member" else "value")
    if op.name not in ("onnx.Constant", "comm.member") or not isinstance(dense, Dense) or not isinstance(dense.data, bytes):
        return None
    place = place if op.name == "comm.member" else 0
    entry = dense.data[place * 8 : place * 8 + 8]
    return int.from_bytes(entry, "little", signed=True) if dense.type.dtype is DType.I64 and len(entry) == 8 else None


def file_name(step: Step, stage: Stage, program: Program) -> str:
    """The file of a program, below the folder of the build."""
    alone = sum(other.stage == stage.name for other in step.module.of_type(Program)) == 1
    return (
        f"stages/stage{stage.index}.py"
        if alone
        else f"stages/stage{stage.index}_{re.sub(r'[^A-Za-z0-9_]', '_', program.name[1:])}.py"
    )


def tensor_type(type_: Type) -> TensorType:
    """The type without its layout. Raises InvalidInput for what is no tensor: training has no sequences."""
    bare = without_layout(type_)
    if not isinstance(bare, TensorType):
        raise InvalidInput(NotATensor(str(bare)))
    return bare
