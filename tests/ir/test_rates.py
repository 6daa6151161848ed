"""Schedules of a learning rate are those of torch.optim.lr_scheduler; their texts parse back or say what is wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from ir.ops.optimizers import RATE
from ir.ops.rates import COSINE, KINDS, LINEAR, STEPS, TABLE, RateSchedule

FRACTIONS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9])


@st.composite
def schedules(draw: st.DrawFn) -> RateSchedule:
    warmup, start = draw(st.integers(0, 6)), draw(FRACTIONS)
    kind = draw(st.sampled_from(["constant", LINEAR, COSINE, STEPS]))
    numbers: dict[str, Any] = {}
    if kind in (LINEAR, COSINE):
        numbers = {"steps": warmup + draw(st.integers(1, 9)), "end": draw(FRACTIONS)}
    elif kind == STEPS:
        numbers = {"every": draw(st.integers(1, 4)), "factor": draw(FRACTIONS)}
    return RateSchedule(kind, warmup, start, **numbers)


def op_of(schedule: RateSchedule) -> Op:
    return Op(RATE, ("%step",), (Value("%rate", TensorType(DType.F64, ())),), schedule.attributes())


@given(schedules())
def test_texts_and_ops_say_the_schedule(schedule: RateSchedule) -> None:
    assert schedule.fault() == ""
    assert RateSchedule.parse(schedule.text) == schedule
    assert RateSchedule.of(op_of(schedule)) == schedule


def test_a_table_is_an_op_too() -> None:
    schedule = RateSchedule(TABLE, values=(1.0, 1 / 3, 0.1))
    assert RateSchedule.of(op_of(schedule)) == schedule
    assert [schedule.at(done) for done in range(5)] == [1.0, 1 / 3, 0.1, 0.1, 0.1]


@settings(max_examples=40)
@given(schedules())
def test_factors_are_those_of_torch(schedule: RateSchedule) -> None:
    """Up to ``steps``: behind them torch's cosine rises again."""
    torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
    rates, rate = torch.optim.lr_scheduler, 0.3
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=rate)
    span = schedule.steps - schedule.warmup
    main = {
        "constant": lambda: rates.ConstantLR(optimizer, 1.0),
        LINEAR: lambda: rates.LinearLR(optimizer, 1.0, schedule.end, span),
        COSINE: lambda: rates.CosineAnnealingLR(optimizer, span, schedule.end * rate),
        STEPS: lambda: rates.StepLR(optimizer, schedule.every, schedule.factor),
    }[schedule.kind]()
    scheduler = main
    if schedule.warmup:  # LinearLR does not begin at 0
        start, length = schedule.start, schedule.warmup
        first = rates.LambdaLR(optimizer, lambda k: start + (1 - start) * min(1.0, k / length))
        scheduler = rates.SequentialLR(optimizer, [first, main], [length])
    for done in range(schedule.steps or schedule.warmup + 8):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate * schedule.at(done), rel=1e-9, abs=1e-12)
        optimizer.step()
        scheduler.step()


@given(schedules(), st.integers(0, 30))
def test_programs_compute_the_factors_of_the_schedule(schedule: RateSchedule, done: int) -> None:
    """The helper that a program's text calls has the formula again, since a program imports nothing of this package. It takes
    the number of the step, from 1."""
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    from dnnc.engines.torch.statements.update_helpers import learning_rate_factor

    numbers = {name: getattr(schedule, name) for name in KINDS[schedule.kind]}
    assert learning_rate_factor(done + 1, schedule.kind, **numbers) == pytest.approx(schedule.at(done), rel=1e-12, abs=1e-15)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5).map(tuple), st.integers(0, 9))
def test_programs_read_the_table_of_the_schedule(values: tuple[float, ...], done: int) -> None:
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    from dnnc.engines.torch.statements.update_helpers import table_rate

    assert table_rate(done + 1, values) == RateSchedule(TABLE, values=values).at(done)


@pytest.mark.parametrize("schedule", [RateSchedule(COSINE, 3, 0.1, 9, 0.2), RateSchedule(LINEAR, 0, 0.0, 9, 0.5)])
def test_the_last_factor_stays(schedule: RateSchedule) -> None:
    assert schedule.at(9) == schedule.at(1000) == pytest.approx(schedule.end)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cosin", "a schedule is constant, linear, cosine or step, not 'cosin'"),
        ("table", "a schedule is constant, linear, cosine or step, not 'table'"),
        ("cosine", "steps is at least 1, not 0"),
        ("cosine,steps=10,warmup=10", "steps is more than warmup=10, which it includes, not 10"),
        ("cosine,steps=ten", "steps is an integer, not 'ten'"),
        ("cosine,steps=1.5", "steps is an integer, not '1.5'"),
        ("cosine,steps=5,end=nan", "end is a finite number of at least 0, not nan"),
        ("cosine,steps=5,steps=6", "steps is given twice"),
        ("cosine,every=5", "cosine takes steps=NUMBER, end=NUMBER, warmup=NUMBER, start=NUMBER, not 'every=5'"),
        ("linear,steps", "linear takes steps=NUMBER, end=NUMBER, warmup=NUMBER, start=NUMBER, not 'steps'"),
        ("step,factor=0.5", "every is at least 1 step, not 0"),
        ("constant,warmup=-1", "warmup is at least 0 steps, not -1"),
        ("step,every=2,factor=-1", "factor is a finite number of at least 0, not -1"),
    ],
)
def test_what_is_no_schedule(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        RateSchedule.parse(text)
