"""The rules of ``dnnc check --prove`` on programs that no verifier has seen: the proof alone refutes each fault."""

from __future__ import annotations

import re

import pytest

from dnnc.check.proof import ProofReport, prove_module, stage
from dnnc.check.proof.facts import Families, Part
from dnnc.check.proof.moves import collective, crossing
from dnnc.check.proof.programs import StageText
from ir import parse_module
from ir.core.attributes import Attribute, AttrKind, attributes
from ir.core.module import Mesh, Stage
from ir.core.ops import Op
from ir.core.types import DType, Layout, Partial, Placement, Replicate, Shard, TensorType
from tests.golden import ROOT

PAIR = """
module @pair {opset.onnx = 20} {
  resource @up : tensor<6x8xf32> = declared
  resource @down : tensor<8x6xf32> = declared
  resource @other : tensor<8x6xf32> = declared
  func @main(%x : tensor<4x6xf32>) -> (%y : tensor<4x6xf32>) {
    %h = onnx.MatMul(%x, @up) : tensor<4x8xf32>
    %r = onnx.Relu(%h) : tensor<4x8xf32>
    %s = onnx.MatMul(%r, @down) : tensor<4x6xf32>
    %t = onnx.MatMul(%h, @other) : tensor<4x6xf32>
    %u = onnx.Add(%s, %t) : tensor<4x6xf32>
    %y = onnx.Relu(%u) : tensor<4x6xf32>
  }
  mesh @mesh [x = 2] on [g0, g1]
  stage @stage0 index 0 on [g0, g1] mesh @mesh (%x : tensor<4x6xf32>) -> (%y : tensor<4x6xf32>) {
  }
  program @program0 of @stage0 on [g0, g1] (%x : tensor<4x6xf32>) -> (%y : tensor<4x6xf32>) {
    %up = comm.part(@up) {of = tensor<6x8xf32, @mesh[S(1)]>} : tensor<6x4xf32>
    %down = comm.part(@down) {of = tensor<8x6xf32, @mesh[S(0)]>} : tensor<4x6xf32>
    %other = comm.part(@other) {of = tensor<8x6xf32, @mesh[S(0)]>} : tensor<4x6xf32>
    %h = onnx.MatMul(%x, %up) : tensor<4x4xf32>
    %r = onnx.Relu(%h) : tensor<4x4xf32>
    %s = onnx.MatMul(%r, %down) : tensor<4x6xf32>
    %t = onnx.MatMul(%h, %other) : tensor<4x6xf32>
    %u.0 = onnx.Add(%s, %t) : tensor<4x6xf32>
    %u = comm.all_reduce(%u.0) {axis = "x", channel = 0, mesh = @mesh, reduction = "sum"} : tensor<4x6xf32>
    %y = onnx.Relu(%u) : tensor<4x6xf32>
  }
}
"""


def proof(text: str) -> ProofReport:
    return prove_module(parse_module(text, "test.ir"))


def test_terms_of_two_sums_are_added_before_they_are_summed() -> None:
    assert proof(PAIR).proven


