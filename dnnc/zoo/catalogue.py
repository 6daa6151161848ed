"""The catalogue of zoo models; the defaults of their options are the published dimensions.

Weights are random numbers from a seed, drawn when they are written to a file. A model with more than 2 GiB of weights only
declares them, unless ``weights=random`` is given: it can then be planned but not run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from dnnc.zoo import cache, inception, mixtral, t5, vgg, vit
from dnnc.zoo import dimensions as dim
from dnnc.zoo.bert import bert
from dnnc.zoo.gpt import gpt
from dnnc.zoo.graph import Graph
from dnnc.zoo.llama import llama
from dnnc.zoo.plain import mlp
from dnnc.zoo.resnet import resnet
from dnnc.zoo.spec import Entry, Option, parse_spec, stated_options
from dnnc.zoo.transformer import even_frames, even_width, transformer, whisper
from ir.core.module import Module
from ir.core.types import DType

DTYPES = ("f32", "f16", "bf16", "f64")
WEIGHTS = ("auto", "random", "declared", "int4")
DECLARED_ABOVE = 2 << 30
"""Bytes of weights up to which ``weights=auto`` gives them data."""


@dataclass(frozen=True, slots=True)
class ZooModel:
    """``spec``: canonical, with only the options that differ from the defaults, in the order of the catalogue; ``parameters``:
    number of trainable elements; ``weight_bytes``: of all weights; ``declared``: whether the weights have no data."""

    module: Module
    spec: str
    parameters: int
    weight_bytes: int
    declared: bool


def entries() -> tuple[Entry, ...]:
    """Every model, by name."""
    return _ENTRIES


def build(spec: str) -> Module:
    """The module of ``NAME,option=value,...``, with or without ``zoo:`` before it. Raises InvalidInput."""
    return build_model(spec).module


def require_options(spec: str) -> None:
    """Raises InvalidInput where ``spec`` names no model or options that it does not have."""
    stated_options(spec, _ENTRIES)


def build_model(spec: str) -> ZooModel:
    """As ``build``; returns also the model's canonical spec and the size of its weights."""
    entry, given, options = parse_spec(spec, _ENTRIES)
    graph = Graph(
        re.sub(r"\W", "_", entry.name), DType(options.word("dtype")), options["seed"], packed=options.word("weights") == "int4"
    )
    outputs = entry.write(graph, options)
    large = graph.weight_bytes > DECLARED_ABOVE
    declared = {"random": False, "declared": True}.get(options.word("weights"), large)
    changed = [
        f"{option.name}={given[option.name]}"
        for option in entry.options
        if given.get(option.name, option.default) != option.default
    ]
    module = graph.module(outputs, declared=declared)
    return ZooModel(module, ",".join([f"zoo:{entry.name}", *changed]), graph.parameters, graph.weight_bytes, declared)


_COMMON = (
    Option("dtype", "f32", f"element type: {', '.join(DTYPES)}", DTYPES),
    Option("seed", 0, "seed of the random weights"),
    Option("weights", "auto", "random, or declared (planned, not run); auto: declared above 2 GiB", WEIGHTS[:3]),
)
_COMMON_INT4 = (
    *_COMMON[:-1],
    Option("weights", "auto", f"{_COMMON[-1].help}; int4: as auto, those of products in 4 bits", WEIGHTS),
)
_BATCH = Option("batch", 1, "samples at a time")


def _seq(tokens: int) -> Option:
    return Option("seq", tokens, "tokens of a sample")


def _steps(tokens: int) -> Option:
    return Option("seq", 0, f"tokens of a sample or, with caches, of a step; 0: {tokens}, 1 with caches")


def _size(layers: int, hidden: int, heads: int, what: str, narrowest: int = 1) -> tuple[Option, ...]:
    least = f", {narrowest} wide at least" if narrowest > 1 else ""
    return (
        Option("layers", layers, f"{what} layers"),
        Option("hidden", hidden, "width of the hidden state"),
        Option("heads", 0, f"attention heads, dividing hidden; 0: the most up to {heads} that do{least}"),
    )


def _kv_heads(most: int) -> Option:
    return Option("kv_heads", 0, f"heads of keys and values, dividing heads; 0: the most up to {most} that do")


def _ffn(default: str) -> Option:
    return Option("ffn", 0, f"width inside the feed-forward part; 0: {default}")


def _vocab(tokens: int) -> Option:
    return Option("vocab", tokens, "tokens of the vocabulary")


def _positions(most: int) -> Option:
    return Option("positions", most, "longest sequence the position embedding knows")


NARROWEST = 8
"""The least width of a head that ``heads=0`` chooses; the BERT models and gpt2 have no such limit."""


