"""Causal self-attention of a decoder: over a whole sequence, or over the steps of a sequence with caches of keys and values.

``cache=concat`` is what optimum and torch.onnx write. Inputs ``attention_mask [batch, past + seq]`` (1 for a token, 0 for
padding), ``position_ids [batch, seq]``, and for each layer i ``past_key_values.{i}.key`` and ``.value``, ``[batch, kv_heads,
past, width]``; each step appends its keys and values by ``Concat`` and returns ``present.{i}.key`` and ``.value``, ``[batch,
kv_heads, past + seq, width]``.

``cache=inplace`` is what the model builder of onnxruntime-genai writes. The caches have their final length,
``[batch, kv_heads, context, width]``, and ``GroupQueryAttention`` writes each sequence's new keys and values behind its earlier
ones: past and present may be one buffer. ``attention_mask [batch, context]`` is 1 for the tokens up to and including this step,
0 behind them; its sums are ``seqlens_k``. Rotary positions follow from them, so ``position_ids`` is an input only of models
that need positions otherwise.

Keys are rotated before they enter a cache; ``context`` is past + seq. The weights are those of the model without caches.
"""

from __future__ import annotations

from dnnc.zoo.attention import (
    Rotation,
    attention,
    cached_attention,
    causal_mask,
    padding_mask,
    rotary_tables,
    rotated,
    rotation_of,
)
from dnnc.zoo.faults import CacheTooShort, NoMultiple
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Complete, Option, Options, Value
from ir.core.diagnostics import Fault
from ir.core.types import DType

INT32 = 6
"""TensorProto.DataType of 32-bit integers."""
GROUP_QUERY = "com.microsoft.GroupQueryAttention"


def options(*more: str) -> tuple[Option, ...]:
    """The options of a model that can have caches. ``more``: further choices of ``cache``."""
    kinds = ("none", "concat", "inplace", *more)
    about = "keys and values of earlier steps: appended (concat), written in place (inplace)"
    about += ", or of the encoder, which is all there is (cross)" if "cross" in more else ""
    return (
        Option("cache", "none", about, kinds),
        Option("context", 0, "positions of the cache, those of the step included; 0: the most that the model was made for"),
    )


def step_length(tokens: int, longest: int, key: str = "seq") -> Complete:
    """``seq`` (or ``key``): if 0, ``tokens`` of a whole sequence, 1 with caches. ``context``: if 0, ``longest``; it must hold
    the tokens of the step and, where they are appended, one before them."""

    def complete(values: dict[str, Value]) -> list[Fault]:
        cached = values["cache"] in ("concat", "inplace")
        values[key] = int(values[key]) or (1 if cached else tokens)
        values["context"] = int(values["context"]) or max(longest, int(values[key]) + 1)
        least = int(values[key]) + (values["cache"] == "concat")
        if cached and int(values["context"]) < least:
            return [CacheTooShort(int(values["context"]), key, int(values[key]), least)]
        return []

    return complete


