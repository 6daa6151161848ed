"""From the choices of a plan to decisions by name: what ``price`` walks by and the pass writes down."""

from __future__ import annotations

from collections.abc import Sequence

from passes.shard.build import WHOLE, ShardInput
from passes.shard.layouts import Placements
from passes.shard.price import Decisions


def decisions_of(given: ShardInput, choices: Sequence[int]) -> Decisions:
    """Strategies of ops, layouts of weights and of results."""
    problem = given.problem
    strategies = {}
    for node, op in enumerate(given.func.ops):
        taken = given.strategies[problem.kinds[node]][choices[node]]
        strategies[op.id] = tuple(strategy.name if strategy else WHOLE for strategy in taken)
    kept = {
        name: given.layouts[name].placements[problem.node(node).makes[0][choices[node]]] for node, name in given.kept.items()
    }
    outputs: dict[str, Placements] = {}
    readers = {reader: value for value in problem.values for reader in value.readers if reader[0] in given.outputs}
    for node, name in given.outputs.items():
        value = readers[node, 0]
        need = problem.value_kinds[value.kind].needs[problem.node(node).reads[0][choices[node]]]
        outputs[name] = given.layouts[name].placements[need[0]]
    return Decisions(strategies, kept, outputs)


__all__ = ["decisions_of"]
