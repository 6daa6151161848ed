"""How long folding takes: ``python -m tests.bench.fold [NAME...]``.

Per network: ops, calls and ops left in all functions, the largest block with its copies; CPU seconds to find the repeats (keys,
canonical order, search, proof: the analysis ``folding``), to write them down, and to expand again. Target: 100,000 ops are
found in under 10 s, linear in ops. The baseline of the same run is one verification of the module, linear as well: the
last column is the search as a multiple of it.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import ir
from ir.core.facets import Group, ShardRule, StageSet
from ir.core.module import Module
from ir.core.ops import Op
from passes.framework.base import PassContext
from passes.graph.folding import expand, folding
from passes.prepare.fold import FoldPass
from tests.bench.machine import header
from tests.passes.graph.folding.graphs import Net, attention, encoder_layer, transformer

TARGET = 10.0
"""Seconds to find the repeats of 100,000 ops."""


def wide_layers(layers: int, ops: int) -> Module:
    """Layers of so many ops each."""
    net = Net()
    x, mask = net.arg("x"), net.op("Neg", net.arg("mask"))
    for layer in range(layers):
        net.scope = f"layer.{layer}."
        x, _, _ = encoder_layer(net, x, mask)
        for number in range(ops - 22):
            x = net.op("Gelu", x, number=number)
    return net.build(x)


def near_identical(layers: int) -> Module:
    """Layers that have one attribute each of their own."""
    net = Net()
    x, mask = net.arg("x"), net.op("Neg", net.arg("mask"))
    for layer in range(layers):
        net.scope = f"layer.{layer}."
        x, _, _ = encoder_layer(net, x, mask)
        x = net.op("Clip", x, layer=layer)
    return net.build(x)


def experts(layers: int, count: int) -> Module:
    net = Net()
    x = net.arg("x")
    for layer in range(layers):
        net.scope = f"layer.{layer}."
        gate = net.op("Softmax", net.linear(x, "router"))
        made = []
        for expert in range(count):
            net.scope = f"layer.{layer}.{expert}."
            h = net.op("MatMul", net.op("Gelu", net.op("MatMul", x, net.weight("up"))), net.weight("down"))
            made.append(net.op("Mul", h, gate))
        x = net.op("Add", x, net.op("Sum", *made))
    return net.build(x)


def residual(blocks: int) -> Module:
    """Stages of convolutions with a shortcut of its own at the start of each."""
    net = Net()
    x = net.arg("x")
    for number in range(blocks):
        net.scope = f"block.{number}."
        stage, first = divmod(number, 12)
        h = x
        for _ in range(3):
            h = net.op("Relu", net.op("BatchNorm", net.op("Conv", h, net.weight("w"), width=stage)))
        x = net.op("Add", h, net.op("Conv", x, net.weight("shortcut"), width=stage) if first == 0 else x)
    return net.build(x)


def unet(depth: int) -> Module:
    """A path down, a path up, and a bridge at each level."""
    net = Net()
    x, left = net.arg("x"), []
    for level in range(depth):
        net.scope = f"down.{level}."
        x = net.op("Relu", net.op("Conv", net.op("Relu", net.op("Conv", x, net.weight("a"))), net.weight("b")))
        left.append(x)
        x = net.op("MaxPool", x)
    for level in reversed(range(depth)):
        net.scope = f"up.{level}."
        x = net.op("Concat", net.op("Resize", x), left[level])
        x = net.op("Relu", net.op("Conv", net.op("Relu", net.op("Conv", x, net.weight("a"))), net.weight("b")))
    return net.build(x)


def cross(layers: int) -> Module:
    """An encoder and a decoder whose layers read the encoder's output."""
    net = Net()
    mask, memory = net.op("Neg", net.arg("mask")), net.arg("source")
    for layer in range(layers):
        net.scope = f"encoder.{layer}."
        memory, _, _ = encoder_layer(net, memory, mask)
    x = net.arg("target")
    for layer in range(layers):
        net.scope = f"decoder.{layer}."
        mixed, _, _ = attention(net, net.op("Norm", x), memory, mask)
        x = net.op("Add", x, mixed)
        net.scope += "self."
        x, _, _ = encoder_layer(net, x, mask)
    return net.build(x)


def chain(ops: int) -> Module:
    """One op over and over: every stretch repeats, at every distance."""
    net = Net()
    x = net.arg("x")
    for _ in range(ops):
        x = net.op("Relu", x)
    return net.build(x)


def noise(ops: int, kinds: int) -> Module:
    """Random ops of few kinds that read random values near them: repeats by chance alone."""
    rng = random.Random(0)
    net = Net()
    values = [net.arg("x")]
    for _ in range(ops):
        kind = rng.randrange(kinds)
        values.append(net.op(f"K{kind}", *rng.choices(values[-30:], k=1 + kind % 2)))
    return net.build(values[-1])


def decided(layers: int, ways: int) -> Module:
    """Layers in eight stages, sharded in so many ways; each op a group."""
    module = transformer(layers)

    def change(number: int, op: Op) -> Op:
        layer = int(op.location.scope.split(".")[1]) if op.location.scope else 0
        return op.with_facets(Group(number), ShardRule(f"{op.name} {layer % ways}"), StageSet((8 * layer // layers,)))

    ops = tuple(change(number, op) for number, op in enumerate(module.entry.ops))
    return module.replace(module.entry, replace(module.entry, ops=ops))


CASES: dict[str, Callable[[], Module]] = {
    "24 layers": lambda: transformer(24),
    "96 layers": lambda: transformer(96),
    "1024 layers": lambda: transformer(1024),
    "4545 layers": lambda: transformer(4545),
    "4545 layers, in 7 ways": lambda: decided(4545, 7),
    "4545 layers, all otherwise": lambda: decided(4545, 4545),
    "1000 layers of 100 ops": lambda: wide_layers(1000, 100),
    "4300 layers all different": lambda: near_identical(4300),
    "encoder-decoder 1700+1700": lambda: cross(1700),
    "24 x 8 experts": lambda: experts(24, 8),
    "300 x 80 experts": lambda: experts(300, 80),
    "residual, 10,000 blocks": lambda: residual(10_000),
    "U-Net, 9,000 levels": lambda: unet(9_000),
    "chain of 100,000": lambda: chain(100_000),
    "noise of 3 kinds": lambda: noise(100_000, 3),
    "noise of 1000 kinds": lambda: noise(100_000, 1000),
}


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    print(header())
    print(f"target: {TARGET:.0f} CPU seconds to find the repeats of 100,000 ops")
    print(f"{'network':28} {'ops':>7} {'left':>7} {'largest block':>15} {'find':>6} {'write':>6} {'expand':>6} {'x verify':>8}")
    for name, build in CASES.items():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        module = build()
        context = PassContext()
        find = timed(lambda: context.analyses.get(folding, module.entry, module))  # noqa: B023
        folded = module

        def write() -> None:
            nonlocal folded
            folded = FoldPass().run(module, context)  # noqa: B023

        seconds = timed(write)
        back = timed(lambda: expand(folded))  # noqa: B023
        base = timed(lambda: ir.verify(module))  # noqa: B023
        blocks = context.analyses.get(folding, module.entry, module).blocks
        size, copies = max(((block.size, len(block.copies)) for block in blocks), default=(0, 0))
        left = context.statistics["fold"]["left"]
        assert expand(folded) == module
        print(
            f"{name:28} {len(module.entry.ops):7} {left:7} {f'{size} x {copies}':>15} {find:6.2f} {seconds:6.2f} {back:6.2f} "
            f"{find / base:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
