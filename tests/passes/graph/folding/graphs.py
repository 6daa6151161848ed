"""Networks with known repeats, and the changes that folding must or must not see."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import ir
from dnnc.onnx import DIALECTS
from ir.core.module import Declared, Func, Module, Resource
from ir.core.ops import Location, Op, Region, Value
from ir.core.types import DType, TensorType
from ir.ops.builder import Builder, FuncBuilder
from passes.framework.base import PassContext
from passes.graph.folding import Folding, expand, folding
from passes.prepare.fold import FoldPass

STREAM = TensorType(DType.F32, (8, 64))
MATRIX = TensorType(DType.F32, (64, 64))


class Net:
    """A function under construction: ops of one type, weights of one type, names that say where they are."""

    def __init__(self) -> None:
        self.module = Builder("@net")
        self.func = FuncBuilder("@main")
        self.scope = ""
        self.count = 0

    def arg(self, name: str) -> str:
        return self.func.arg(name, STREAM)

    def weight(self, name: str) -> str:
        return self.module.resource(f"{self.scope}{name}", MATRIX, Declared())

    def op(self, kind: str, *operands: str, **attrs: Any) -> str:
        self.count += 1
        name = f"{self.scope}{kind}_{self.count}"
        return self.func.op(
            f"onnx.{kind}", operands, STREAM, name=name, attrs=attrs, location=Location("main", name, self.scope)
        )

    def linear(self, x: str, name: str) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(name)), self.weight(f"{name}.bias"))

    def build(self, *results: str) -> Module:
        for result in results:
            self.func.result(result)
        self.module.symbols.append(self.func.build())
        module = self.module.build()
        assert not ir.verify(module, dialects=DIALECTS)
        return module


def attention(net: Net, x: str, memory: str, mask: str) -> tuple[str, str, str]:
    """The attention of ``x`` over ``memory``; its keys and values."""
    query, key, value = net.linear(x, "q"), net.linear(memory, "k"), net.linear(memory, "v")
    scores = net.op("Add", net.op("MatMul", query, net.op("Transpose", key)), mask)
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    return net.linear(mixed, "o"), key, value


def encoder_layer(net: Net, x: str, mask: str) -> tuple[str, str, str]:
    """Pre-norm: 22 ops. The stream, keys and values."""
    mixed, key, value = attention(net, norm := net.op("Norm", x), norm, mask)
    x = net.op("Add", x, mixed)
    wide = net.op("Gelu", net.linear(net.op("Norm", x), "up"))
    return net.op("Add", x, net.linear(wide, "down")), key, value


def encoder(net: Net, x: str, mask: str, layers: int) -> str:
    for layer in range(layers):
        net.scope = f"layer.{layer}."
        x, _, _ = encoder_layer(net, x, mask)
    net.scope = ""
    return x


def transformer(layers: int) -> Module:
    """Embedding, a mask that all layers share, layers, head."""
    net = Net()
    mask = net.op("Neg", net.op("Cast", net.arg("mask")))
    x = encoder(net, net.op("Norm", net.op("Add", net.arg("x"), net.weight("position"))), mask, layers)
    return net.build(net.op("Tanh", x))


def of(module: Module) -> Folding:
    """The repeats of the entry."""
    return folding(module.entry, module)


def round_trip(module: Module) -> Module:
    """The folded module, after checks that it is valid, prints, and expands to ``module``."""
    folded = FoldPass().run(module, PassContext())
    assert not ir.verify(folded, dialects=DIALECTS)
    text = ir.print_module(folded)
    assert ir.parse_module(text) == folded
    restored = expand(folded)
    assert restored == module
    assert ir.print_module(restored) == ir.print_module(module)
    return folded


def summary(found: Folding) -> tuple[object, ...]:
    """What of a folding must not depend on names and order: sizes, copies, nesting, interfaces, chains."""
    blocks = (
        (
            block.size,
            len(block.copies),
            len(block.body),
            tuple(sorted((given.kind, str(given.type)) for given in block.inputs)),
            tuple(sorted(str(given.type) for given in block.outputs)),
            tuple(len(chain.copies) for chain in block.chains),
            tuple(sorted(op_names(found.func, block.copies[0].ops))),
        )
        for block in found.blocks
    )
    return len(found.outer), tuple(sorted(blocks, key=repr))


def op_names(func: Func, ops: Iterable[int]) -> list[str]:
    return [func.ops[op].name for op in ops]


def copies_with(found: Folding, name: str) -> list[list[str]]:
    """For each block one of whose copies has the value ``name``: the first result of every copy."""
    ops = found.func.ops
    return [
        [ops[copy.ops[-1]].id for copy in block.copies]
        for block in found.blocks
        if any(name in (value.name for op in copy.ops for value in ops[op].results) for copy in block.copies)
    ]


def layers_folded(found: Folding, op: str = "onnx.Softmax") -> list[int]:
    """For each block with exactly one ``op``, how many copies it has: the layers."""
    counts = [(op_names(found.func, block.copies[0].ops).count(op), len(block.copies)) for block in found.blocks]
    return sorted(copies for times, copies in counts if times == 1)


# -- changes -----------------------------------------------------------------------------------------------------------


def shuffled(module: Module, rng: random.Random) -> Module:
    """The entry's ops in a random topological order."""
    func = module.entry
    made = {value.name: i for i, op in enumerate(func.ops) for value in op.results if value.name}
    from passes.graph.folding.names import reads

    waits = [{made[name] for name in reads(op) if name in made} for op in func.ops]
    done: set[int] = set()
    order: list[int] = []
    left = list(range(len(func.ops)))
    while left:
        ready = [i for i in left if waits[i] <= done]
        chosen = rng.choice(ready)
        left.remove(chosen)
        done.add(chosen)
        order.append(chosen)
    return module.replace(func, replace(func, ops=tuple(func.ops[i] for i in order)))