def rotated_heads(values: dict[str, Value]) -> list[Fault]:
    """GroupQueryAttention rotates heads whose width is a multiple of 16."""
    hidden, count = int(values["hidden"]), int(values["heads"])
    if values["cache"] != "inplace" or hidden % count or hidden // count % 16 == 0:
        return []
    fit = next((n for n in range(count, 0, -1) if hidden % n == 0 and hidden // n % 16 == 0), 0)
    return [NoMultiple("hidden/heads", hidden // count, "16", f"heads={fit}" if fit else f"hidden={16 * count}")]


class SelfAttention:
    """Causal self-attention of all layers of a decoder: without caches here, with them in the subclasses.

    ``heads``, ``kv_heads``, ``width``: of a layer; ``theta``: the base of rotary positions, 0 without; ``rows``: tokens of a
    sample or step; ``scaled``: whether scores are divided by sqrt(width); ``prefix``: of the caches' names, behind the number
    of the layer."""

    def __init__(
        self,
        graph: Graph,
        o: Options,
        *,
        layers: int,
        heads: int,
        kv_heads: int,
        width: int,
        rows: int,
        theta: float = 0.0,
        scaled: bool = True,
        positions: bool = False,
        prefix: str = "",
    ) -> None:
        self.graph, self.batch, self.context = graph, o["batch"], o["context"]
        self.heads, self.kv_heads, self.width, self.rows = heads, kv_heads, width, rows
        self.theta, self.scaled, self.prefix = theta, scaled, prefix
        self.grouped = kv_heads < heads
        self.presents: list[str] = []
        """The caches after the step, outputs of the model."""
        self.position_ids = ""
        """Positions of the tokens, ``[batch, rows]``, where they are an input."""
        self.mask = ""
        """What is added to the scores."""
        self.rotation: Rotation | None = None
        self.prepare(layers, positions=positions)

    def prepare(self, layers: int, *, positions: bool) -> None:
        """Adds the inputs, and what all layers share. ``positions``: whether the model needs ``position_ids``."""
        self.mask = causal_mask(self.graph, self.rows)
        if self.theta:
            self.rotation = rotation_of(self.graph, self.rows, self.width, self.theta, grouped=self.grouped)

    def attend(self, name: str, layer: int, query: str, key: str, value: str) -> str:
        """``[batch, rows, heads * width]`` of queries of that shape and keys and values ``[batch, rows, kv_heads * width]``."""
        return attention(
            self.graph, name, query, key, value, self.heads, self.mask,
            kv_heads=self.kv_heads, rotation=self.rotation, scaled=self.scaled,
        )  # fmt: skip

    def bias(self, name: str, added: str) -> None:
        """From here on ``added`` is added to the scores too, before the mask. ``name``: of the sum."""
        spread = max((self.graph.shape(added), self.graph.shape(self.mask)), key=len)
        self.mask = self.graph.op("Add", name, [added, self.mask], spread)

    def _caches(self, layers: int, length: int) -> None:
        """The inputs ``past_key_values.{i}.key`` and ``.value``."""
        for layer in range(layers):
            for part in ("key", "value"):
                self.graph.input(self._name("past_key_values", layer, part), (self.batch, self.kv_heads, length, self.width))

    def _name(self, side: str, layer: int, part: str) -> str:
        return f"{side}.{layer}.{self.prefix}{part}"


class Appended(SelfAttention):
    """Caches by ``Concat``."""

    def prepare(self, layers: int, *, positions: bool) -> None:
        graph, past = self.graph, self.context - self.rows
        is_token = graph.input("attention_mask", (self.batch, self.context), DType.I64)
        self.position_ids = graph.input("position_ids", (self.batch, self.rows), DType.I64)
        self._caches(layers, past)
        padding = padding_mask(graph, is_token, ranks=2 + self.grouped)
        causal = causal_mask(graph, self.rows, past)
        ones = (1,) * (1 + self.grouped)
        self.mask = graph.op("Add", "mask.both", [padding, causal], (self.batch, *ones, self.rows, self.context))
        if self.theta:
            self.rotation = rotation_of(
                graph, self.rows, self.width, self.theta, grouped=self.grouped, position_ids=self.position_ids
            )

    def attend(self, name: str, layer: int, query: str, key: str, value: str) -> str:
        graph = self.graph
        flat = Rotation(*(self._flat(wave) for wave in (self.rotation.cos, self.rotation.sin))) if self.rotation else None
        caches = []
        for part, x, turns in (("key", key, flat), ("value", value, None)):
            x = graph.reshape(f"{name}.{part}.heads", x, (self.batch, self.rows, self.kv_heads, self.width))
            x = rotated(graph, f"{name}.{part}", x, turns) if turns else x
            x = graph.transpose(f"{name}.{part}.new", x, [0, 2, 1, 3])
            shape = (self.batch, self.kv_heads, self.context, self.width)
            past = f"%{self._name('past_key_values', layer, part)}"
            caches.append(graph.op("Concat", self._name("present", layer, part), [past, x], shape, axis=2))
        self.presents += caches
        return cached_attention(graph, name, query, caches[0], caches[1], self.mask, rotation=self.rotation, scaled=self.scaled)

    def _flat(self, wave: str) -> str:
        """Angles of ungrouped heads, ``[batch, rows, 1, width]``."""
        if not self.grouped:
            return wave
        name = f"{wave[1:]}.keys"
        shape = (self.batch, self.rows, 1, self.width)
        return f"%{name}" if self.graph.has(f"%{name}") else self.graph.reshape(name, wave, shape)


class InPlace(SelfAttention):
    """Caches of final length by ``GroupQueryAttention``."""

    def prepare(self, layers: int, *, positions: bool) -> None:
        graph = self.graph
        is_token = graph.input("attention_mask", (self.batch, self.context), DType.I64)
        if positions:
            self.position_ids = graph.input("position_ids", (self.batch, self.rows), DType.I64)
        self._caches(layers, self.context)
        one = graph.integers("axis.1", [1])
        count = graph.op("ReduceSum", "seqlens.count", [is_token, one], (self.batch,), DType.I64, keepdims=0)
        last = graph.op("Sub", "seqlens.last", [count, graph.integers("one", [1], scalar=True)], (self.batch,), DType.I64)
        self.lengths = graph.op("Cast", "seqlens_k", [last], (self.batch,), DType.I32, to=INT32)
        sizes = graph.op("Shape", "attention_mask.shape", [is_token], (2,), DType.I64)
        total = graph.op("Gather", "total", [sizes, graph.integers("one", [1], scalar=True)], (), DType.I64, axis=0)
        self.total = graph.op("Cast", "total_sequence_length", [total], (), DType.I32, to=INT32)
        if self.theta:
            self.rotation = rotary_tables(graph, self.context, self.width, self.theta)

    def bias(self, name: str, added: str) -> None:
        self.mask = added

    def attend(self, name: str, layer: int, query: str, key: str, value: str) -> str:
        past = [f"%{self._name('past_key_values', layer, part)}" for part in ("key", "value")]
        operands = [query, key, value, *past, self.lengths, self.total]
        if self.rotation:
            operands += [self.rotation.cos, self.rotation.sin]
        if self.mask:
            operands += [""] * (10 - len(operands)) + [self.mask]
        if self.rows > 1 and self.batch > 1:  # onnxruntime needs the counts where several samples have several new tokens
            given = self.graph.integers("query_seqlens", [self.rows] * self.batch, dtype=DType.I32)
            operands += [""] * (16 - len(operands)) + [given]
        caches = [(self._name("present", layer, part), self.graph.shape(past[0])) for part in ("key", "value")]
        results = self.graph.ops(
            GROUP_QUERY, f"{name}.attention", operands, [(f"{name}.attention", self.graph.shape(query)), *caches],
            num_heads=self.heads, kv_num_heads=self.kv_heads, do_rotary=int(self.theta > 0),
            scale=self.width**-0.5 if self.scaled else 1.0,
        )  # fmt: skip
        self.presents += results[1:]
        return results[0]


FORMATS: dict[str, type[SelfAttention]] = {"none": SelfAttention, "concat": Appended, "inplace": InPlace}
"""By the value of option ``cache``."""
