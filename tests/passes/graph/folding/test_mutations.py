"""One change in one copy prevents that fold and no other; decisions are no such change (``test_variants.py``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ir.core.attributes import Attribute, AttrKind, attributes
from ir.core.facets import Color, Cost, Direction, Time
from ir.core.module import Mesh, Module
from ir.core.ops import Op
from ir.core.types import DType, TensorType
from tests.passes.graph.folding.graphs import STREAM, Net, changed, copies_with, of, retyped, round_trip, transformer

LAYERS = 6
LAYER = 22


def ids(module: Module, layer: int, kind: str) -> list[str]:
    """The values of a layer's ops of one kind, in order."""
    return [op.id for op in module.entry.ops if op.id.startswith(f"%layer.{layer}.{kind}_")]


def swap(op: Op) -> Op:
    return replace(op, operands=(op.operands[1], op.operands[0], *op.operands[2:]))


def weight(port: int, name: str) -> Callable[[Op], Op]:
    return lambda op: replace(op, operands=(*op.operands[:port], name, *op.operands[port + 1 :]))


def attribute_of(kind: str, layer: int, **attrs: object) -> Callable[[Module], Module]:
    return lambda module: changed(module, ids(module, layer, kind)[0], lambda op: replace(op, attributes=attributes(attrs)))


def facet_of(kind: str, layer: int, *facets: object) -> Callable[[Module], Module]:
    return lambda module: changed(module, ids(module, layer, kind)[0], lambda op: op.with_facets(*facets))  # type: ignore[arg-type]


def op_of(kind: str, place: int, layer: int, change: Callable[[Op], Op]) -> Callable[[Module], Module]:
    return lambda module: changed(module, ids(module, layer, kind)[place], change)


def type_of(kind: str, layer: int, type_: TensorType) -> Callable[[Module], Module]:
    return lambda module: retyped(module, ids(module, layer, kind)[0], type_)


MUTATIONS: dict[str, Callable[[int], Callable[[Module], Module]]] = {
    "an attribute's value": lambda layer: attribute_of("Softmax", layer, axis=1),
    "an attribute more": lambda layer: attribute_of("Softmax", layer, axis=-1, k=0),
    "an attribute less": lambda layer: attribute_of("Softmax", layer),
    "an attribute's kind": lambda layer: attribute_of("Softmax", layer, axis=-1.0),
    "the opcode": lambda layer: op_of("Gelu", 0, layer, lambda op: replace(op, name="onnx.Relu")),
    "the domain": lambda layer: op_of("Gelu", 0, layer, lambda op: replace(op, name="onnx.com.microsoft.Gelu")),
    "a shape": lambda layer: type_of("Gelu", layer, TensorType(DType.F32, (8, 65))),
    "an element type": lambda layer: type_of("Gelu", layer, TensorType(DType.F16, (8, 64))),
    "a weight's shape": lambda layer: lambda module: retyped(module, f"@layer.{layer}.up", TensorType(DType.F32, (65, 64))),
    "a weight's element type": lambda layer: (
        lambda module: retyped(module, f"@layer.{layer}.up", TensorType(DType.BF16, (64, 64)))
    ),
    "operand order of values": lambda layer: op_of("MatMul", 3, layer, swap),
    "operand order of value and weight": lambda layer: op_of("MatMul", 0, layer, swap),
    "an operand more": lambda layer: op_of("Gelu", 0, layer, lambda op: replace(op, operands=(*op.operands, ""))),
    "two weights tied": lambda layer: op_of("MatMul", 1, layer, weight(1, f"@layer.{layer}.q")),
    "a weight tied to another of its class": lambda layer: op_of("Add", 1, layer, weight(1, f"@layer.{layer}.q.bias")),
    "a weight tied to the head": lambda layer: (
        lambda module: changed(
            module, module.entry.ops[-1].id, lambda op: replace(op, operands=(*op.operands, f"@layer.{layer}.up"))
        )
    ),
    "a value in place of a weight": lambda layer: op_of("MatMul", 0, layer, weight(1, "%x")),
    "the wiring inside": lambda layer: (
        lambda module: changed(module, ids(module, layer, "MatMul")[1], weight(0, module.entry.ops[2].id))
    ),
    "the phase": lambda layer: facet_of("Gelu", layer, Direction("bw")),
    "the cost": lambda layer: facet_of("Gelu", layer, Cost(flops=1)),
    "the time": lambda layer: facet_of("Gelu", layer, Time((("gpu", 0.5),))),
    "the colour": lambda layer: facet_of("Gelu", layer, Color(3)),
}


WIRING = ("operand order of values", "the wiring inside")
"""Changes of what feeds an op: a block of few ops, fed from outside, is the same with and without."""


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("name", MUTATIONS)
def test_one_change_prevents_one_fold(name: str, layer: int) -> None:
    module = transformer(4)
    mutated = MUTATIONS[name](layer)(module)
    assert mutated != module
    found = of(mutated)
    whole = [block for block in found.blocks if block.size == LAYER]
    assert [len(block.copies) for block in whole] == [3], "the others still fold"
    for op in affected(module, mutated, layer) if name not in WIRING else ():
        for block in found.blocks:
            for place in zip(*[copy.ops for copy in block.copies], strict=True):
                twins = {other for other in place if (other - op) % LAYER == 0 and module.entry.ops[other].location.scope}
                assert op not in place or twins == {op}, "the changed one does not"
    round_trip(mutated)


