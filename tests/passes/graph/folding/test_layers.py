"""All copies of what repeats are found, whatever stands around them: N layers are N copies, never N-1."""

from __future__ import annotations

import pytest

from ir.core.attributes import attributes
from ir.core.facets import Direction
from ir.core.module import Inline, Module, Resource
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from tests.passes.graph.folding.graphs import (
    MATRIX,
    STREAM,
    Net,
    attention,
    branch,
    encoder,
    encoder_layer,
    layers_folded,
    of,
    round_trip,
    transformer,
)


@pytest.mark.parametrize("layers", [2, 3, 12])
def test_a_chain_of_layers(layers: int) -> None:
    module = transformer(layers)
    found = of(module)
    layer = found.blocks[0]
    assert layer.size == 22
    assert len(layer.copies) == layers
    assert [len(chain.copies) for chain in layer.chains] == [layers]
    assert [given.kind for given in layer.inputs] == ["value", "shared", *["weight"] * 12]
    assert len(layer.outputs) == 1
    assert len(found.outer) == 5 + layers
    folded = round_trip(module)
    assert [op.name for op in folded.entry.ops].count("dnnc.call") == layers


def test_parts_of_a_layer_fold_inside_it() -> None:
    """Linear layers are blocks inside the block of the layer: six a layer."""
    found = of(transformer(4))
    inner = [block for block in found.blocks if block.size == 2]
    assert [len(block.copies) for block in inner] == [24]
    assert all(copy.parent is not None and copy.parent[0] == 0 for copy in inner[0].copies)
    assert [copy.parent[1] for copy in inner[0].copies if copy.parent] == sorted([0, 1, 2, 3] * 6)


def test_layers_that_give_out_their_caches() -> None:
    """Keys and values are results of the function: no layer's stream is all that leaves it."""
    net = Net()
    mask = net.op("Neg", net.arg("mask"))
    x = net.op("Norm", net.arg("x"))
    caches = []
    for layer in range(6):
        net.scope = f"layer.{layer}."
        x, key, value = encoder_layer(net, x, mask)
        caches += [key, value]
    found = of(net.build(x, *caches))
    assert layers_folded(found) == [6]
    assert len(found.blocks[0].outputs) == 3


def test_layers_with_ops_for_their_caches_alone() -> None:
    """What only a cache needs belongs to its layer."""
    net = Net()
    mask = net.op("Neg", net.arg("mask"))
    x = net.op("Norm", net.arg("x"))
    caches = []
    for layer in range(6):
        net.scope = f"layer.{layer}."
        x, key, _ = encoder_layer(net, x, mask)
        caches.append(net.op("Cast", net.op("Reshape", key)))
    module = net.build(x, *caches)
    found = of(module)
    assert layers_folded(found, "onnx.Cast") == [6]
    assert found.blocks[0].size == 24
    round_trip(module)


def test_encoder_and_decoder() -> None:
    """The output of the encoder is read by every layer of the decoder, first by the first; parts common to both fold as
    well."""
    net = Net()
    mask, causal = net.op("Neg", net.arg("mask")), net.op("Abs", net.arg("causal"))
    memory = encoder(net, net.op("Norm", net.arg("source")), mask, 5)
    x = net.op("Exp", net.arg("target"))
    for layer in range(7):
        net.scope = f"decoder.{layer}."
        mixed, _, _ = attention(net, norm := net.op("Norm", x), norm, causal)
        x = net.op("Add", x, mixed)
        net.scope += "cross."
        mixed, _, _ = attention(net, net.op("Norm", x), memory, mask)
        x = net.op("Add", x, mixed)
        wide = net.op("Relu", net.linear(net.op("Norm", x), "up"))
        x = net.op("Add", x, net.linear(wide, "down"))
    module = net.build(net.op("Tanh", x))
    found = of(module)
    sizes = {(block.size, len(block.copies)) for block in found.blocks}
    assert (22, 5) in sizes
    assert (37, 7) in sizes
    decoder = next(block for block in found.blocks if block.size == 37)
    shared = {decoder.copies[0].operands[i] for i, given in enumerate(decoder.inputs) if given.kind == "shared"}
    assert shared == {memory, mask, causal}
    round_trip(module)


def test_attention_and_feed_forward_in_parallel() -> None:
    """Two roots of one layer, which both read the norm: one region."""
    net = Net()
    mask = net.op("Neg", net.arg("mask"))
    x = net.op("Norm", net.arg("x"))
    for layer in range(5):
        net.scope = f"layer.{layer}."
        norm = net.op("LayerNorm", x)
        mixed, _, _ = attention(net, norm, norm, mask)
        wide = net.linear(net.op("Gelu", net.linear(norm, "up")), "down")
        x = net.op("Add", net.op("Add", mixed, wide), x)
    found = of(net.build(net.op("Tanh", x)))
    assert layers_folded(found) == [5]
    assert found.blocks[0].size == 21


