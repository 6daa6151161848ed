"""The graph attention network that gives TAG's search its prior: its forward pass, and its weights as an ``.npz``.

Four layers of four heads, as in TAG, but with width 64 instead of 256: about 0.1 M weights instead of 14 M, so a prior takes a
few milliseconds in numpy and trains within minutes on a CPU. In each layer a node attends, for each type of edge and each head,
to the sources of its edges (Velickovic et al., Graph Attention Networks, ICLR 2018):

    z = M_type h,   a_ij = softmax over j of leaky(t . z_i + s . z_j + w edge_ij),   h_i' = h_i + tanh(sum of a_ij z_j + U h_i +
    b)

over all types and heads; h is first scaled to a root mean square of 1. The score of an action is v . tanh(sum), a sum of terms
of the op group to decide, of the mean of the action's device groups, of the mean of the others, and of the way.

``scores`` uses only functions that numpy and torch share, and takes one of them as an argument: planning needs numpy only,
``training`` passes torch. Arrays have a leading batch dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.data.npz import Header, read_npz
from dnnc.search_tag.device_groups import MOST
from dnnc.search_tag.faults import PriorNotFinite, WrongPrior
from dnnc.search_tag.features import TYPES, WIDTH, Graph
from ir.core.diagnostics import InvalidInput
from passes.stages.problem import Floats

LAYERS, HEADS, HEAD = 4, 4, 16
HIDDEN = HEADS * HEAD
MOST_LOGIT = 30.0
"""Largest magnitude of an attention logit, so that no exponential overflows."""


def shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of the network, by name."""
    sizes: dict[str, tuple[int, ...]] = {"input": (WIDTH, HIDDEN), "input.bias": (HIDDEN,)}
    for layer in range(LAYERS):
        sizes |= {
            f"{layer}.message": (TYPES, HIDDEN, HIDDEN),
            f"{layer}.source": (TYPES, HEADS, HEAD),
            f"{layer}.target": (TYPES, HEADS, HEAD),
            f"{layer}.edge": (TYPES, HEADS),
            f"{layer}.own": (HIDDEN, HIDDEN),
            f"{layer}.bias": (HIDDEN,),
        }
    sizes |= {name: (HIDDEN, HIDDEN) for name in ("op", "inside", "outside")}
    return sizes | {"way": (4, HIDDEN), "bias": (HIDDEN,), "score": (HIDDEN,)}


def initial(seed: int) -> dict[str, Floats]:
    """Random weights: normal, divided by the square root of the width that they sum over; biases are 0."""
    random = np.random.default_rng(seed)
    return {
        name: np.zeros(shape) if name.endswith("bias") else random.normal(0, 1 / np.sqrt(_fan(name, shape)), shape)
        for name, shape in shapes().items()
    }


def _fan(name: str, shape: tuple[int, ...]) -> int:
    return shape[-1] if name.endswith(("source", "target", "score")) else shape[-2]


def scores(weights: Mapping[str, Any], batch: Mapping[str, Any], library: Any) -> Any:
    """The score of each action, ``[B, K]``. ``batch``: ``nodes`` ``[B, N, WIDTH]``, ``edges`` ``[B, TYPES, N, N]``, ``next``
    ``[B, N]``, 1 at the row of the op group to decide; ``subsets`` ``[B, K, MOST]``, ``ways`` ``[B, K, 4]``, ``groups``
    ``[B, MOST]`` as in ``Graph``. ``library``: numpy or torch, the library of these arrays."""
    edges = batch["edges"]
    there = (edges > 0)[:, :, None]
    hidden = library.tanh(batch["nodes"] @ weights["input"] + weights["input.bias"])
    rows = hidden.shape[-2]
    for layer in range(LAYERS):
        scaled = hidden / library.sqrt((hidden * hidden).mean(-1)[..., None] + 1e-6)
        sent = scaled[:, None] @ weights[f"{layer}.message"]
        sent = sent.reshape(-1, TYPES, rows, HEADS, HEAD).swapaxes(2, 3)
        source = (sent * weights[f"{layer}.source"][:, :, None]).sum(-1)
        target = (sent * weights[f"{layer}.target"][:, :, None]).sum(-1)
        along = weights[f"{layer}.edge"][:, :, None, None] * edges[:, :, None]
        logits = target[..., None] + source[..., None, :] + along
        raised = library.exp(library.clip(library.maximum(logits, 0.2 * logits), -MOST_LOGIT, MOST_LOGIT)) * there
        attention = raised / (raised.sum(-1)[..., None] + 1e-30)
        got = (attention @ sent).sum(1).swapaxes(1, 2).reshape(-1, rows, HIDDEN)
        hidden = hidden + library.tanh(got + scaled @ weights[f"{layer}.own"] + weights[f"{layer}.bias"])
    op = (batch["next"][..., None] * hidden).sum(1) @ weights["op"]
    subsets, devices = batch["subsets"], hidden[:, :MOST]
    others = batch["groups"][:, None] - subsets
    inside = _mean(subsets, devices @ weights["inside"], library)
    outside = _mean(others, devices @ weights["outside"], library)
    summed = op[:, None] + inside + outside + batch["ways"] @ weights["way"] + weights["bias"]
    return library.tanh(summed) @ weights["score"]


def _mean(subsets: Any, devices: Any, library: Any) -> Any:
    """Mean over the members of each subset; 0 for an empty subset."""
    one = library.ones_like(subsets[..., :1])
    return subsets @ devices / library.maximum(subsets.sum(-1)[..., None], one)


def arrays(graph: Graph) -> dict[str, Floats]:
    """The graph as a batch of one."""
    chosen = np.zeros(len(graph.nodes))
    chosen[graph.next] = 1
    parts = {"nodes": graph.nodes, "edges": graph.edges, "next": chosen}
    parts |= {"subsets": graph.subsets, "ways": graph.ways, "groups": graph.groups}
    return {name: part[None] for name, part in parts.items()}


@dataclass(frozen=True)
class Network:
    """A prior: softmax of the scores."""

    weights: Mapping[str, Floats]

    def __call__(self, graph: Graph) -> Floats:
        logits: Floats = scores(self.weights, arrays(graph), np)[0]
        raised: Floats = np.exp(logits - logits.max())
        raised /= raised.sum()
        return raised


def read_prior(path: Path) -> Network:
    """Reads a prior that ``dnnc tag train`` wrote. Raises InvalidInput for another file."""

    def wanted(headers: Mapping[str, Header]) -> None:
        expected = shapes()
        for name in sorted(expected.keys() | headers.keys()):
            header = headers.get(name)
            if name not in expected:
                reason = f"an array '{name}' that a prior does not have"
            elif header is None:
                reason = f"no array '{name}'"
            elif header.shape != expected[name] or header.dtype != np.float32:
                reason = f"'{name}' of {header.dtype} {list(header.shape)}, expected float32 {list(expected[name])}"
            else:
                continue
            raise InvalidInput(WrongPrior(reason), where=str(path))

    weights = read_npz(path, wanted)
    for name, values in weights.items():
        if not np.isfinite(values).all():
            raise InvalidInput(PriorNotFinite(name), where=str(path))
    return Network({name: values.astype(np.float64) for name, values in weights.items()})


def prior_arrays(weights: Mapping[str, Floats]) -> dict[str, Any]:
    """The weights as arrays to write, by name."""
    return {name: np.asarray(weights[name], dtype=np.float32) for name in shapes()}