def test_what_was_not_tried_refutes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "MOST_TRIED", 1)
    other = PAIR.replace("%u = comm.all_reduce(%u.0)", "%u = comm.all_reduce(%s)")
    for text in (PAIR, other):
        ((_, failure),) = proof(text).failures
        assert failure.verdict == "not proven"
        assert re.search(
            r"; or that was not found: of the operands of '.*' only 1024 combinations were tried$", failure.message
        )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            "onnx.Relu(%u) : tensor<4x6xf32>\n  }\n}",
            "onnx.Relu(%u.0) : tensor<4x6xf32>\n  }\n}",
            "Relu, which makes 'y', does not follow: it has %u.0 (a term of the sum over axis x of %u); "
            "the model has Relu of %u there",
            id="a sum is read before it is taken",
        ),
        pytest.param(
            'reduction = "sum"} : tensor<4x6xf32>\n',
            'reduction = "sum"} : tensor<4x6xf32>\n'
            '    %v = comm.all_reduce(%u) {axis = "x", channel = 1, mesh = @mesh, reduction = "sum"} : tensor<4x6xf32>\n',
            "",
            id="what nobody reads does no harm",
        ),
        pytest.param(
            "%u = comm.all_reduce(%u.0)",
            '%v = comm.all_reduce(%u.0) {axis = "x", channel = 1, mesh = @mesh, reduction = "sum"} : tensor<4x6xf32>\n'
            "    %u = comm.all_reduce(%v)",
            "comm.all_reduce on channel 0, which makes %u, does not follow: "
            "it takes P(sum) along axis 'x', but its operand is R there",
            id="a sum is taken twice",
        ),
        pytest.param(
            'reduction = "sum"',
            'reduction = "max"',
            "comm.all_reduce on channel 0, which makes %u, does not follow: "
            "it takes P(max) along axis 'x', but its operand is P(sum) there",
            id="another reduction",
        ),
        pytest.param(
            "%s = onnx.MatMul(%r, %down) : tensor<4x6xf32>\n    %t",
            "%s = onnx.MatMul(%r, %other) : tensor<4x6xf32>\n    %t",
            "MatMul, which makes 's', does not follow: it has %r (the part along dimension 1 by axis x of %r), "
            "@other (the part along dimension 0 by axis x of @other); the model has MatMul of %r, @down there",
            id="another weight",
        ),
        pytest.param(
            "comm.part(@down) {of = tensor<8x6xf32, @mesh[S(0)]>} : tensor<4x6xf32>",
            "comm.part(@down) {of = tensor<8x6xf32, @mesh[S(1)]>} : tensor<8x3xf32>",
            "MatMul, which makes 's', does not follow: it has %r (the part along dimension 1 by axis x of %r), "
            "@down (the part along dimension 1 by axis x of @down); the model has MatMul of %r, @down there",
            id="another part of a weight",
        ),
        pytest.param(
            "-> (%y : tensor<4x6xf32>) {\n    %up",
            "-> (%y : tensor<4x6xf32, @mesh[S(0)]>) {\n    %up",
            "it delivers the output %y: that is %y, but must be the part along dimension 0 by axis x of %y",
            id="an output taken for a part",
        ),
        pytest.param(
            "%u.0 = onnx.Add(%s, %t) : tensor<4x6xf32>",
            "%u.0 = onnx.Add(%s, %t) : tensor<2x6xf32>",
            "comm.all_reduce on channel 0, which makes %u, does not follow: "
            "%u.0 is tensor<2x6xf32>, its part is tensor<4x6xf32>",
            id="a collective of another type",
        ),
        pytest.param(
            "-> (%y : tensor<4x6xf32>) {\n  }",
            "-> () {\n  }",
            "the output %y of the model is delivered by 0 stages",
            id="an output that no stage delivers",
        ),
        pytest.param(
            "of @stage0 on [g0, g1] (",
            "of @stage0 on [g0] (",
            "its programs are of the members [0]",
            id="a member runs nothing",
        ),
    ],
)
def test_programs_follow_by_rules_alone(old: str, new: str, message: str) -> None:
    assert old in PAIR
    report = proof(PAIR.replace(old, new))
    assert [failure.message for _, failure in report.failures] == ([message] if message else [])
    assert report.verdict == ("refuted" if message else "proven")


PARTS = """
module @parts {opset.onnx = 20} {
  func @main(%x : tensor<5x4xf32>) -> (%y : tensor<5x4xf32>) {
    %y = onnx.Relu(%x) : tensor<5x4xf32>
  }
  mesh @mesh [x = 2] on [g0, g1]
  stage @stage0 index 0 on [g0, g1] mesh @mesh (%x : tensor<5x4xf32>) -> (%y : tensor<5x4xf32>) {
  }
  program @program0 of @stage0 on [g0] (%x : tensor<5x4xf32>) -> (%y : tensor<5x4xf32>) {
    %from = onnx.Constant() {value = dense(tensor<1xi64>, [0])} : tensor<1xi64>
    %to = onnx.Constant() {value = dense(tensor<1xi64>, [3])} : tensor<1xi64>
    %axis = onnx.Constant() {value = dense(tensor<1xi64>, [0])} : tensor<1xi64>
    %part = onnx.Slice(%x, %from, %to, %axis) : tensor<3x4xf32>
    %r = onnx.Relu(%part) : tensor<3x4xf32>
    %y = comm.all_gather(%r) {axis = "x", channel = 0, dim = 0, mesh = @mesh} : tensor<5x4xf32>
  }
  program @program1 of @stage0 on [g1] (%x : tensor<5x4xf32>) -> (%y : tensor<5x4xf32>) {
    %from = onnx.Constant() {value = dense(tensor<1xi64>, [3])} : tensor<1xi64>
    %to = onnx.Constant() {value = dense(tensor<1xi64>, [5])} : tensor<1xi64>
    %axis = onnx.Constant() {value = dense(tensor<1xi64>, [0])} : tensor<1xi64>
    %part = onnx.Slice(%x, %from, %to, %axis) : tensor<2x4xf32>
    %r = onnx.Relu(%part) : tensor<2x4xf32>
    %y = comm.all_gather(%r) {axis = "x", channel = 0, dim = 0, mesh = @mesh} : tensor<5x4xf32>
  }
}
"""


