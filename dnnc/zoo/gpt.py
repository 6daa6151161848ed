"""GPT-2 and GPT-3: decoders with pre-norm and learned positions.

GPT-2 computes query, key and value by one product that is then split in three; no layout rule shards a dimension that is split,
so the pass ``unfuse`` first separates the product. GPT-3, too large for one device, has three products from the start, which is
the same function.
"""

from __future__ import annotations

import math

from dnnc.zoo.cache import FORMATS
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options
from ir.core.types import DType

_PARTS = ("query", "key", "value")


def gpt(graph: Graph, o: Options) -> list[str]:
    """GPT-2 (Radford et al. 2019) with its language-model head, whose weight is the token embedding: pre-norm, tanh GELU.

    GPT-3 (Brown et al. 2020) is the same with other dimensions (table 2.1 there), but for alternating dense and locally banded
    sparse attention, which is dense in every layer here."""
    batch, seq, hidden, layers = o["batch"], o["seq"], o["hidden"], o["layers"]
    ids = graph.input("input_ids", (batch, seq), DType.I64)
    wte = graph.weight("wte.weight", (o["vocab"], hidden), 0.6 / math.sqrt(hidden))
    wpe = graph.weight("wpe.weight", (o["positions"], hidden), 0.3 / math.sqrt(hidden))
    itself = FORMATS[o.word("cache")](
        graph, o, layers=layers, heads=o["heads"], kv_heads=o["heads"], width=hidden // o["heads"], rows=seq, positions=True
    )
    if itself.position_ids:
        places = graph.op("Gather", "wpe", [wpe, itself.position_ids], (batch, seq, hidden), axis=0)
    else:
        places = graph.op("Gather", "wpe", [wpe, graph.integers("position_ids", list(range(seq)))], (seq, hidden), axis=0)
    tokens = graph.op("Gather", "wte", [wte, ids], (batch, seq, hidden), axis=0)
    value = graph.op("Add", "embedding", [tokens, places], (batch, seq, hidden))
    for number in range(layers):
        name = f"h.{number}"
        normed = graph.layer_norm(f"{name}.ln_1", value, 1e-5)
        project = _packed if o.word("qkv") == "fused" else _separate
        q, k, v = project(graph, f"{name}.attn", normed, hidden)
        mixed = itself.attend(f"{name}.attn", number, q, k, v)
        projected = graph.linear(f"{name}.attn.c_proj", mixed, hidden, 1 / math.sqrt(2 * layers))
        value = graph.op("Add", f"{name}.attn.residual", [value, projected], (batch, seq, hidden))
        normed = graph.layer_norm(f"{name}.ln_2", value, 1e-5)
        wide = graph.linear(f"{name}.mlp.c_fc", normed, o["ffn"])
        wide = graph.op("Gelu", f"{name}.mlp.act", [wide], graph.shape(wide), approximate="tanh")
        projected = graph.linear(f"{name}.mlp.c_proj", wide, hidden, 1 / math.sqrt(2 * layers))
        value = graph.op("Add", f"{name}.mlp.residual", [value, projected], (batch, seq, hidden))
    return [graph.tied("lm_head", graph.layer_norm("ln_f", value, 1e-5), wte), *itself.presents]


def _packed(graph: Graph, name: str, value: str, hidden: int) -> list[str]:
    """Query, key and value by one product, as in the published GPT-2."""
    packed = graph.linear(f"{name}.c_attn", value, 3 * hidden)
    sizes = graph.integers(f"thirds.{hidden}", [hidden] * 3)
    parts = [(f"{name}.{part}", graph.shape(value)) for part in _PARTS]
    return graph.ops("Split", f"{name}.split", [packed, sizes], parts, axis=2)


def _separate(graph: Graph, name: str, value: str, hidden: int) -> list[str]:
    """Query, key and value by one product each."""
    return [graph.linear(f"{name}.{part}", value, hidden) for part in _PARTS]
