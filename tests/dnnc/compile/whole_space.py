"""Small random models and machines, and plans for them that no search made: priced by what replays a plan of a person's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import ir
from dnnc.compile.context import pass_context
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.options import build_pipeline
from dnnc.machines.topology import load_topology
from dnnc.machines.topology.writer import topology_to_toml
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput, UsageError
from ir.core.facets import SEPARATOR, StageSet
from ir.core.module import Module, Plan
from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from ir.layout_rules import rules
from passes.framework.base import Pass
from passes.framework.manager import PassManager
from passes.graph.folding import folding
from passes.graph.graph import reads
from passes.partition.place import PlacePass
from passes.partition.replay.assign import AssignPass
from passes.partition.replay.meshes import ReplayPass
from passes.partition.replay.stage_by_stage import Stated

BEFORE = ("canonicalize", "unfuse", "cost", "training")
"""What a pipeline does before its search."""


# -- models ------------------------------------------------------------------------------------------------------------


def random_model(rng: Random) -> str:
    """Of 3 to 7 ops over matrices: products (some of one weight), biases, residuals, activations, joined branches."""
    batch, widths = rng.choice((3, 4, 6, 7, 8)), rng.sample((4, 6, 8, 12, 16), 2)
    weights: dict[str, tuple[int, ...]] = {}
    values = {"%x": rng.choice(widths)}
    lines: list[str] = []

    def weight(*shape: int) -> str:
        known = [name for name, its in weights.items() if its == shape]
        if known and rng.random() < 0.4:
            return rng.choice(known)
        weights[name := f"@w{len(weights)}"] = shape
        return name

    def add(name: str, operands: str, width: int, attributes: str = "") -> None:
        values[result := f"%v{len(lines)}"] = width
        lines.append(f"    {result} = onnx.{name}({operands}){attributes} : tensor<{batch}x{width}xf32>")

    for _ in range(rng.randint(3, 7)):
        names = list(values)
        last = names[-1] if rng.random() < 0.8 else rng.choice(names)
        width = values[last]
        alike = [name for name in names if values[name] == width and name != last]
        match rng.randrange(8):
            case 0 | 1 | 2:
                to = rng.choice(widths)
                add("MatMul", f"{last}, {weight(width, to)}", to)
            case 3:
                add("Relu", last, width)
            case 4:
                add("Add", f"{last}, {weight(width)}", width)
            case 5 if alike:
                add(rng.choice(("Add", "Mul")), f"{last}, {rng.choice(alike)}", width)
            case 6 if width < 16:
                other = rng.choice(names)
                add("Concat", f"{last}, {other}", width + values[other], " {axis = 1}")
            case _:
                add("Softmax", last, width, " {axis = 1}")
    read = {name for line in lines for name in line[line.index("(") + 1 : line.index(")")].split(", ")}
    outputs = [name for name in values if name not in read]
    shapes = {name: f"tensor<{'x'.join(map(str, shape))}xf32>" for name, shape in weights.items()}
    return "\n".join(
        [
            "module @m {opset.onnx = 20} {",
            *(f"  resource {name} : {type_} = declared" for name, type_ in shapes.items()),
            f"  func @main(%x : tensor<{batch}x{values['%x']}xf32>) -> "
            f"({', '.join(f'{name} : tensor<{batch}x{values[name]}xf32>' for name in outputs)}) {{",
            *lines,
            "  }",
            "}",
        ]
    )


# -- machines ----------------------------------------------------------------------------------------------------------


def random_machines(rng: Random, memory: int | None) -> Topology:
    """Of 2 to 5 devices of up to 3 types on hosts that a switch joins by unequal links, on one bus, or cabled one by one, some
    with routes of another speed in one direction; ``memory``: bytes of a device, some have more."""
    count, kinds = rng.choice((2, 2, 3, 3, 4, 4, 5)), rng.choice((1, 2, 2, 3))
    rates = rng.sample((1e9, 2e9, 3e9, 8e9), kinds)
    overhead, handover = rng.choice((0.0, 1e-6)), rng.choice((0.0, 0.0, 2e-6))
    types = tuple(
        DeviceType(
            f"t{i}",
            rates=(("f32", rate),),
            memory_bandwidth=rate * rng.choice((1, 4)),
            memory=None if memory is None else rng.choice((memory, memory, 2 * memory)),
            overhead=overhead,
            handover=handover,
            free_transfers=rng.random() < 0.12,
        )
        for i, rate in enumerate(rates)
    )
    hosts = [f"h{i}" for i in range(rng.choice((1, 1, 2, 3)))]
    spread = sorted(rng.randrange(len(hosts)) for _ in range(count))
    devices = tuple(Device(f"d{i}", rng.choice(types).name, hosts[spread[i]]) for i in range(count))
    types = tuple(type_ for type_ in types if any(device.type == type_.name for device in devices))
    hosts = sorted({device.host for device in devices})

    def link(name: str, *ends: str) -> Link:
        bandwidth, latency = rng.choice((1e8, 1e9, 1e10)), rng.choice((0.0, 1e-6))
        return Link(name, ends, bandwidth, latency, rng.choice(("full", "full", "half")), rng.random() < 0.3)

    names, routes, switches = [device.name for device in devices], list[Route](), list[Switch]()
    shape = rng.randrange(4)
    if shape == 0:
        links = [link("bus", *names)]
    elif shape == 1:
        links = [link(f"{one}-{two}", one, two) for one, two in itertools.combinations(names, 2)]
        if rng.random() < 0.5:
            one, two = rng.sample(names, 2)
            links.append(link("aside", one, two))
            routes.append(Route(one, two, ("aside",)))
    else:
        switches = [Switch("switch")] if len(hosts) > 1 else []
        links = [link(f"in-{device.name}", device.name, device.host) for device in devices]
        links += [link(f"out-{host}", host, "switch") for host in hosts] if switches else []
    return Topology("@t", types, tuple(map(Host, hosts)), devices, tuple(switches), tuple(links), tuple(routes))


# -- plans -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mesh:
    """``axes``: the size of each, or its shares such as ``2,1``; none of a single device, or of replicas."""

    devices: tuple[str, ...]
    axes: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(text) if text.isdecimal() else len(text.split(",")) for text in self.axes)

    @property
    def even(self) -> bool:
        return all(text.isdecimal() for text in self.axes)


@dataclass(frozen=True, slots=True)
class Found:
    """A plan: the stage of each op, where each stage lies, its value. ``placed``: as stages of whole operators are priced;
    ``told``: how it was made, for the message of a failed test."""

    value: float
    stages: tuple[int, ...]
    where: tuple[Mesh, ...]
    placed: bool
    told: str

    @property
    def meshes(self) -> bool:
        return any(mesh.axes for mesh in self.where)

    @property
    def replicas(self) -> int:
        return max(1 if mesh.axes else len(mesh.devices) for mesh in self.where)


@dataclass(frozen=True)
class Steered:
    """What a person asks of a plan of whole operators, as ``CompileOptions`` has it."""

    pins: dict[str, str]
    cuts: tuple[str, ...]
    stages: int | None
    replicas: int | None
    split: str
    comm: str
    pieces: int | None

    @property
    def shares(self) -> bool:
        """Whether stages may share a device."""
        return bool(self.split or self.pieces)

    @property
    def options(self) -> dict[str, object]:
        """Of a compile."""
        return {**vars(self), "mesh": "none", **({"objective": "latency"} if self.pieces else {})}


class Priced(ReplayPass):
    """A plan on meshes priced as it is stated, without the search for its bound."""

    def _proven(self, module: Module, stated: Sequence[Stated], plan: Plan) -> tuple[float, dict[str, str]]:
        return 0.0, {}


class Case:
    """A random model and machines, as files in a folder."""

    def __init__(self, seed: int, folder: Path, *, unlike_handover: bool = False) -> None:
        """``unlike_handover``: types of devices differ in what handing over takes."""
        self.folder, self.rng = folder, Random(seed)
        self.training = self.rng.random() < 0.5
        self.microbatches = self.rng.choice((1, 2, 4)) if self.training else 0
        text = random_model(self.rng)
        memory = None
        if self.rng.random() < 0.4:
            memory = int(self.rng.uniform(0.3, 1.3) * _bytes(text) * (4 if self.training else 1)) + 300
        (folder / "model.ir").write_text(text, encoding="utf-8")
        machines = random_machines(self.rng, memory)
        if unlike_handover:
            seconds = [self.rng.choice((0.0, 2e-7, 1e-6, 5e-6)) for _ in machines.types]
            types = [replace(type_, handover=own) for type_, own in zip(machines.types, seconds, strict=True)]
            machines = replace(machines, types=tuple(types))
        (folder / "machines.toml").write_text(topology_to_toml(machines), encoding="utf-8")
        self.topology = load_topology(str(folder / "machines.toml"), DiagnosticSink())
        self.names = [device.name for device in self.topology.devices]
        self.context = pass_context(DiagnosticSink())
        steps = tuple(step for step in build_pipeline(self.options()) if step.name in BEFORE)
        module = ir.load_module(text, dialects=DIALECTS).extend([self.topology])
        self.module = PassManager(steps, expanded=True).run(module, self.context)
        self.borders = _borders(self.module)

    def options(self, **options: object) -> CompileOptions:
        given = {"objective": "training", "microbatches": self.microbatches} if self.training else {}
        files = str(self.folder / "model.ir"), str(self.folder / "machines.toml"), self.folder / "build"
        return CompileOptions(*files, plan_only=True, **{**given, **options})  # type: ignore[arg-type]

    def compiled(self, **options: object) -> Plan | Infeasible | None:
        """The plan of a compile; None where the options do not go with this model and these machines."""
        try:
            result = compile_model(self.options(**options), sink=DiagnosticSink())
        except Infeasible as error:
            return error
        except (InvalidInput, UsageError):
            return None
        self.last = result.module
        return result.plan

    def found(self, plan: Plan, told: str) -> Found:
        """The plan of the last compile."""
        meshes = {mesh.name: mesh for mesh in self.last.of_type(ir.Mesh)}
        where = []
        for stage in plan.stages:
            mesh = meshes.get(stage.mesh) or meshes.get(f"@{stage.mesh}")
            axes = ([",".join(map(str, along)) for along in mesh.shares] or [str(n) for _, n in mesh.axes]) if mesh else []
            where.append(Mesh(stage.devices, tuple(axes)))
        stages = tuple(op.facet(StageSet, StageSet(())).stages[0] for op in self.last.entry.ops)
        return Found(plan.value, stages, tuple(where), all(not stage.mesh for stage in plan.stages), told)

    # -- plans that no search made ---------------------------------------------------------------------------------------

    def splits(self, most: int) -> Iterator[tuple[int, ...]]:
        """The stage of each op, for every way to cut the function into up to ``most`` stages that data goes through forward."""
        ops = self.module.entry.ops
        maker = {value.name: i for i, op in enumerate(ops) for value in op.results}
        before = [[maker[name] for name in reads(op) if name in maker] for op in ops]

        def assign(stages: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            at = len(stages)
            if at < len(ops):
                for stage in range(max((stages[i] for i in before[at]), default=0), most):
                    yield from assign((*stages, stage))
            elif set(stages) == set(range(max(stages) + 1)):
                yield stages

        yield from assign(())

    def replicated(self, most: int) -> Iterator[Found]:
        """Plans in up to three stages of whole operators with replicas, on any devices: all, or ``most`` of them."""
        pairs = list(self._on_devices())
        for stages, devices in pairs if len(pairs) <= most else self.rng.sample(pairs, most):
            if (found := self.of_operators(stages, devices)).value < math.inf:
                yield found

    def _on_devices(self, *, shared: bool = False) -> Iterator[tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]]:
        """Up to three stages of whole operators, and the devices of each; with ``shared`` one each, also of several stages."""
        counts = range(1, 4 if shared else min(3, len(self.names)) + 1)
        alone = [(name,) for name in self.names]
        dealt = {n: list(itertools.product(alone, repeat=n) if shared else _dealt(self.names, n)) for n in counts}
        for stages in self.splits(max(counts)):
            for devices in dealt[max(stages) + 1]:
                yield stages, devices

    def of_operators(
        self, stages: tuple[int, ...], devices: Sequence[Sequence[str]], objective: str = "", comm: str = "sum"
    ) -> Found:
        """A plan of whole operators on these devices; without a value where it does not fit."""
        step = AssignPass(
            ops=tuple(f"{stage}:{op.id}" for stage, op in zip(stages, self.module.entry.ops, strict=True)),
            devices=tuple(f"{stage}:{name}" for stage, of in enumerate(devices) for name in of),
            objective=objective or self.options().objective or "throughput",
            comm=comm,
            microbatches=self.microbatches,
        )
        return Found(self.priced(step, PlacePass()), stages, tuple(Mesh(tuple(of)) for of in devices), True, "replicas")

    # -- plans that a person steers ----------------------------------------------------------------------------------------

    def steered(self) -> Steered:
        """Pins, cuts, a number of stages, of replicas, another split, comm or objective, drawn at random."""
        rng, ops = self.rng, self.module.entry.ops
        form = rng.choice(("", "", "", "any", "latency"))
        form = "" if self.training and form == "latency" else form
        read = {name for op in ops for name in reads(op)}
        inner = [value.name for op in ops for value in op.results if value.name in read]
        cuts = rng.sample(inner, rng.choice((0, 0, 1)) if inner and form != "latency" else 0)
        pinned = rng.sample(ops, min(len(ops), rng.choice((0, 1, 1, 2))))
        return Steered(
            pins={op.id: rng.choice(self.names) for op in pinned},
            cuts=tuple(cuts),
            stages=None if form else rng.choice((None, None, None, 1, 2, 3)),
            replicas=None if form else rng.choice((None, None, 1, 2)),
            split="any" if form == "any" else "",
            comm=rng.choice(("", "", "overlap", "duplex")) if form == "" and not self.training else "",
            pieces=rng.choice((1, 2)) if form == "latency" else None,
        )

    def steered_plans(self, asked: Steered, most: int) -> Iterator[Found]:
        """Plans that ``asked`` allows: all in up to three stages, or ``most`` of those."""
        pairs = [pair for pair in self._on_devices(shared=asked.shares) if self._allowed(asked, *pair)]
        for stages, devices in pairs if len(pairs) <= most else self.rng.sample(pairs, most):
            objective = "latency" if asked.pieces else ""
            if (found := self.of_operators(stages, devices, objective, asked.comm or "sum")).value < math.inf:
                yield found

    def _allowed(self, asked: Steered, stages: tuple[int, ...], devices: Sequence[tuple[str, ...]]) -> bool:
        ops = self.module.entry.ops
        on = {op.id: devices[stage] for op, stage in zip(ops, stages, strict=True)}
        maker = {value.name: i for i, op in enumerate(ops) for value in op.results}
        crossing = [(maker[name], i) for i, op in enumerate(ops) for name in reads(op) if name in asked.cuts]
        most = min(asked.replicas or len(self.names), self.microbatches or len(self.names))
        return (
            all(on[op] == (device,) for op, device in asked.pins.items())
            and all(devices[stages[i]] != devices[stages[j]] for i, j in crossing)
            and asked.stages in (None, len(devices))
            and all(len(of) <= most for of in devices)
            and (not asked.pieces or all(devices.count(of) <= asked.pieces for of in devices))
        )

    def meshed(self, most: int) -> Iterator[Found]:
        """Plans in stages on blocks of devices, ``most`` of which are priced: drawn at random, then improved op by op."""
        left = most if len(self.names) > 1 else 0
        while left > 0:
            left -= 1
            meshes = self._row()
            options = [split for split in self.splits(len(meshes)) if max(split) == len(meshes) - 1]
            if not options:
                continue
            stages = self.rng.choice(options)
            offered = [self._strategies(mesh.sizes or (1,)) for mesh in meshes]
            names = [self.rng.choice(offered[stage][op]) for op, stage in enumerate(stages)]
            best = self.on_meshes(stages, meshes, names)
            for op in self.rng.sample(range(len(names)), len(names)):
                for name in offered[stages[op]][op] if meshes[stages[op]].axes else ():
                    if name != names[op] and left > 0:
                        left -= 1
                        found = self.on_meshes(stages, meshes, other := [*names[:op], name, *names[op + 1 :]])
                        if found.value < best.value:
                            best, names = found, other
            if best.value < math.inf:
                yield best

    def on_meshes(self, stages: tuple[int, ...], meshes: Sequence[Mesh], strategies: Sequence[str]) -> Found:
        """A plan with these strategies of its ops; without a value where it does not fit, or an op lacks its strategy."""
        step = Priced(
            ops=tuple(f"{stage}:{op.id}" for stage, op in zip(stages, self.module.entry.ops, strict=True)),
            strategies=tuple(text if meshes[stage].axes else "" for stage, text in zip(stages, strategies, strict=True)),
            devices=tuple(f"{stage}:{name}" for stage, mesh in enumerate(meshes) for name in mesh.devices),
            axes=tuple(f"{i}:{size}:{name}" for i, m in enumerate(meshes) for size, name in zip(m.axes, "xy", strict=False)),
            objective=self.options().objective or "throughput",
            microbatches=self.microbatches or 1,
        )
        return Found(self.priced(step), stages, tuple(meshes), False, f"by {', '.join(strategies)}")

    def priced(self, *steps: Pass) -> float:
        """The value of the plan that passes write; inf where it is refused."""
        module = self.module
        try:
            for step in steps:
                module = step.run(module, self.context)
        except (Infeasible, InvalidInput):
            return math.inf
        plan = module.first(Plan)
        assert plan is not None
        return plan.value

    def _strategies(self, sizes: Sequence[int]) -> list[list[str]]:
        """Those of each op on a mesh."""
        found = []
        for _, rule in rules(self.module, self.module.entry):
            along = [[one.name for one in rule.strategies(size)] if rule else ["replicate"] for size in sizes]
            found.append([SEPARATOR.join(names) for names in itertools.product(*along)])
        return found

    def _row(self) -> list[Mesh]:
        """Blocks in the order of devices, at least one of them a mesh, of shapes drawn at random."""
        row = list[Mesh]()
        while not any(mesh.axes for mesh in row):
            row, at = [], 0
            while at < len(self.names) and len(row) < 3:
                here = [block for block in blocks(self.topology) if block[0] == self.names[at]]
                block = self.rng.choice(here)
                if self.rng.random() < 0.7:
                    shapes = [(str(len(block)),), *([("2", "2")] if len(block) == 4 else [])]
                    row.append(Mesh(block, self.rng.choice(shapes) if len(block) > 1 else ()))
                at += len(block)
        return row

    # -- what a plan's certificate is of -----------------------------------------------------------------------------------

    def claims(self, plan: Found, *, mesh: str = "", stages: int | None = None, replicas: int = 99, **others: object) -> bool:
        """Whether a compile with these options says that no plan such as this is below its bound (dnnc/README.md): one of
        stages of whole operators, on any devices, with at most a replica for each microbatch; or of stages on meshes in equal
        parts, in the order of the devices, each on a block, cut at the borders of units; of one stage, on all devices. With a
        shape, on meshes of that shape one behind the other."""
        if stages and len(plan.where) != stages:
            return False
        if plan.placed and plan.replicas > 1:
            return mesh in ("", "none") and plan.replicas <= min(replicas, self.microbatches or replicas)
        if mesh == "none" or (plan.placed and not mesh):
            return plan.placed
        if plan.placed and self.training:
            return False  # the update of a weight of two stages counts in the first alone
        own = [self.names.index(name) for one in plan.where for name in one.devices]
        at = [i for i in range(1, len(plan.stages)) if plan.stages[i] != plan.stages[i - 1]]
        ordered = own == sorted(own) and list(plan.stages) == sorted(plan.stages) and set(at) <= self.borders
        if not ordered or not all(one.even and one.devices in blocks(self.topology) for one in plan.where):
            return False
        if mesh in ("", "auto"):
            alone = stages == 1 or (mesh == "auto" and stages is None)
            return len(own) == len(self.names) and len(plan.where) == 1 if alone else True
        sizes = tuple(map(int, mesh.split("x")))
        places = [self.names.index(one.devices[0]) // math.prod(sizes) * math.prod(sizes) for one in plan.where]
        shaped = all(one.sizes == sizes and self.names.index(one.devices[0]) in places for one in plan.where)
        return shaped and (places == [0] if stages in (1, None) else True)


def blocks(topology: Topology) -> list[tuple[str, ...]]:
    """Where a stage on a mesh may lie (dnnc/README.md): on consecutive devices of a host, or on consecutive whole hosts."""
    hosts = [[d.name for d in own] for _, own in itertools.groupby(topology.devices, key=lambda device: device.host)]
    found = []
    for own in hosts:
        for size in range(1, len(own) + 1):
            found += [tuple(own[at : at + size]) for at in range(len(own) - size + 1)]
    for some in range(2, len(hosts) + 1):
        found += [tuple(itertools.chain(*hosts[at : at + some])) for at in range(len(hosts) - some + 1)]
    return found


def _borders(module: Module) -> set[int]:
    """Places between ops before which a stage on a mesh may begin: where fewer values cross than around, of as many, fewer
    bytes."""
    ops = module.entry.ops
    if list(folding(module.entry, module).order) != list(range(len(ops))):
        return set()
    last = {name: i for i, op in enumerate(ops) for name in reads(op)}
    made = [(i, value) for i, op in enumerate(ops) for value in op.results if value.name in last]
    crossing: list[tuple[int, int]] = [(len(ops), 0)]
    for p in range(1, len(ops)):
        here = [ir.type_bytes(value.type) or 0 for i, value in made if i < p <= last[value.name]]
        crossing.append((len(here), sum(here)))
    crossing.append((len(ops), 0))
    found = set()
    for p in range(1, len(ops)):
        before = next(crossing[q] for q in range(p, -1, -1) if crossing[q] != crossing[p])
        behind = next(crossing[q] for q in range(p, len(ops) + 1) if crossing[q] != crossing[p])
        if before > crossing[p] < behind:
            found.add(p)
    return found


def _dealt(names: Sequence[str], count: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to give ``count`` stages disjoint sets of devices."""
    for owners in itertools.product(range(count + 1), repeat=len(names)):
        if set(range(1, count + 1)) <= set(owners):
            yield tuple(tuple(n for n, owner in zip(names, owners, strict=True) if owner == i) for i in range(1, count + 1))


def _bytes(text: str) -> int:
    """Bytes of the weights of a module."""
    module = ir.load_module(text, dialects=DIALECTS)
    return sum(ir.type_bytes(resource.type) or 0 for resource in module.of_type(ir.Resource))
