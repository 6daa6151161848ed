"""Names that exporters give to caches and recurrent states, and what types refuse."""

from __future__ import annotations

import pytest

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Func
from ir.core.ops import Value
from ir.core.types import DType, TensorType
from passes.prepare.states import Pair, caches, named, recurrent


def func(inputs: dict[str, tuple[int | str, ...]], results: dict[str, tuple[int | str, ...]]) -> Func:
    def values(of: dict[str, tuple[int | str, ...]]) -> tuple[Value, ...]:
        return tuple(Value(f"%{name}", TensorType(DType.F32, shape)) for name, shape in of.items())

    return Func("@main", values(inputs), values(results), ())


PAST, PRESENT, FULL = ("b", 2, "past", 8), ("b", 2, "past + 1", 8), ("b", 2, 64, 8)


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.11.decoder.value", "present.11.decoder.value"),
        ("past_key_0", "present_key_0"),
        ("past_0", "present_0"),
        ("past_key_values.0.key", "present_key_values.0.key"),
        ("past_conv.0", "present_conv.0"),
        ("cache_k_0", "cache_k_0_out"),
    ],
)
def test_caches_are_recognised(source: str, result: str) -> None:
    assert caches(func({"x": (1,), source: PAST}, {"y": (1,), result: PRESENT})) == (Pair(source, result, 2),)
    assert caches(func({source: FULL}, {result: FULL})) == (Pair(source, result),)


@pytest.mark.parametrize("result", [("b", 3, "past + 1", 8), ("b", 2, 8), ("c", 2, "past + 1", 8)])
def test_names_alone_are_no_cache(result: tuple[int | str, ...]) -> None:
    assert caches(func({"past_key_values.0.key": PAST}, {"present.0.key": result})) == ()


@pytest.mark.parametrize(("source", "result"), [("h0", "hN"), ("c_0", "c_n"), ("state", "stateN"), ("h_in", "h_out")])
def test_recurrent_states_are_recognised(source: str, result: str) -> None:
    assert recurrent(func({source: (1, 8)}, {"y": (1, 8), result: (1, 8)})) == (Pair(source, result),)
    assert recurrent(func({source: (1, 8)}, {result: (1, 9)})) == ()


def test_named_pairs_are_checked() -> None:
    model = func({"pk0": PAST, "k0": (4,)}, {"pk": PRESENT, "k": (4, 4)})
    assert named(model, ["pk0=pk"]) == (Pair("pk0", "pk", 2),)
    with pytest.raises(InvalidInput, match=r"k0 is tensor<4xf32> and k is tensor<4x4xf32>"):
        named(model, ["k0=k"])
    with pytest.raises(InvalidInput, match="no such input and output"):
        named(model, ["k0=nothing"])
    with pytest.raises(InvalidInput, match="that another state has"):
        named(model, ["pk0=pk", "k0=pk"])
    with pytest.raises(UsageError, match="expected IN=OUT"):
        named(model, ["k0"])
