"""Small random models and machines, and plans for them that no search made: priced by what replays a plan of a person's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import ir
from dnnc.driver import CompileOptions, compile_model, pass_context
from dnnc.frontends import DIALECTS, load_topology
from dnnc.frontends.topology_writer import topology_to_toml
from dnnc.options import build_pipeline
from dnnc.training import TrainingOptions
from ir.diagnostics import DiagnosticSink, Infeasible, InvalidInput
from ir.facets import SEPARATOR
from ir.layout_rules import rules
from ir.module import Module, Plan
from ir.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from passes.framework.manager import PassManager
from passes.model.graph import reads
from passes.place import PlacePass
from passes.replay.assign import AssignPass
from passes.replay.meshes import ReplayPass, Stated

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
            free_transfers=rng.random() < 0.06,
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


# -- a case ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A plan: its value, and how it was made, for the message of a failed test. ``devices`` of each stage, and whether a stage
    splits its tensors."""

    value: float
    told: str
    devices: tuple[tuple[str, ...], ...]
    meshes: bool


@dataclass(frozen=True, slots=True)
class Mesh:
    """``axes``: the size of each, or its shares such as ``2,1``."""

    devices: tuple[str, ...]
    axes: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(text) if text.isdecimal() else len(text.split(",")) for text in self.axes)


class Priced(ReplayPass):
    """A plan on meshes priced as it is stated, without the search for its bound."""

    def _proven(self, module: Module, stated: Sequence[Stated], plan: Plan) -> tuple[float, dict[str, str]]:
        return 0.0, {}


