"""The numbers of a build: ops, tensors, weights and stages of its ``plan.ir``, devices and links of its machines."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ir.core.diagnostics import InvalidInput
from ir.core.facets import StageSet, Transfer
from ir.core.module import Module, Plan, PlanStage, Program, Stage
from ir.core.ops import Op
from ir.core.topology import Device, DeviceType, Topology
from ir.core.types import type_bytes
from ir.ops.rows import edge_slots
from passes.costs.learning import Learning, learning, learning_seconds
from passes.costs.network import Network, network
from passes.costs.op_time import body_seconds
from passes.graph.folding import expand
from passes.graph.graph import reads
from passes.graph.positional import positional
from passes.graph.serving import tokens_of
from passes.graph.sizes import sized_results
from passes.meshes.reshard_ops import plain
from passes.meshes.undecided import undifferentiated

CLOSE = 1e-6
"""Relative difference up to which two values are equal: that of sums in another order, and of what is rounded in between."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What op ``maker`` makes and the ops ``readers`` read. ``size``: bytes; ``stated``: seconds to move it, whatever the
    route; ``times``: how often it crosses a border, twice where its gradient comes back."""

    name: str
    maker: int
    readers: tuple[int, ...]
    size: int
    stated: float | None
    times: int


@dataclass(frozen=True)
class Facts:
    """``module``: without programs, backward ops and reshards; ``whole``: the module of ``plan.ir``, expanded."""

    module: Module
    whole: Module
    plan: Plan
    topology: Topology

    @cached_property
    def net(self) -> Network:
        return network(self.topology)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.module.entry.ops

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the ops of each stage of the plan, ascending."""
        found: list[list[int]] = [[] for _ in self.plan.stages]
        for position, op in enumerate(self.ops):
            for index in op.facet(StageSet, StageSet(())).stages:
                if 0 <= index < len(found):
                    found[index].append(position)
        return tuple(map(tuple, found))

    @cached_property
    def tokens(self) -> int:
        """What the seconds of a step are divided by for the value, counted from the shapes of the module."""
        return tokens_of(self.module, self.plan.objective)

    @cached_property
    def types(self) -> tuple[DeviceType, ...]:
        """The types that devices have, in the order of the machines."""
        used = {device.type for device in self.topology.devices}
        return tuple(type_ for type_ in self.topology.types if type_.name in used)

    @cached_property
    def learned(self) -> Learning:
        return learning(self.module)

    @cached_property
    def weights(self) -> Mapping[str, int]:
        """Bytes of each resource, those of a state for each of its sets."""
        return self.held(max((state.sets for state in self.module.states.values()), default=0))

    def held(self, groups: int) -> Mapping[str, int]:
        """Bytes of each resource on a device that serves so many groups of sequences, of a state those of their sets."""
        sets = {name: min(state.sets, groups) for name, state in self.module.states.items()}
        return {name: (type_bytes(one.type) or 0) * sets.get(name, 1) for name, one in self.module.resources.items()}

    @cached_property
    def makers(self) -> Mapping[str, frozenset[int]]:
        """Of each weight that trains, the ops that read it and make a gradient of what they read."""
        made = [i for i, op in enumerate(self.ops) if any(value.name in self.learned.values for value in op.results)]
        return {name: frozenset(i for i in made if name in reads(self.ops[i])) for name in self.learned.state}

    def training(self, names: Iterable[str], before: Collection[int], own: Collection[int]) -> int:
        """Bytes of gradients of these weights in a stage of the ops ``own`` behind those ``before`` it, and of the optimizer's
        state: the first stage that makes a gradient of a weight holds it."""
        found = 0
        for name in names:
            if name in self.learned.state:
                makers = self.makers[name]
                holds = not makers or (makers.isdisjoint(before) and not makers.isdisjoint(own))
                found += self.weights[name] + self.learned.state[name] * holds
        return found

    @cached_property
    def serving(self) -> list[tuple[int, ...]]:
        """Of each stage the replica that has each turn, or of a decoder the one that serves each group of sequences; none where
        each replica of all stages has one turn."""
        if not any(stage.serves for stage in self.plan.stages):
            return []
        groups = max((state.sets for state in self.module.states.values()), default=0)
        return [
            stage.serves or tuple(turn % len(stage.devices) for turn in range(groups or len(stage.devices)))
            for stage in self.plan.stages
        ]

    def meetings(self, source: int, target: int) -> int:
        """How often a device of stage ``target`` receives until both stages are back at their first turns, at most, where
        replicas have unlike turns: it has buffers for each time; else 1."""
        if not self.serving or self.module.states:
            return 1
        one, other = self.serving[source], self.serving[target]
        return max(map(other.count, other)) * math.lcm(len(one), len(other)) // len(other)

    def served(self, index: int) -> int:
        """The most groups of sequences that a device of a stage serves: replicas share them, in turn where the plan does not
        say which of them serves which group."""
        stage, groups = self.plan.stages[index], max((state.sets for state in self.module.states.values()), default=0)
        return max(map(stage.serves.count, stage.serves)) if stage.serves else math.ceil(groups / stage.replicas)

    def unheld(self, stage: PlanStage, device: str) -> int:
        """Bytes of states that the replica of a stage with most groups holds, and a device that serves fewer does not."""
        if not stage.serves or device not in stage.devices:
            return 0
        counts = [stage.serves.count(replica) for replica in range(len(stage.devices))]
        own = counts[stage.devices.index(device)]
        names = {name for i in self.stages[stage.index] for name in reads(self.ops[i]) if name in self.module.states}
        return sum(self.held(max(counts))[name] - self.held(own)[name] for name in names)

    def spare(self, stage: PlanStage) -> int:
        """Bytes of buffers that a stage has only because tensors pass over the stages before it: it runs without them, though
        stages wait for each other more often than predicted (W3026)."""
        own, total = set(self.stages[stage.index]), 0
        for tensor in self.tensors:
            sources = self.ops[tensor.maker].facet(StageSet, StageSet(())).stages
            if sources and max(sources) < stage.index and not own.isdisjoint(tensor.readers):
                slots = [edge_slots(self.plan.comm, source, stage.index) for source in (max(sources), stage.index - 1)]
                total += (slots[0] - slots[1]) * self.meetings(max(sources), stage.index) * tensor.size
        return total

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """What ops read of others, in the order in which it is made; not what is computed from positions in each stage that
        reads it."""
        everywhere = positional(self.module)
        readers: dict[str, list[int]] = {}
        for position, op in enumerate(self.ops):
            for name in reads(op):
                readers.setdefault(name, []).append(position)
        found = []
        for position, op in enumerate(self.ops):
            if position in everywhere:
                continue
            stated = op.facet(Transfer)
            for number, value in enumerate(sized_results(op)):
                if value.name in readers:
                    times = 2 if self.plan.in_steps and value.name in self.learned.values else 1
                    seconds = None if stated is None else stated.seconds[number]
                    size = type_bytes(value.type) or 0
                    found.append(Tensor(value.name, position, tuple(readers[value.name]), size, seconds, times))
        return tuple(found)

    def device(self, name: str) -> Device:
        return self.topology.device(name)

    def type_of(self, device: str) -> DeviceType:
        return self.topology.type(self.topology.device(device).type)

    def free(self, device: str) -> bool:
        """Whether the device pays nothing for its own transfers."""
        return self.type_of(device).free_transfers

    def outside(self, positions: Iterable[int]) -> list[str]:
        """What these ops make that is read elsewhere, or is a result of the model."""
        own = set(positions)
        results = {value.name for value in self.module.entry.results}
        made = (value.name for position in sorted(own) for value in self.ops[position].results)
        elsewhere = {t.name for t in self.tensors if t.maker in own and not own.issuperset(t.readers)}
        return [name for name in made if name in results or name in elsewhere]

    def seconds(self, type_: DeviceType, positions: Iterable[int]) -> list[float]:
        """Of each of these ops, which are all of a stage, for one sample; in training of both passes of one microbatch."""
        own = list(positions)
        if self.plan.in_steps:
            return [self.steps(type_)[position] for position in own]
        return body_seconds([self.ops[position] for position in own], type_, self.outside(own))

    def steps(self, type_: DeviceType) -> list[float]:
        """Of each op, the seconds of both passes of a microbatch of a training step."""
        known = self._steps.get(type_.name)
        if known is None:
            known = self._steps[type_.name] = [one.both for one in learning_seconds(self.module, type_)]
        return known

    def gradients(self, type_: DeviceType) -> list[float]:
        """Of each op, the seconds in which the backward pass of a microbatch makes its gradients, as far as sums of gradients
        travel beside them (``DeviceType.beside``)."""
        known = self._gradients.get(type_.name)
        if known is None:
            known = self._gradients[type_.name] = [one.beside for one in learning_seconds(self.module, type_)]
        return known

    @cached_property
    def _gradients(self) -> dict[str, list[float]]:
        return {}

    @cached_property
    def _steps(self) -> dict[str, list[float]]:
        return {}


def stated_memory(module: Module) -> int | None:
    """Bytes per device at most that ``--memory`` said of a plan on meshes, -1: no limit; None where it said nothing."""
    values = [attribute.value for key, attribute in module.entry.attributes if key == "shard.memory"]
    return next((value for value in values if isinstance(value, int) and value), None)


def facts_of(module: Module, where: str) -> Facts:
    """The numbers of the module of a ``plan.ir``. Raises InvalidInput where it has no plan or no machines."""
    from dnnc.build.build import ranges_of
    from dnnc.check.faults import NoPlanToVerify, PlanOfOpenSizes

    if ranges := ranges_of(module):
        raise InvalidInput(PlanOfOpenSizes(*ranges[0]), where=where)
    whole = expand(module)
    plan, topology = whole.first(Plan), whole.first(Topology)
    if plan is None or topology is None:
        raise InvalidInput(NoPlanToVerify("plan" if plan is None else "machines"), where=where)
    return Facts(plain(undifferentiated(whole.without(Stage, Program))), whole, plan, topology)
