"""What holds of any module: it comes back exactly, and neither names nor the order of ops change what is found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ir
from dnnc.onnx import DIALECTS
from ir.core.module import Func, Module
from passes.framework.base import PassContext
from passes.graph.folding import Folding, expand
from passes.prepare.fold import FoldPass
from tests import strategies
from tests.passes.graph.folding.graphs import (
    Net,
    encoder,
    encoder_layer,
    of,
    renamed,
    round_trip,
    shuffled,
    summary,
    transformer,
)

KINDS = ("Relu", "MatMul", "Add", "Where", "Split")


@st.composite
def cells(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...]]]:
    """The pattern of a block: ops that read earlier ones (from the end), weights (-1), the stream (0) or what is shared
    (-2)."""
    pattern: list[tuple[str, tuple[int, ...]]] = []
    for number in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(KINDS))
        count = draw(st.integers(1, 3))
        operands = tuple(draw(st.lists(st.integers(-2, number), min_size=count, max_size=count)))
        pattern.append((kind, operands if number else (0, *operands[1:])))
    return pattern


@st.composite
def planted(draw: st.DrawFn) -> tuple[Module, int, int]:
    """A chain of ops with copies of one block planted between others: the module, the block's ops, how many copies."""
    pattern, copies = draw(cells()), draw(st.integers(2, 5))
    net = Net()
    x, shared = net.arg("x"), net.arg("shared")
    for copy in range(copies):
        net.scope = f"copy.{copy}."
        values = [x]
        for number, (kind, operands) in enumerate(pattern):
            names = [values[o] if o >= 0 else shared if o == -2 else net.weight(f"w{number}") for o in operands]
            values.append(net.op(kind, *names))
        x = net.op("Concat", *values[1:])
        if draw(st.booleans()):
            net.scope = ""
            x = net.op("Gap", x, at=copy)
    return net.build(net.op("End", x)), len(pattern) + 1, copies


@given(planted())
@settings(max_examples=20)
def test_planted_blocks_are_found(case: tuple[Module, int, int]) -> None:
    """Every op of the block is saved in every copy but one, unless something saves more."""
    module, size, copies = case
    found = of(module)
    bodies = len(found.outer) + sum(len(block.body) for block in found.blocks)
    gaps = len(module.entry.ops) - size * copies
    assert bodies <= size + copies + gaps
    round_trip(module)


@given(planted(), st.integers(0, 99))
@settings(max_examples=5)
def test_names_and_order_do_not_matter(case: tuple[Module, int, int], seed: int) -> None:
    module, _, _ = case
    rng = random.Random(seed)
    expected = summary(of(module))
    for other in (shuffled(module, rng), renamed(module, rng), renamed(shuffled(module, rng), rng)):
        assert not ir.verify(other, dialects=DIALECTS)
        assert summary(of(other)) == expected
        round_trip(other)


def mixture() -> Module:
    """Layers with caches, a tower beside them, a tied weight."""
    net = Net()
    mask = net.op("Neg", net.arg("mask"))
    x = net.op("Norm", net.op("MatMul", net.arg("x"), tied := net.weight("tied")))
    caches = []
    for layer in range(4):
        net.scope = f"layer.{layer}."
        x, key, value = encoder_layer(net, x, mask)
        caches += [key, net.op("Cast", value)]
    net.scope = "tower."
    side = encoder(net, net.op("Exp", net.arg("side")), mask, 3)
    return net.build(net.op("MatMul", net.op("Add", x, side), tied), *caches)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("build", [mixture, lambda: transformer(5)], ids=["mixture", "transformer"])
def test_layers_survive_any_order_and_names(build: object, seed: int) -> None:
    module = build()  # type: ignore[operator]
    rng = random.Random(seed)
    other = renamed(shuffled(module, rng), rng)
    assert summary(of(other)) == summary(of(module))
    round_trip(other)


@given(strategies.modules())
@settings(max_examples=4)
def test_any_module_comes_back(module: Module) -> None:
    round_trip(module)


@pytest.mark.slow
@given(strategies.modules(machines=False), st.integers(2, 3))
@settings(max_examples=25)
def test_repeated_random_ops_come_back(module: Module, times: int) -> None:
    """Any function, called in a row by a function that fold makes: every kind of attribute, region, facet in a copy."""
    func = next(iter(module.of_type(Func)))
    doubled = repeated(module, func, times)
    if ir.verify(doubled, dialects=DIALECTS):  # a decision or a name that may not stand twice
        return
    folded = round_trip(doubled)
    assert FoldPass().run(folded, PassContext()) == folded


def repeated(module: Module, func: Func, times: int) -> Module:
    """The module with the ops of ``func`` ``times`` over, each time under other names."""
    from dataclasses import replace

    from passes.graph.folding.names import assigned
    from passes.graph.graph import rebuild

    ops = []
    for time in range(times):
        names = {name: f"{name}~{time}" for name in assigned(func.ops)}
        ops += [rebuild(op, names) for op in func.ops]
    final = {name: f"{name}~{times - 1}" for name in assigned(func.ops)}
    results = tuple(replace(value, name=final.get(value.name, value.name)) for value in func.results)
    return module.replace(func, replace(func, ops=tuple(ops), results=results))


def proof(found: Folding) -> None:
    """Copies of each block correspond, place by place, by a proof of the test's own: the same ops once every name is replaced
    by where it comes from."""
    ops = found.func.ops
    for block in found.blocks:
        shapes = []
        for copy in block.copies:
            places = {value.name: ("in", k, r) for k, op in enumerate(copy.ops) for r, value in enumerate(ops[op].results)}
            outside = {name: ("out", i) for i, name in enumerate(copy.operands)}
            shapes.append(
                [
                    (
                        ops[op].name,
                        repr(ops[op].attributes),
                        repr(ops[op].facets),
                        [places.get(name) or outside.get(name, name) for name in ops[op].operands],
                        [value.type for value in ops[op].results],
                    )
                    for op in copy.ops
                ]
            )
        assert all(shape == shapes[0] for shape in shapes)
        members = [op for copy in block.copies for op in copy.ops]
        assert len(set(members)) == len(members), "copies share no op"


@given(planted())
@settings(max_examples=30)
def test_copies_are_isomorphic(case: tuple[Module, int, int]) -> None:
    proof(of(case[0]))


def test_copies_of_layers_are_isomorphic() -> None:
    for module in (mixture(), transformer(6)):
        found = of(module)
        assert found.blocks
        proof(found)


def test_expand_of_what_is_not_folded_is_itself() -> None:
    module = transformer(2)
    assert expand(module) is module
