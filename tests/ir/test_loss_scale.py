"""The scale of a loss: its text, and what its op refuses."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ir
from ir.core.attributes import Attributes
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from ir.ops.loss_scale import DYNAMIC, LOSS_SCALE, LOSS_SCALE_OP, LossScale, moved_by

FLOAT, NUMBER, FLAG = TensorType(DType.F32, ()), TensorType(DType.I64, ()), TensorType(DType.BOOL, ())
SCALES = st.builds(
    LossScale, st.floats(1e-3, 1e30), st.floats(1.01, 64.0), st.floats(0.01, 0.99), st.integers(min_value=1, max_value=1 << 20)
)


@given(SCALES)
def test_texts_parse_back(scale: LossScale) -> None:
    assert LossScale.parse(scale.text) == scale


def test_the_defaults_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
    scaler, scale = torch.amp.GradScaler("cpu"), LossScale.parse(DYNAMIC)
    assert (scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (
        *(scale.init, scale.growth, scale.backoff),
        scale.interval,
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("static", "a loss scale is dynamic, or init=NUMBER, growth=NUMBER, backoff=NUMBER, interval=NUMBER, not 'static'"),
        ("init=2,init=3", "init is given twice"),
        ("init=many", "init is a number, not 'many'"),
        ("interval=0.5", "interval is an integer, not '0.5'"),
        ("init=inf", "init is a finite number of more than 0, not inf"),
        ("growth=1", "growth is a finite number of more than 1, not 1"),
        ("backoff=1", "backoff is more than 0 and less than 1, not 1"),
        ("interval=0", "interval is at least 1 step, not 0"),
    ],
)
def test_texts_that_are_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        LossScale.parse(text)


def op_of(fields: Attributes, kinds: tuple[TensorType, ...] = (FLOAT, NUMBER, NUMBER, FLAG)) -> Op:
    results = tuple(Value(f"%r{place}", kind) for place, kind in enumerate(kinds))
    return Op(LOSS_SCALE, ("@s", "@n", "@k", "%q"), results, fields)


def test_numbers_and_types_of_the_op() -> None:
    right = op_of(ir.attributes(LossScale(growth=1.1, backoff=0.1, interval=3).attributes()))
    assert moved_by(right) == (1.1, 0.1, 3)
    assert LOSS_SCALE_OP.check is not None
    assert LOSS_SCALE_OP.typed is not None
    assert not [*LOSS_SCALE_OP.check(right), *LOSS_SCALE_OP.typed(right, (FLOAT, NUMBER, NUMBER, FLOAT))]
    told = [*LOSS_SCALE_OP.check(op_of(ir.attributes(growth=0.5, backoff=0.5, interval=1)))]
    assert told == ["grad.loss_scale: growth is a finite number of more than 1, not 0.5"]
    wrong = LOSS_SCALE_OP.typed(op_of(right.attributes, (FLOAT, NUMBER, FLOAT, FLAG)), (FLOAT, FLOAT, NUMBER, FLAG))
    assert [text.partition(", not")[0] for text in wrong] == [
        "grad.loss_scale takes a scalar of floats",
        "grad.loss_scale counts steps as tensor<i64>",
        "grad.loss_scale gives tensor<i64>",
    ]