def test_private_computations_before_the_stream() -> None:
    """What prepares a weight, or a mask for one layer, stands at the first port: a depth-first order meets it on the way
    down."""
    net = Net()
    mask, x = net.arg("mask"), net.op("Norm", net.arg("x"))
    for layer in range(6):
        net.scope = f"layer.{layer}."
        h = net.op("MatMul", net.op("Transpose", net.weight("w")), x)
        x = net.op("Where", net.op("Cast", net.op("Neg", mask)), net.op("Relu", h))
    found = of(net.build(net.op("Tanh", x)))
    assert layers_folded(found, "onnx.Where") == [6]
    assert found.blocks[0].size == 6


def test_experts_are_copies_side_by_side() -> None:
    net = Net()
    x = net.op("Norm", net.arg("x"))
    for layer in range(3):
        net.scope = f"layer.{layer}."
        gate = net.op("Softmax", net.linear(x, "router"))
        experts = []
        for expert in range(8):
            net.scope = f"layer.{layer}.expert.{expert}."
            h = net.op("MatMul", net.op("Gelu", net.op("MatMul", x, net.weight("up"))), net.weight("down"))
            experts.append(net.op("Mul", h, gate))
        x = net.op("Add", x, net.op("Sum", *experts))
    module = net.build(net.op("Tanh", x))
    found = of(module)
    sizes = {(block.size, len(block.copies)) for block in found.blocks}
    assert (37, 3) in sizes
    assert (4, 24) in sizes
    round_trip(module)


def test_experts_summed_one_by_one() -> None:
    """The first expert has no sum before it; its own ops fold with the others' all the same."""
    net = Net()
    x = net.op("Norm", net.arg("x"))
    total = ""
    for expert in range(6):
        net.scope = f"expert.{expert}."
        h = net.op("MatMul", net.op("Gelu", net.op("MatMul", x, net.weight("up"))), net.weight("down"))
        total = net.op("Add", total, h) if total else h
    found = of(net.build(total))
    assert layers_folded(found, "onnx.Gelu")[-1] == 6


def test_towers_fold_with_their_layers() -> None:
    """Two encoders side by side: a block of blocks."""
    net = Net()
    outs = []
    for tower in range(2):
        mask = net.op("Neg", net.arg(f"mask.{tower}"))
        x = encoder(net, net.op("Norm", net.arg(f"x.{tower}")), mask, 4)
        outs.append(net.op("Tanh", x))
    module = net.build(net.op("Sub", *outs))
    found = of(module)
    sizes = {(block.size, len(block.copies)) for block in found.blocks}
    assert (22, 8) in sizes
    assert (91, 2) in sizes
    assert len(found.outer) == 3
    round_trip(module)


def test_layers_that_alternate() -> None:
    net = Net()
    x = net.op("Norm", net.arg("x"))
    for layer in range(8):
        net.scope = f"layer.{layer}."
        x = net.op("Add", x, net.linear(net.op("Gelu" if layer % 2 else "Relu", net.linear(x, "up")), "down"))
    found = of(net.build(net.op("Tanh", x)))
    assert (12, 4) in {(block.size, len(block.copies)) for block in found.blocks}


def test_one_weight_of_all_layers_is_shared() -> None:
    net = Net()
    x = net.op("Norm", net.arg("x"))
    weight = net.weight("w")
    for layer in range(5):
        net.scope = f"layer.{layer}."
        x = net.op("Gelu", net.op("Add", net.op("MatMul", x, weight), net.weight("bias")))
    module = net.build(net.op("Tanh", x))
    found = of(module)
    assert len(found.blocks[0].copies) == 5
    assert [given.kind for given in found.blocks[0].inputs] == ["value", "shared", "weight"]
    round_trip(module)


def with_constants(values: list[tuple[int, ...]]) -> Module:
    """Two ops a layer, the first with a constant of its own."""
    net = Net()
    x = net.arg("x")
    type_ = TensorType(DType.I64, (2,))
    for layer, value in enumerate(values):
        net.scope = f"layer.{layer}."
        data = b"".join(item.to_bytes(8, "little") for item in value)
        x = net.op("Relu", net.op("Reshape", x, net.module.resource(f"shape.{layer}", type_, Inline(data))))
    return net.build(x)


def test_constants_fold_by_value() -> None:
    same = of(with_constants([(8, 64)] * 4))
    assert [len(block.copies) for block in same.blocks] == [4]
    assert [given.kind for given in same.blocks[0].inputs] == ["value", "weight"]
    other = of(with_constants([(8, 64)] * 3 + [(64, 8)]))
    assert [len(block.copies) for block in other.blocks] == [3]


