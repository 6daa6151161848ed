"""One change in one layer of a real network prevents that fold and no other: attribute, shape, operand order, weight tie.

The changed op folds with none of its twins, they with each other, and what lies elsewhere as before. The rest of its layer may
still be a copy of the rest of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from dnnc.compile.context import pass_context
from dnnc.zoo import build
from ir.core.attributes import Attribute, AttrKind
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.types import TensorType
from passes.framework.pipeline import parse_pipeline
from passes.graph.folding import Folding
from passes.prepare.canonicalize.unfuse import UnfusePass
from tests.passes.graph.folding.graphs import changed, of, retyped, round_trip

NARROW = "layers=6,hidden=32,heads=4,vocab=50,seq=8"
FAMILIES = {
    "bert": f"bert-base,{NARROW}",
    "gpt2": f"gpt2,{NARROW}",
    "llama": f"llama-7b,{NARROW}",
    "mixtral": f"mixtral-8x7b,{NARROW},kv_heads=2,experts=4",
    "resnet": "resnet50,width=8,image=32",
    "t5": f"t5-base,{NARROW}",
    "vit": "vit-base,layers=6,hidden=32,heads=4,image=16,patch=8,classes=10",
}


@lru_cache(maxsize=1)
def original(family: str) -> tuple[Module, Folding]:
    module = build(FAMILIES[family])
    for step in parse_pipeline("canonicalize,cost"):
        module = step.run(module, pass_context(DiagnosticSink()))
    return module, of(module)


def largest(found: Folding) -> int:
    """The block that stands for most: the layer."""
    return max(range(len(found.blocks)), key=lambda number: found.blocks[number].size * len(found.blocks[number].copies))


def attribute(module: Module, ops: list[Op]) -> Module:
    """A number that an attribute holds, one more."""
    for op in ops:
        for i, (key, value) in enumerate(op.attributes):
            if value.kind is AttrKind.INT:
                other = (*op.attributes[:i], (key, Attribute(AttrKind.INT, int(value.value) + 1)), *op.attributes[i + 1 :])
                return changed(module, op.id, lambda op, other=other: replace(op, attributes=other))  # type: ignore[misc]
    raise AssertionError("no op has a number")


def shape(module: Module, ops: list[Op]) -> Module:
    """A result whose last dimension is one longer."""
    type_ = ops[len(ops) // 2].results[0].type
    assert isinstance(type_, TensorType)
    assert type_.shape
    last = type_.shape[-1]
    assert isinstance(last, int)
    return retyped(module, ops[len(ops) // 2].id, replace(type_, shape=(*type_.shape[:-1], last + 1)))


def order(module: Module, ops: list[Op]) -> Module:
    """The operands of an op of two values, swapped."""
    for op in ops:
        if len({name for name in op.operands if name[:1] == "%"}) == len(op.operands) == 2:
            return changed(module, op.id, lambda op: replace(op, operands=op.operands[::-1]))
    raise AssertionError("no op joins two values")


def tie(module: Module, ops: list[Op]) -> Module:
    """Two weights of one type become one."""
    types = {name: resource.type for name, resource in module.resources.items()}
    readers: dict[str, int] = {}
    for op in module.entry.ops:
        for name in set(op.operands) & set(types):
            readers[name] = readers.get(name, 0) + 1
    first: dict[object, str] = {}
    for op in ops:
        for port, name in enumerate(op.operands):
            if name in types and readers[name] == 1 and isinstance(types[name], TensorType):
                known = first.setdefault((op.name, port, types[name]), name)
                if known != name:
                    operands = (*op.operands[:port], known, *op.operands[port + 1 :])
                    return changed(module, op.id, lambda op, operands=operands: replace(op, operands=operands))  # type: ignore[misc]
    raise AssertionError("no two weights of one type")


CHANGES: dict[str, Callable[[Module, list[Op]], Module]] = {
    "attribute": attribute,
    "shape": shape,
    "operand order": order,
    "weight tie": tie,
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_one_change_prevents_one_fold(family: str) -> None:
    """Of a residual layer only the addition joins two values, and a layer that begins with it takes both from outside: their
    order is then no part of it."""
    for change in CHANGES:
        if (family, change) != ("resnet", "operand order"):
            check_change(family, change)


def check_change(family: str, change: str) -> None:
    module, found = original(family)
    block = found.blocks[largest(found)]
    assert len(block.copies) >= 4
    inside = {op for copy in block.copies for op in copy.ops}
    for number in (0, len(block.copies) // 2, len(block.copies) - 1):
        copy = block.copies[number]
        mutated = CHANGES[change](module, [module.entry.ops[op] for op in copy.ops])
        [op] = [i for i, pair in enumerate(zip(module.entry.ops, mutated.entry.ops, strict=True)) if pair[0] != pair[1]]
        twins = {other.ops[copy.ops.index(op)] for other in block.copies} - {op}
        after = of(mutated).blocks
        places = [set(place) for other in after for place in zip(*(each.ops for each in other.copies), strict=True)]
        assert any(twins <= place for place in places), "the others still fold"
        if change != "operand order":  # fed from outside, a few ops are the same whatever feeds them
            assert not any(op in place and twins & place for place in places), "the changed one does not"
        assert not any(set(copy.ops) <= set(each.ops) for other in after for each in other.copies), "nor its layer as a whole"
        groups = [{frozenset(each.ops) for each in other.copies} for other in after]
        for other in found.blocks:
            if not any(inside & set(each.ops) for each in other.copies):
                assert {frozenset(each.ops) for each in other.copies} in groups, "a fold elsewhere is gone"
        if number == len(block.copies) // 2:
            round_trip(mutated)


def test_projections_taken_apart_still_fold() -> None:
    """Parts of a weight are private to their layer as the whole was: every layer is a copy, before and after."""
    module, found = original("gpt2")
    apart = UnfusePass().run(module, pass_context(DiagnosticSink()))
    again = of(apart)
    before, after = (each.blocks[largest(each)] for each in (found, again))
    assert len(after.copies) == len(before.copies)
    assert after.size > before.size
    round_trip(apart)
