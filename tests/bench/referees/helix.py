"""Tokens per second of LLaMA served by unlike GPUs, against what Helix's authors measured.

Helix (Mei and others, ASPLOS 2025) serves LLaMA-30B and LLaMA-2-70B on clusters of A100, L4 and T4 GPUs; ``serving`` says how a
plan is simulated. Where each number comes from:

- seconds of a layer by phase and size: ``layers.csv``, as measured there; nothing is fitted to them;
- layers of each node: ``plans.csv``; measured tokens per second: ``results.csv``, of which offline rows with a plan are judged;
- layers and sizes of the models: their published configurations, in f16;
- memory: the GPU's, of which vLLM takes 0.9, less 2.5 GB of workspace, less the weights;
- links: 1 GB/s and 1 ms in ``single24``; in clusters of several regions 12.5 MB/s and 50 ms between these, as Helix's scripts
  set them. The region of a node is a column of ``plans.csv``, or that of its number in ``REGIONS``;
- prompts of 750 and answers of 240 tokens on average, by which Helix's own planner counts the Azure conversation trace;
  exponential, cut at 2048 and 1024 tokens as the trace is there;
- requests in flight: Helix's scheduler fills caches to 0.8; other schedulers do not look at caches (``serving.HEADROOM``).

Two numbers were fitted, to the three rows of ``single24`` together: ``HEADROOM`` (4 to 6 give mean errors below 11 %, too) and
the bytes of workspace. The rules of requests in flight and the exponential lengths were chosen with these rows in view.

Then, for each model on a cluster of one region, a plan of ours (``passes.partition.decoding``): groups of sequences in flight,
whose step has its part of the prompts, caches of average length filled to 0.8. The simulation judges it and theirs alike, with
Helix's scheduler for ours. The bound is one of the search's own model: no plan of stages, shared by whole groups, has more
tokens per second there. It is no bound of what is simulated, where tokens also wait behind prompts.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from passes.partition.decoding import Decoding, DecodingPlan, best_plan
from tests.bench.referees.serving import FULL, LayerSeconds, Lengths, Links, Node, Service

LENGTHS = Lengths(750, 240)
MEMORY = {"A100": 40e9, "H100": 80e9, "V100": 16e9, "L4": 24e9, "T4": 16e9}
TAKEN, WORKSPACE = 0.9, 2.5e9
SEEDS = 3
"""Simulations whose mean is the prediction."""
LINKS = Links((1e9, 1e-3), (1.25e7, 5e-2))
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
GAP = 5e-3
REGIONS: Mapping[str, tuple[int, ...]] = {"dist24": (0,) * 4 + (1,) * 10 + (2,) * 10}
"""By cluster and node: 4 A100; 2 L4 and 8 T4; 6 L4 and 4 T4."""


@dataclass(frozen=True)
class Model:
    """``table``: its name in layers.csv. Sizes of a layer: ``hidden``, ``inner`` (of the three products of its feed-forward
    part), ``kv`` (of the keys of a token)."""

    table: str
    layers: int
    hidden: int
    inner: int
    kv: int

    @property
    def weights(self) -> int:
        """Bytes of a layer's."""
        return 2 * (2 * self.hidden * (self.hidden + self.kv) + 3 * self.hidden * self.inner)

    @property
    def cache(self) -> int:
        """Bytes of a layer's keys and values of one token."""
        return 2 * 2 * self.kv


MODELS = {
    "llama30b": Model("llama1_30b", 60, 6656, 17920, 6656),
    "llama70b": Model("llama2_70b", 80, 8192, 28672, 1024),
}


def memory(gpu: str) -> float:
    """Bytes for weights and caches of a node of so many GPUs (``T4x2``: two T4)."""
    name, _, count = gpu.partition("x")
    return int(count or 1) * (TAKEN * MEMORY[name] - WORKSPACE)


def layer_seconds(folder: Path, model: Model) -> dict[str, LayerSeconds]:
    """By GPU."""
    tables: dict[tuple[str, str], list[tuple[int, float]]] = {}
    with (folder / "layers.csv").open() as file:
        for row in csv.DictReader(file):
            if row["model"] == model.table:
                sizes = tables.setdefault((row["gpu"].upper().replace("X", "x"), row["phase"]), [])
                sizes.append((int(row["size"]), float(row["milliseconds"]) * 1e-3))
    return {
        gpu: LayerSeconds(tuple(sorted(tables[gpu, "decode"])), tuple(sorted(tables[gpu, "prompt"])))
        for gpu, phase in tables
        if phase == "decode"
    }


def nodes(model: Model, rows: list[Mapping[str, str]]) -> tuple[Node, ...]:
    """The nodes of a plan."""
    found = []
    for row in rows:
        first, behind = int(row["first_layer"]), int(row["last_layer"]) + 1
        regions = REGIONS.get(row["cluster"], ())
        region = row.get("region") or (regions[int(row["node"])] if regions else 0)
        tokens = (memory(row["gpu"]) / (behind - first) - model.weights) / model.cache
        found.append(Node(row["gpu"], first, behind, tokens, int(region)))
    return tuple(found)


