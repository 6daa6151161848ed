"""What the plan's IR says of values: which are random, whoever's operator draws."""

from __future__ import annotations

import pytest

from dnnc.check.dataflow import random_values
from ir import DType, Func, Inline, Module, Op, Resource, Splat, TensorType, Value
from passes.costs.constants import constants_of

F32, TRUTH = TensorType(DType.F32, (4,)), TensorType(DType.BOOL, ())
TRAINS, STILL = Resource("@yes", TRUTH, Inline(b"\1")), Resource("@no", TRUTH, Inline(b"\0"))
ONE = Resource("@one", F32, Splat(1.0))


def module(*ops: Op) -> Module:
    return Module("@m", (TRAINS, STILL, ONE, Func("@main", (Value("%x", F32),), (), ops)))


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("onnx.Dropout", ("%x", "")),
        ("onnx.com.microsoft.BitmaskDropout", ("%x", "")),
        ("onnx.com.microsoft.BiasDropout", ("%x", "%x", "", "")),
        ("onnx.com.microsoft.BitmaskBiasDropout", ("%x", "%x", "", "")),
    ],
)
def test_a_dropout_is_random_where_it_trains(name: str, operands: tuple[str, ...]) -> None:
    def tainted(*training: str) -> frozenset[str]:
        first = Op(name, (*operands, *training), (Value("%y", F32),))
        return random_values(module(first, Op("onnx.Relu", ("%y",), (Value("%z", F32),))))[0]

    assert tainted("@yes") == {"y", "z"}
    assert tainted("%t") == {"y", "z"}
    assert tainted("@no") == tainted("") == tainted() == set()


def test_sampling_is_random() -> None:
    op = Op("onnx.com.microsoft.Sampling", ("%x",), (Value("%y", F32),))
    assert random_values(module(op))[0] == {"y"}


@pytest.mark.parametrize("name", ["onnx.RandomNormalLike", "onnx.com.microsoft.Sampling", "onnx.com.microsoft.BiasDropout"])
def test_what_draws_is_no_constant_that_stages_may_compute_again(name: str) -> None:
    drawn = Op(name, ("@one",), (Value("%y", F32),))
    still = Op("onnx.Relu", ("@one",), (Value("%z", F32),))
    assert constants_of(module(drawn, still).entry, ()) == {1}
