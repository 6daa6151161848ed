"""Mixtral: LLaMA whose layers have experts; each token chooses some of them.

All experts are computed by one batched product, ``[batch, 1, seq, hidden] x [experts, hidden, ffn]``. A layout can shard its
dimension of experts: each device then computes its own experts, and only the sum over experts is a reduction. There are two
kinds of routing.

``routing=dense``: every expert computes every token, and the result of an expert that the token did not choose has weight 0.
This is exactly the published function (no token is dropped); it costs the work of all experts instead of the chosen ones.

``routing=capacity`` (Lepikhin et al. 2020, with a sample as a group): an expert has slots for ``capacity`` percent of an even
part of a sample's tokens, filled in order; it does not compute a token that finds no slot. Products with one-hot matrices
move tokens to their slots and back, so the work is close to that of the chosen experts. If samples are sharded
outside and experts inside, tokens move by two all-to-alls.

With ``weights=int4`` the experts are one operator, which has dense routing and computes the chosen experts alone.
"""

from __future__ import annotations

import math

from dnnc.zoo.faults import NoMultiple, PackedByCapacity, TooFewExperts
from dnnc.zoo.graph import BLOCK, ELEMENT, Graph
from dnnc.zoo.llama import decoder
from dnnc.zoo.spec import Options, Value
from ir.core.diagnostics import Fault
from ir.core.types import DType


def top_of_experts(values: dict[str, Value]) -> list[Fault]:
    """``top`` must be at most ``experts``."""
    experts, top = int(values["experts"]), int(values["top"])
    return [TooFewExperts(top, experts)] if top > experts else []


def packed_experts(values: dict[str, Value]) -> list[Fault]:
    """The operator of experts of 4 bits has dense routing, and its weights whole blocks."""
    if values["weights"] != "int4":
        return []
    widths = [(key, int(values[key])) for key in ("hidden", "ffn") if int(values[key]) % BLOCK]
    faults: list[Fault] = [NoMultiple(key, width, str(BLOCK), f"{key}={-(-width // BLOCK) * BLOCK}") for key, width in widths]
    return [*faults, *([PackedByCapacity()] if values["routing"] == "capacity" else [])]


def mixtral(graph: Graph, o: Options) -> list[str]:
    """Mixtral (Jiang et al. 2024, table 1)."""
    experts = _packed if graph.packed else _dense if o.word("routing") == "dense" else _by_capacity
    return decoder(graph, o, 1e6, lambda name, value: experts(graph, f"{name}.moe", value, o))


