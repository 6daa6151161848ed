"""The graph network: numpy and torch agree, its file is read without trust, and training lowers its loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dnnc.search_tag.network import Network, arrays, initial, prior_arrays, read_prior, scores, shapes
from dnnc.search_tag.tree_search import Node, TreeSearch
from ir.core.diagnostics import InvalidInput
from tests.dnnc.search_tag.machines import simulator

MODEL = "zoo:mlp,layers=2,hidden=16,batch=8"


def test_numpy_and_torch_score_alike() -> None:
    torch = pytest.importorskip("torch")
    search = TreeSearch(simulator(MODEL))
    graph = search.graph(Node((3,)))
    weights = initial(7)
    own = scores(weights, arrays(graph), np)
    its = scores(
        {name: torch.tensor(value, dtype=torch.float32) for name, value in weights.items()},
        {name: torch.tensor(value, dtype=torch.float32) for name, value in arrays(graph).items()},
        torch,
    )
    assert own.shape == (1, len(search.simulator.actions))
    assert np.abs(own).max() > 1e-2
    assert np.abs(own - its.numpy()).max() < 1e-5


def test_attention_is_that_of_its_formula() -> None:
    """The first layer, node by node and head by head, in the slow and obvious way; the others add nothing where all their
    weights are 0."""
    search = TreeSearch(simulator(MODEL))
    graph = search.graph(Node())
    weights, batch = initial(1), arrays(graph)
    hidden = np.tanh(graph.nodes @ weights["input"] + weights["input.bias"])
    scaled = hidden / np.sqrt((hidden**2).mean(1, keepdims=True) + 1e-6)
    wanted = scaled @ weights["0.own"] + weights["0.bias"]
    for kind in range(5):
        sent = scaled @ weights["0.message"][kind]
        for head in range(4):
            own = sent[:, 16 * head : 16 * head + 16]
            for i in range(len(hidden)):
                near = np.flatnonzero(graph.edges[kind, i] > 0)
                if not len(near):
                    continue
                logits = own[i] @ weights["0.target"][kind, head] + own[near] @ weights["0.source"][kind, head]
                logits = logits + weights["0.edge"][kind, head] * graph.edges[kind, i, near]
                raised = np.exp(np.where(logits > 0, logits, 0.2 * logits))
                wanted[i, 16 * head : 16 * head + 16] += raised @ own[near] / raised.sum()
    one = {name: value for name, value in weights.items() if not name.startswith(("1.", "2.", "3."))}
    idle = {name: np.zeros(shape) for name, shape in shapes().items() if name.startswith(("1.", "2.", "3."))}
    layer = hidden + np.tanh(wanted)
    op, devices = layer[graph.next] @ weights["op"], layer[:8]
    expected = []
    for subset, way in zip(graph.subsets, graph.ways, strict=True):
        chosen, others = np.flatnonzero(subset), np.flatnonzero(graph.groups - subset)
        summed = op + devices[chosen].mean(0) @ weights["inside"] + way @ weights["way"] + weights["bias"]
        summed = summed + (devices[others].mean(0) @ weights["outside"] if len(others) else 0)
        expected.append(np.tanh(summed) @ weights["score"])
    assert scores(one | idle, batch, np)[0] == pytest.approx(np.array(expected), abs=1e-9)


def test_a_prior_is_a_distribution_and_its_file_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "prior.npz"
    weights = initial(2)
    np.savez(file, allow_pickle=False, **prior_arrays(weights))
    graph = TreeSearch(simulator(MODEL)).graph(Node())
    prior = Network(weights)(graph)
    assert prior.sum() == pytest.approx(1)
    assert prior.min() > 0
    assert read_prior(file)(graph) == pytest.approx(prior, rel=1e-4)


def test_another_file_is_refused(tmp_path: Path) -> None:
    file, weights = tmp_path / "prior.npz", prior_arrays(initial(0))
    cases = {
        "no array '0.edge'": {name: value for name, value in weights.items() if name != "0.edge"},
        "an array 'more'": {**weights, "more": np.zeros(2, np.float32)},
        r"'score' of float32 \[3\], expected float32 \[64\]": {**weights, "score": np.zeros(3, np.float32)},
        "not finite": {**weights, "score": np.full(64, np.nan, np.float32)},
    }
    for message, held in cases.items():
        np.savez(file, allow_pickle=False, **held)
        with pytest.raises(InvalidInput, match=message):
            read_prior(file)
    np.savez(file, **{**weights, "score": np.array([{}] * 64, dtype=object)})  # a pickle
    with pytest.raises(InvalidInput):
        read_prior(file)


@pytest.mark.slow
def test_training_lowers_the_loss() -> None:
    """On the nodes of one search, which the network then holds for as likely as they were visited."""
    torch = pytest.importorskip("torch")
    from dnnc.search_tag.training import Trainer, example, loss_of, visited

    torch.set_num_threads(1)
    search = TreeSearch(simulator("zoo:mlp,layers=3,hidden=512,batch=4"))
    trainer = Trainer(seed=1)
    trainer.examples.extend(example(search, node) for node in visited(search.run(400).root))
    examples = list(trainer.examples)[:16]
    assert len(examples) > 1
    with torch.no_grad():
        before = float(loss_of(trainer.weights, examples))
    for _ in range(60):
        trainer.update()
    with torch.no_grad():
        after = float(loss_of(trainer.weights, examples))
    assert after < before / 4
