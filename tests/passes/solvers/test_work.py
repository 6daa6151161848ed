"""Counted work: what it adds up to, and what a time limit of the clock does to it."""

from __future__ import annotations

import time

import pytest

from passes.solvers.work import RATES, clock_left, compiled_for, counts, did, is_over, now, unlimited, within
from tests.bench.reproducible import differing


def test_only_work_takes_time() -> None:
    began = now()
    time.sleep(0.01)
    assert now() == began
    did("entry", 1000)
    did("node", 2)
    assert now() - began == pytest.approx(1000 * RATES["entry"] + 2 * RATES["node"])


def test_work_of_no_known_kind_is_refused() -> None:
    before = counts()
    with pytest.raises(KeyError):
        did("sorcery", 1)
    assert counts() == before


def test_behind_a_limit_every_share_of_the_time_is_over_at_once() -> None:
    """Also a share that begins behind it: a search asks for some more seconds again and again."""
    with within(0.0) as limit:
        time.sleep(1e-4)
        assert is_over()
        for _ in range(3):
            ends = now() + 60.0
            assert now() > ends
        assert limit.cut
    assert not is_over()
    ends = now() + 1e-9
    assert now() < ends


def test_a_limit_inside_another_ends_no_later() -> None:
    with within(0.0) as outer:
        time.sleep(1e-4)
        with within(60.0):
            assert is_over()
            now()
    assert outer.cut
    with within(60.0) as outer:
        with within(0.0) as inner:
            time.sleep(1e-4)
            now()
        assert inner.cut
        assert not outer.cut


def test_without_a_limit_there_is_none_inside_either() -> None:
    with within(None) as limit:
        assert clock_left() == float("inf")
        now()
    assert not limit.cut
    with within(0.0) as limit, unlimited():
        began = now()
        assert now() == began
    assert not limit.cut


def test_compilation_is_no_part_of_a_limit() -> None:
    with within(0.001) as outer:
        with within(0.001) as inner:
            time.sleep(0.002)
            compiled_for(10.0)
            assert not is_over()
        assert not is_over()
    assert not outer.cut
    assert not inner.cut


@pytest.mark.slow
def test_a_plan_is_the_same_beside_busy_loops_and_with_a_cold_cache() -> None:
    assert differing("compile zoo:mlp,layers=6,hidden=512,batch=32 -t preset:tag-testbed --objective training")[0] == []
