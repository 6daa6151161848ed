"""The tree search: its rule, and the optimum of all strategies of tiny models."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dnnc.search_tag.device_groups import MOST
from dnnc.search_tag.features import DEVICE, OP, Graph
from dnnc.search_tag.op_groups import Floats
from dnnc.search_tag.tree_search import Node, TreeSearch, puct
from tests.dnnc.search_tag.machines import simulator, text

MODEL = "zoo:mlp,layers=2,hidden=16,batch=8"


def test_puct_is_the_mean_and_what_the_prior_is_worth() -> None:
    """q + sqrt(K / 10) p sqrt(N) / (1 + n), of K = 2 children and N = 9 visits."""
    scores = puct(np.array([0.5, -1.0]), np.array([0.25, 0.75]), np.array([5.0, 4.0]), 9)
    wanted = [0.5 + math.sqrt(0.2) * 0.25 * 3 / 6, -1 + math.sqrt(0.2) * 0.75 * 3 / 5]
    assert scores == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("model", "machines", "most", "iterations"),
    [
        (MODEL, text(), 3, 1000),
        (MODEL, text(fast=0.6), 3, 1000),
        (MODEL, text(memory="64 KiB"), 3, 1000),
        ("zoo:mlp,layers=3,hidden=64,batch=8", text(fast=4), 2, 1000),
    ],
)
def test_it_finds_the_best_of_all_strategies(model: str, machines: str, most: int, iterations: int) -> None:
    one = simulator(model, machines, most)
    outcomes = [one.run(strategy) for strategy in itertools.product(one.actions, repeat=one.workload.count)]
    best = min(outcome.seconds for outcome in outcomes if outcome.fits)
    found = TreeSearch(one).run(iterations)
    assert found.outcome.fits
    assert found.outcome.seconds == pytest.approx(best, rel=1e-12)
    assert found.curve[-1] == found.outcome.seconds


def test_the_same_seed_gives_the_same_strategy() -> None:
    runs = [TreeSearch(simulator(MODEL), seed=seed).run(60) for seed in (3, 3)]
    assert runs[0].strategy == runs[1].strategy
    assert runs[0].curve == runs[1].curve


def test_visits_follow_the_prior() -> None:
    """A prior that is sure of one action is visited there first, until its reward tells otherwise."""
    one = simulator(MODEL)
    favourite = len(one.actions) - 1

    def sure(graph: Graph) -> Floats:
        prior = np.full(len(graph.subsets), 0.01 / len(graph.subsets))
        prior[favourite] += 0.99
        return prior

    search, root = TreeSearch(one, sure), Node()
    for _ in range(3):
        search.iteration(root)
    assert root.visited == 3
    assert root.visits[favourite] == 2


def test_the_groups_that_are_not_decided_do_as_the_first() -> None:
    search = TreeSearch(simulator(MODEL))
    assert search.filled((4, 2)) == (4, 2, 4)
    assert search.filled(()) == (0, 0, 0)


def test_an_interrupt_ends_it_with_the_best_so_far() -> None:
    def interrupted(fraction: float) -> None:
        if fraction:
            raise KeyboardInterrupt

    found = TreeSearch(simulator(MODEL)).run(100, interrupted)
    assert found.interrupted
    assert len(found.curve) == 17
    assert found.outcome.seconds == found.curve[-1]


def test_no_feature_is_always_zero() -> None:
    """As one is in TAG's released code. 13 of op groups and 5 of device groups, and 5 types of edges."""
    search = TreeSearch(simulator("zoo:mlp,layers=3,hidden=64,batch=8"))
    graphs = [search.graph(Node(actions)) for actions in ((), (1,), (2, 3), (8,))]
    nodes = np.stack([graph.nodes for graph in graphs])
    assert (np.abs(nodes[:, MOST:, :OP]).max(axis=(0, 1)) > 0).all()
    assert (np.abs(nodes[:, :MOST, OP : OP + DEVICE]).max(axis=(0, 1)) > 0).all()
    assert all(graph.edges[kind].any() for graph in graphs for kind in range(5))
    assert np.isfinite(nodes).all()
    assert np.abs(nodes).max() < 10
