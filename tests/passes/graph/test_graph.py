"""The topological order and the disjoint sets that frontends and passes share."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from passes.graph.graph import DisjointSets, topological

EDGES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20)


@given(EDGES)
def test_it_is_the_least_order_of_all_that_no_cycle_holds_up(edges: list[tuple[int, int]]) -> None:
    """Against networkx, on what stands neither on a cycle nor behind one; edges may be there several times."""
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(8))
    circles = {v for part in nx.strongly_connected_components(graph) if len(part) > 1 for v in part}
    circles |= {v for v, w in edges if v == w}
    stuck = circles.union(*(nx.descendants(graph, v) for v in circles))
    after = [[w for v, w in edges if v == u] for u in range(8)]
    free = graph.subgraph(set(range(8)) - stuck)
    assert topological(after) == list(nx.lexicographical_topological_sort(free))


@given(EDGES)
def test_sets_are_joined_into_the_root_of_the_target(edges: list[tuple[int, int]]) -> None:
    sets, graph = DisjointSets(8), nx.Graph(edges)
    graph.add_nodes_from(range(8))
    for v, target in edges:
        root = sets.root(target)
        sets.join(v, target)
        assert sets.root(v) == sets.root(target) == root
    assert sets.listed() == tuple(sorted(tuple(sorted(part)) for part in nx.connected_components(graph)))
