"""Small workloads for tests, as data and as text, and the slow and obvious answers to them."""

from __future__ import annotations

import itertools
import json
import math
import random
from typing import Any


def node(id_: int | str, accelerator: float, cpu: float | None = None, **more: Any) -> dict[str, Any]:
    """A node of a device-placement file; CPU ten times slower unless told."""
    fields = {"id": id_, "name": f"layer{id_}", "supportedOnFpga": True, "fpgaLatency": accelerator}
    return fields | {"cpuLatency": 10 * accelerator if cpu is None else cpu, "isBackwardNode": False, "size": 0.0} | more


def edge(source: int | str, dest: int | str, cost: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"sourceId": source, "destId": dest, "cost": cost} | more


def placement(nodes: list[dict[str, Any]], edges: list[dict[str, Any]], **machines: Any) -> dict[str, Any]:
    return {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 0} | machines | {"nodes": nodes, "edges": edges}


def chain(times: list[float], cost: float = 0.5, **machines: Any) -> dict[str, Any]:
    """Nodes 0, 1... one after another, 100 bytes each."""
    nodes = [node(i, time, size=100.0) for i, time in enumerate(times)]
    return placement(nodes, [edge(i, i + 1, cost, size=1000.0) for i in range(len(times) - 1)], **machines)


def random_placement(seed: int, most: int = 6) -> dict[str, Any]:
    """A small random file: colours, unsupported nodes, memory that binds now and then, CPUs."""
    rng = random.Random(seed)
    count = rng.randint(1, most)
    ids = rng.sample(range(100), count)
    nodes = []
    for id_ in ids:
        more: dict[str, Any] = {"size": float(rng.choice((0, 1, 2, 5))), "supportedOnFpga": rng.random() < 0.85}
        if rng.random() < 0.3:
            more["colorClass"] = rng.randint(0, 2)
        nodes.append(node(id_, float(rng.choice((0, 1, 2, 3))), float(rng.choice((1, 2, 5, 8))), **more))
    edges = []
    for i, source in enumerate(ids):
        cost = rng.choice((0.0, 0.25, 1.0))
        edges += [edge(source, dest, cost, size=8.0) for dest in ids[i + 1 :] if rng.random() < 0.4]
    machines = {
        "maxFPGAs": rng.randint(0, 3),
        "maxCPUs": rng.randint(0, 2),
        "maxSizePerFPGA": rng.choice((4.0, 8.0, 100.0)),
    }
    if not machines["maxFPGAs"] and not machines["maxCPUs"]:
        machines["maxCPUs"] = 1
    return placement(nodes, edges, **machines)


