"""Hand-over between stages is paid by every stage of several, and by none that is alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir import Builder
from ir.core.facets import Cost, StageSet
from ir.core.module import Module, Plan
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import DType, TensorType
from passes.framework.base import PassContext
from passes.partition.place import PlacePass
from passes.reference.reference_pass import ReferencePass


def _chain(flops: tuple[int, ...], handover: tuple[float, ...]) -> Module:
    """A chain of ops, and a device for each hand-over, of one type where that is alike, at 1 Gflop/s, a microsecond apart."""
    builder = Builder("@m")
    with builder.func("main") as func:
        x = func.arg("x", TensorType(DType.F32, (8,)))
        for _ in flops:
            x = func.op("onnx.Relu", (x,), TensorType(DType.F32, (8,)))
        func.result(x)
    module = builder.build()
    entry = module.entry
    ops = tuple(op.with_facets(Cost(flops=count, kind="k")) for op, count in zip(entry.ops, flops, strict=True))
    numbers = {seconds: i for i, seconds in enumerate(dict.fromkeys(handover))}
    types = tuple(DeviceType(f"t{i}", rates=(("f32", 1e9),), handover=seconds) for seconds, i in numbers.items())
    devices = tuple(Device(f"d{i}", f"t{numbers[seconds]}", "host") for i, seconds in enumerate(handover))
    link = Link("bus", ("host", *(device.name for device in devices)), 1e9, 1e-6)
    topology = Topology("@topology", types, (Host("host"),), devices, links=(link,))
    return replace(module.replace(entry, replace(entry, ops=ops)), symbols=()).extend([replace(entry, ops=ops), topology])


def _plan(module: Module, **options: object) -> Plan:
    context = PassContext()
    placed = PlacePass().run(ReferencePass(**options).run(module, context), context)  # type: ignore[arg-type]
    plan = placed.first(Plan)
    assert plan is not None
    assert {s for op in placed.entry.ops for s in op.facet(StageSet, StageSet(())).stages} == set(range(len(plan.stages)))
    return plan


def test_a_small_model_stays_on_one_device() -> None:
    flops = (100_000, 100_000)
    free = _plan(_chain(flops, (0.0, 0.0)))
    assert len(free.stages) == 2
    paid = _plan(_chain(flops, (150e-6, 150e-6)))
    assert (len(paid.stages), paid.value, paid.status) == (1, pytest.approx(200e-6), "optimal")


def test_a_large_model_is_split_and_pays() -> None:
    flops = (10_000_000, 10_000_000)
    free, paid = (_plan(_chain(flops, (seconds, seconds))) for seconds in (0.0, 150e-6))
    assert len(paid.stages) == 2
    assert paid.value == pytest.approx(free.value + 150e-6)
    assert (paid.status, paid.single) == ("optimal", free.single)


@pytest.mark.parametrize(
    "options",
    [{"pins": ("v0=d0",)}, {"pins": ("v0=d0", "v1=d0")}, {"split": "any", "pins": ("v0=d0",)}, {"stages": 1}, {"replicas": 2}],
)
def test_one_stage_is_considered_whatever_is_asked(options: dict[str, object]) -> None:
    """Without hand-over the better plan has two stages, with it one, on the device that is pinned."""
    module = _chain((100_000, 100_000), (150e-6, 150e-6))
    plan = _plan(module, **{**options, **({"pins": _named(module, options["pins"])} if "pins" in options else {})})
    assert (len(plan.stages), plan.status) == (1, "optimal")
    replicas = plan.stages[0].replicas
    assert plan.value == pytest.approx((200e-6 + (150e-6 if replicas > 1 else 0.0)) / replicas)


def test_a_small_model_stays_whole() -> None:
    """Two replicas take half of its 100 us each, and half of 150 us of hand-over."""
    small, larger = (_plan(_chain((flops,), (150e-6, 150e-6)), replicas=2) for flops in (100_000, 200_000))
    assert [stage.replicas for plan in (small, larger) for stage in plan.stages] == [1, 2]
    assert (small.value, larger.value) == (pytest.approx(100e-6), pytest.approx(175e-6))
    assert (small.status, larger.status) == ("optimal", "optimal")


def test_several_stages_stay_where_pins_or_cuts_part_them() -> None:
    module = _chain((100_000, 100_000), (150e-6, 150e-6))
    for options in ({"pins": _named(module, ("v0=d0", "v1=d1"))}, {"cuts": (module.entry.ops[0].results[0].name,)}):
        plan = _plan(module, **options)
        assert (len(plan.stages), plan.status) == (2, "optimal")


def test_replicas_hand_over_in_turns() -> None:
    """Of two stages on three devices the longer one runs on two, each woken every other time."""
    plan = _plan(_chain((100_000, 200_000), (150e-6, 150e-6, 150e-6)), replicas=2, stages=2)
    assert [stage.replicas for stage in plan.stages] == [1, 2]
    assert (plan.value, plan.status) == (pytest.approx(max(100e-6 + 150e-6, (200e-6 + 150e-6) / 2) + 1.032e-6), "optimal")


def _named(module: Module, pins: object) -> tuple[str, ...]:
    """Pins of the first and second op, which are called v0 and v1."""
    assert isinstance(pins, tuple)
    names = {f"v{i}": op.id for i, op in enumerate(module.entry.ops)}
    return tuple(f"{names[pin.partition('=')[0]]}={pin.partition('=')[2]}" for pin in pins)


def test_stages_that_were_asked_for_are_kept() -> None:
    plan = _plan(_chain((100_000, 100_000), (150e-6, 150e-6)), stages=2)
    assert len(plan.stages) == 2
    assert plan.value > plan.single


@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=5),
    st.lists(st.integers(0, 300), min_size=2, max_size=2),
    st.sampled_from(["sum", "overlap", "duplex"]),
)
def test_no_split_beats_the_bound(flops: list[int], handover: list[int], comm: str) -> None:
    """Against every way to cut the chain in two, on either order of the devices."""
    module = _chain(tuple(1000 * count for count in flops), tuple(seconds * 1e-6 for seconds in handover))
    plan = _plan(module, comm=comm)
    tensor = 1e-6 + 32 / 1e9
    best = plan.single
    for cut in range(1, len(flops)):
        for first, second in (handover, handover[::-1]):
            loads = []
            for own, paid in ((flops[:cut], first), (flops[cut:], second)):
                compute = sum(own) * 1e-6 + paid * 1e-6
                loads.append(compute + tensor if comm == "sum" else max(compute, tensor))
            best = min(best, max(loads))
    assert plan.bound <= best * (1 + 1e-9)
    assert plan.value >= best * (1 - 1e-9)
    if handover[0] == handover[1] and comm == "sum":
        assert plan.value == pytest.approx(best)