def _gpt(
    name: str, summary: str, seq: int, layers: int, hidden: int, heads: int, positions: int, qkv: str, narrowest: int
) -> Entry:
    return Entry(
        name,
        summary,
        gpt,
        (
            _BATCH,
            _steps(seq),
            *cache.options(),
            *_size(layers, hidden, heads, "decoder", narrowest),
            _ffn("four times hidden"),
            _vocab(50257),
            _positions(positions),
            Option(
                "qkv", qkv, "queries, keys and values of one product (fused) or of one each (separate)", ("fused", "separate")
            ),
            *_COMMON_INT4,
        ),
        dim.all_of(
            dim.heads(heads, narrowest),
            dim.feed_forward(4, 1, multiple=1),
            cache.step_length(seq, positions),
            dim.within_positions,
        ),
    )


def _llama(
    name: str, summary: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, experts: tuple[int, int] = (0, 0)
) -> Entry:
    """``experts``: the number of experts of a layer, and of those that a token chooses; (0, 0) for a model without."""
    has_experts = experts[0] > 0
    routed = (
        Option("experts", experts[0], "experts of a layer"),
        Option("top", experts[1], "experts that a token chooses"),
        Option("routing", "dense", "an expert computes every token (dense), or those it has places for", ("dense", "capacity")),
        Option("capacity", 125, "routing=capacity: places of an expert, percent of its even part of a sample's tokens"),
    )
    checks = [
        dim.heads(heads, NARROWEST), dim.even_heads, dim.grouped_heads(kv_heads), dim.feed_forward(ffn, hidden),
        cache.step_length(4096, 4096), cache.rotated_heads,
        *([mixtral.top_of_experts, mixtral.packed_experts] if has_experts else []),
    ]  # fmt: skip
    return Entry(
        name,
        summary,
        mixtral.mixtral if has_experts else llama,
        (
            _BATCH,
            _steps(4096),
            *cache.options(),
            *_size(layers, hidden, heads, "decoder", NARROWEST),
            _kv_heads(kv_heads),
            _ffn(f"{ffn}/{hidden} of hidden"),
            _vocab(32000),
            *(routed if has_experts else ()),
            *_COMMON_INT4,
        ),
        dim.all_of(*checks),
    )


def _t5(name: str, summary: str, layers: int, hidden: int, heads: int, gated: int) -> Entry:
    """``gated``: the published width inside the feed-forward part of version 1.1."""

    return Entry(
        name,
        summary,
        t5.t5,
        (
            _BATCH,
            _seq(512),
            Option("target_seq", 0, "tokens of the decoder or, with caches, of a step; 0: seq, 1 with caches"),
            *cache.options("cross"),
            *_size(layers, hidden, heads, "encoder layers and decoder", NARROWEST),
            _ffn(f"four times hidden, {gated}/{hidden} of it in version 1.1"),
            _vocab(32128),
            Option("version", "1.0", "1.0, or 1.1, which gates with GELU and has a head of its own", ("1.0", "1.1")),
            *_COMMON_INT4,
        ),
        dim.all_of(dim.heads(heads, NARROWEST), partial(t5.widths, gated=dim.feed_forward(gated, hidden)), t5.step_lengths),
    )


def _bert(name: str, summary: str, layers: int, hidden: int, heads: int, head: str) -> Entry:
    return Entry(
        name,
        summary,
        bert,
        (
            _BATCH,
            _seq(128),
            *_size(layers, hidden, heads, "encoder"),
            Option("intermediate", 0, "width inside the feed-forward part; 0: four times hidden"),
            _vocab(30522),
            _positions(512),
            Option(
                "head",
                head,
                "hidden states and the pooled first token (pooler), or logits of masked words (words)",
                ("pooler", "words"),
            ),
            *_COMMON,
        ),
        dim.all_of(dim.heads(heads), dim.feed_forward(4, 1, "intermediate", multiple=1), dim.within_positions),
    )


_WIDTH = Option("width", 64, "channels of the first stage")
_CLASSES = Option("classes", 1000, "results of a sample")


def _image(side: int, more: str = "") -> Option:
    return Option("image", side, f"height and width of the image{more}")


def _resnet(name: str, summary: str, blocks: tuple[int, int, int, int]) -> Entry:
    return Entry(name, summary, partial(resnet, blocks_of=blocks), (_BATCH, _image(224), _WIDTH, _CLASSES, *_COMMON))


