"""What repeats in a plan, shown once: the ops of each distinct layer, the runs of such layers on a stage, the tensors between.

A *layer* is a copy of a repeated part of the model, or what lies between two (``passes.plan.layers``). Layers whose
ops were decided alike and cost the same are one *variant*; consecutive layers of one variant on one stage are a *run*. So 96
equal layers are one variant of some thirty ops and one run with the count 96.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ir.core.facets import BackwardTime, Cost, Time
from ir.core.module import Module, Plan
from ir.core.ops import Value
from ir.core.topology import Topology
from ir.core.types import type_bytes
from passes.costs.learning import learning_seconds
from passes.costs.op_time import body_seconds
from passes.graph.folding import folding
from passes.graph.graph import reads, stage_members
from passes.meshes.undecided import undecided, undifferentiated
from passes.plan.layers import Layer, OpRow, groups, layers
from passes.stages.placement_from_ir import leaving


@dataclass(slots=True)
class Run:
    """Consecutive layers of one variant on a stage. ``loops``: whether a layer reads what the one before it makes."""

    stage: int
    variant: int
    layers: list[Layer]
    loops: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor from op ``source`` to op ``target``, each (run, position in its layer). The run is -1 for an input of the model,
    and for a result of it; the position is then its number. ``size``: bytes, None if unknown."""

    source: tuple[int, int]
    target: tuple[int, int]
    tensor: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Blocks:
    """``variants``: the first layer of each. ``inner[variant]``: pairs of positions in it, a maker and a reader."""

    variants: tuple[Layer, ...]
    inner: tuple[tuple[tuple[int, int], ...], ...]
    runs: tuple[Run, ...]
    edges: tuple[Edge, ...]


def blocks(module: Module) -> Blocks:
    """The blocks of an expanded module with a plan, of its forward pass. Raises ValueError where a stage has no devices."""
    variants: dict[object, int] = {}
    first: list[Layer] = []
    runs: list[Run] = []
    for layer in _apart(undifferentiated(module), layers_of(module)):
        number = variants.setdefault(_likeness(layer), len(first))
        if number == len(first):
            first.append(layer)
        if runs and (runs[-1].stage, runs[-1].variant) == (layer.stage, number):
            runs[-1].layers.append(layer)
        else:
            runs.append(Run(layer.stage, number, [layer]))
    return Blocks(tuple(first), tuple(map(_inner, first)), tuple(runs), tuple(_edges(undifferentiated(module), runs)))


def layers_of(module: Module) -> tuple[Layer, ...]:
    """The layers of an expanded module with a plan, stage by stage, with the seconds of their ops; in training those of both
    passes of a microbatch."""
    plan = module.first(Plan)
    if plan is None:
        raise ValueError(f"module {module.name} has no plan")
    return layers(module) if plan.on_meshes else tuple(_whole_layers(module, plan))


def formula_seconds(module: Module) -> dict[tuple[int, str], float]:
    """Seconds of compute that formulas count for the ops of an expanded module with a plan whose seconds are of a profile: by
    stage and id of the op. Ops without a cost, such as those of a profiled workload, are left out."""
    entry = module.entry
    profiled = {op.id for op in entry.ops if op.facet(Cost) is not None and op.facet(Time) is not None}
    if not profiled:
        return {}
    ops = (
        replace(op, facets=tuple(one for one in op.facets if not isinstance(one, Time | BackwardTime)))
        if op.id in profiled
        else op
        for op in entry.ops
    )
    counted = layers_of(module.replace(entry, replace(entry, ops=tuple(ops))))
    return {(layer.stage, row.op.id): row.compute for layer in counted for row in layer.rows if row.op.id in profiled}


def _whole_layers(module: Module, plan: Plan) -> Iterator[Layer]:
    """The layers of a plan whose ops stay whole."""
    module, topology = undifferentiated(module), module.first(Topology)
    entry, members = module.entry, stage_members(module.entry)
    bare = undecided(module, copies=True)
    own = [[i for i, stages in enumerate(members) if stage.index in stages] for stage in plan.stages]
    parts = groups(bare.entry, folding(bare.entry, bare))
    for stage, positions, outputs in zip(plan.stages, own, leaving(entry, own), strict=True):
        name = stage.device_type or (topology.device(stage.devices[0]).type if topology and stage.devices else "")
        ops = [entry.ops[i] for i in positions]
        if topology is None or not name:
            seconds = [0.0] * len(ops)
        elif plan.in_steps:
            every = learning_seconds(module, topology.type(name))
            seconds = [every[i].both for i in positions]
        else:
            seconds = body_seconds(ops, topology.type(name), outputs)
        rows = {op.id: OpRow(op, (), (), (), (), each, ()) for op, each in zip(ops, seconds, strict=True)}
        for title, block, group in parts:
            if mine := tuple(rows[op.id] for op in group if op.id in rows):
                yield Layer(title, stage.index, block, mine)