def service(folder: Path, name: str, plan: tuple[Node, ...], *, knows_caches: bool) -> Service:
    model = MODELS[name]
    seconds = layer_seconds(folder, model)
    return Service(model.layers, 2 * model.hidden, plan, seconds, LINKS, LENGTHS, knows_caches)


def predicted(one: Service) -> float:
    return float(np.mean([one.tokens_per_second(seed=seed) for seed in range(SEEDS)]))


def problem(folder: Path, name: str, counts: Mapping[str, int]) -> Decoding:
    """What is planned: the model on so many nodes of each GPU; its units are its layers."""
    model, measured = MODELS[name], layer_seconds(folder, MODELS[name])
    seconds = [
        [
            [measured[gpu].decoding[size] + size * measured[gpu].prompting(LENGTHS.prompt) / LENGTHS.answer] * model.layers
            for gpu in counts
        ]
        for size in BATCHES
    ]
    bandwidth, latency = LINKS.inside
    hops = [[latency + size * 2 * model.hidden / bandwidth] * model.layers for size in BATCHES]
    cache = model.cache * (LENGTHS.prompt + LENGTHS.answer) / FULL
    sizes = np.full(model.layers, float(model.weights)), np.full(model.layers, cache)
    held = tuple(memory(gpu) for gpu in counts)
    return Decoding(BATCHES, np.array(seconds), *sizes, np.array(hops), tuple(counts.values()), held)


def nodes_of(name: str, plan: DecodingPlan, counts: Mapping[str, int]) -> tuple[Node, ...]:
    """The nodes of a plan of ours."""
    model, found = MODELS[name], list[Node]()
    for stage in plan.stages:
        for gpu, count in zip(counts, stage.devices, strict=True):
            tokens = (memory(gpu) / (stage.behind - stage.first) - model.weights) / model.cache
            found += [Node(gpu, stage.first, stage.behind, tokens)] * count
    return tuple(found)


def ours(folder: Path, name: str, counts: Mapping[str, int], theirs: Mapping[str, float]) -> str:
    """A line on our plan; ``theirs``: predicted tokens per second by method."""
    asked, began = problem(folder, name, counts), time.process_time()
    plan = best_plan(asked, GAP)
    took = time.process_time() - began
    if plan is None:
        return f"{name}: no plan of ours fits"
    tokens = predicted(service(folder, name, nodes_of(name, plan, counts), knows_caches=True))
    others = ", ".join(f"{method} {tokens / value:.2f} times" for method, value in theirs.items())
    return (
        f"{name}: our plan {tokens:.1f} predicted ({others}), planned in {took:.1f} s; {plan.groups} groups of {plan.batch}, "
        f"{plan.tokens_per_second:.1f} of at most {plan.bound:.1f} in the model of the search (gap {plan.gap:.1%})"
    )


def judge(folder: Path) -> Iterator[str]:
    plans: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    with (folder / "plans.csv").open() as file:
        for row in csv.DictReader(file):
            plans.setdefault((row["cluster"], row["model"], row["method"]), []).append(row)
    errors: dict[str, list[float]] = {"ours": [], "Helix's simulator": []}
    theirs: dict[tuple[str, str], dict[str, float]] = {}
    with (folder / "results.csv").open() as file:
        results = [row for row in csv.DictReader(file) if row["setting"] == "offline" and row["measured_tokens_per_s"]]
    for row in results:
        key = row["cluster"], row["model"], row["method"]
        if key not in plans:
            continue
        plan = nodes(MODELS[row["model"]], plans[key])
        one = service(folder, row["model"], plan, knows_caches=row["method"] == "helix")
        measured, simulated, found = float(row["measured_tokens_per_s"]), float(row["simulated_tokens_per_s"]), predicted(one)
        errors["ours"].append(found / measured - 1)
        theirs.setdefault(key[:2], {})[key[2]] = found
        errors["Helix's simulator"].append(simulated / measured - 1)
        yield (
            f"{' '.join(key):24} measured {measured:6.1f}  predicted {found:6.1f} ({found / measured - 1:+6.1%})"
            f"  Helix's simulator {simulated:6.1f} ({simulated / measured - 1:+6.1%})"
        )
    for who, each in errors.items():
        yield f"mean error, {who}: {np.abs(each).mean():.1%} of {len(each)} plans"
    for (cluster, name), values in theirs.items():
        every = next(rows for (where, model, _), rows in plans.items() if (where, model) == (cluster, name))
        if len({node.region for node in nodes(MODELS[name], every)}) == 1:
            yield f"{cluster} " + ours(folder, name, dict(sorted(Counter(row["gpu"] for row in every).items())), values)