def renamed(module: Module, rng: random.Random) -> Module:
    """Every value and resource of a module of one function under another name, resources in another order."""
    from passes.graph.folding.names import assigned
    from passes.graph.graph import rebuild

    func = module.entry
    names = [value.name for value in func.args] + list(assigned(func.ops)) + [r.name for r in module.of_type(Resource)]
    numbers = list(range(len(names)))
    rng.shuffle(numbers)
    new = {name: f"{name[0]}n{number}" for name, number in zip(names, numbers, strict=True)}
    resources = [replace(resource, name=new[resource.name]) for resource in module.of_type(Resource)]
    rng.shuffle(resources)
    ops = tuple(rebuild(op, new) for op in func.ops)
    args = tuple(Value(new[value.name], value.type) for value in func.args)
    results = tuple(Value(new[value.name], value.type) for value in func.results)
    others = [symbol for symbol in module.symbols if not isinstance(symbol, Resource) and symbol is not func]
    return Module(module.name, (*resources, replace(func, args=args, results=results, ops=ops), *others), module.attributes)


def changed(module: Module, op: str, change: Callable[[Op], Op]) -> Module:
    """The module with the op whose first result is ``op`` changed."""
    func = module.entry
    assert sum(found.id == op for found in func.ops) == 1, op
    ops = tuple(change(found) if found.id == op else found for found in func.ops)
    module = module.replace(func, replace(func, ops=ops))
    assert not ir.verify(module, dialects=DIALECTS)
    return module


def retyped(module: Module, name: str, type_: TensorType) -> Module:
    """The module with the value or resource ``name`` of another type."""
    symbols = [
        replace(symbol, type=type_) if isinstance(symbol, Resource) and symbol.name == name else symbol
        for symbol in module.symbols
    ]
    module = replace(module, symbols=tuple(symbols))
    func = module.entry

    def result(op: Op) -> Op:
        return replace(op, results=tuple(Value(v.name, type_) if v.name == name else v for v in op.results))

    module = module.replace(func, replace(func, ops=tuple(map(result, func.ops))))
    assert not ir.verify(module, dialects=DIALECTS)
    return module


def branch(args: Sequence[str], ops: Sequence[Op], results: Sequence[str]) -> Region:
    return Region(tuple(Value(name, STREAM) for name in args), tuple(ops), tuple(results))