@pytest.mark.parametrize(("rows", "verdict"), [(2, "proven"), (3, "refuted")])
def test_each_member_has_the_type_of_its_own_part(rows: int, verdict: str) -> None:
    """Types of parts are worked out once for equal members: the second program is not taken for the first."""
    assert (
        proof(PARTS.replace("onnx.Relu(%part) : tensor<2x4xf32>", f"onnx.Relu(%part) : tensor<{rows}x4xf32>")).verdict
        == verdict
    )


def test_ops_that_differ_by_a_constant_or_an_attribute_alone_are_told_apart() -> None:
    """What follows of an op is worked out once for all ops of its kind: one sums rows, the other columns."""
    text = (ROOT / "passes" / "localize" / "kinds.out.ir").read_text()
    assert proof(text).proven
    at = text.index("program @program0")
    for old, new in (("@columns", "@rows"), ("@rows", "@columns"), ("alpha = 0.25", "alpha = 0.5")):
        assert proof(text[:at] + text[at:].replace(old, new)).verdict == "refuted"


SUMS = """
module @sums {opset.onnx = 20} {
  resource @w : tensor<8x6xf32> = declared
  func @main(%x : tensor<4x8xf32>) -> (%y : tensor<4x6xf32>) {
    %y = onnx.MatMul(%x, @w) : tensor<4x6xf32>
  }
  mesh @mesh [x = 2] on [g0, g1]
  stage @stage0 index 0 on [g0, g1] mesh @mesh (%x : tensor<4x8xf32>) -> (%y : tensor<4x6xf32>) {
  }
  program @program0 of @stage0 on [g0] (%x : tensor<4x8xf32>) -> (%y : tensor<4x6xf32>) {
    %whole = onnx.MatMul(%x, @w) : tensor<4x6xf32>
    %t = onnx.Identity(%whole) : tensor<4x6xf32>
    %y = comm.all_reduce(%t) {axis = "x", channel = 0, mesh = @mesh, reduction = "sum"} : tensor<4x6xf32>
  }
  program @program1 of @stage0 on [g1] (%x : tensor<4x8xf32>) -> (%y : tensor<4x6xf32>) {
    %shape = onnx.Constant() {value = dense(tensor<2xi64>, [4, 6])} : tensor<2xi64>
    %t = onnx.ConstantOfShape(%shape) {value = dense(tensor<1xf32>, [0.0])} : tensor<4x6xf32>
    %y = comm.all_reduce(%t) {axis = "x", channel = 0, mesh = @mesh, reduction = "sum"} : tensor<4x6xf32>
  }
}
"""


def test_one_member_has_the_value_and_the_other_zeros() -> None:
    assert proof(SUMS).proven


def test_terms_of_different_sums_do_not_add_up() -> None:
    """The first member has the whole product, the second the term of its half of the rows: each is a term of a sum that is the
    product, and their sum is not."""
    term = """    %from = onnx.Constant() {value = dense(tensor<1xi64>, [4])} : tensor<1xi64>
    %to = onnx.Constant() {value = dense(tensor<1xi64>, [8])} : tensor<1xi64>
    %axis = onnx.Constant() {value = dense(tensor<1xi64>, [1])} : tensor<1xi64>
    %half = onnx.Slice(%x, %from, %to, %axis) : tensor<4x4xf32>
    %rows = comm.part(@w) {of = tensor<8x6xf32, @mesh[S(0)]>} : tensor<4x6xf32>
    %t = onnx.MatMul(%half, %rows) : tensor<4x6xf32>
"""
    start, end = SUMS.index("    %shape"), SUMS.index("    %y = comm.all_reduce", SUMS.index("    %shape"))
    report = proof(SUMS[:start] + term + SUMS[end:])
    ((_, failure),) = report.failures
    assert failure.verdict == "refuted"
    assert failure.message == (
        "comm.all_reduce on channel 0, which makes %y, does not follow: %t is %y or a term of the sum over axis x of %y "
        "on member 0; %t is a term of the sum over axis x of %y on member 1"
    )


