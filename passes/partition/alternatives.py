"""What other plans than that of a sharded module would cost: those by name, on its mesh."""

from __future__ import annotations

from dataclasses import dataclass

from ir.core.module import Mesh, Module
from ir.core.topology import Topology
from passes.costs.network import network
from passes.graph.folding import folding
from passes.meshes.costs.footprint import footprint
from passes.meshes.costs.price import price
from passes.meshes.mesh import mesh_of, mesh_over
from passes.meshes.staged import Staged
from passes.meshes.undecided import undecided, undifferentiated
from passes.partition.layouts.decide import decisions_of
from passes.partition.layouts.mesh.named import STRATEGIES, UnfitError, named_plan
from passes.partition.layouts.problem.build import build
from passes.partition.layouts.solver.search import NoPlanError, solve
from passes.plan.parts import priced_under, sharded_plan, stage_parts

SECONDS = 10.0
"""Of the search for the plan of equal parts."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan to compare with: seconds per sample or training step, of them compute and collectives, bytes per device, weights
    and activations, and whether these fit; ``missing``: why there is none."""

    name: str
    seconds: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    memory: float = 0.0
    fits: bool = True
    missing: str = ""


def alternatives(module: Module) -> tuple[Alternative, ...]:
    """Plans by name on the mesh of a sharded module of one stage, else on one axis of all its devices; without regard to
    memory, which each tells. Of a module whose plan is one by name, the one found is among them (``found``); of one whose
    members get unequal parts, the one found for equal parts (``equal``). Seconds are those of the plan's objective, per step
    where its steps have microbatches."""
    module = undifferentiated(module)
    plan, options = sharded_plan(module), priced_under(module)
    topology = module.first(Topology)
    assert topology is not None
    bare = undecided(module)
    net = network(topology)
    meshes = [part.mesh for part in stage_parts(module)]
    mesh = meshes[0] if len(meshes) == 1 else mesh_of(topology, net, (sum(len(mesh.devices) for mesh in meshes),))
    training = plan.minimises.trains
    memory = next((int(str(a.value)) for key, a in module.entry.attributes if key == "shard.memory"), 0)
    mesh = mesh.limited(memory)
    repeats = folding(bare.entry, bare)
    given = build(bare, bare.entry, mesh, repeats, training=training, **options)
    inputs = dict.fromkeys(STRATEGIES, given)
    if mesh.shares:
        alike = mesh_over(topology, net, Mesh("", tuple((axis.name, axis.size) for axis in mesh.axes), mesh.devices))
        alike = alike.limited(memory)
        inputs = {"equal": build(bare, bare.entry, alike, repeats, training=training, **options), **inputs}
    if any(key == "strategy" for key, _ in plan.certificate):
        inputs = {"found": given, **inputs}
    told = []
    for name, here in inputs.items():
        try:
            if name in STRATEGIES:
                other = named_plan(bare, here, name)
            else:
                other = solve(here.problem, seconds=SECONDS)
        except (UnfitError, NoPlanError) as error:
            told.append(Alternative(name, missing=str(error)))
            continue
        decisions = decisions_of(here, other.choices)
        bill = price(bare, bare.entry, here.mesh, decisions, training=training, **options)
        types = {name: resource.type for name, resource in bare.resources.items()}
        needs = footprint(bare.entry, types, Staged(tuple(range(len(bare.entry.ops))), here.mesh, decisions, bill)).total
        fits = mesh.memory is None or needs <= mesh.memory
        times = options["microbatches"]
        spent = (times * bill.overlapped, times * bill.compute, times * (bill.communication - bill.hidden))
        told.append(Alternative(name, *spent, memory=needs, fits=fits))
    return tuple(told)
