"""The engine on the public device-placement workloads: the contiguous optima of the reference, k accelerators and one CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from passes.partition.lattice.search.throughput import solve
from passes.stages.problem import Kind, Problem, violations
from passes.stages.reduce import quotient, reduce

FOLDER = Path(__file__).resolve().parents[6] / "shared" / "workloads" / "device-placement" / "throughput"

OPTIMA = {
    "op-bert_l-3_inference": 27.918568,
    "op-bert_l-6_inference": 29.579506,
    "op-resnet50_inference": 124.348850,
    "layer-bert24_inference": 17.789906,
    "layer-gnmt_inference": 32.910658,
    "layer-resnet50_inference": 33.774666,
}
"""Printed by the reference to six digits after the point."""


def read(path: Path) -> Problem:
    """A device-placement file as a problem: colours and the cycles they close are single nodes; the CPU pays no transfers."""
    data = json.loads(path.read_text())
    nodes = {node["id"]: node for node in data["nodes"]}
    colour: dict[int, int] = {}
    of = {i: colour.setdefault(n["colorClass"], i) if n.get("colorClass") is not None else i for i, n in nodes.items()}
    edges = [(e["sourceId"], e["destId"]) for e in data["edges"]]
    graph = nx.DiGraph()
    graph.add_nodes_from(of.values())
    graph.add_edges_from((of[u], of[v]) for u, v in edges if of[u] != of[v])
    condensed = nx.condensation(graph)
    order = {c: i for i, c in enumerate(nx.lexicographical_topological_sort(condensed))}
    place = {i: order[condensed.graph["mapping"][of[i]]] for i in nodes}
    return assembled(data, place)


def assembled(data: dict[str, Any], place: dict[int, int]) -> Problem:
    """The nodes of a device-placement file at their places, several of which may be one; seconds and bytes add up there."""
    n = len(set(place.values()))
    seconds, size = np.zeros((2, n)), np.zeros(n, np.int64)
    for node in data["nodes"]:
        v = place[node["id"]]
        seconds[0, v] += node["fpgaLatency"] if node["supportedOnFpga"] else np.inf
        seconds[1, v] += node["cpuLatency"]
        size[v] += int(node["size"])
    cost: dict[int, float] = {}
    readers: dict[int, set[int]] = {}
    for edge in data["edges"]:
        u, v = edge["sourceId"], place[edge["destId"]]
        if place[u] != v:
            cost[u] = edge["cost"]
            readers.setdefault(u, set()).add(v)
    made = sorted(cost)
    return Problem(
        names=tuple(str(i) for i in range(n)),
        kinds=(
            Kind("accelerator", tuple(f"acc{i}" for i in range(data["maxFPGAs"])), int(data["maxSizePerFPGA"])),
            Kind("cpu", tuple(f"cpu{i}" for i in range(data["maxCPUs"]))),
        ),
        seconds=seconds,
        producer=np.array([place[u] for u in made], np.int64),
        consumers=tuple(tuple(sorted(readers[u])) for u in made),
        transfer=np.array([[cost[u] for u in made], [0.0] * len(made)]),
        tensor_bytes=np.zeros(len(made), np.int64),
        tensor_names=tuple(map(str, made)),
        live=np.zeros(n, np.int64),
        weight_bytes=size,
        weight_readers=tuple((v,) for v in range(n)),
    )


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared workloads are not beside this checkout")
@pytest.mark.parametrize("name", sorted(OPTIMA))
def test_contiguous_optimum_of_the_reference(name: str) -> None:
    problem = read(FOLDER / f"{name}.json")
    problem.check()
    plain = solve(problem) if name != "layer-gnmt_inference" else None
    reduced = quotient(problem, reduce(problem))
    solution = solve(reduced)
    assert solution.status == "optimal"
    assert solution.stages is not None
    assert violations(reduced, solution.stages) == []
    assert round(solution.value, 6) == pytest.approx(OPTIMA[name], abs=1e-12)
    if plain is not None:
        assert plain.value == pytest.approx(solution.value, rel=1e-9)