@pytest.mark.parametrize("filled", ["1.0", "nan"])
def test_the_others_have_zeros(filled: str) -> None:
    assert proof(SUMS.replace("[0.0]", f"[{filled}]")).verdict == "refuted"


def test_zeros_are_no_terms_of_a_maximum() -> None:
    """The first member has the whole product, the second zeros: their maximum is not the product where that is negative."""
    assert proof(SUMS.replace('"sum"', '"max"')).verdict == "refuted"
    both = SUMS[: SUMS.index("  program @program1")].replace('"sum"', '"max"').replace("on [g0] (", "on [g0, g1] (")
    assert proof(f"{both}}}").proven


def test_members_call_the_operand_of_a_collective_alike() -> None:
    """The runtime takes the name of the first member for all."""
    at = SUMS.index("  program @program1")
    report = proof(SUMS[:at] + SUMS[at:].replace("%t", "%u"))
    ((_, failure),) = report.failures
    assert failure.verdict == "refuted"
    assert "its members name what it takes or makes differently" in failure.message


HEADS = """
module @heads {opset.onnx = 20} {
  func @main(%x : tensor<4x6xf32>) -> (%y : tensor<4x3x2xf32>) {
    %to = onnx.Constant() {value = dense(tensor<3xi64>, [4, 3, 2])} : tensor<3xi64>
    %y = onnx.Reshape(%x, %to) : tensor<4x3x2xf32>
  }
  mesh @mesh [x = 2] on [g0, g1]
  stage @stage0 index 0 on [g0, g1] mesh @mesh (%x : tensor<4x6xf32>) -> (%y : tensor<4x3x2xf32, @mesh[S(1)]>) {
  }
PROGRAMS}
"""
MEMBER = """
  program @programN of @stage0 on [gN] (%x : tensor<4x6xf32>) -> (%y : tensor<4x3x2xf32, @mesh[S(1)]>) {
    %from = onnx.Constant() {value = dense(tensor<1xi64>, [FROM])} : tensor<1xi64>
    %end = onnx.Constant() {value = dense(tensor<1xi64>, [END])} : tensor<1xi64>
    %axis = onnx.Constant() {value = dense(tensor<1xi64>, [1])} : tensor<1xi64>
    %x.1 = onnx.Slice(%x, %from, %end, %axis) : tensor<4x?xf32>
    %to = onnx.Constant() {value = dense(tensor<3xi64>, [4, HEADS, 2])} : tensor<3xi64>
    %y = onnx.Reshape(%x.1, %to) : tensor<4xHEADSx2xf32>
  }
"""


def heads(cut: int) -> str:
    """Members that have 2 and 1 of 3 heads, of the columns before and from ``cut`` on."""
    sizes = ((0, 0, cut, 2), (1, cut, 6, 1))
    members = (
        MEMBER.replace("HEADS", str(own)).replace("gN", f"g{n}").replace("programN", f"program{n}")
        .replace("FROM", str(start)).replace("END", str(end)).replace("4x?xf32", f"4x{end - start}xf32")
        for n, start, end, own in sizes
    )  # fmt: skip
    return HEADS.replace("PROGRAMS", "".join(members))


@pytest.mark.parametrize("cut", [3, 4])
def test_ranges_of_elements_are_no_ranges_of_heads(cut: int) -> None:
    """Six columns are cut into 3 and 3, three heads of two columns into 4 and 2: no layout of the columns is that of heads."""
    report = proof(heads(cut))
    assert report.verdict == "refuted"
    assert report.failures[0][1].message.startswith(("Reshape, which makes 'y'", "Slice, which makes 'x.1'"))


def test_parts_that_a_later_axis_cuts_further_do_not_join() -> None:
    mesh = Mesh("@mesh", (("a", 2), ("b", 2)), ("g0", "g1", "g2", "g3"))
    text = StageText(Stage("@s", 0, mesh.devices, (), (), (), "@mesh"), mesh, [])

    def gathered(axis: str) -> Part | str:
        op = Op("comm.all_gather", ("%x",), (), attributes(axis=axis, dim=0, mesh=Attribute(AttrKind.SYMBOL, "@mesh")))
        return collective(text, op, Part(0, (Shard(0), Shard(0))), Families())

    assert gathered("a") == "a later axis cuts dimension 0 further"
    assert gathered("b") == Part(0, (Shard(0), Replicate()))


