"""Between the choices of a problem and decisions by name: what ``price`` walks by, and the pass writes down and reads again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ir.core.facets import WHOLE
from ir.layout_rules import LayoutRule, Strategy
from passes.meshes.costs.bill import Decisions
from passes.meshes.layouts import Placements
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.problem import ShardProblem
from passes.partition.layouts.solver.search import ShardPlan


def truthful(given: ShardInput, choices: Sequence[int]) -> tuple[int, ...]:
    """The choices with the same decisions whose claims to be fused are true (``fused``): they cost no more."""
    problem, found = given.problem, list(choices)
    claims = [_claims(strategies) for strategies in given.strategies]
    claiming = {kind for kind, groups in enumerate(claims) if groups}
    links: dict[int, list[int]] = {}
    for number, value in enumerate(problem.values):
        if len(value.readers) == 1 and problem.kinds[value.readers[0][0]] in claiming:
            links.setdefault(value.readers[0][0], []).append(number)
    known: dict[tuple[object, ...], int] = {}
    for node, kind in enumerate(problem.kinds):
        alike = claims[kind].get(found[node]) if kind in claiming else None
        if alike is None:
            continue
        linked = links.get(node, ())
        key = kind, alike[0], *(around(problem, number, found) for number in linked)
        if key not in known:
            costs = []
            for other in alike:
                found[node] = other
                shared = sum(problem.value_cost(number, found) for number in linked)
                costs.append(float(problem.node(node).seconds[other]) + shared)
            known[key] = alike[costs.index(min(costs))]
        found[node] = known[key]
    return tuple(found)


def _place(problem: ShardProblem, number: int, node: int) -> int:
    """Which of the nodes around a value one is: 0, or its number among the readers."""
    form, row = problem.graph.form_of[number]
    return problem.graph.rows[form][row].index(node)


def around(problem: ShardProblem, number: int, choices: Sequence[int]) -> tuple[object, ...]:
    """All that the cost of a value depends on: its form, and what is chosen by those who make and read it."""
    form, row = problem.graph.form_of[number]
    return form, *[choices[node] for node in problem.graph.rows[form][row]]


def _claims(strategies: Sequence[tuple[Strategy | None, ...]]) -> dict[int, list[int]]:
    """Choices that differ in claims alone, of each of them."""
    groups: dict[int, list[int]] = {}
    for choice, taken in enumerate(strategies):
        groups.setdefault(id(taken), []).append(choice)
    return {choice: group for group in groups.values() if len(group) > 1 for choice in group}


def truthful_plan(given: ShardInput, plan: ShardPlan) -> ShardPlan:
    """The plan with true claims."""
    choices = truthful(given, plan.choices)
    if choices == plan.choices:
        return plan
    value = given.problem.cost(choices)
    return replace(plan, choices=choices, value=value, bound=min(plan.bound, value))


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
    op, taken = given.func.ops[number], rule.named(names, given.mesh.sizes)
    if taken is None:
        return None
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
    leaves, as costs least, then as takes least memory; claims are true."""
    problem, stated = given.problem, stated or {}
    choices = [*ops, *([0] * (problem.size - len(ops)))]
    for node, choice in stated.items():
        choices[node] = choice
    known: dict[tuple[object, ...], int] = {}
    values_of: dict[int, list[int]] = {}
    for number, value in enumerate(problem.values):
        free = [value.maker[0]] if value.maker[0] in given.kept else []
        for node in dict.fromkeys((*free, *(node for node, _ in value.readers if node in given.outputs))):
            values_of.setdefault(node, []).append(number)
    for node, numbers in values_of.items():
        if node in stated:
            continue
        key = tuple((_place(problem, number, node), *around(problem, number, choices)) for number in numbers)
        if key not in known:
            kind = problem.node(node)
            costs = []
            for choice in range(len(kind.seconds)):
                choices[node] = choice
                seconds = math.fsum(problem.value_cost(number, choices) for number in numbers)
                costs.append((seconds, float(kind.memory[choice]), choice))
            known[key] = min(costs)[2]
        choices[node] = known[key]
    return truthful(given, choices)
