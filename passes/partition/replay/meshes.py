"""The pass ``replay``: a plan on meshes that a person or a script edited, in the place of a search.

Reads what ``partition`` reads, and writes what it writes of plans on meshes (``written``). Nothing is searched but a bound:
each op has the stage and, per axis of its stage's mesh, the strategy that the plan states; each weight is kept, each result of
the model leaves, as stated, else as costs least. Seconds and bytes are counted by ``price``; of the numbers that the plan
states only its bound is read: where ``proof`` says that it was proven for plans like this one it stays, with its certificate.
Else each stage is searched, briefly, for what it costs at least with the ops and devices that it has.

A faulty plan raises InvalidInput with every fault found, each with its stage: ops that are unknown, listed twice or not at all;
devices that are unknown or in two stages; a mesh of another size than its devices; strategies and layouts that the op or the
tensor does not have on this mesh; values that would travel to an earlier stage. Weights that do not fit are Infeasible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ir.core.diagnostics import Diagnostic, Infeasible, InvalidInput
from ir.core.facets import StageSet, Sync, sync_of, with_facet
from ir.core.module import Mesh, Module, Plan, Resource, Symbol
from ir.core.objectives import Planned
from ir.core.shares import Shares, equal
from ir.core.topology import Topology
from ir.text.witness import OF_THESE
from ir.verifier.machines import MOST_SHARE
from passes.costs.memory.footprint import overfull
from passes.costs.network import Network, network
from passes.framework.base import PassContext, needed
from passes.graph.faults import NotSplit
from passes.graph.folding import expand
from passes.graph.graph import listing, stage_members
from passes.graph.serving import tokens_of
from passes.meshes.layouts import Placements
from passes.meshes.mesh import AXIS_NAMES, DeviceMesh, mesh_over
from passes.meshes.notation import read_placements, read_sync, sync_text
from passes.meshes.undecided import undecided
from passes.partition.layouts.faults import MicrobatchesMisfit
from passes.partition.replay.faults import (
    DeviceTwice,
    MeshShape,
    NoSync,
    ReplicasOfTypes,
    StagesOverMemory,
    StageWithoutOp,
    StrategiesOfOps,
)
from passes.partition.replay.stage_by_stage import StageByStage, Stated
from passes.partition.replay.stated import StatedPass, shortened
from passes.plan.proof import proven_for
from passes.plan.written import written
from passes.stages.placement_from_ir import on_one_device

GIVEN = "given, not searched for"
"""What a certificate says of a plan that was edited."""


@dataclass(frozen=True)
class ReplayPass(StatedPass):
    """Give every op the stage and the strategies, and every stage the mesh, that a plan states.

    ``ops``, ``objective``, ``bound``, ``source``, ``made_for`` as of ``assign``; ``devices``: ``STAGE:DEVICE``, row by row of a
    mesh. ``strategies``: of each entry of ``ops`` the names of its strategies, as in ``shard<..>``; empty on a single device.
    ``axes``: ``STAGE:SIZE:NAME``, in order, or with shares ``STAGE:3,1:NAME``; none for a single device and its replicas.
    ``weights`` and ``outputs``: ``STAGE:LAYOUT:NAME``, a layout like ``S(0), R``. ``syncs``: ``STAGE:METHOD:NAME`` of weights
    whose gradients are not summed by all-reduce, a method like ``ps(1)``; where there is one, all other weights' are.
    ``memory`` (``device_memory``), ``microbatches`` (of a training step) as of ``partition``. ``value`` and
    ``certificate``, ``KEY=TEXT``: what the plan states.
    """

    name: ClassVar[str] = "replay"
    strategies: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    syncs: tuple[str, ...] = ()
    memory: int = 0
    microbatches: int = 1
    family: str = ""
    value: float = 0.0
    certificate: tuple[str, ...] = ()

    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for a plan that does not fit the model or the topology, Infeasible where a stage needs more
        memory than there is."""
        topology = needed(module, Topology)
        self._check_options()
        module, net = self._synced(undecided(expand(module))), context.analyses.get(network, topology)
        stated = self._stated(module, topology, net)
        stages = StageByStage(
            module,
            topology,
            context,
            stated,
            training=self.training,
            memory=self.memory,
            microbatches=self.microbatches,
            family=self.family,
        )
        staged = stages.staged()
        if stages.unsharded:
            context.sink.warn(NotSplit(tuple(stages.unsharded)), where=self.name)
        context.count(self.name, ops=len(module.entry.ops), stages=len(stated))
        tokens = tokens_of(module, self.objective)
        plan = Plan(
            name="@plan",
            objective=self.objective,
            comm="sum",
            value=math.inf,
            port_value=math.inf,
            bound=0.0,
            status="within-gap",
            single=on_one_device(module, topology, self.microbatches if self.training else 0, self.memory) / tokens,
            stages=(),
            microbatches=self.microbatches,
            tokens=tokens,
        )

        def proven(plan: Plan) -> Plan:
            found = self._proven(module, stated, plan)
            if found is None:
                times = self.microbatches + len(stated) - 1 if self.training else 1
                found = times * stages.bound() / tokens, {"bound": OF_THESE, "plan": GIVEN}
            return replace(plan, bound=found[0], certificate=tuple(sorted(found[1].items())))

        found = written(module, staged, plan, proven, memory=self.memory)
        self._check_synced(found)
        over, index, text = overfull(found, topology, self.memory)
        if over > 0:
            raise Infeasible(StagesOverMemory(text), where=self._where(index))
        return found

    def _check_options(self) -> None:
        """Raises InvalidInput for what no plan on meshes states."""
        self._check_objective(Planned.MESHES)
        if self.microbatches < 1 or (self.microbatches > 1 and not self.training):
            fault = MicrobatchesMisfit(self.microbatches, "expected 1, or of a training step 1 or more")
            raise InvalidInput(fault, where=self.source)
        if len(self.strategies) != len(self.ops):
            raise InvalidInput(StrategiesOfOps(len(self.strategies), len(self.ops)), where=self.source)

    def _proven(self, module: Module, stated: Sequence[Stated], plan: Plan) -> tuple[float, dict[str, str]] | None:
        """The bound that was stated and its certificate, None where it was proven for something else than ``plan``."""
        certificate = dict(text.partition("=")[::2] for text in self.certificate)
        stages = [(stage.ops, stage.mesh, stage.devices) for stage in stated]
        digest = proven_for(module, stages, replace(plan, bound=self.bound), memory=self.memory)
        if certificate.pop("problem", "") != digest:
            return None
        if plan.value != self.value:  # another plan than the one that was found
            certificate.pop("strategy", None)
            certificate["plan"] = GIVEN
        return self.bound, certificate

    # -- synchronisation -----------------------------------------------------------------------------------------------

    def _asked(self) -> dict[str, tuple[int, Sync]]:
        """The stage and the method of each weight that the plan states one of."""
        found = {}
        for text in self.syncs:
            index, rest = self._split(text)
            method, _, name = rest.partition(":")
            found[f"@{name}"] = index, read_sync(method)
        return found

    def _synced(self, module: Module) -> Module:
        """The module with the stated methods on its weights, in the place of others."""
        asked = self._asked()
        if not asked:
            return module
        symbols: list[Symbol] = []
        for symbol in module.symbols:
            if isinstance(symbol, Resource):
                others = tuple(facet for facet in symbol.facets if not isinstance(facet, Sync))
                stated = asked.get(symbol.name)
                symbol = replace(symbol, facets=others if stated is None else with_facet(others, stated[1]))
            symbols.append(symbol)
        return replace(module, symbols=tuple(symbols))

    def _check_synced(self, module: Module) -> None:
        """Raises InvalidInput for weights whose gradients cannot be synchronised as stated."""
        faults = []
        for name, (index, sync) in self._asked().items():
            resource, method = module.resources.get(name), sync_text(sync)
            done = sync_of(resource.facets) if resource is not None else None
            if done is not None and done.method == sync.method and sync.server in (-1, done.server):
                continue
            why = "members do not hold terms of it along an axis of that many"
            if done is None:
                why = "no weight is called so"
            elif not self.training:
                why = "the plan trains nothing"
            elif sync.method == "sfb":
                why = "it is no product of what members have rows of"
            faults.append(NoSync(name[1:], method, why).at(self._where(index)))
        if faults:
            raise InvalidInput(shortened(faults, "more weights cannot be"))

    # -- what is stated ------------------------------------------------------------------------------------------------

    def _stated(self, module: Module, topology: Topology, net: Network) -> list[Stated]:
        """The stages, as far as they can be told without looking at strategies and layouts. Raises InvalidInput."""
        func = module.entry
        problems: list[Diagnostic] = []
        members = self._stages(func, problems)
        texts = dict(zip(map(self._split, self.ops), self.strategies, strict=True))
        listed, _ = self._listed(func)
        strategies: dict[int, dict[str, str]] = {}
        for index, name, op in listed:
            strategies.setdefault(index, {})[op.id] = texts[index, name]
        count = 1 + max((index for of_op in members.values() for index in of_op), default=0)
        meshes, others = self._meshes(topology, net, count, problems)
        weights, outputs = (self._layouts(found, problems) for found in (self.weights, self.outputs))
        kept = {name for of_stage in weights.values() for name in of_stage}
        self._check_model("weights", kept, {name for name in kept if f"@{name}" not in module.resources})
        if problems:
            raise InvalidInput(problems)
        assigned = replace(func, ops=tuple(op.with_facets(StageSet(members[op.id])) for op in func.ops))
        stage_members(assigned)
        return [
            Stated(
                tuple(i for i, op in enumerate(func.ops) if index in members[op.id]),
                meshes[index],
                strategies[index],
                weights.get(index, {}),
                outputs.get(index, {}),
                self._where(index),
                others[index],
            )
            for index in range(count)
        ]

    def _meshes(
        self, topology: Topology, net: Network, count: int, problems: list[Diagnostic]
    ) -> tuple[dict[int, DeviceMesh], dict[int, tuple[str, ...]]]:
        """The mesh of each stage, and the devices of its further replicas."""
        known = [device.name for device in topology.devices]
        devices: dict[int, list[str]] = {index: [] for index in range(count)}
        holder: dict[str, int] = {}
        listed = [self._split(text) for text in self.devices]
        empty = sorted({index for index, _ in listed} - devices.keys())
        problems += [StageWithoutOp(index).at(self._where(index)) for index in empty]
        for index, name in listed:
            where = self._where(index)
            if index in empty:
                continue
            if name not in known:
                problems.append(self._unknown_device(index, name, topology))
            elif holder.setdefault(name, index) != index or name in devices[index]:
                what = "is listed twice" if name in devices[index] else f"already runs stage {holder[name]}"
                problems.append(DeviceTwice(name, what, "no device is in two places of meshes").at(where))
            else:
                devices[index].append(name)
        axes: dict[int, list[tuple[str, Shares]]] = {}
        for text in self.axes:
            index, rest = self._split(text)
            size, _, name = rest.partition(":")
            axes.setdefault(index, []).append((name, _shares(size, len(known))))
        if problems:
            return {}, {}
        found, others = {}, dict[int, tuple[str, ...]]()
        types = {device.name: device.type for device in topology.devices}
        for index, names in devices.items():
            fault = _shape_fault(axes.get(index, []), names, training=self.training)
            if not fault and index not in axes and len(of := sorted({types[name] for name in names})) > 1:
                problems.append(ReplicasOfTypes(tuple(of)).at(self._where(index)))
                continue
            if fault:
                problems.append(MeshShape(fault).at(self._where(index)))
                continue
            others[index] = () if index in axes else tuple(names[1:])
            names = names[: len(names) - len(others[index])]
            named = axes.get(index, [(AXIS_NAMES[0], (1,))])
            shares = tuple(shares for _, shares in named)
            told = shares if any(max(along) > 1 for along in shares) else ()
            mesh = Mesh(f"@mesh{index}", tuple((name, len(along)) for name, along in named), tuple(names), told)
            try:
                found[index] = mesh_over(topology, net, mesh).limited(self.memory)
            except InvalidInput as error:
                problems += [replace(fault, where=self._where(index)) for fault in error.diagnostics]
        return found, others

    def _layouts(self, texts: Sequence[str], problems: list[Diagnostic]) -> dict[int, dict[str, Placements]]:
        """Layouts by stage and name."""
        found: dict[int, dict[str, Placements]] = {}
        for text in texts:
            index, rest = self._split(text)
            layout, _, name = rest.partition(":")
            try:
                found.setdefault(index, {})[name] = read_placements(layout)
            except InvalidInput as error:
                problems += [replace(fault, where=f"{self._where(index)}: {name}") for fault in error.diagnostics]
        return found