class Case:
    """A random model and machines, as files in a folder; ``objective`` and ``microbatches`` as of a compile."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder, rng = seed, folder, Random(seed)
        self.rng = rng
        self.training = rng.random() < 0.5
        self.microbatches = rng.choice((1, 2, 4)) if self.training else 0
        self.model, self.machines = folder / "model.ir", folder / "machines.toml"
        text = random_model(rng)
        self.model.write_text(text, encoding="utf-8")
        memory = None
        if rng.random() < 0.4:
            memory = int(rng.uniform(0.3, 1.3) * _bytes(text) * (4 if self.training else 1)) + 300
        self.machines.write_text(topology_to_toml(random_machines(rng, memory)), encoding="utf-8")
        self.topology = load_topology(str(self.machines), DiagnosticSink())
        pipeline = build_pipeline(self.options())
        module = ir.load_module(text, dialects=DIALECTS).extend([self.topology])
        steps = tuple(step for step in pipeline if step.name in BEFORE)
        self.module = PassManager(steps, expanded=True).run(module, pass_context(DiagnosticSink()))
        self.context = pass_context(DiagnosticSink())

    def options(self, **options: object) -> CompileOptions:
        given = {"objective": "training", "microbatches": self.microbatches} if self.training else {}
        out = self.folder / "build"
        return CompileOptions(str(self.model), str(self.machines), out, plan_only=True, **{**given, **options})  # type: ignore[arg-type]

    def compiled(self, **options: object) -> Plan | None:
        """The plan of a compile with these options; None where there is none."""
        try:
            return compile_model(self.options(**options), sink=DiagnosticSink()).plan
        except (Infeasible, InvalidInput):
            return None

    # -- stages of whole operators, with replicas ------------------------------------------------------------------------

    def splits(self, most: int) -> Iterator[tuple[int, ...]]:
        """The stage of each op, for every way to cut the function into up to ``most`` stages between which data flows forward."""
        ops = self.module.entry.ops
        maker = {value.name: i for i, op in enumerate(ops) for value in op.results}
        before = [[maker[name] for name in reads(op) if name in maker] for op in ops]

        def assign(stages: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            at = len(stages)
            if at == len(ops):
                if set(stages) == set(range(max(stages) + 1)):
                    yield stages
                return
            for stage in range(max((stages[i] for i in before[at]), default=0), most):
                yield from assign((*stages, stage))

        yield from assign(())

    def placed(self, stages: Sequence[int], devices: Sequence[Sequence[str]]) -> Found | None:
        """The plan of these stages on these devices, replicas where a stage has several; None where it does not fit."""
        names = [op.id for op in self.module.entry.ops]
        step = AssignPass(
            ops=tuple(f"{stage}:{name}" for stage, name in zip(stages, names, strict=True)),
            devices=tuple(f"{stage}:{name}" for stage, of in enumerate(devices) for name in of),
            objective="training" if self.training else "throughput",
            microbatches=self.microbatches,
        )
        return self.priced((step, PlacePass()), f"stages {tuple(stages)} on {tuple(devices)}", devices, meshes=False)

    def priced(
        self, steps: Sequence[AssignPass | ReplayPass | PlacePass], told: str, devices: Sequence[Sequence[str]], meshes: bool
    ) -> Found | None:
        module = self.module
        try:
            for step in steps:
                module = step.run(module, self.context)
        except (Infeasible, InvalidInput):
            return None
        plan = module.first(Plan)
        assert plan is not None
        return Found(plan.value, told, tuple(map(tuple, devices)), meshes)

    def replicated(self, most: int) -> Iterator[Found]:
        """Plans in stages with replicas: all, or ``most`` drawn at random."""
        names = [device.name for device in self.topology.devices]
        every = list(self.splits(min(3, len(names))))
        of_count = {count: list(_dealt(names, count)) for count in range(1, min(3, len(names)) + 1)}
        pairs = [(stages, devices) for stages in every for devices in of_count[max(stages) + 1]]
        for stages, devices in pairs if len(pairs) <= most else self.rng.sample(pairs, most):
            if found := self.placed(stages, devices):
                yield found

    # -- stages on meshes ------------------------------------------------------------------------------------------------

    def strategies(self, sizes: Sequence[int]) -> list[list[str]]:
        """Those of each op on a mesh."""
        found = []
        for _, rule in rules(self.module, self.module.entry):
            along = [[one.name for one in rule.strategies(size)] if rule else ["replicate"] for size in sizes]
            found.append([SEPARATOR.join(names) for names in itertools.product(*along)])
        return found

    def on_meshes(self, stages: Sequence[int], meshes: Sequence[Mesh], strategies: Sequence[str]) -> Found | None:
        ops = self.module.entry.ops
        single = [len(mesh.devices) == 1 for mesh in meshes]
        step = Priced(
            ops=tuple(f"{stage}:{op.id}" for stage, op in zip(stages, ops, strict=True)),
            strategies=tuple("" if single[stage] else text for stage, text in zip(stages, strategies, strict=True)),
            devices=tuple(f"{stage}:{name}" for stage, mesh in enumerate(meshes) for name in mesh.devices),
            axes=tuple(
                f"{stage}:{size}:{name}"
                for stage, mesh in enumerate(meshes)
                if not single[stage]
                for size, name in zip(mesh.axes, "xy", strict=False)
            ),
            objective="training" if self.training else "throughput",
            microbatches=self.microbatches or 1,
        )
        told = f"stages {tuple(stages)} on {[f'{m.axes} of {m.devices}' for m in meshes]} by {list(strategies)}"
        return self.priced((step,), told, [mesh.devices for mesh in meshes], meshes=True)
    def meshed(self, most: int) -> Iterator[Found]:
        """Plans in stages on blocks of devices: at random first, then each the best of its neighbours; ``most`` are priced."""
        left = most
        places = [block for block in blocks(self.topology) if len(block) > 1]
        while left > 0 and places:
            meshes = self._row()
            options = [name for name in self.splits(len(meshes)) if max(name) == len(meshes) - 1]
            if not options:
                left -= 1
                continue
            stages = self.rng.choice(options)
            offered = [self.strategies(mesh.sizes) for mesh in meshes]
            names = [self.rng.choice(offered[stage][i]) for i, stage in enumerate(stages)]
            best, improved = self.on_meshes(stages, meshes, names), True
            left -= 1
            while improved and left > 0:
                improved = False
                for i in self.rng.sample(range(len(names)), len(names)):
                    for name in offered[stages[i]][i] if len(meshes[stages[i]].devices) > 1 else ():
                        other = [*names[:i], name, *names[i + 1 :]]
                        left -= 1
                        found = self.on_meshes(stages, meshes, other) if name != names[i] else None
                        if found and (best is None or found.value < best.value):
                            best, names, improved = found, other, True
            if best is not None:
                yield best

    def _row(self) -> list[Mesh]:
        """Blocks in the order of devices, one of which is a mesh, in shapes drawn at random."""
        names = [device.name for device in self.topology.devices]
        while True:
            row, at = list[Mesh](), 0
            while at < len(names) and len(row) < 3:
                here = [block for block in blocks(self.topology) if block[0] == names[at]]
                if self.rng.random() < 0.7 and here:
                    block = self.rng.choice(here)
                    shapes = [(str(len(block)),), *([("2", "2")] if len(block) == 4 else [])]
                    row.append(Mesh(block, self.rng.choice(shapes)))
                    at += len(block)
                else:
                    at += 1
            if any(len(mesh.devices) > 1 for mesh in row):
                return row


def blocks(topology: Topology) -> list[tuple[str, ...]]:
    """Where a stage may lie (dnnc/README.md): on consecutive devices whose number divides that of their host, or on consecutive
    whole hosts whose number divides that of all."""
    hosts = [[d.name for d in own] for _, own in itertools.groupby(topology.devices, key=lambda device: device.host)]
    found = []
    for own in hosts:
        for size in range(1, len(own) + 1):
            found += [tuple(own[at : at + size]) for at in range(len(own) - size + 1) if len(own) % size == 0]
    for some in range(2, len(hosts) + 1):
        if len(hosts) % some == 0:
            found += [tuple(itertools.chain(*hosts[at : at + some])) for at in range(len(hosts) - some + 1)]
    return found


def _dealt(names: Sequence[str], count: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to give ``count`` stages disjoint sets of devices."""
    for owners in itertools.product(range(count + 1), repeat=len(names)):
        if set(range(1, count + 1)) <= set(owners):
            yield tuple(tuple(n for n, owner in zip(names, owners, strict=True) if owner == i) for i in range(1, count + 1))


def _bytes(text: str) -> int:
    module = ir.load_module(text, dialects=DIALECTS)
    return sum(ir.type_bytes(resource.type) or 0 for resource in module.of_type(ir.Resource))
