"""PipeDream's way: contract branches until the graph is nearly a path, put that into one order, then cut the order.

Between two articulation points of the graph (edges taken without direction) lies a biconnected component: branches that leave
one node and meet in another. All nodes of a component but those that only end its edges become one, the way PipeDream treats
its profiles and the device-placement reference (msr-fiddle/dnn-partitioning, ``-pipeDream``) repeats for other graphs.
PipeDream drops inputs and masks from its graphs, else a mask that every layer reads would make one component of everything:
where components are sought, a node without seconds counts only if it reads something and has at most ``MOST_READERS`` readers.
(The reference lists such nodes by hand.) Components that then lie on a cycle become one, and nodes that cost nothing join their
only neighbour (``passes.stages.reduce``). What is left is put in two orders, depth first from the first source and from
the last; over either, the dynamic programme is exact (``chain``).

It never cuts between parallel branches, which is where operator graphs have their good cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import networkx as nx

from passes.reference.baselines.case import Case, Limits
from passes.reference.baselines.chain import best_chain
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Problem
from passes.stages.reduce import ordered, quotient, reduce

MOST_READERS = 2
"""Of a node without seconds whose edges count: with more it is a mask or a context that is handed to all."""


def pipedream_style(case: Case, limits: Limits) -> Stages:
    """The best plan that cuts nowhere inside a component. Raises NoPlan when none satisfies every limit."""
    problem = case.programme.problem
    graph = _graph(problem)
    components = ordered(problem, contracted(problem))
    # With overlap only nodes without seconds join a neighbour, whatever the objective makes of transfers.
    joined = reduce(replace(quotient(problem, components), comm="overlap"))
    groups = [[v for g in group for v in components[g]] for group in joined]
    return best_chain(case, [depth_first(graph, groups, last) for last in (False, True)], limits)


def contracted(problem: Problem) -> list[list[int]]:
    """The components as groups of nodes, by first member; no cycle runs through several groups."""
    graph = _graph(problem)
    timed = [bool(problem.seconds[:, v].any()) for v in range(problem.size)]
    counted = [timed[v] or (graph.in_degree(v) > 0 and graph.out_degree(v) <= MOST_READERS) for v in range(problem.size)]
    undirected: nx.Graph[int] = nx.Graph((u, v) for u, v in graph.edges if counted[u])
    joined: nx.Graph[int] = nx.Graph()
    joined.add_nodes_from(range(problem.size))
    for component in cast(Iterable[set[int]], nx.biconnected_components(undirected)):  # the stubs say sets of sets
        tails = sorted(u for u in component if counted[u] and any(v in component for v in graph.successors(u)))
        nx.add_path(joined, tails)
    groups = list(nx.connected_components(joined))
    label = {v: g for g, group in enumerate(groups) for v in group}
    between: nx.DiGraph[int] = nx.DiGraph()
    between.add_nodes_from(range(len(groups)))
    between.add_edges_from((label[u], label[v]) for u, v in graph.edges if label[u] != label[v])
    return sorted(sorted(v for g in cycle for v in groups[g]) for cycle in nx.strongly_connected_components(between))


def depth_first(graph: nx.DiGraph[int], groups: Sequence[Sequence[int]], last: bool) -> list[Sequence[int]]:
    """The groups in a topological order, depth first: of those that are ready, the one that became ready last comes next.
    Of several that became so together it is the last, if ``last``, else the first."""
    label = {v: g for g, group in enumerate(groups) for v in group}
    following: list[set[int]] = [set() for _ in groups]
    for u, v in graph.edges:
        if label[u] != label[v]:
            following[label[u]].add(label[v])
    missing = [0] * len(groups)
    for targets in following:
        for g in targets:
            missing[g] += 1
    ready = sorted((g for g, count in enumerate(missing) if not count), reverse=not last)
    order = []
    while ready:
        g = ready.pop()
        order.append(groups[g])
        for target in sorted(following[g], reverse=not last):
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return order


def _graph(problem: Problem) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(problem.size))
    for maker, readers in zip(problem.producer, problem.consumers, strict=True):
        graph.add_edges_from((int(maker), reader) for reader in readers)
    return graph
