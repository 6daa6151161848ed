"""Op definitions: lookup, providers, and what they find wrong with an op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from ir import AttrKind, DType, Func, Module, Op, Region, TensorType, Value, attributes, opdefs, verify
from ir.opdefs import AttrDef, OpDef

F32 = TensorType(DType.F32, (4,))
RELU = OpDef("toy.Relu", (1, 2), (1, 1), (("alpha", AttrDef(AttrKind.FLOAT, True)), ("mode", AttrDef(None))), ("body",))


@pytest.fixture
def toy() -> Iterator[list[tuple[str, dict[str, int]]]]:
    """A provider of the dialect ``toy``; the list of what it was asked."""
    asked: list[tuple[str, dict[str, int]]] = []

    def lookup(name: str, opsets: Mapping[str, int]) -> OpDef | None:
        asked.append((name, dict(opsets)))
        return RELU if name == "toy.Relu" else None

    opdefs.register_provider("toy", lookup)
    yield asked
    del opdefs._PROVIDERS["toy"]


def relu(operands: int = 1, region: str = "body", **values: object) -> Op:
    return Op("toy.Relu", ("%x",) * operands, (Value("%y", F32),), attributes(values), ((region, Region((), (), ())),))


def test_a_provider_is_asked_once_per_name(toy: list[tuple[str, dict[str, int]]]) -> None:
    ops = tuple(Op("toy.Other", ("%x",), (Value(f"%y{i}", F32),)) for i in range(5))
    module = Module("@m", (Func("@main", (Value("%x", F32),), (), ops),), attributes({"opset.toy": 3, "producer": "p"}))
    assert verify(module) == []
    assert toy == [("toy.Other", {"toy": 3})]


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


def test_every_communication_has_its_halves() -> None:
    for name, definition in opdefs.OPDEFS.items():
        if opdefs.COMMUNICATION in definition.traits and not {opdefs.START, opdefs.DONE} & definition.traits:
            assert opdefs.OPDEFS[name + "_start"].operands == definition.operands
            assert opdefs.OPDEFS[name + "_done"].results == definition.results


def test_unknown_ops_pass() -> None:
    assert opdefs.opdef("nobody.Knows", {}) is None
