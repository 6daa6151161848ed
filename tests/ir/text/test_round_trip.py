"""What prints parses back equal, and prints the same again: for whole generated modules and for each kind of part."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir import Attribute, DType, Func, Inline, Module, Op, Resource, TensorType, Value, parse_module, print_module, verify
from ir.core.attributes import AttrKind, Dense
from ir.core.facets import Facets, facet_text, parse_facet
from ir.core.types import Type
from ir.text.printer import RUN
from tests import strategies

SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def assert_round_trip(module: Module) -> None:
    text = print_module(module)
    again = parse_module(text)
    assert again == module
    assert print_module(again) == text


@pytest.mark.parametrize("examples", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_modules(examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=SLOW_TO_DRAW)
    @given(strategies.modules())
    def check(module: Module) -> None:
        assert verify(module) == []
        assert_round_trip(module)

    check()


def test_attributes_are_equal_where_their_bits_are() -> None:
    """A zero has a sign, of which ``Reciprocal`` makes another infinity."""
    for kind, wrapped in ((AttrKind.FLOAT, float), (AttrKind.FLOATS, lambda value: (value,))):
        plus, minus, nan = (Attribute(kind, wrapped(value)) for value in (0.0, -0.0, float("nan")))
        assert plus != minus
        assert nan == Attribute(kind, wrapped(float("nan")))
        assert plus == Attribute(kind, wrapped(0.0))
    assert Attribute(AttrKind.INT, 0) != Attribute(AttrKind.FLOAT, 0.0)


@settings(max_examples=75)
@given(strategies.types())
def test_types(type_: Type) -> None:
    assert_round_trip(Module("@m", (Func("@main", (Value("%x", type_),), (), ()),)))


@settings(max_examples=75)
@given(strategies.attribute())
def test_attributes(attribute: Attribute) -> None:
    assert_round_trip(Module("@m", (), (("key", attribute),)))


RUNS = st.lists(st.tuples(st.integers(-20, 20), st.integers(1, 2 * RUN)), min_size=1, max_size=5)


@given(RUNS)
def test_consecutive_integers(runs: list[tuple[int, int]]) -> None:
    """They are written as ranges, from a length on, wherever they stand in a list."""
    values = tuple(start + i for start, length in runs for i in range(length))
    assert_round_trip(Module("@m", (), (("key", Attribute(AttrKind.INTS, values)),)))


@settings(max_examples=75)
@given(strategies.dense())
def test_dense_bits(dense: Dense) -> None:
    """Bit for bit: NaN payloads and signs of zero included, as attribute and as resource."""
    resource = Resource("@w", dense.type, Inline(dense.data))
    module = Module("@m", (resource,), (("key", Attribute(AttrKind.TENSOR, dense)),))
    assert_round_trip(module)


@settings(max_examples=75)
@given(st.integers(0, 3).flatmap(lambda results: strategies.facets(results, stages=4)))
def test_facets(facets: Facets) -> None:
    assert tuple(parse_facet(facet_text(facet)) for facet in facets) == facets
    assert_round_trip(Module("@m", (Func("@main", (), (), (Op("dnnc.work", facets=facets),)),)))


@settings(max_examples=75)
@given(st.text())
def test_any_name(text: str) -> None:
    """Every string is a possible name of everything that has one."""
    op = Op(text, ("%" + text,), (Value("%" + text),), ((text, Attribute(AttrKind.STRING, text)),))
    assert_round_trip(Module("@" + text, (Func("@" + text, (), (), (op,)),)))


@settings(max_examples=50)
@given(st.text())
def test_any_dimension(text: str) -> None:
    type_ = TensorType(DType.F32, (2, text, None))
    assert_round_trip(Module("@m", (Func("@f", (Value("%x", type_),), (), ()),)))
