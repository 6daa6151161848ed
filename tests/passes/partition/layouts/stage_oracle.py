"""The best plan in stages on meshes and replicas by brute force: every cut, every assignment of devices, every layout at a
border, and each stage enumerated or, where it has many assignments, by the integer programme.

A stage has some devices of one host or all of several hosts, as a mesh of any shape, or any devices of one type as replicas.
Of devices of one type and host, whose links are alike in the topologies of these tests, stages take the first ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from dnnc.compile.context import pass_context
from ir import parse_module
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.topology import Topology
from ir.core.types import Layout, Replicate, TensorType
from passes.costs.network import network
from passes.costs.parts import ordered
from passes.graph.folding import folding
from passes.meshes.costs.cross_mesh import Crossing, Party, message_bytes
from passes.meshes.costs.footprint import footprint
from passes.meshes.costs.price import price
from passes.meshes.layouts import Placements
from passes.meshes.mesh import DeviceMesh, mesh_of, shapes
from passes.meshes.staged import Staged
from passes.partition.chain.borders import Border, Cutter
from passes.partition.chain.bounding import Form
from passes.partition.chain.pipeline import StageRun
from passes.partition.chain.solved import StageTask
from passes.partition.chain.submeshes import Block, SharesOf
from passes.partition.chain.units import units_of
from passes.partition.layouts import build
from passes.partition.layouts.problem.build import OVERLAPS
from passes.partition.layouts.problem.graph import Graph
from passes.partition.layouts.problem.problem import ShardProblem
from passes.prepare.cost import CostPass
from tests.passes.partition.layouts.exact import brute_force, every_plan, integer_programme

FEW = 3000
"""Assignments up to which a stage is enumerated; of more, the integer programme is solved."""

MANY = 100_000
"""The same of a stage of a training step, or with a limit of memory, of which no programme counts all."""


def costed(text: str) -> Module:
    return CostPass().run(parse_module(text), pass_context(DiagnosticSink()))


@dataclass(frozen=True)
class Place:
    """Where a stage may be: devices as a mesh, or one of them and ``others`` as further replicas."""

    mesh: DeviceMesh
    form: int
    others: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        return (*self.mesh.devices, *self.others)


def places_of(topology: Topology, replicas: int, shares: SharesOf) -> tuple[list[Place], list[DeviceMesh]]:
    """All places, and one mesh of each form."""
    net = network(topology)
    devices = ordered(topology, net)
    hosts = [[device for device in devices if device.host == host] for host in dict.fromkeys(d.host for d in devices)]
    sets = [list(some) for host in hosts for size in range(1, len(host) + 1) for some in itertools.combinations(host, size)]
    for count in range(2, len(hosts) + 1):
        sets += [list(itertools.chain(*some)) for some in itertools.combinations(hosts, count)]
    forms: dict[DeviceMesh, int] = {}
    found: list[Place] = []
    for some in sets:
        for shape in shapes(len(some)) if len(some) > 1 else ((1,),):
            for along in shares(shape, some):
                mesh = mesh_of(topology, net, shape, 0, along, some)
                found.append(Place(mesh, forms.setdefault(replace(mesh, devices=()), len(forms))))
    alone = {place.devices[0]: place for place in found if len(place.devices) == 1}
    for size in range(2, replicas + 1):
        for some in map(list, itertools.combinations(devices, size)):
            if len({(device.type, topology.memory(device)) for device in some}) == 1:
                found.append(replace(alone[some[0].name], others=tuple(device.name for device in some[1:])))
    return found, list(forms)


class Oracle:
    """The least value of all plans in stages, from the definition: nothing is shared with the search but the problem of a stage
    and the cost of a message."""

    def __init__(
        self,
        module: Module,
        replicas: int = 1,
        microbatches: int = 0,
        memory: int | None = None,
        shares: SharesOf = lambda shape, devices: ((),),
        groups: int = 0,
    ) -> None:
        """``replicas``: of a stage at most; ``microbatches``: of a training step; 0: inference. ``memory``: bytes per device at
        most. ``groups``: microbatches in flight at most; 0: any number."""
        topology = module.first(Topology)
        assert topology is not None
        self.module = module
        self.places, forms = places_of(topology, replicas, shares)
        self.mates: dict[str, set[str]] = {}  # of a device, those before it that are alike
        for device in (known := ordered(topology, network(topology))):
            like = {other.name for other in known if replace(other, name="") == replace(device, name="")}
            self.mates[device.name] = like & self.mates.keys()
        self.crossing = Crossing(topology, network(topology))
        found = folding(module.entry, module)
        self.microbatches, self.memory, self.groups = microbatches, memory, groups
        training = {"training": True, "microbatches": microbatches} if microbatches else {}
        # In training a problem counts sums of gradients as if all were hidden: ``least_of_all`` adds those that are not.
        self.overlap = OVERLAPS[0] if microbatches else None
        wholes = [build(module, module.entry, mesh, found, overlap=self.overlap, **training) for mesh in forms]  # type: ignore[arg-type]
        self.units = units_of(module.entry, found, wholes[0])
        self.cutters = [Cutter(whole, self.units.constants.ops) for whole in wholes]
        self.known: dict[object, float] = {}

    def best(self, stages: int = 0) -> float:
        return min((self.plan(line, 0, {}, [0.0] * len(line)) for line in self.lines(stages)), default=math.inf)

    def lines(self, stages: int) -> Iterator[list[tuple[int, int, Place]]]:
        def from_(unit: int, used: frozenset[str]) -> Iterator[list[tuple[int, int, Place]]]:
            if unit == self.units.count:
                yield []
                return
            for place in self.places:
                taken = used.union(place.devices)
                if used.isdisjoint(place.devices) and all(self.mates[device] <= taken for device in place.devices):
                    for behind in range(unit + 1, self.units.count + 1):
                        yield from ([(unit, behind, place), *rest] for rest in from_(behind, taken))

        return (line for line in from_(0, frozenset()) if not stages or len(line) == stages)

    def plan(
        self,
        line: list[tuple[int, int, Place]],
        number: int,
        lies: dict[str, tuple[int, Placements]],
        spent: list[float],
    ) -> float:
        """The least largest seconds of stages, those before ``number`` being decided."""
        if number == len(line):
            return self.worth(line, spent)
        first, behind, block = line[number]
        cutter, ops = self.cutters[block.form], self.units.run(first, behind)
        parties = [replicas_of(b)[0] for _, _, b in line]
        home = {op: k for k, (i, j, _) in enumerate(line) for op in self.units.run(i, j)}
        entering, leaving = cutter.crossing(ops)
        arrives = {}
        for name in entering:
            maker, layout = lies[name]
            alike = shape(parties[maker]) == shape(parties[number])
            arrives[name] = cutter.given.layouts[name].number(layout if alike else (Replicate(),) * len(block.mesh.axes))
        readers = {
            name: sorted({home[n] for n, _ in cutter.given.problem.values[cutter.number[name]].readers if n in home} - {number})
            for name in leaving
        }
        whole = frozenset(n for n in leaving if any(shape(parties[r]) != shape(parties[number]) for r in readers[n]))
        best, buffers = math.inf, 0
        for name in entering:
            maker, layout = lies[name]
            size = message_bytes(self.laid(name, layout, parties[maker]), parties[maker], parties[number])
            buffers += (2 + number - maker - 1) * size  # further ones where stages are passed over
        for made in itertools.product(*(range(len(cutter.given.layouts[name].placements)) for name in leaving)):
            in_flight = min(self.microbatches or 1, len(line) - number)
            returned = 0  # two gradients of each reader of what is trained
            for name, choice in zip(leaving, made, strict=True):
                type_ = self.laid(name, cutter.given.layouts[name].placements[choice], parties[number])
                for reader in readers[name] if name in cutter.given.trained else ():
                    returned += 2 * message_bytes(type_, parties[number], parties[reader])
            lies_there = dict(zip(leaving, made, strict=True))
            own = self.stage(block, ops, arrives, lies_there, whole, in_flight, buffers + returned)
            if not math.isfinite(own):
                continue
            after, told = list(spent), dict(lies)
            after[number] += own + self.handed(line, block)
            for name, choice in zip(leaving, made, strict=True):
                placements = cutter.given.layouts[name].placements[choice]
                told[name] = number, placements
                type_ = self.laid(name, placements, parties[number])
                for reader in readers[name]:
                    size, returns = message_bytes(type_, parties[number], parties[reader]), name in cutter.given.trained
                    ends = replicas_of(block), replicas_of(line[reader][2])
                    each = [(ends[0][m % len(ends[0])], ends[1][m % len(ends[1])]) for m in range(len(ends[0]) * len(ends[1]))]
                    spent_each = [self.crossing.ends(size, (one,), (two,), returns=returns) for one, two in each]
                    after[number] += max(at_maker for at_maker, _ in spent_each)
                    after[reader] += max(at_reader for _, at_reader in spent_each)
            if self.worth(line, after) < best:
                best = min(best, self.plan(line, number + 1, told, after))
        return best

    def laid(self, name: str, placements: Placements, maker: Party) -> TensorType:
        """The type of a value as it lies where it is made."""
        type_ = self.cutters[0].types[name]
        assert isinstance(type_, TensorType)
        return replace(type_, layout=Layout("@mesh", placements)) if maker.sizes else type_

    def handed(self, line: list[tuple[int, int, Place]], block: Place) -> float:
        """Seconds of a stage for its hand-over of a microbatch."""
        devices = sum(len(replicas_of(b)) * len(b.mesh.devices) for _, _, b in line)
        if (len(line) if self.microbatches else devices) == 1:
            return 0.0
        return max(type_.handover for type_ in block.mesh.types)

    def worth(self, line: list[tuple[int, int, Place]], spent: list[float]) -> float:
        """The value of a plan whose stages spend so much on a microbatch."""
        each = [seconds / len(replicas_of(block)) for seconds, (_, _, block) in zip(spent, line, strict=True)]
        value = max(each) * (self.microbatches + len(spent) - 1 if self.microbatches else 1)
        return max(value, sum(spent) / self.groups) if self.groups else value

    def stage(
        self,
        block: Place,
        ops: tuple[int, ...],
        given: dict[str, int],
        made: dict[str, int],
        whole: frozenset[str],
        in_flight: int,
        buffers: int,
    ) -> float:
        """The least seconds of a stage whose borders lie so; inf where they cannot, or nothing fits beside its buffers."""
        key = (block.form, ops, tuple(given.items()), tuple(made.items()), whole, in_flight, buffers)
        if key not in self.known:
            cutter = self.cutters[block.form]
            border = Border(
                arriving=given, whole=whole, send={name: np.zeros(len(cutter.given.layouts[name].placements)) for name in made}
            )
            stage = cutter.cut(ops, border)
            stage = replace(stage, given=stage.given.keeping(in_flight))
            problem, fixed = stage.given.problem, dict[int, np.ndarray]()
            kinds, numbers = list(problem.node_kinds), list(problem.kinds)
            for name, layout in made.items():
                maker, result = cutter.given.problem.values[cutter.number[name]].maker
                node = ops.index(maker)
                kind = kinds[numbers[node]]
                lies = kind.makes[result] % len(cutter.given.layouts[name].placements)  # of a chain of epilogues or not
                fits = fixed[node] = np.flatnonzero(lies == layout)
                kinds.append(
                    replace(
                        kind,
                        seconds=kind.seconds[fits],
                        memory=kind.memory[fits],
                        reads=tuple(row[fits] for row in kind.reads),
                        makes=tuple(row[fits] for row in kind.makes),
                    )
                )
                numbers[node] = len(kinds) - 1
            whole_problem = replace(problem, node_kinds=tuple(kinds), graph=Graph(tuple(numbers), problem.values))
            if self.memory is None and not self.microbatches:
                self.known[key] = least(whole_problem)
            else:
                form = Form(block.mesh, *[np.zeros((0, 0))] * 4, cutter)
                task = StageTask(StageRun(0, 0, Block(0, block.form, block.mesh)), ops, form, stage, border, in_flight)
                self.known[key] = self.least_of_all(whole_problem, task, fixed, buffers)
        return self.known[key]

    def least_of_all(self, problem: ShardProblem, task: StageTask, fixed: Mapping[int, np.ndarray], buffers: int) -> float:
        """The least seconds of a stage whose weights and workspace are within the memory that ``buffers`` leave, by the walk
        over its program; of a training step with the sums of gradients that it exposes. Raises TooMany."""
        sizes = [len(problem.node_kinds[kind].seconds) for kind in problem.kinds]
        if not all(sizes):
            return math.inf
        if math.prod(sizes) > MANY:
            raise TooMany
        plans, best = every_plan(problem), math.inf
        memory = math.inf if self.memory is None else self.memory - buffers
        resources = {name: resource.type for name, resource in self.module.resources.items()}
        for number in np.argsort(plans.seconds, kind="stable"):
            if plans.seconds[number] >= best:  # no sum of gradients makes it less
                break
            if plans.memory[number] > memory or not math.isfinite(plans.seconds[number]):
                continue
            choices = [int(choice) for choice in plans.choices[:, number]]
            choices = [int(fixed[node][choice]) if node in fixed else choice for node, choice in enumerate(choices)]
            decisions = task.decisions(choices)
            bill = price(
                self.module,
                task.given.func,
                task.given.mesh,
                decisions,
                training=self.microbatches > 0,
                microbatches=max(1, self.microbatches),
                in_flight=task.in_flight,
            )
            staged = Staged(tuple(sorted(task.ops)), task.given.mesh, decisions, bill)
            if self.memory is not None and footprint(self.module.entry, resources, staged).total > memory:
                continue
            if not self.microbatches:
                return float(plans.seconds[number])
            assert math.isclose(bill.relaxed(self.overlap, self.microbatches), plans.seconds[number], rel_tol=1e-9)
            best = min(best, bill.overlapped)
        return best


class TooMany(Exception):
    """A stage has more assignments than are enumerated."""


def shape(party: Party) -> object:
    return party.sizes, party.shares


def replicas_of(block: Place) -> tuple[Party, ...]:
    """What takes the microbatches of a stage in turn."""
    if len(block.mesh.devices) > 1:
        return (Party(block.mesh.devices, block.mesh.sizes, block.mesh.shares),)
    return tuple(Party((device,)) for device in (*block.mesh.devices, *block.others))


def least(problem: ShardProblem) -> float:
    sizes = [len(problem.node_kinds[kind].seconds) for kind in problem.kinds]
    if not all(sizes):
        return math.inf
    return brute_force(problem) if math.prod(sizes) <= FEW else integer_programme(problem, scale=1e6)[0]


__all__ = ["Oracle", "Place", "TooMany", "costed", "least"]