PAIR_MESH = Mesh("@a", (("x", 2),), ("a0", "a1"))
OTHER_MESH = Mesh("@b", (("y", 2),), ("b0", "b1"))
UNEVEN_MESH = Mesh("@b", (("y", 2),), ("b0", "b1"), ((3, 1),))
SINGLE = Mesh("", (), ())


def lying(mesh: Mesh, *placements: Placement) -> tuple[Mesh, TensorType]:
    layout = Layout(mesh.name, placements) if mesh.axes else None
    return mesh, TensorType(DType.F32, (8, 8), layout)


@pytest.mark.parametrize(
    ("maker", "reader", "fault"),
    [
        (lying(PAIR_MESH, Shard(0)), lying(OTHER_MESH, Shard(0)), ""),
        (
            lying(PAIR_MESH, Shard(0)),
            lying(OTHER_MESH, Shard(1)),
            "member 0 gets the box [0:4, 0:8] and takes it for [0:8, 0:4]",
        ),
        (
            lying(PAIR_MESH, Shard(0)),
            lying(UNEVEN_MESH, Shard(0)),
            "member 0 gets the box [0:4, 0:8] and takes it for [0:6, 0:8]",
        ),
        (lying(PAIR_MESH, Shard(0)), lying(SINGLE), "member 0 gets the box [0:4, 0:8] and takes it for [0:8, 0:8]"),
        (lying(PAIR_MESH, Replicate()), lying(SINGLE), ""),
        (lying(SINGLE), lying(PAIR_MESH, Replicate()), ""),
        (lying(PAIR_MESH, Partial("sum")), lying(OTHER_MESH, Partial("sum")), ""),
        (lying(PAIR_MESH, Partial("sum")), lying(OTHER_MESH, Replicate()), "terms cross between unequal meshes or layouts"),
        (lying(PAIR_MESH, Partial("sum")), lying(OTHER_MESH, Partial("max")), "terms cross between unequal meshes or layouts"),
    ],
)
def test_both_sides_of_a_channel_mean_the_same_elements(
    maker: tuple[Mesh, TensorType], reader: tuple[Mesh, TensorType], fault: str
) -> None:
    assert crossing(maker, reader) == fault


CHAIN = """
module @chain {opset.onnx = 20} {
  func @main(%x : tensor<4x6xf32>) -> (%y : tensor<4x6xf32>) {
    %h = onnx.Relu(%x) : tensor<4x6xf32>
    %y = onnx.Tanh(%h) : tensor<4x6xf32>
  }
  stage @stage0 index 0 on [a] (%x : tensor<4x6xf32>) -> () {
  }
  stage @stage1 index 1 on [b] () -> (%y : tensor<4x6xf32>) {
  }
  program @program0 of @stage0 on [a] (%x : tensor<4x6xf32>) -> () {
    %h = onnx.Relu(%x) : tensor<4x6xf32>
    comm.send(%h) {channel = 0, peer = 1}
  }
  program @program1 of @stage1 on [b] () -> (%y : tensor<4x6xf32>) {
    %h = comm.recv() {channel = 0, peer = 0} : tensor<4x6xf32>
    %y = onnx.Tanh(%h) : tensor<4x6xf32>
  }
  schedule @schedule {
    kind = stream
    periodic = true
    row a [F(0, 1), send(0, 1, 0)]
    row b [recv(1, 0, 0), F(1, 0)]
  }
}
"""


@pytest.mark.parametrize(
    ("row", "other", "message"),
    [
        ("a [F(0, 1), send(0, 1, 0)]", "a [send(0, 2, 0), F(0, 1)]", "send for channel 0 of a microbatch stands before F"),
        ("a [F(0, 1), send(0, 1, 0)]", "a [F(0, 1), send(0, 1, 0), send(0, 2, 0)]", "send of stage 0 for channel 0 is there 2"),
        ("b [recv(1, 0, 0), F(1, 0)]", "b [recv(1, 0, 0), F(1, 1)]", "recv for channel 0 of a microbatch stands behind F"),
        ("b [recv(1, 0, 0), F(1, 0)]", "b [F(1, 0)]", "recv of stage 1 for channel 0 is there 0 times"),
        ("b [recv(1, 0, 0), F(1, 0)]", "b [F(1, 1), recv(1, 2, 0)]", ""),
    ],
)
def test_rows_hand_each_stage_its_own_microbatch(row: str, other: str, message: str) -> None:
    assert proof(CHAIN).proven
    report = proof(CHAIN.replace(row, other))
    assert report.proven == (not message)
    assert all(message in failure.message for _, failure in report.failures)
