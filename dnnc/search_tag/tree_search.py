"""TAG's tree search: Monte Carlo tree search over the actions of op groups, one op group a level, the dearest first.

A node of the tree decides the first op groups; the others take the action of the first. An iteration walks from the root to a
leaf, at each node to the child with the greatest

    q + c p sqrt(N) / (1 + n),    c = sqrt(K / 10)

where K is the number of children, n the visits of the child, N those of the node, q the mean reward below the child, and p its
prior: 1 / K, or the output of a graph attention network (``network``). The leaf is simulated, and gets children unless all op
groups are decided; its reward (``Simulator.reward``: T_base / T - 1 up to 1) is added to all nodes of the walk. Ties follow an
order drawn from the seed. Iterations are limited, not seconds, so a seed gives the same plan on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dnnc.search_tag.actions import Action
from dnnc.search_tag.features import Features, Graph
from dnnc.search_tag.simulator import Outcome, Simulator
from passes.stages.problem import Floats

ITERATIONS = 1000
"""Default iterations of a search. TAG's own searches have 50 to 2000."""


class Prior(Protocol):
    """Gives the probability of each action for the next op group, by numbers of actions."""

    def __call__(self, graph: Graph) -> Floats: ...


@dataclass(slots=True)
class Node:
    """``actions``: numbers of the actions of the decided op groups; ``prior``, mean reward ``q`` and ``visits``: of the
    children, empty until the node has children; ``order`` breaks ties."""

    actions: tuple[int, ...] = ()
    prior: Floats = field(default_factory=lambda: np.zeros(0))
    q: Floats = field(default_factory=lambda: np.zeros(0))
    visits: Floats = field(default_factory=lambda: np.zeros(0))
    order: tuple[int, ...] = ()
    children: dict[int, Node] = field(default_factory=dict)
    visited: int = 0

    def best(self) -> int:
        """The child to visit next."""
        scores = puct(self.q, self.prior, self.visits, self.visited)
        return self.order[int(np.argmax(scores[list(self.order)]))]


def puct(q: Floats, prior: Floats, visits: Floats, visited: int) -> Floats:
    """The score of each child, which is greatest for the next one to visit; ``visited``: visits of their parent."""
    result: Floats = q + math.sqrt(len(q) / 10) * prior * math.sqrt(visited) / (1 + visits)
    return result


@dataclass(frozen=True, slots=True)
class Found:
    """The best strategy of a search; its outcome, without and with SFB (gathered factors); the outcome of the baseline; the
    seconds of the best strategy after each iteration; the number of strategies simulated; and the tree."""

    strategy: tuple[Action, ...]
    outcome: Outcome
    with_factors: Outcome
    baseline: Outcome
    curve: tuple[float, ...]
    simulated: int
    root: Node
    interrupted: bool = False

    @property
    def speedup(self) -> float:
        """Seconds of the baseline over those of the strategy, with SFB if that is faster."""
        return self.baseline.seconds / min(self.outcome.seconds, self.with_factors.seconds)


class TreeSearch:
    """A search with a simulator; ``prior``: None for a uniform one."""

    def __init__(self, simulator: Simulator, prior: Prior | None = None, seed: int = 0) -> None:
        self.simulator, self.prior, self.seed = simulator, prior, seed
        self.features = Features(simulator)
        self.random = np.random.default_rng(seed)
        self.outcomes: dict[tuple[int, ...], Outcome] = {}

    def run(self, iterations: int, progress: Callable[[float], None] = lambda fraction: None) -> Found:
        """The best strategy of ``iterations`` iterations, or of those before Ctrl-C."""
        base, baseline = self.simulator.baseline
        best, strategy, outcome = self.simulator.reward(baseline), base, baseline
        root, curve = Node(), []
        interrupted = False
        try:
            for number in range(iterations):
                reward, actions = self.iteration(root)
                if reward > best:
                    best, outcome = reward, self.outcome(actions)
                    strategy = tuple(self.simulator.actions[action] for action in self.filled(actions))
                curve.append(outcome.seconds)
                if number % 16 == 0:
                    progress(number / iterations)
        except KeyboardInterrupt:
            interrupted = True
        factors = self.simulator.run(strategy, factors=True)
        return Found(strategy, outcome, factors, baseline, tuple(curve), len(self.outcomes), root, interrupted)

    def iteration(self, root: Node) -> tuple[float, tuple[int, ...]]:
        """One iteration: the reward of the visited leaf, and its actions."""
        node, path = root, list[tuple[Node, int]]()
        while len(node.q):
            action = node.best()
            path.append((node, action))
            if action not in node.children:
                node.children[action] = Node((*node.actions, action))
            node = node.children[action]
        if len(node.actions) < self.simulator.workload.count:
            self.expand(node)
        reward = self.simulator.reward(self.outcome(node.actions))
        node.visited += 1
        for parent, action in path:
            parent.visited += 1
            parent.visits[action] += 1
            parent.q[action] += (reward - parent.q[action]) / parent.visits[action]
        return reward, node.actions

    def expand(self, node: Node) -> None:
        count = len(self.simulator.actions)
        node.q, node.visits = np.zeros(count), np.zeros(count)
        node.order = tuple(self.random.permutation(count).tolist())
        node.prior = np.full(count, 1 / count) if self.prior is None else self.prior(self.graph(node))

    def graph(self, node: Node) -> Graph:
        """The graph of a node, as input of a prior."""
        return self.features.graph(self.filled(node.actions), len(node.actions), self.outcome(node.actions))

    def filled(self, actions: tuple[int, ...]) -> tuple[int, ...]:
        """The action of every op group; undecided ones take that of the first."""
        count = self.simulator.workload.count
        if not actions:
            return tuple(self.simulator.actions.index(action) for action in self.simulator.baseline[0])
        return (*actions, *(actions[0],) * (count - len(actions)))

    def outcome(self, actions: tuple[int, ...]) -> Outcome:
        """The outcome of a strategy, simulated once and remembered."""
        strategy = self.filled(actions)
        if strategy not in self.outcomes:
            self.outcomes[strategy] = self.simulator.run([self.simulator.actions[action] for action in strategy])
        return self.outcomes[strategy]