def renamed(data: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same workload: nodes and edges in another order, under other ids, colours and names."""
    rng = random.Random(seed)
    ids = [node["id"] for node in data["nodes"]]
    other = dict(zip(ids, rng.sample(range(1000, 2000), len(ids)), strict=True))
    nodes = [{**node, "id": other[node["id"]], "name": f"n{rng.random()}"} for node in data["nodes"]]
    for node in nodes:
        if "colorClass" in node:
            node["colorClass"] = 7 - node["colorClass"]
    edges = [{**edge, "sourceId": other[edge["sourceId"]], "destId": other[edge["destId"]]} for edge in data["edges"]]
    return data | {"nodes": rng.sample(nodes, len(nodes)), "edges": rng.sample(edges, len(edges))}


def random_training(seed: int, most: int = 3) -> dict[str, Any]:
    """A small random training graph: the first and most other forward nodes have a backward mate; edges between such nodes are
    mirrored."""
    rng = random.Random(seed)
    count = rng.randint(1, most)
    nodes, mates = [], {}
    for v in range(count):
        nodes.append(node(v, float(rng.choice((0, 1, 2))), 4.0, size=1.0, colorClass=v))
        if v == 0 or rng.random() < 0.8:
            mates[v] = v + 100
            nodes.append(node(mates[v], float(rng.choice((1, 3))), 6.0, size=1.0, colorClass=v, isBackwardNode=True))
    cost = {n["id"]: rng.choice((0.0, 0.5, 1.5)) for n in nodes}
    forward = [(u, v) for u in range(count) for v in range(u + 1, count) if rng.random() < 0.6]
    pairs = forward + [(mates[v], mates[u]) for u, v in forward if u in mates and v in mates]
    pairs += [(v, mate) for v, mate in mates.items()]
    rng.shuffle(nodes)
    machines = {"maxFPGAs": rng.randint(1, 2), "maxCPUs": rng.randint(0, 1), "maxSizePerFPGA": rng.choice((3.0, 10.0))}
    return placement(nodes, [edge(u, v, cost[u]) for u, v in pairs], **machines)


def brute_force(data: dict[str, Any], comm: str = "sum", contiguous: bool = True) -> float:
    """The least largest load over every assignment of nodes to devices; inf when none is possible."""
    ids = [n["id"] for n in data["nodes"]]
    devices = range(data["maxFPGAs"] + data["maxCPUs"])
    homes = (dict(zip(ids, home, strict=True)) for home in itertools.product(devices, repeat=len(ids)))
    return min((assignment_value(data, home, comm, contiguous) for home in homes), default=math.inf)


def assignment_value(data: dict[str, Any], home: dict[Any, int], comm: str = "sum", contiguous: bool = True) -> float:
    """The largest load when node v is on device ``home[v]`` (accelerators come first), from the definition; inf when a node
    cannot run there, memory is short, a colour is torn apart, or forward data flows around a cycle of devices."""
    readers: dict[Any, set[Any]] = {}
    for e in data["edges"]:
        readers.setdefault(e["sourceId"], set()).add(e["destId"])
    cost = {e["sourceId"]: e["cost"] for e in data["edges"]}
    colors: dict[object, int] = {}
    for n in data["nodes"]:
        if n.get("colorClass") is not None and colors.setdefault(n["colorClass"], home[n["id"]]) != home[n["id"]]:
            return math.inf
    forward = {n["id"] for n in data["nodes"] if not n["isBackwardNode"]}
    moved = {(home[u], home[v]) for u in forward for v in readers.get(u, set()) & forward if home[u] != home[v]}
    if contiguous and _cyclic(moved):
        return math.inf
    worst = 0.0
    for device in set(home.values()):
        nodes = [n for n in data["nodes"] if home[n["id"]] == device]
        inside = {n["id"] for n in nodes}
        if device >= data["maxFPGAs"]:
            worst = max(worst, sum(n["cpuLatency"] for n in nodes))
            continue
        if not all(n["supportedOnFpga"] for n in nodes) or sum(n["size"] for n in nodes) > data["maxSizePerFPGA"]:
            return math.inf
        compute = sum(n["fpgaLatency"] for n in nodes)
        sent = sum(cost[u] for u, targets in readers.items() if u in inside and targets - inside)
        received = sum(cost[u] for u, targets in readers.items() if u not in inside and targets & inside)
        if comm == "sum":
            load = compute + sent + received
        else:
            load = max(compute, sent + received) if comm == "overlap" else max(compute, sent, received)
        worst = max(worst, load)
    return worst


def _cyclic(links: set[tuple[int, int]]) -> bool:
    left = {v for link in links for v in link}
    while left:
        sinks = {v for v in left if not any(a == v and b in left for a, b in links)}
        if not sinks:
            return True
        left -= sinks
    return False


def text_of(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1)


def profile_line(id_: str, desc: str, forward: float, backward: float, activation: str, weight: float, end: str = "") -> str:
    times = f"forward_compute_time={forward}, backward_compute_time={backward}"
    return f"{id_} -- {desc} -- {times}, activation_size={activation}, parameter_size={weight}{end}"


PROFILE = "\n".join(
    [
        profile_line("node1", "Input0", 9.0, 0.0, "[8.0; 8.0]", 0.0),
        profile_line("node2", "Conv2d(3, 64, kernel_size=(3, 3))", 2.0, 4.0, "4000000.0", 1024.0),
        profile_line("node3", "Split", 1.0, 1.0, "[1000000.0; 1000000.0]", 0.0),
        profile_line("node4", "__getitem__(0)", 5.0, 0.0, "8.0", 0.0),
        profile_line("node5", "Linear(64, 10)", 3.0, 6.0, "40.0", 512.0, " -- stage_id=1"),
        "\tnode1 -- node2",
        "\tnode2 -- node3",
        "\tnode2 -- node3",
        "\tnode3 -- node4",
        "\tnode3 -- node5",
        "",
    ]
)
"""An input and a ``__getitem__`` sink to drop, an edge that stands twice, a list of sizes, a stage of others."""
