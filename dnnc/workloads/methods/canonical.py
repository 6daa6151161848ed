"""Numbers nodes canonically, so that methods that depend on the order of nodes do not depend on the file's order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dnnc.workloads.methods.base import SolvedStage, topology_of
from ir.core.facets import BackwardTime, Direction
from ir.core.module import Module


def canonical_module(module: Module) -> tuple[Module, tuple[int, ...]]:
    """The module with its ops in an order independent of names and of the file, and the original position of each op."""
    from passes.costs.memory.liveness import value_bytes
    from passes.costs.network import network
    from passes.reference.from_workload import color_classes
    from passes.stages.canonical import canonical_order
    from passes.stages.colocation import FORWARD
    from passes.stages.from_ir import problem_of

    topology, entry = topology_of(module), module.entry
    problem = problem_of(module, topology, network(topology))
    columns: list[list[float]] = [
        [float(op.facet(Direction, FORWARD).direction == "bw") for op in entry.ops],
        [float(sum(value_bytes(value) for value in op.results)) for op in entry.ops],
        [float(op.get("weight", 0)) for op in entry.ops],
    ]
    for type_ in topology.types:
        stated = [op.facet(BackwardTime) for op in entry.ops]
        backward = [None if facet is None else dict(facet.seconds).get(f"@{type_.name}") for facet in stated]
        columns.append([-1.0 if seconds is None else float(seconds) for seconds in backward])
    order = canonical_order(problem, columns, color_classes(entry))
    return module.replace(entry, replace(entry, ops=tuple(entry.ops[v] for v in order))), order


def in_file_order(stages: Iterable[SolvedStage], order: Sequence[int]) -> tuple[SolvedStage, ...]:
    """The stages with positions in the original module in place of those in the canonical one."""

    def places(ops: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(order[v] for v in ops))

    return tuple(
        replace(
            stage,
            ops=places(stage.ops),
            pieces=tuple(replace(piece, ops=places(piece.ops)) for piece in stage.pieces),
        )
        for stage in stages
    )
