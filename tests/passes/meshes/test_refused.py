"""Decisions that a person edited and that no longer fit together are refused, each with its place."""

from __future__ import annotations

import pytest

import ir
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import InvalidInput
from passes.programs.lower import LowerPass
from tests.passes.meshes.planning import TWO_MESHES, through

TEXT = (
    """
module @m {opset.onnx = 20} {
  resource @up : tensor<64x256xf32, @mesh0[S(1)]> = declared
  resource @down : tensor<256x64xf32, @mesh0[S(0)]> = declared
  func @main(%x : tensor<8x64xf32>) -> (%y : tensor<8x64xf32, @mesh0[S(0)]>, %r : tensor<8x64xf32>) {
    %h = onnx.MatMul(%x, @up) : tensor<8x256xf32, @mesh0[S(1)]> shard<"n"> stage<0>
    %y.0 = onnx.MatMul(%h, @down) : tensor<8x64xf32, @mesh0[P(sum)]> shard<"k"> stage<0>
    %y = comm.reshard(%y.0) : tensor<8x64xf32, @mesh0[S(0)]> stage<0>
    %y.1 = comm.reshard(%y.0) : tensor<8x64xf32> stage<1>
    %r = onnx.Relu(%y.1) : tensor<8x64xf32> shard<"replicate"> stage<1>
    %down.1 = comm.reshard(@down) {once = 1} : tensor<256x64xf32, @mesh1[S(1)]> stage<1>
    %s = onnx.Relu(%down.1) : tensor<256x64xf32, @mesh1[S(1)]> shard<"d1"> stage<1>
  }
"""
    + TWO_MESHES
    + """\
  plan @plan {
    objective = throughput
    comm = sum
    value = 1.0
    port_value = 1.0
    bound = 0.0
    status = within-gap
    single = 1.0
    stage {index = 0, device_type = core, devices = [a, b], ops = 2, compute = 1.0, mesh = @mesh0}
    stage {index = 1, device_type = core, devices = [c, d], ops = 1, compute = 1.0, mesh = @mesh1}
  }
}
"""
)
RESHARD = "%y.1 = comm.reshard(%y.0) : tensor<8x64xf32>"
PLAN = TEXT[TEXT.index("  plan @plan") : TEXT.rindex("}")]
TOPOLOGY = TWO_MESHES[: TWO_MESHES.index("  mesh @mesh0")]


def faults(text: str) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as raised:
        through(ir.load_module(text, dialects=DIALECTS), LowerPass())
    return [(d.where, d.message) for d in raised.value.diagnostics]


def test_as_it_stands_it_lowers() -> None:
    assert ir.verify(through(ir.load_module(TEXT, dialects=DIALECTS), LowerPass()), dialects=DIALECTS) == []


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ('shard<"n">', 'shard<"q">', "%h", "onnx.MatMul has no strategy 'q' on axis x of 2; it has 'replicate', 'm', "),
        ('shard<"n">', 'shard<"n; n">', "%h", 'the op has shard<"n; n">, but @mesh0 has 1 axes'),
        (' shard<"n">', "", "%h", "the op has no strategy, but @mesh0 has 1 axes"),
        ('shard<"n">', 'shard<"m">', "%h", "%h has @mesh0[S(1)], but its op's strategy makes it @mesh0[S(0)]"),
        ("256xf32, @mesh0[S(1)]> shard", "256xf32, @mesh1[S(1)]> shard", "%h", "%h has @mesh1[S(1)], but its"),
        ('shard<"k"> stage<0>', 'shard<"k"> stage<0, 1>', "%y", "the op is in 2 stages, and one of them is on a mesh"),
        ('"k"> stage<0>', '"k"> stage<1>', "%y", "stage 0 reads %y.0, which stage 1 makes (%y.0)"),
        ("shard<\"n\"> stage<0>", "shard<\"n\"> stage<1>", "%y.0", "stage 0 reads %h, which stage 1 makes (%h)"),
        ("8x64xf32, @mesh0[S(0)]>", "8x64xf32, @mesh0[S(2)]>", "", "%y: tensor<8x64xf32, @mesh0[S(2)]> shards dimension 2"),
        ("8x64xf32, @mesh0[S(0)]>", "8x64xf32, @mesh0[P(sum)]>", "%y", "%y cannot be kept as terms of a sum"),
        ("8x64xf32, @mesh0[S(0)]>", "8x64xf32, @mesh0[S(0), R]>", "", "has 2 placements for the 1 axes of @mesh0"),
        ("Relu(%y.1)", "Relu(%y.0)", "%r", "onnx.Relu reads %y.0 @mesh0[P(sum)], but its strategy wants it [R] on @mesh1"),
        ("Relu(%down.1)", "Relu(@down)", "%s", "reads @down @mesh0[S(0)], but its strategy wants it [S(1)] on @mesh1"),
        (RESHARD, RESHARD.replace("8x64xf32", "8x32xf32"), "%y.1", "comm.reshard makes tensor<8x32xf32> of tensor<8x64xf32"),
        (RESHARD, RESHARD.replace("xf32", "xf32, @mesh0[S(0)]"), "%y.1", "%y.1 lies @mesh0[S(0)], but the stage of its"),
        (RESHARD, RESHARD.replace(" :", " {once = 1} :"), "%y.1", "only a resource is kept: %y.0 is none"),
        ("(%x : tensor<8x64xf32>)", "(%x : tensor<8x64xf32, @mesh0[S(0)]>)", "@main", "argument %x has the layout @mesh0"),
        ("256x64xf32, @mesh0[S(0)]", "256x64xf32, @mesh0[P(sum)]", "@down", "@down cannot be kept as terms of a sum"),
        ("@mesh1[S(1)]> stage", "@mesh1[P(sum)]> stage", "@down", "@down cannot be kept as terms of a sum"),
        (PLAN, "", "@m", "@main has ops with strategies, but the module has no plan that names their mesh"),
        (", mesh = @mesh1}", "}", "%r", 'the op has shard<"replicate">, but its stage is on a single device'),
        (TOPOLOGY, "", "@m", "the module has no topology"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together(old: str, new: str, where: str, message: str) -> None:
    assert old in TEXT
    found = faults(TEXT.replace(old, new))
    assert len(set(found)) <= 3, "what follows from a fault is told once"
    assert {place for place, told in found if message in told} == {where}, found


def test_parts_between_units() -> None:
    """7 rows of 2x3 as 14 of 3: two parts of the rows are 4 and 3, which are no halves of the 14."""
    text = """
module @m {opset.onnx = 20} {
  func @main(%x : tensor<7x2x3xf32>) -> (%y : tensor<14x3xf32, @mesh[S(0)]>) {
    %y = onnx.Flatten(%x) {axis = 2} : tensor<14x3xf32, @mesh[S(0)]> shard<"d0"> stage<0>
  }
""" + TOPOLOGY + "  mesh @mesh [x = 2] on [a, b]\n" + PLAN.replace("@mesh0", "@mesh")  # fmt: skip
    text = text[: text.index("    stage {index = 1")] + "  }\n}\n"
    assert faults(text) == [
        (
            "%y",
            "factor 'd0' of 7 units cannot be cut into 2 parts like the 14 elements of tensor<14x3xf32, @mesh[S(0)]>",
        )
    ]


def test_every_fault_is_told() -> None:
    text = TEXT.replace('shard<"n">', 'shard<"q">').replace('shard<"k">', 'shard<"q">')
    assert [place for place, _ in faults(text)] == ["%h", "%y"]
