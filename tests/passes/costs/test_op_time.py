"""Seconds of ops: the roofline by hand, times that are stated, epilogues."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ir.core.attributes import attributes
from ir.core.facets import BackwardTime, Cost, Time
from ir.core.module import Func
from ir.core.ops import Op, Value
from ir.core.topology import DeviceType
from ir.core.types import DType, TensorType
from passes.costs.op_time import (
    body_seconds,
    efficiency_of,
    epilogues,
    in_training,
    least_seconds,
    op_seconds,
    passes_seconds,
    rate_of,
    stated_part,
)

GPU = DeviceType(
    "gpu",
    "gpu",
    rates=(("f16", 400.0), ("f32", 100.0)),
    memory_bandwidth=10.0,
    overhead=1.0,
    efficiency=(("conv", 0.5), ("default", 0.25), ("matmul", 0.8)),
)
FUSED = replace(GPU, efficiency=(*GPU.efficiency, ("epilogue", 1.0)))


def op(name: str, result: str = "%y", operands: tuple[str, ...] = ("%x",), dtype: DType = DType.F32, **cost: object) -> Op:
    """An ``onnx`` op with one 4-element result, and a ``Cost`` facet where numbers are given."""
    made = Op(f"onnx.{name}", operands, (Value(result, TensorType(dtype, (4,))),))
    return made.with_facets(Cost(**cost)) if cost else made  # type: ignore[arg-type]


def test_arithmetic_or_memory_whichever_is_longer() -> None:
    assert op_seconds(op("MatMul", flops=800, read=10, write=10, kind="matmul"), GPU) == 800 / (100 * 0.8) + 1
    assert op_seconds(op("MatMul", flops=800, read=100, write=100, kind="matmul"), GPU) == 200 / 10 + 1
    assert op_seconds(op("MatMul", dtype=DType.F16, flops=800, kind="matmul"), GPU) == 800 / (400 * 0.8) + 1


def test_weights_do_not_hide_on_a_core() -> None:
    core = DeviceType("core", "cpu", (("f32", 100.0),), memory_bandwidth=10.0)
    cost = {"flops": 1000, "read": 60, "write": 10, "weight": 50, "kind": "conv"}
    assert op_seconds(op("Conv", **cost), core) == max(1000 / 100, 20 / 10) + 50 / 10
    assert op_seconds(op("Conv", **cost), DeviceType("g", "gpu", (("f32", 100.0),), memory_bandwidth=10.0)) == 10.0


def test_scalar_steps_take_time_where_a_type_states_their_rate_and_none_in_training() -> None:
    core = DeviceType("core", "cpu", (("f32", 100.0),), memory_bandwidth=10.0, scalar_rate=5.0)
    sine = op("Sin", flops=200, scalar=20, read=10, write=10, kind="elementwise")
    assert op_seconds(sine, core) == 200 / 100 + 20 / 5
    assert op_seconds(sine, replace(core, scalar_rate=0.0)) == 2.0
    assert passes_seconds(sine, core, 100) == (2.0, 4.0), "40 bytes, and 100 flops"


def test_training_has_classes_of_its_own_and_adds_up_the_gradients_of_weights_on_a_core() -> None:
    """Forward 100 flops at 50 a second, 10 bytes of weights; backward 200 flops at 20 a second, and thrice the weights: they
    are read, and so is the sum, which is written; the start of a kernel stands in place of the overhead."""
    table = (("conv", 1.0), ("conv-backward", 0.2), ("conv-training", 0.5))
    core = DeviceType("core", "cpu", (("f32", 100.0),), memory_bandwidth=10.0, overhead=1.0, efficiency=table, launch=3.0)
    conv = op("Conv", flops=100, read=10, weight=10, input_grad=100, weight_grad=100, kind="conv")
    assert op_seconds(conv, core) == 100 / 100 + 10 / 10 + 1
    assert passes_seconds(conv, core, 200) == (100 / 50 + 10 / 10 + 3, 200 / 20 + 3 * 10 / 10 + 3)
    frozen = op("Conv", flops=100, read=10, weight=10, input_grad=100, kind="conv")
    assert passes_seconds(frozen, core, 100)[1] == 100 / 20 + 10 / 10 + 3
    plain = replace(core, efficiency=(("conv", 0.5),))
    assert passes_seconds(conv, plain, 200) == (100 / 50 + 10 / 10 + 3, 200 / 50 + 3 * 10 / 10 + 3)
    gpu = replace(core, kind="gpu")
    assert passes_seconds(conv, gpu, 200) == (3.0, 11.0), "longer kernels hide their start, and nothing is added up"


@pytest.mark.parametrize("launch", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("cut", [1, 3])
def test_the_least_time_of_a_pass_of_training_is_not_above_that_of_its_parts(launch: float, cut: int) -> None:
    table = (("conv", 1.0), ("conv-backward", 0.2), ("conv-training", 0.5))
    core = DeviceType("core", "cpu", (("f32", 100.0),), 10.0, None, 1.0, table, cache=20, cache_bandwidth=50.0, launch=launch)
    whole, part = (
        op("Conv", kind="conv", flops=300 // n, read=60 // n, write=30 // n, weight=30 // n, input_grad=1, weight_grad=1)
        for n in (1, cut)
    )
    forward, backward = passes_seconds(part, core, 600 // cut)
    start = in_training(core).overhead
    assert cut * (forward - start) >= least_seconds(whole, core, training=True) * (1 - 1e-9)
    assert cut * (backward - start) >= least_seconds(whole, core, 600) * (1 - 1e-9)


def test_what_fits_the_cache_of_a_core_moves_at_its_bandwidth() -> None:
    core = DeviceType("core", "cpu", (("f32", 1e9),), memory_bandwidth=10.0, cache=1000, cache_bandwidth=50.0)
    assert op_seconds(op("Add", flops=1, read=50, write=50, kind="elementwise"), core) == 100 / 50
    assert op_seconds(op("Add", flops=1, read=50, write=50, weight=40, kind="elementwise"), core) == 60 / 50 + 40 / 10
    assert math.isclose(op_seconds(op("Add", flops=1, read=5000, write=5000, kind="elementwise"), core), 1000.0)
    gpu = replace(core, kind="gpu")
    assert op_seconds(op("Add", flops=1, read=50, write=50, kind="elementwise"), gpu) == 10.0


@pytest.mark.parametrize("bandwidth", [0.0, 10.0, 200.0])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_the_least_time_of_an_op_is_not_above_its_time_in_the_cache(bandwidth: float, fraction: float) -> None:
    """``memory`` of ``efficiency`` slows main memory, not the cache."""
    table = (("memory", fraction),)
    core = DeviceType("core", "cpu", (("f32", 1e9),), bandwidth, efficiency=table, cache=1000, cache_bandwidth=50.0)
    add = op("Add", flops=1, read=50, write=50, kind="elementwise")
    assert least_seconds(add, core) <= op_seconds(add, core) * (1 + 1e-9)


def test_a_stated_time_stands_over_the_roofline() -> None:
    stated = op("MatMul", flops=800, kind="matmul").with_facets(Time((("@cpu", 3.0), ("@gpu", 2.0))))
    assert op_seconds(stated, GPU) == 2.0
    assert op_seconds(stated, DeviceType("npu")) == math.inf


def test_a_part_of_stated_seconds_is_the_part_that_the_roofline_takes() -> None:
    """Half of the samples with all weights: max(5, 1) + 5 of max(10, 2) + 5 seconds."""
    core = DeviceType("core", "cpu", (("f32", 100.0),), memory_bandwidth=10.0)
    stated = Time((("@core", 3.0), ("@unit", 3.0))), BackwardTime((("@core", 6.0), ("@unit", 6.0)))
    whole = op("MatMul", flops=1000, read=60, write=10, weight=50, kind="matmul").with_facets(*stated)
    part = Cost(flops=500, read=55, write=5, weight=50, kind="matmul")
    assert stated_part(whole, core, part) == (2.0, 0.0)
    assert stated_part(whole, core, part, training=True) == (2.0, 4.0)
    unit = replace(core, name="unit", kind="gpu", units=2)
    assert stated_part(whole, unit, part, training=True) == (1.5, 3.0)
    nothing = DeviceType("core", "cpu")
    assert stated_part(whole, nothing, part) == (1.5, 0.0)
    assert stated_part(op("MatMul", flops=1000), core, part) is None


def test_an_op_without_facts_costs_its_overhead() -> None:
    assert op_seconds(op("Thing"), GPU) == 1.0


def test_efficiency_falls_back_to_the_wider_class_then_to_default() -> None:
    assert efficiency_of("conv-depthwise", GPU) == 0.5
    assert efficiency_of("softmax", GPU) == 0.25
    assert efficiency_of("softmax", DeviceType("plain")) == 1.0


def test_rate_of_a_type_without_one_is_that_of_f32() -> None:
    assert rate_of(op("Add", dtype=DType.I64), "conv", GPU) == 50.0
    assert rate_of(op("Add"), "conv", DeviceType("none")) == 0.0
    assert rate_of(op("Add"), "conv", DeviceType("half", rates=(("f16", 7.0),))) == 7.0


def test_an_efficiency_may_be_of_one_element_type() -> None:
    type_ = replace(GPU, efficiency=(*GPU.efficiency, ("matmul-f32", 0.9)))
    assert rate_of(op("MatMul"), "matmul", type_) == 90.0
    assert rate_of(op("MatMul", dtype=DType.F16), "matmul", type_) == 320.0


def test_a_product_in_8_bits_runs_at_their_rate() -> None:
    type_ = replace(GPU, rates=(*GPU.rates, ("i8", 800.0)))
    assert rate_of(op("MatMul"), "matmul-i8", type_) == 640.0
    assert rate_of(op("MatMulInteger", dtype=DType.I32), "matmul-i8", type_) == 640.0
    assert rate_of(op("Conv"), "conv-i8", GPU) == 50.0, "that of f32 where there is none of 8 bits"


def chain(*more: Op) -> tuple[Op, ...]:
    """A convolution, its batch norm and activation, then ``more``."""
    return (
        op("Conv", "%c", ("%x", "@w"), flops=1000, kind="conv"),
        op("BatchNormalization", "%n", ("%c", "@s", "@b", "@m", "@v"), flops=8, read=100, write=16, weight=84, kind="norm"),
        op("Relu", "%r", ("%n",), flops=4, read=16, write=16, kind="elementwise"),
        *more,
    )


def test_what_follows_a_convolution_is_fused_into_it() -> None:
    ops = chain(op("Sigmoid", "%o", ("%r",), flops=4, read=16, write=16, kind="elementwise"))
    assert epilogues(ops) == {1: (0,), 2: (0,), 3: (0,)}
    assert body_seconds(ops, FUSED)[1:] == [8 / 100, 4 / 100, 4 / 100]
    assert body_seconds(ops, FUSED)[0] == op_seconds(ops[0], FUSED)
    # Without an efficiency for epilogues nothing is fused.
    assert body_seconds(ops, GPU) == [op_seconds(one, GPU) for one in ops]


def test_a_residual_sum_reads_its_other_operand() -> None:
    ops = chain(
        op("Conv", "%d", ("%r", "@w2"), flops=1000, kind="conv"), op("Add", "%o", ("%d", "%r"), read=32, write=16, flops=4)
    )
    # %r is read twice, so the sum is fused into the second convolution and reads %r: 4 floats.
    assert epilogues(ops) == {1: (0,), 2: (0,), 4: (0,)}
    assert body_seconds(ops, FUSED)[4] == 16 / 10


def test_a_sum_of_two_chains_joins_either_and_reads_the_other() -> None:
    ops = (
        op("Conv", "%a", ("%x", "@w")),
        op("Conv", "%b", ("%x", "@v")),
        op("Add", "%o", ("%a", "%b"), flops=4, read=32, write=16),
    )
    assert epilogues(ops) == {2: (0, 1)}
    assert body_seconds(ops, FUSED)[2] == 16 / 10


def test_what_is_made_larger_is_no_epilogue() -> None:
    """A product's row that is added to each row of a matrix is read again for each."""
    wide = Op("onnx.Add", ("%a", "%m"), (Value("%o", TensorType(DType.F32, (8, 4))),))
    assert epilogues((op("MatMul", "%a", ("%x", "@w")), wide)) == {}


def test_a_value_that_others_read_is_no_epilogue() -> None:
    ops = (op("Conv", "%a", ("%x", "@w")), op("Relu", "%r", ("%a",)), op("Neg", "%q", ("%a",)))
    assert epilogues(ops) == {}
    # Neither is one after an op that nothing is fused into.
    assert epilogues((op("Neg", "%q"), op("Relu", "%r", ("%q",)))) == {}


def test_a_model_output_is_written_so_what_follows_is_no_epilogue() -> None:
    ops = (op("Conv", "%a", ("%x", "@w"), flops=100, kind="conv"), op("Relu", "%r", ("%a",), flops=4, read=16, write=16))
    func = Func("@main", (), (Value("%a", TensorType(DType.F32, (4,))),), ops, attributes())
    assert body_seconds(func.ops, FUSED, ["%a"])[1] == op_seconds(ops[1], FUSED)
