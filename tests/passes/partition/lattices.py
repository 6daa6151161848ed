"""Workloads whose lattices are too large to walk, as documents of the device-placement format.

An encoder-decoder, operator by operator, whose decoder layers all read the encoder's last output; and mixtures of experts, in
each layer many identical branches between a router and a sum. Times follow from shapes on a machine of stated rates, so
cheap and dear transfers, loose and tight memory, and a second, slower device type are options and not hand-made tables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLOPS, STREAM, CPU_RATIO = 100e12, 1.5e12, 12.0
"""Accelerator: operations and bytes per second; how much slower a CPU is."""


@dataclass(frozen=True)
class Machines:
    """``link``: bytes per second of a port. ``room``: memory of an accelerator, in equal shares of all that is stored (None:
    far more than all), and never too little for the largest node."""

    accelerators: int = 8
    cpus: int = 0
    link: float = 25e9
    room: float | None = None


@dataclass
class Workload:
    """Builds a graph op by op. ``tokens`` rows of ``hidden`` numbers of two bytes; times in milliseconds."""

    hidden: int = 1024
    tokens: int = 4096
    nodes: list[dict[str, Any]] = field(default_factory=list)
    output: list[float] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)

    def op(self, name: str, flops: float, columns: float, *operands: int, weights: float = 0.0, rows: float = 0.0) -> int:
        """An op that makes ``rows`` (default: tokens) by ``columns`` numbers from what ``operands`` make; ``weights``
        numbers."""
        out = 2.0 * columns * (rows or self.tokens)
        moved = out + 2.0 * weights + sum(self.output[u] for u in operands)
        milliseconds = 1e3 * max(flops / FLOPS, moved / STREAM)
        self.nodes.append(
            {
                "id": len(self.nodes),
                "name": name,
                "supportedOnFpga": True,
                "fpgaLatency": milliseconds,
                "cpuLatency": milliseconds * CPU_RATIO,
                "isBackwardNode": False,
                "size": 2.0 * weights + out,
            }
        )
        self.output.append(out)
        self.reads.append(operands)
        return len(self.nodes) - 1

    def linear(self, name: str, x: int, inner: float, outer: float, rows: float = 0.0) -> int:
        rows = rows or self.tokens
        return self.op(name, 2.0 * rows * inner * outer, outer, x, weights=inner * outer, rows=rows)

    def add(self, name: str, *operands: int) -> int:
        return self.op(name, float(self.tokens * self.hidden), self.hidden, *operands)

    def attention(self, name: str, x: int, memory: int, mask: int) -> int:
        """Residual attention of ``x`` to ``memory``."""
        hidden, tokens = self.hidden, self.tokens
        normed = self.op(f"{name}.norm", 8.0 * tokens * hidden, hidden, x)
        source = normed if memory == x else memory
        query = self.linear(f"{name}.query", normed, hidden, hidden)
        key = self.op(f"{name}.transpose", 0.0, hidden, self.linear(f"{name}.key", source, hidden, hidden))
        value = self.linear(f"{name}.value", source, hidden, hidden)
        span = 512.0  # tokens that one token attends to
        scores = self.op(f"{name}.scores", 2.0 * tokens * span * hidden, 16 * span, query, key)
        masked = self.op(f"{name}.mask", tokens * 16 * span, 16 * span, scores, mask)
        shares = self.op(f"{name}.softmax", 5.0 * tokens * 16 * span, 16 * span, masked)
        mixed = self.op(f"{name}.mix", 2.0 * tokens * span * hidden, hidden, shares, value)
        return self.add(f"{name}.residual", x, self.linear(f"{name}.project", mixed, hidden, hidden))

    def feed(self, name: str, x: int) -> int:
        hidden = self.hidden
        normed = self.op(f"{name}.norm", 8.0 * self.tokens * hidden, hidden, x)
        wide = self.linear(f"{name}.up", normed, hidden, 4 * hidden)
        active = self.op(f"{name}.gelu", 8.0 * self.tokens * 4 * hidden, 4 * hidden, wide)
        return self.add(f"{name}.residual", x, self.linear(f"{name}.down", active, 4 * hidden, hidden))

    def document(self, machines: Machines, training: bool = False) -> dict[str, Any]:
        """The JSON document. ``training``: every op has a backward op of twice its time and the same colour, and the edges
        turned round."""
        count = len(self.nodes)
        nodes = [dict(node) for node in self.nodes]
        cost = [1e3 * size / machines.link for size in self.output]
        edges = [
            {"sourceId": u, "destId": v, "cost": cost[u]}
            for v, operands in enumerate(self.reads)
            for u in sorted(set(operands))
        ]
        if training:
            for v, node in enumerate(self.nodes):
                nodes[v]["colorClass"] = v
                mate = {"id": count + v, "name": f"{node['name']}.grad", "isBackwardNode": True, "colorClass": v}
                nodes.append({**node, **mate, "fpgaLatency": 2 * node["fpgaLatency"], "cpuLatency": 2 * node["cpuLatency"]})
            forward = list(edges)
            edges += [{"sourceId": e["sourceId"], "destId": count + e["destId"], "cost": e["cost"]} for e in forward]
            made = [max((cost[u] for u in operands), default=0.0) for operands in self.reads]
            edges += [
                {"sourceId": count + e["destId"], "destId": count + e["sourceId"], "cost": made[e["destId"]]} for e in forward
            ]
            read = {e["sourceId"] for e in forward}
            edges += [{"sourceId": v, "destId": count + v, "cost": cost[v]} for v in range(count) if v not in read]
        stored = sum(node["size"] for node in nodes)
        share = stored / max(1, machines.accelerators)
        largest = max((node["size"] for node in nodes), default=0.0)
        memory = 10 * stored if machines.room is None else max(machines.room * share, 1.25 * largest)
        return {
            "maxSizePerFPGA": memory,
            "maxFPGAs": machines.accelerators,
            "maxCPUs": machines.cpus,
            "nodes": nodes,
            "edges": edges,
        }


def encoder_decoder(layers: int = 24, hidden: int = 1024) -> Workload:
    """As many encoder as decoder layers; each decoder layer makes keys and values of its own from the one encoding, and masks
    made at the start are read in every layer."""
    build = Workload(hidden)
    padding = build.op("padding", 0.0, 1)
    x = build.op("source", 0.0, hidden, weights=32_000.0 * hidden)
    for layer in range(layers):
        x = build.feed(f"encoder{layer}.feed", build.attention(f"encoder{layer}.self", x, x, padding))
    causal = build.op("causal", 0.0, 1)
    y = build.op("target", 0.0, hidden, weights=32_000.0 * hidden)
    for layer in range(layers):
        y = build.attention(f"decoder{layer}.self", y, y, causal)
        y = build.feed(f"decoder{layer}.feed", build.attention(f"decoder{layer}.cross", y, x, padding))
    build.linear("vocabulary", y, hidden, 32_000)
    return build


def experts(count: int = 64, layers: int = 1, hidden: int = 1024, gates: bool = False) -> Workload:
    """In each layer self attention, a router, and ``count`` experts that each see an equal part of the tokens (twice over),
    with ``gates`` picked and multiplied in per expert; then their sum."""
    build = Workload(hidden)
    mask = build.op("mask", 0.0, 1)
    x = build.op("source", 0.0, hidden)
    rows = 2.0 * build.tokens / count
    for layer in range(layers):
        name = f"layer{layer}"
        x = build.attention(f"{name}.self", x, x, mask)
        router = build.linear(f"{name}.router", x, hidden, count)
        chosen = build.op(f"{name}.top", 0.0, 2, router)
        parts = []
        for expert in range(count):
            here = f"{name}.expert{expert}"
            taken = build.op(f"{here}.take", 0.0, hidden, x, chosen, rows=rows)
            wide = build.linear(f"{here}.up", taken, hidden, 4 * hidden, rows)
            active = build.op(f"{here}.gelu", 8.0 * rows * 4 * hidden, 4 * hidden, wide, rows=rows)
            part = build.linear(f"{here}.down", active, 4 * hidden, hidden, rows)
            if gates:
                gate = build.op(f"{here}.gate", 0.0, 1, router, rows=rows)
                part = build.op(f"{here}.weigh", rows * hidden, hidden, part, gate, rows=rows)
            parts.append(part)
        x = build.add(f"{name}.sum", x, *parts)
    return build


def write(document: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document))


__all__ = ["Machines", "Workload", "encoder_decoder", "experts", "write"]