def _apart(module: Module, every: Sequence[Layer]) -> list[Layer]:
    """The layers, with what lies in no copy of a repeat parted where a path leaves it and comes back: the embedding of a model
    and its head have one scope, and all layers between them. ``depth[op]``: most changes of layer on a path to the op."""
    position = {op.id: place for place, op in enumerate(module.entry.ops)}
    of = {(layer.stage, row.op.id): number for number, layer in enumerate(every) for row in layer.rows}
    home: dict[str, tuple[int, str]] = {}
    depth: dict[tuple[int, str], int] = {}
    for stage, op in sorted(
        ((layer.stage, row.op) for layer in every for row in layer.rows), key=lambda p: (position[p[1].id], p[0])
    ):
        key = (stage, op.id)
        makers = [home[name] for name in reads(op) if name in home]
        makers = [(stage, name) if (stage, name) in depth else maker for maker in makers for name in [maker[1]]]
        depth[key] = max((depth[maker] + (of[maker] != of[key]) for maker in makers), default=0)
        home.update((value.name, key) for value in op.results)
    parted: list[Layer] = []
    for layer in every:
        rows: dict[int, list[OpRow]] = {}
        for row in layer.rows:
            rows.setdefault(depth[layer.stage, row.op.id] if layer.block < 0 else 0, []).append(row)
        parted += [replace(layer, rows=tuple(own)) for own in rows.values()]
    return sorted(parted, key=lambda layer: (layer.stage, position[layer.rows[0].op.id]))


def _likeness(layer: Layer) -> object:
    """What layers of one variant have in common. Ops outside of any repeat are of no other layer."""
    if layer.block < 0:
        return layer.stage, layer.name, layer.rows[0].op.id
    return layer.block, tuple(
        (
            row.op.name,
            row.strategies,
            tuple(layout for _, layout in row.operands),
            tuple((value.type, layout) for value, (_, layout) in zip(row.op.results, row.results, strict=False)),
            tuple(layout for _, layout in row.kept),
            f"{row.compute:.9e}",
            tuple((one.kind, one.axis, one.size, f"{one.seconds:.9e}", one.backward) for one in row.collectives),
        )
        for row in layer.rows
    )


def _inner(layer: Layer) -> tuple[tuple[int, int], ...]:
    made = {value.name: place for place, row in enumerate(layer.rows) for value in row.op.results}
    pairs = [(made[name], place) for place, row in enumerate(layer.rows) for name in reads(row.op) if name in made]
    return tuple(dict.fromkeys(pairs))


def outputs_of(module: Module) -> list[Value]:
    """The results of the entry that leave the devices: what a state becomes stays."""
    stay = {f"%{state.result}" for state in module.states.values()}
    return [value for value in module.entry.results if value.name not in stay]


@dataclass(slots=True)
class _Places:
    """Where values are made: (run, layer in it, position), by stage and name, and by name alone."""

    own: dict[tuple[int, str], tuple[int, int, int]] = field(default_factory=dict)
    any: dict[str, tuple[int, int, int]] = field(default_factory=dict)


def _edges(module: Module, runs: Sequence[Run]) -> Iterator[Edge]:
    """The tensors between runs, each pair of ops once, then those from inputs and to outputs of the model. Marks the runs that
    loop."""
    made = _Places()
    types = {value.name: value.type for value in module.entry.args}
    for number, run in enumerate(runs):
        for copy, layer in enumerate(run.layers):
            for place, row in enumerate(layer.rows):
                for value in row.op.results:
                    made.own[run.stage, value.name] = made.any[value.name] = (number, copy, place)
                    types[value.name] = value.type
    known: dict[tuple[tuple[int, int], tuple[int, int]], Edge] = {}

    def add(source: tuple[int, int], target: tuple[int, int], name: str) -> None:
        type_ = types.get(name)
        known.setdefault((source, target), Edge(source, target, name, type_bytes(type_) if type_ is not None else None))

    inputs = {value.name: number for number, value in enumerate(module.entry.args)}
    for number, run in enumerate(runs):
        for copy, layer in enumerate(run.layers):
            for place, row in enumerate(layer.rows):
                for name in reads(row.op):
                    source = made.own.get((run.stage, name)) or made.any.get(name)
                    if name in inputs:
                        add((-1, inputs[name]), (number, place), name)
                    elif source is not None and source[0] != number:
                        add((source[0], source[2]), (number, place), name)
                    elif source is not None and source[1] != copy:
                        run.loops = True
    for number, value in enumerate(outputs_of(module)):
        if (source := made.any.get(value.name)) is not None:
            add((source[0], source[2]), (-1, number), value.name)
    yield from known.values()


def stage_compute(blocks_: Blocks, stage: int) -> float:
    """Seconds of the ops of a stage per microbatch."""
    return math.fsum(layer.compute for run in blocks_.runs if run.stage == stage for layer in run.layers)
