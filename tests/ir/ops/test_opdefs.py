"""Op definitions: dialects, steps of a reshard, and what they find wrong with an op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ir import (
    AttrKind,
    DType,
    Func,
    Module,
    Op,
    Partial,
    Placement,
    Region,
    Replicate,
    Shard,
    TensorType,
    Value,
    attributes,
    verify,
)
from ir.core.attributes import Attribute
from ir.ops.opdefs import (
    COLLECTIVES,
    COMMUNICATION,
    CORE,
    OPDEFS,
    RESHARD_STEPS,
    AttrDef,
    Dialect,
    Dialects,
    OpDef,
    opdef,
    reshard_step,
)

F32 = TensorType(DType.F32, (4,))
RELU = OpDef("toy.Relu", (1, 2), (1, 1), (("alpha", AttrDef(AttrKind.FLOAT, True)), ("mode", AttrDef(None))), ("body",))


Asked = list[tuple[str, dict[str, int]]]


def toy(asked: Asked) -> Dialects:
    """``CORE`` and a dialect ``toy`` that notes what it is asked."""

    def lookup(name: str, opsets: Mapping[str, int]) -> OpDef | None:
        asked.append((name, dict(opsets)))
        return RELU if name == "toy.Relu" else None

    return (*CORE, Dialect("toy", lookup))


def relu(operands: int = 1, region: str = "body", **values: object) -> Op:
    return Op("toy.Relu", ("%x",) * operands, (Value("%y", F32),), attributes(values), ((region, Region((), (), ())),))


def test_a_dialect_is_asked_once_per_name() -> None:
    asked: Asked = []
    ops = tuple(Op("toy.Other", ("%x",), (Value(f"%y{i}", F32),)) for i in range(5))
    module = Module("@m", (Func("@main", (Value("%x", F32),), (), ops),), attributes({"opset.toy": 3, "producer": "p"}))
    assert verify(module, dialects=toy(asked)) == []
    assert asked == [("toy.Other", {"toy": 3})]


def test_a_dialect_that_is_not_passed_in_is_opaque() -> None:
    """Nothing is registered: who verifies without the dialect is told nothing of its ops, whoever verified with it before."""
    wrong = Op("toy.Relu", (), (Value("%y", F32),))
    module = Module("@m", (Func("@main", (), (), (wrong,)),))
    assert [fault.message[:6] for fault in verify(module, dialects=toy([]))] == ["INV11:"] * 3
    assert verify(module) == []


@pytest.mark.parametrize(
    ("op", "fault"),
    [
        (relu(alpha=1.0), None),
        (relu(2, alpha=1.0, mode="any"), None),
        (relu(3, alpha=1.0), "toy.Relu takes 1 to 2 operands, not 3"),
        (relu(), "toy.Relu needs attribute 'alpha'"),
        (relu(alpha=1), "attribute 'alpha' of toy.Relu is of kind float, not int"),
        (relu(alpha=1.0, beta=1), "toy.Relu has no attribute 'beta'; it has: alpha, mode"),
        (relu(region="other", alpha=1.0), "toy.Relu has regions body, not other"),
    ],
)
def test_faults(op: Op, fault: str | None) -> None:
    assert RELU.faults(op) == ([fault] if fault else [])


PLACEMENTS: tuple[Placement, ...] = (Replicate(), Shard(0), Shard(1), Partial("sum"), Partial("max"))


@pytest.mark.parametrize(("before", "after"), [(b, a) for b in PLACEMENTS for a in PLACEMENTS if a != b])
def test_a_step_is_written_and_read_from_one_definition(before: Placement, after: Placement) -> None:
    """What the definition says is written for a change of placement is what it reads back from the op."""
    name = reshard_step(before, after)
    if name is None:
        assert isinstance(after, Partial)  # no reshard makes terms of parts
        assert not isinstance(before, Replicate)
        return
    step = RESHARD_STEPS[name]
    fields = step.attributes(before, after)
    op = Op(f"comm.{name}", ("%x",), (Value("%y"),), tuple(sorted(fields.items())))
    assert step.placements(op) == (before, after)
    known = {"axis": "x", "mesh": "@m", **({"channel": 0} if step.moves else {})}
    where = attributes({key: value for key, value in known.items() if key != "mesh"})
    mesh = (("mesh", Attribute(AttrKind.SYMBOL, "@m")),)
    assert OPDEFS[op.name].faults(replace(op, attributes=tuple(sorted((*where, *mesh, *fields.items()))))) == []
    assert step.moves == (name in COLLECTIVES) == (COMMUNICATION in OPDEFS[op.name].traits)


def test_an_unknown_op_of_a_known_dialect_is_a_fault() -> None:
    (core,) = {dialect.lookup for dialect in CORE}
    for name in ("comm.broadcast", "comm.all_reduce_start", "dnnc.wrok"):
        definition = core(name, {})
        assert definition is not None
        assert f"has no op {name}" in definition.faults(Op(name, ("%x",)))[0]


def test_ops_of_an_unknown_dialect_pass() -> None:
    assert opdef("nobody.Knows", {}, CORE) is None
