"""From a workload (``dnnc.work`` ops) to the problems beyond contiguous inference, for which ``from_ir`` is the door.

PipeDream's profile (nodes that state both of their passes), the training graph (explicit forward and backward nodes), and the
classes of colours. Node v is the op at position v of the entry function.
"""

from __future__ import annotations

import numpy as np

from ir.core.diagnostics import InvalidInput
from ir.core.facets import BackwardTime, Color, Direction, Time
from ir.core.module import Func, Module
from ir.core.topology import DeviceType, Topology
from passes.costs.memory.liveness import value_bytes
from passes.costs.network import Network
from passes.graph.graph import reads
from passes.reference.faults import NotBothPasses
from passes.reference.pipedream import Profile
from passes.reference.training import TrainingGraph
from passes.stages.colocation import FORWARD
from passes.stages.from_ir import problem_of


def profile_of(module: Module, device_type: DeviceType) -> Profile:
    """What PipeDream's planner reads: forward + backward seconds on ``device_type``, the bytes of each output (sent where an
    edge leaves, stored for the backward pass), bytes of parameters.

    Raises InvalidInput for an op that does not state both passes."""
    ops = module.entry.ops
    key = f"@{device_type.name}"
    seconds = []
    for op in ops:
        times = [dict(facet.seconds).get(key) for kind in (Time, BackwardTime) if (facet := op.facet(kind)) is not None]
        stated = [time for time in times if time is not None]
        if len(stated) < 2:
            raise InvalidInput(NotBothPasses(op.id, device_type.name), where=module.name)
        seconds.append(sum(stated))
    position = {value.name: v for v, op in enumerate(ops) for value in op.results}
    readers: list[set[int]] = [set() for _ in ops]
    for v, op in enumerate(ops):
        for name in reads(op):
            readers[position[name]].add(v)
    output = np.array([sum(value_bytes(value) for value in op.results) for op in ops], np.int64)
    return Profile(
        names=tuple(op.id for op in ops),
        seconds=np.array(seconds, dtype=np.float64),
        output=output,
        stored=output,
        weights=np.array([int(op.get("weight", 0)) for op in ops], np.int64),
        readers=tuple(tuple(sorted(found)) for found in readers),
    )


def training_graph_of(module: Module, topology: Topology, net: Network) -> TrainingGraph:
    """The graph with its phases and colours; seconds, transfers and kinds as for inference (``problem_of``)."""
    func = module.entry
    problem = problem_of(module, topology, net)
    transfer = np.zeros_like(problem.seconds)
    transfer[:, problem.producer] = problem.transfer
    colors = [op.facet(Color) for op in func.ops]
    size = np.zeros(problem.size, np.int64)
    size[[op for (op,) in problem.weight_readers]] = problem.weight_bytes  # a workload states bytes for each op alone
    return TrainingGraph(
        names=problem.names,
        kinds=problem.kinds,
        seconds=problem.seconds,
        size=size,
        backward=np.array([op.facet(Direction, FORWARD).direction == "bw" for op in func.ops], np.bool_),
        colour=tuple(None if color is None else color.color for color in colors),
        transfer=transfer,
        edges=tuple(
            (maker, reader)
            for maker, readers in zip(problem.producer.tolist(), problem.consumers, strict=True)
            for reader in readers
        ),
    )


def color_classes(func: Func) -> tuple[tuple[int, ...], ...]:
    """Ops of one colour, by colour; a colour of one op is none."""
    members: dict[int, list[int]] = {}
    for v, op in enumerate(func.ops):
        color = op.facet(Color)
        if color is not None:
            members.setdefault(color.color, []).append(v)
    return tuple(tuple(members[color]) for color in sorted(members) if len(members[color]) > 1)