def _shares(text: str, most: int) -> Shares:
    """Shares of the members of an axis, in lowest terms, from its size or a list of them; empty where the text is neither, or
    is of more than ``most`` members."""
    numbers = [int(part) if part.isdecimal() and part.isascii() and len(part) < 10 else 0 for part in text.split(",")]
    if len(numbers) == 1:
        return equal(numbers[0]) if numbers[0] <= most else ()
    least = math.gcd(*numbers)
    return tuple(number // least for number in numbers) if min(numbers) > 0 else ()


def _shape_fault(axes: Sequence[tuple[str, Shares]], devices: Sequence[str], *, training: bool) -> str:
    """What is wrong with a mesh; empty where nothing is. Without axes, devices of inference are replicas."""
    if not devices:
        return "it has no device; stages of a plan on meshes name theirs"
    if not axes:
        return f"it has {len(devices)} devices, but no mesh" if training and len(devices) > 1 else ""
    if len(axes) > len(AXIS_NAMES):
        return f"its mesh has {len(axes)} axes, expected at most {len(AXIS_NAMES)}"
    for name, shares in axes:
        if not name or len(shares) < 2:
            return f"axis '{name}' of its mesh: expected a name, and from 2 members on to as many as there are devices"
        if max(shares) > MOST_SHARE:
            return f"axis '{name}' of its mesh has a share of {max(shares)}, expected at most {MOST_SHARE}"
    if len({name for name, _ in axes}) < len(axes):
        return f"two axes of its mesh are called {listing(sorted({name for name, _ in axes}))}"
    shape = "x".join(str(len(shares)) for _, shares in axes)
    places = math.prod(len(shares) for _, shares in axes)
    if places == len(devices):
        return ""
    return f"its mesh {shape} has {places} places for {len(devices)} device{'s' if len(devices) > 1 else ''}"
