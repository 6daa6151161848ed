"""BERT: an encoder with post-norm."""

from __future__ import annotations

from dnnc.zoo.attention import attention, padding_mask
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options
from ir.core.types import DType


def bert(graph: Graph, o: Options) -> list[str]:
    """BERT (Devlin et al. 2018) with its pooler or its masked-word head: post-norm, exact GELU, a padding mask."""
    batch, seq, hidden = o["batch"], o["seq"], o["hidden"]
    ids = graph.input("input_ids", (batch, seq), DType.I64)
    is_token = graph.input("attention_mask", (batch, seq), DType.I64)
    segments = graph.input("token_type_ids", (batch, seq), DType.I64)
    shape = (batch, seq, hidden)
    words = graph.weight("embeddings.word_embeddings.weight", (o["vocab"], hidden), 0.5)
    places = graph.weight("embeddings.position_embeddings.weight", (o["positions"], hidden), 0.3)
    kinds = graph.weight("embeddings.token_type_embeddings.weight", (2, hidden), 0.3)
    position_ids = graph.integers("position_ids", list(range(seq)))
    value = graph.op("Gather", "embeddings.word", [words, ids], shape, axis=0)
    kind = graph.op("Gather", "embeddings.token_type", [kinds, segments], shape, axis=0)
    value = graph.op("Add", "embeddings.word_and_type", [value, kind], shape)
    place = graph.op("Gather", "embeddings.position", [places, position_ids], (seq, hidden), axis=0)
    value = graph.op("Add", "embeddings.sum", [value, place], shape)
    value = graph.layer_norm("embeddings.LayerNorm", value, 1e-12)

    mask = padding_mask(graph, is_token)

    for number in range(o["layers"]):
        name = f"encoder.layer.{number}"
        q, k, v = (graph.linear(f"{name}.attention.self.{part}", value, hidden) for part in ("query", "key", "value"))
        mixed = attention(graph, f"{name}.attention.self", q, k, v, o["heads"], mask)
        projected = graph.linear(f"{name}.attention.output.dense", mixed, hidden)
        summed = graph.op("Add", f"{name}.attention.output.residual", [projected, value], shape)
        value = graph.layer_norm(f"{name}.attention.output.LayerNorm", summed, 1e-12)
        wide = graph.linear(f"{name}.intermediate.dense", value, o["intermediate"])
        wide = graph.op("Gelu", f"{name}.intermediate.act", [wide], graph.shape(wide), approximate="none")
        narrow = graph.linear(f"{name}.output.dense", wide, hidden)
        summed = graph.op("Add", f"{name}.output.residual", [narrow, value], shape)
        result = "last_hidden_state" if number == o["layers"] - 1 and o.word("head") == "pooler" else ""
        value = graph.layer_norm(f"{name}.output.LayerNorm", summed, 1e-12, result)
    if o.word("head") == "words":
        value = graph.linear("words.dense", value, hidden)
        value = graph.op("Gelu", "words.act", [value], shape, approximate="none")
        value = graph.layer_norm("words.LayerNorm", value, 1e-12)
        return [graph.tied("words", value, words, graph.weight("words.bias", (o["vocab"],), 0.02))]
    first = graph.op("Gather", "pooler.first", [value, graph.integers("zero", [0], scalar=True)], (batch, hidden), axis=1)
    pooled = graph.linear("pooler.dense", first, hidden)
    return [value, graph.op("Tanh", "pooler_output", [pooled], (batch, hidden))]
