"""Trains the prior of TAG's search: runs searches on models and topologies, and fits a network to the nodes that they visit.

As in TAG, each step searches one case with the present prior. For every node of the tree with enough visits, the network learns
the shares of visits of its children, by cross-entropy. Only this file needs torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from dnnc.search_tag.network import Network, arrays, initial, scores
from dnnc.search_tag.simulator import Simulator
from dnnc.search_tag.tree_search import Node, TreeSearch
from passes.stages.problem import Floats

ITERATIONS = 200
"""Iterations of the search in a step."""
FEWEST = 30
"""Fewest visits of a node to learn from: a node may have hundreds of children."""
KEPT = 1024
"""Most nodes that are kept as examples; the oldest are dropped."""
UPDATES, BATCH, RATE = 8, 16, 1e-3
"""Updates in a step, examples in an update, and Adam's learning rate."""


@dataclass(frozen=True, slots=True)
class Step:
    """``case``: name of the case; ``speedup``: of the best strategy; ``loss``: mean cross-entropy of the updates in nats, minus
    the entropy of the targets, so that 0 is the minimum."""

    case: str
    speedup: float
    loss: float


Example = dict[str, torch.Tensor]
"""Inputs of the network without a batch dimension, and ``target``, the share of visits of each action."""


@dataclass
class Trainer:
    """A network in training; ``seed``: of its initial weights and of the order of examples."""

    seed: int = 0

    def __post_init__(self) -> None:
        start = initial(self.seed)
        self.weights = {name: torch.tensor(values, dtype=torch.float32, requires_grad=True) for name, values in start.items()}
        self.optimizer = torch.optim.Adam(self.weights.values(), lr=RATE)
        self.random = np.random.default_rng(self.seed)
        self.examples: deque[Example] = deque(maxlen=KEPT)

    @property
    def arrays(self) -> dict[str, Floats]:
        """The weights as numpy arrays."""
        return {name: value.detach().numpy().astype(np.float64) for name, value in self.weights.items()}

    def step(self, case: str, simulator: Simulator, number: int) -> Step:
        """Searches a case, and updates the network with its nodes and earlier ones."""
        search = TreeSearch(simulator, Network(self.arrays), seed=self.seed + number)
        result = search.run(ITERATIONS)
        self.examples.extend(example(search, node) for node in visited(result.root))
        losses = [self.update() for _ in range(UPDATES)]
        return Step(case, result.speedup, sum(losses) / len(losses))

    def update(self) -> float:
        """One update with a random batch of examples; returns the loss before it."""
        chosen = self.random.choice(len(self.examples), size=min(BATCH, len(self.examples)), replace=False)
        self.optimizer.zero_grad()
        loss = loss_of(self.weights, [self.examples[number] for number in chosen.tolist()])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())


def visited(root: Node) -> Iterator[Node]:
    """The nodes with enough visits, from the root downwards."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.visited >= FEWEST and len(node.q):
            yield node
            stack.extend(node.children.values())


def example(search: TreeSearch, node: Node) -> Example:
    """The example of a node."""
    parts = {name: part[0] for name, part in arrays(search.graph(node)).items()} | {"target": node.visits / node.visits.sum()}
    return {name: torch.tensor(part, dtype=torch.float32) for name, part in parts.items()}


def loss_of(weights: dict[str, torch.Tensor], examples: list[Example]) -> torch.Tensor:
    """The mean Kullback-Leibler divergence of the network's prior from the visits. Examples with fewer actions are padded with
    actions that are never taken."""
    most = max(len(one["target"]) for one in examples)

    def stacked(name: str) -> torch.Tensor:
        if name not in ("subsets", "ways", "target"):
            return torch.stack([one[name] for one in examples])
        padded = [torch.zeros((most, *one[name].shape[1:])) for one in examples]
        for room, one in zip(padded, examples, strict=True):
            room[: len(one[name])] = one[name]
        return torch.stack(padded)

    batch = {name: stacked(name) for name in examples[0]}
    there = batch["ways"].sum(-1) > 0
    target = batch["target"]
    logits = torch.where(there, scores(weights, batch, torch), torch.tensor(-1e9))
    rest = target * (torch.log(target.clamp(min=1e-12)) - torch.log_softmax(logits, -1))
    return torch.where(target > 0, rest, torch.zeros(())).sum(-1).mean()


def train(
    cases: Callable[[int], tuple[str, Simulator]], steps: int, seed: int, told: Callable[[int, Step], None]
) -> dict[str, Floats]:
    """The weights after ``steps`` steps on ``cases``; ``told`` is called with each step."""
    torch.set_num_threads(1)  # small arrays: threads would wait for each other, and sums would depend on their number
    trainer = Trainer(seed)
    for number in range(steps):
        told(number, trainer.step(*cases(number), number))
    return trainer.arrays