def test_a_constant_that_all_copies_share_stays_inside() -> None:
    net = Net()
    shape = net.module.resource("shape", TensorType(DType.I64, (2,)), Inline((8).to_bytes(8, "little") * 2))
    x = net.arg("x")
    for _ in range(4):
        x = net.op("Relu", net.op("Reshape", x, shape))
    module = net.build(x)
    assert [given.kind for given in of(module).blocks[0].inputs] == ["value"]
    folded = round_trip(module)
    body = folded.symbol("@block_0")
    assert body is not None
    assert body.ops[0].operands[1] == shape  # type: ignore[union-attr]


def test_forward_and_backward_do_not_fold_together() -> None:
    """The same ops in either phase; a key without the phase would take all eight for one chain."""
    net = Net()
    x = net.arg("x")
    for layer in range(8):
        for kind in ("MatMul", "Relu"):
            operands = (x, net.weight(f"{layer}")) if kind == "MatMul" else (x,)
            phase = Direction("fw" if layer < 4 else "bw")
            x = net.func.op(f"onnx.{kind}", operands, STREAM, name=f"{kind}{layer}", facets=(phase,))
    found = of(net.build(x))
    sizes = sorted((block.size, len(block.copies)) for block in found.blocks)
    assert sizes == [(2, 4), (2, 4)]


def conditional(name: str, x: str, weight: str, **attrs: object) -> Op:
    """An If whose branches capture ``x`` and a weight, and call their own values after ``name``."""
    then = Op("onnx.MatMul", (x, weight), (Value(f"%{name}.then", STREAM),), attributes(attrs))
    return Op(
        "onnx.If",
        ("%c",),
        (Value(f"%{name}", STREAM),),
        regions=(
            ("then_branch", branch((), [then], [then.results[0].name])),
            ("else_branch", branch((), [], [x])),
        ),
    )


def conditionals(**last: object) -> Module:
    """Five layers of an If and a Relu; the last If's inner op has attributes ``last``."""
    net = Net()
    net.arg("c")
    x = net.arg("x")
    for layer in range(5):
        net.func.append(conditional(f"if{layer}", x, net.weight(f"w{layer}"), **(last if layer == 4 else {})))
        x = net.op("Relu", f"%if{layer}")
    return net.build(x)


def test_regions_fold_when_they_are_the_same_but_for_names() -> None:
    module = conditionals()
    found = of(module)
    assert [len(block.copies) for block in found.blocks] == [5]
    assert [given.kind for given in found.blocks[0].inputs] == ["shared", "value", "weight"]
    round_trip(module)
    other = conditionals(axis=1)
    assert [len(block.copies) for block in of(other).blocks] == [4]
    round_trip(other)


def test_nothing_repeats() -> None:
    net = Net()
    x = net.arg("x")
    for kind in ("Relu", "Neg", "Exp", "Relu", "Abs"):
        x = net.op(kind, x)
    module = net.build(x)
    assert of(module).blocks == ()
    assert round_trip(module) is module


def test_a_long_chain_is_cut_once() -> None:
    """Equal ops in a row: one block, not a tower of powers of two."""
    net = Net()
    x = net.arg("x")
    for _ in range(64):
        x = net.op("Relu", x)
    module = net.build(x)
    found = of(module)
    assert [(block.size, len(block.copies)) for block in found.blocks] == [(2, 32)]
    round_trip(module)


def test_weights_are_named_in_the_interface() -> None:
    found = of(transformer(3))
    layer = found.blocks[0]
    for number, copy in enumerate(layer.copies):
        weights = [name for name, given in zip(copy.operands, layer.inputs, strict=True) if given.kind == "weight"]
        assert all(name.startswith(f"@layer.{number}.") for name in weights)
        assert all(given.type == MATRIX for given in layer.inputs if given.kind == "weight")


def test_resources_need_no_data() -> None:
    module = transformer(3)
    assert all(isinstance(resource, Resource) for resource in module.resources.values())
    round_trip(module)


def test_a_decoder_on_a_raw_input() -> None:
    """The first layer of the decoder reads an argument, the others the layer before: a cut through the encoder's last layer
    would find one less."""
    net = Net()
    mask, memory = net.op("Neg", net.arg("mask")), net.arg("source")
    for layer in range(5):
        net.scope = f"encoder.{layer}."
        memory, _, _ = encoder_layer(net, memory, mask)
    x = net.arg("target")
    for layer in range(6):
        net.scope = f"decoder.{layer}."
        mixed, _, _ = attention(net, net.op("Norm", x), memory, mask)
        x = net.op("Add", x, mixed)
        net.scope += "self."
        x, _, _ = encoder_layer(net, x, mask)
    sizes = {(block.size, len(block.copies)) for block in of(net.build(x)).blocks}
    assert {(37, 6), (22, 11)} <= sizes