def affected(module: Module, mutated: Module, layer: int) -> list[int]:
    """Ops of a layer that changed, or that read a weight which a changed op outside of it now reads."""
    ops = mutated.entry.ops
    differ = [i for i, (before, after) in enumerate(zip(module.entry.ops, ops, strict=True)) if before != after]
    types = {name: resource.type for name, resource in module.resources.items()}
    read = {name for i in differ for name in ops[i].operands if name[:1] == "@"}
    read |= {name for name, resource in mutated.resources.items() if types[name] != resource.type}
    inside = [i for i, op in enumerate(ops) if op.location.scope == f"layer.{layer}."]
    found = [i for i in inside if i in differ] or [i for i in inside if read & set(ops[i].operands)]
    assert found
    return found


def test_a_tie_between_layers_takes_both_out() -> None:
    """The weight of two layers is of another class than the weights of one: the ops that read it fold with each other alone."""
    module = transformer(LAYERS)
    tied = changed(module, ids(module, 4, "MatMul")[7], weight(1, "@layer.2.down"))
    found = of(tied)
    pair = [i for i, op in enumerate(tied.entry.ops) if "@layer.2.down" in op.operands]
    assert len(pair) == 2
    for block in found.blocks:
        for place in zip(*[copy.ops for copy in block.copies], strict=True):
            assert set(place) <= set(pair) or not set(place) & set(pair)
    assert max(block.size * len(block.copies) for block in found.blocks) >= (LAYER - 1) * (LAYERS - 1)
    round_trip(tied)


def test_two_layers_of_one_weight_fold_with_each_other() -> None:
    net = Net()
    x = net.op("Norm", net.arg("x"))
    own = [net.weight(f"w{layer}") for layer in range(6)]
    for layer in range(6):
        net.scope = f"layer.{layer}."
        for _ in range(3):
            x = net.op("Relu", net.op("MatMul", x, own[layer - layer % 2]))
        x = net.op("Gelu", x) if layer % 2 else net.op("Tanh", x)
    found = of(net.build(x))
    assert any(len(block.copies) == 3 and block.size == 14 for block in found.blocks)


def test_signed_zero_is_another_value() -> None:
    """-0.0 == 0.0 for Python, not for a program."""
    net = Net()
    x = net.arg("x")
    for layer in range(5):
        x = net.op("Relu", net.op("Clip", x, min=-0.0 if layer == 4 else 0.0))
    module = net.build(x)
    assert [len(block.copies) for block in of(module).blocks] == [4]
    round_trip(module)


def test_another_mask_is_another_operand() -> None:
    """What comes from outside may differ: it is no part of the block, and then not shared."""
    module = transformer(LAYERS)
    other = changed(module, ids(module, 3, "Add")[3], weight(1, "%mask"))
    found = of(other)
    assert len(found.blocks[0].copies) == LAYERS
    assert "shared" not in {given.kind for given in found.blocks[0].inputs}
    round_trip(other)


def test_two_values_from_outside_that_coincide() -> None:
    """A layer that reads one name where the others read two is another graph."""
    net = Net()
    x, side, twin = net.op("Norm", net.arg("x")), net.arg("side"), net.arg("twin")
    for layer in range(5):
        net.scope = f"layer.{layer}."
        both = (side, side) if layer == 2 else (side, twin)
        x = net.op("Relu", net.op("Where", x, *both))
    found = of(net.build(x))
    assert [len(block.copies) for block in found.blocks] == [4]
    assert not any("%layer.2.Relu_6" in names for names in copies_with(found, "%layer.0.Relu_2"))


def test_an_absent_result_is_another_op() -> None:
    net = Net()
    x = net.arg("x")
    for layer in range(5):
        second = "" if layer == 3 else f"mask{layer}"
        names = (f"drop{layer}", second)
        x, _ = net.func.multi("onnx.Dropout", (x,), (STREAM, STREAM), names=names)
        x = net.op("Relu", x)
    module = net.build(x)
    drop = next(op for op in module.entry.ops if op.id == "%drop3")
    dropped = changed(module, "%drop3", lambda op: replace(op, results=(op.results[0], replace(op.results[1], name=""))))
    assert drop.results[1].name
    assert [len(block.copies) for block in of(module).blocks] == [5]
    assert [len(block.copies) for block in of(dropped).blocks] == [4]
    round_trip(dropped)


def test_communication_is_never_folded() -> None:
    net = Net()
    x = net.arg("x")
    mesh = Attribute(AttrKind.SYMBOL, net.module.add(Mesh("@mesh", (("x", 2),), ("a", "b"))))
    for layer in range(4):
        attrs = {"axis": "x", "channel": layer % 2, "mesh": mesh}
        x = net.func.op("comm.all_reduce", (net.op("Relu", x),), STREAM, name=f"r{layer}", attrs=attrs)
    assert of(net.build(x)).blocks == ()
