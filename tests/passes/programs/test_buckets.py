"""Buckets: sums of gradients come first in an update and travel together, and nothing else changes its place."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ir
from dnnc.onnx import DIALECTS
from ir.core.attributes import Attribute, AttrKind, attributes
from ir.core.facets import UPDATE, in_phase
from ir.core.module import Module
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType, type_bytes
from ir.text.parser import parse_module
from passes.costs.exchange import BUCKET, LAST
from passes.programs.lower.buckets import in_buckets

KIND = st.tuples(st.integers(1, 9), st.sampled_from([DType.F32, DType.F16]), st.sampled_from("xy"), st.booleans())


def total(name: str, operand: str, type_: TensorType, axis: str) -> Op:
    fields = attributes(axis=axis, channel=0, mesh=Attribute(AttrKind.SYMBOL, "@m"), reduction="sum")
    return Op("comm.all_reduce", (operand,), (Value(name, type_),), fields, facets=in_phase(UPDATE))


def alike(op: Op) -> object:
    """What the sums of one bucket have in common; the second letter of the operand tells first from second sums."""
    return op.get("axis"), op.results[0].type.dtype, op.operands[0][1]  # type: ignore[union-attr]


@pytest.mark.slow
@given(st.lists(KIND, max_size=30), st.randoms(use_true_random=False))
def test_sums_travel_together(weights: list[tuple[int, DType, str, bool]], random: object) -> None:
    """Of weights of some megabytes: gradients in a random order, along one axis or one after the other along both."""
    made, update = [], []
    for number, (size, dtype, axis, twice) in enumerate(weights):
        type_ = TensorType(dtype, (size << 20,))
        made.append(Op("onnx.Neg", ("%x",), (Value(f"%g{number}", type_),), facets=in_phase("W")))
        fields = attributes(microbatches=1)
        update.append(Op("grad.accumulate", (f"%g{number}",), (Value(f"%a{number}", type_),), fields, facets=in_phase(UPDATE)))
        update.append(total(f"%s{number}", f"%a{number}", type_, axis))
        if twice:
            update.append(total(f"%t{number}", f"%s{number}", type_, "y" if axis == "x" else "x"))
        update.append(Op("grad.assign", (f"@w{number}", f"%{'t' if twice else 's'}{number}"), facets=in_phase(UPDATE)))
    random.shuffle(made)  # type: ignore[attr-defined]
    found = in_buckets((*made, *update), lambda type_: type_bytes(type_) or 0)

    bare = [Op(op.name, op.operands, op.results, facets=op.facets) for op in found]
    assert sorted(map(str, bare)) == sorted(
        str(Op(op.name, op.operands, op.results, facets=op.facets)) for op in (*made, *update)
    )
    assert list(found[: len(made)]) == made
    assert [op for op in found if op.name == "grad.assign"] == [op for op in update if op.name == "grad.assign"]
    seen = {"%x"}
    for op in found:
        assert all(name in seen for name in op.operands if name[:1] == "%")
        seen.update(value.name for value in op.results)
    buckets: dict[int, list[int]] = defaultdict(list)
    for at, op in enumerate(found):
        if op.get("bucket") is not None:
            buckets[op.get("bucket")].append(at)
    for places in buckets.values():
        some = [found[at] for at in places]
        assert places == list(range(places[0], places[0] + len(places)))
        assert len(places) > 1
        assert sum(type_bytes(op.results[0].type) or 0 for op in some) <= BUCKET
        assert len({(op.get("axis"), op.results[0].type.dtype) for op in some}) == 1  # type: ignore[union-attr]
    rooms: dict[object, float] = {}
    sums = [(at, alike(op), type_bytes(op.results[0].type) or 0) for at, op in enumerate(found) if op.name == "comm.all_reduce"]
    for at in reversed(range(len(found))):
        op, number = found[at], found[at].get("bucket")
        if op.name != "comm.all_reduce" or (number is not None and at != buckets[number][-1]):
            continue
        some = [found[place] for place in buckets[number]] if number is not None else [op]
        key, first_of = alike(op), found.index(some[0])
        before = sum(size for place, other, size in sums if other == key and place < first_of)
        room = rooms[key] = min(2 * rooms.get(key, LAST / 2), BUCKET)
        held = sum(type_bytes(op.results[0].type) or 0 for op in some)
        assert len(some) == 1 or held <= min(room, LAST + before), "half of the next, no more than is before it"
    first = [op.operands[0] for op in found if op.name == "grad.accumulate" and op.results[0].type.dtype is DType.F32]  # type: ignore[union-attr]
    if all((dtype, axis) == (DType.F32, "x") for _, dtype, axis, _ in weights):
        assert first == [op.results[0].name for op in made], "in the order of the backward pass"


UPDATED = """module @small {
  mesh @m [x = 2, y = 2] on [a, b, c, d]
  stage @stage0 index 0 on [a, b, c, d] mesh @m (%x : tensor<4xf32>) -> () {
    %p = onnx.Identity(%x) : tensor<4xf32, @m[P(sum), P(sum)]>
    %q = onnx.Identity(%x) : tensor<4xf32, @m[P(sum), P(sum)]>
    %s = comm.all_reduce(%p) {axis = "x", bucket = 0, channel = 0, mesh = @m, reduction = "sum"} : tensor<4xf32, @m[R, P(sum)]>
    %t = comm.all_reduce(%q) {axis = "x", bucket = 0, channel = 1, mesh = @m, reduction = "sum"} : tensor<4xf32, @m[R, P(sum)]>
    %u = comm.all_reduce(%s) {axis = "y", channel = 2, mesh = @m, reduction = "sum"} : tensor<4xf32>
  }
}
"""


def faults(text: str) -> list[str]:
    module: Module = parse_module(text)
    return [str(one) for one in ir.verify(module, dialects=DIALECTS) if "bucket" in one.message]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", ""),
        ('"y", channel = 2', '"y", bucket = 0, channel = 2', "no sum like"),
        ('(%q) {axis = "x"', '(%s) {axis = "x"', "reads what that makes"),
        ("    %t = ", "    %r = onnx.Identity(%x) : tensor<4xf32>\n    %t = ", "does not stand beside"),
    ],
)
def test_a_bucket_that_cannot_be_one_message_is_refused(old: str, new: str, message: str) -> None:
    found = faults(UPDATED.replace(old, new) if old else UPDATED)
    assert [message in fault for fault in found] == ([True] if message else []), found