def places(o: Options) -> int:
    """The slots of an expert per sample: min(seq, ceil(seq * top / experts * capacity / 100))."""
    return min(o["seq"], -(-o["top"] * o["seq"] * o["capacity"] // (100 * o["experts"])))


def _dense(graph: Graph, name: str, value: str, o: Options) -> str:
    """The sum over all experts of result * share."""
    batch, seq, hidden = graph.shape(value)
    marks, softmax = _choice(graph, name, value, o)
    shares = _by_expert(graph, f"{name}.shares", _shares(graph, name, marks, softmax))
    column = graph.op("Unsqueeze", f"{name}.shares.column", [shares, graph.integers("axis.3", [3])], (*graph.shape(shares), 1))
    results = _swiglu(graph, name, _tokens(graph, name, value), o)
    weighed = graph.op("Mul", f"{name}.weighed", [results, column], graph.shape(results))
    return graph.op("ReduceSum", f"{name}.sum", [weighed, graph.integers("axis.1", [1])], (batch, seq, hidden), keepdims=0)


def _packed(graph: Graph, name: str, value: str, o: Options) -> str:
    """``QMoE``, as onnxruntime-genai writes experts: it chooses, and computes each token's own experts alone. Gate and up are
    one weight, whose rows alternate."""
    batch, seq, hidden = graph.shape(value)
    flat = graph.reshape(f"{name}.flat", value, (batch * seq, hidden))
    logits = graph.linear(f"{name}.router", flat, o["experts"], bias=False)
    wide = graph.packed_weight(f"{name}.gate_up", (o["experts"], 2 * o["ffn"]), hidden, blocked=False)
    down = graph.packed_weight(f"{name}.down", (o["experts"], hidden), o["ffn"], blocked=False)
    result = graph.op(
        "com.microsoft.QMoE", f"{name}.experts", [flat, logits, *wide, "", *down], (batch * seq, hidden),
        k=o["top"], expert_weight_bits=4, block_size=BLOCK, normalize_routing_weights=1,
        activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0,
    )  # fmt: skip
    return graph.reshape(f"{name}.sum", result, (batch, seq, hidden))


def _by_capacity(graph: Graph, name: str, value: str, o: Options) -> str:
    """Moves tokens to the slots of experts, applies the experts, and adds results * share back to the tokens."""
    (batch, seq, hidden), experts, count = graph.shape(value), o["experts"], places(o)
    marks, softmax = _choice(graph, name, value, o)
    row = (batch, experts, 1, seq)
    spread = (batch, experts, count, seq)
    two = graph.integers("axis.2", [2])
    place = graph.op("Unsqueeze", f"{name}.place.row", [_place(graph, name, marks), two], row, DType.I64)
    numbers = graph.integers(f"places.{count}", list(range(1, count + 1)))
    numbers = graph.op("Unsqueeze", f"{name}.places", [numbers, graph.integers("axis.1", [1])], (count, 1), DType.I64)
    taken = graph.op("Equal", f"{name}.taken", [place, numbers], spread, DType.BOOL)
    taken = graph.op("Cast", f"{name}.dispatch", [taken], spread, to=ELEMENT[graph.dtype])
    sent = (batch, experts, count, hidden)
    results = _swiglu(graph, name, graph.op("MatMul", f"{name}.sent", [taken, _tokens(graph, name, value)], sent), o)
    shares = _by_expert(graph, f"{name}.shares", _shares(graph, name, marks, softmax))
    shares = graph.op("Unsqueeze", f"{name}.shares.row", [shares, two], row)
    back = graph.op("Mul", f"{name}.combine", [taken, shares], spread)
    back = graph.transpose(f"{name}.back", graph.reshape(f"{name}.flat", back, (batch, experts * count, seq)), [0, 2, 1])
    results = graph.reshape(f"{name}.results", results, (batch, experts * count, hidden))
    return graph.op("MatMul", f"{name}.sum", [back, results], (batch, seq, hidden))


def _tokens(graph: Graph, name: str, value: str) -> str:
    """``[batch, 1, seq, hidden]``: broadcasts over the experts in a product with their matrices."""
    batch, seq, hidden = graph.shape(value)
    return graph.op("Unsqueeze", f"{name}.tokens", [value, graph.integers("axis.1", [1])], (batch, 1, seq, hidden))


def _swiglu(graph: Graph, name: str, value: str, o: Options) -> str:
    """The gated feed-forward part of every expert."""
    up, gate = (_per_expert(graph, f"{name}.{part}", value, o["experts"], o["ffn"]) for part in ("up", "gate"))
    gated = graph.op("Mul", f"{name}.gated", [graph.silu(f"{name}.act", gate), up], graph.shape(up))
    return _per_expert(graph, f"{name}.down", gated, o["experts"], o["hidden"])


def _per_expert(graph: Graph, name: str, value: str, experts: int, outputs: int) -> str:
    """``value @ W`` by every expert's own matrix."""
    batch, _, rows, inputs = graph.shape(value)
    weight = graph.weight(f"{name}.weight", (experts, inputs, outputs), 1 / math.sqrt(inputs))
    return graph.op("MatMul", name, [value, weight], (batch, experts, rows, outputs))


def _choice(graph: Graph, name: str, value: str, o: Options) -> tuple[str, str]:
    """The choices of each token as one-hot booleans ``[batch, seq, top, experts]``, and the softmax over the logits of the
    chosen experts, ``[batch, seq, top, 1]`` in at least single precision."""
    batch, seq, _ = graph.shape(value)
    best = (batch, seq, o["top"])
    logits = graph.linear(f"{name}.router", value, o["experts"], bias=False)
    logits = graph.cast(f"{name}.router.wide", logits, graph.wide)
    count = graph.integers("experts.chosen", [o["top"]])
    largest, chosen = graph.top(f"{name}.router.largest", f"{name}.router.chosen", logits, count, best)
    last = graph.integers("last_axis", [-1])
    softmax = graph.op("Softmax", f"{name}.router.softmax", [largest], best, graph.wide, axis=-1)
    softmax = graph.op("Unsqueeze", f"{name}.router.weights", [softmax, last], (*best, 1), graph.wide)
    column = graph.op("Unsqueeze", f"{name}.router.column", [chosen, last], (*best, 1), DType.I64)
    every = graph.integers("experts.every", list(range(o["experts"])))
    marks = graph.op("Equal", f"{name}.router.equal", [column, every], (*best, o["experts"]), DType.BOOL)
    return marks, softmax


def _shares(graph: Graph, name: str, marks: str, softmax: str) -> str:
    """``[batch, seq, experts]``: the weight of each expert in a token's result, 0 where it is not chosen."""
    batch, seq, top, experts = graph.shape(marks)
    spread = (batch, seq, top, experts)
    wide = graph.wide
    numbers = graph.op("Cast", f"{name}.router.marks", [marks], spread, wide, to=ELEMENT[wide])
    weighed = graph.op("Mul", f"{name}.router.spread", [numbers, softmax], spread, wide)
    axes = graph.integers("axis.2", [2])
    shares = graph.op("ReduceSum", f"{name}.shares", [weighed, axes], (batch, seq, experts), wide, keepdims=0)
    return graph.cast(f"{name}.shares.narrow", shares, graph.dtype)


def _place(graph: Graph, name: str, marks: str) -> str:
    """``[batch, experts, seq]``: the slot of each token at each expert that it chose, counted from 1 in order; else 0."""
    batch, seq, top, experts = graph.shape(marks)
    counted = graph.op("Cast", f"{name}.place.marks", [marks], (batch, seq, top, experts), DType.I64, to=_INT64)
    axes, along = graph.integers("axis.2", [2]), graph.integers("two", [2], scalar=True)
    chosen = graph.op("ReduceSum", f"{name}.place.chosen", [counted, axes], (batch, seq, experts), DType.I64, keepdims=0)
    chosen = _by_expert(graph, f"{name}.place.chosen", chosen)
    shape = (batch, experts, seq)
    before = graph.op("CumSum", f"{name}.place.counted", [chosen, along], shape, DType.I64)
    return graph.op("Mul", f"{name}.place", [before, chosen], shape, DType.I64)


def _by_expert(graph: Graph, name: str, value: str) -> str:
    """``[batch, seq, experts]`` to ``[batch, experts, seq]``."""
    return graph.transpose(f"{name}.by_expert", value, [0, 2, 1])


_INT64 = 7
"""TensorProto.DataType of 64-bit integers."""