_ENTRIES = (
    _bert("bert-base", "BERT base, uncased, with pooler: 109,482,240 parameters", 12, 768, 12, "pooler"),
    _bert("bert-large", "BERT large, uncased, with its masked-word head: 335,174,458 parameters", 24, 1024, 16, "words"),
    _bert("bert-small", "BERT small, uncased, with its masked-word head: 28,795,194 parameters", 4, 512, 8, "words"),
    _gpt(
        "gpt2", "GPT-2 small with its language-model head: 124,439,808 parameters",
        seq=128, layers=12, hidden=768, heads=12, positions=1024, qkv="fused", narrowest=1,
    ),
    _gpt(
        "gpt3-175b", "GPT-3 with its language-model head: 174,604,259,328 parameters",
        seq=2048, layers=96, hidden=12288, heads=96, positions=2048, qkv="separate", narrowest=NARROWEST,
    ),
    Entry(
        "inception-v3",
        "Inception v3 without its auxiliary classifier: 23,834,568 parameters",
        inception.inception,
        (
            _BATCH,
            _image(299, ", 75 at least"),
            Option("width", 32, "channels of the first convolution, to which the others are in proportion"),
            _CLASSES,
            *_COMMON,
        ),
        inception.large_enough,
    ),
    _llama(
        "llama-70b", "LLaMA 2 70B, grouped queries: 68,976,648,192 parameters",
        layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672,
    ),
    _llama("llama-7b", "LLaMA 2 7B: 6,738,415,616 parameters", layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11008),
    _llama(
        "mixtral-8x7b", "Mixtral 8x7B, 2 of 8 experts a token: 46,702,792,704 parameters",
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, experts=(8, 2),
    ),
    Entry(
        "mlp",
        "fully connected layers with ReLU: 669,706 parameters",
        mlp,
        (
            Option("batch", 8, "samples at a time"),
            Option("layers", 3, "layers, the last one included"),
            Option("inputs", 784, "features of a sample"),
            Option("hidden", 512, "width of the hidden layers"),
            Option("outputs", 10, "results of a sample"),
            *_COMMON,
        ),
    ),
    _resnet("resnet101", "ResNet-101 version 1.5: 44,549,160 parameters", (3, 4, 23, 3)),
    _resnet("resnet50", "ResNet-50 version 1.5: 25,557,032 parameters", (3, 4, 6, 3)),
    _t5("t5-base", "T5 base, encoder and decoder: 222,903,552 parameters", layers=12, hidden=768, heads=12, gated=2048),
    _t5("t5-large", "T5 large, encoder and decoder: 737,668,096 parameters", layers=24, hidden=1024, heads=16, gated=2816),
    Entry(
        "transformer-base",
        "Transformer base, encoder and decoder, one table of words: 63,082,496 parameters",
        transformer,
        (
            _BATCH,
            _seq(128),
            Option("target_seq", 0, "tokens of the decoder; 0: seq"),
            *_size(6, 512, 8, "encoder layers and decoder", NARROWEST),
            _ffn("four times hidden"),
            _vocab(37000),
            *_COMMON,
        ),
        dim.all_of(dim.heads(8, NARROWEST), dim.feed_forward(4, 1), even_width, t5.lengths),
    ),
    Entry(
        "vgg19",
        "VGG-19 without batch norm: 143,667,240 parameters",
        vgg.vgg,
        (
            _BATCH,
            _image(224, ", a multiple of 32"),
            _WIDTH,
            Option("hidden", 4096, "width of the linear layers"),
            _CLASSES,
            *_COMMON,
        ),
        vgg.halved_five_times,
    ),
    Entry(
        "vit-base",
        "Vision Transformer base, patches of 16: 86,567,656 parameters",
        vit.vit,
        (
            _BATCH,
            _image(224, ", a multiple of patch"),
            Option("patch", 16, "height and width of a patch"),
            *_size(12, 768, 12, "encoder", NARROWEST),
            _ffn("four times hidden"),
            _CLASSES,
            *_COMMON,
        ),
        dim.all_of(dim.heads(12, NARROWEST), dim.feed_forward(4, 1), vit.whole_patches),
    ),
    Entry(
        "whisper-base",
        "Whisper base, speech to text: 71,825,920 parameters",
        whisper,
        (
            _BATCH,
            Option("frames", 3000, "of the spectrum, an even number"),
            Option("mels", 80, "frequencies of a frame"),
            Option("seq", 128, "tokens of the decoder"),
            *_size(6, 512, 8, "encoder layers and decoder", NARROWEST),
            _ffn("four times hidden"),
            _vocab(51865),
            _positions(448),
            *_COMMON,
        ),
        dim.all_of(dim.heads(8, NARROWEST), dim.feed_forward(4, 1), even_width, even_frames, dim.within_positions),
    ),
)  # fmt: skip
