"""Between the choices of a problem and decisions by name: what ``price`` walks by, and the pass writes down and reads again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.layout_rules import LayoutRule
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


def choice_of(given: ShardInput, number: int, rule: LayoutRule, names: Sequence[str]) -> int | None:
    """The choice of op ``number`` whose values lie as these strategies, one per axis, have them, None where there is none: of
    those that lie alike, the quickest."""
    op, taken = given.func.ops[number], []
    for name, axis in zip(names, given.mesh.axes, strict=True):
        strategy = next((s for s in rule.strategies(axis.size) if s.name == name), None)
        if strategy is None:
            return None
        taken.append(strategy)
    ports = [port for port, name in enumerate(op.operands) if name in given.layouts]
    wanted = [(tuple(s.operands[p] for p in ports), s.results) for s in taken]
    found = []
    for choice, strategies in enumerate(given.strategies[given.problem.kinds[number]]):
        lies = [(tuple(s.operands[p] for p in ports), s.results) for s in strategies if s is not None]
        if lies == wanted:
            found.append(choice)
    seconds = given.problem.node(number).seconds
    return min(found, key=lambda choice: float(seconds[choice]), default=None)


def settled(given: ShardInput, ops: Sequence[int], stated: Mapping[int, int] | None = None) -> tuple[int, ...]:
    """Choices of all nodes, given those of the ops and of ``stated`` nodes: every other weight is kept, every other result
    leaves, as costs least, then as takes least memory."""
    problem, stated = given.problem, stated or {}
    choices = [*ops, *([0] * (problem.size - len(ops)))]
    for node, choice in stated.items():
        choices[node] = choice
    for value in problem.values:
        free = [value.maker[0]] if value.maker[0] in given.kept else []
        free += [node for node, _ in value.readers if node in given.outputs]
        for node in free:
            if node in stated:
                continue
            kind = problem.node(node)
            costs = []
            for choice in range(len(kind.seconds)):
                choices[node] = choice
                costs.append((problem.value_cost(value, choices), float(kind.memory[choice]), choice))
            choices[node] = min(costs)[2]
    return tuple(choices)


__all__ = ["choice_of", "decisions_of", "settled"]
