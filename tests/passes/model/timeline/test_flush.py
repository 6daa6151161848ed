"""Families of training schedules: makespans and peaks of the literature, random pipelines without deadlock, slow links."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.module import Action, Schedule
from ir.row_faults import faults
from passes.model.timeline.flush import FAMILIES, derived_depths, step
from passes.model.timeline.workload import Wire, Workload


def chain(forward: list[float], inputs: list[float], weights: list[float], delay: float = 0.0, comm: str = "sum") -> Workload:
    """Stages in a row, whose transfers take ``delay`` each way, half of it at either end."""
    count = len(forward)
    there = [Wire(s, s + 1, delay / 2, delay / 2) for s in range(count - 1)]
    back = [Wire(s + 1, s, delay / 2, delay / 2, made="I", read="I") for s in range(count - 1)]
    both = tuple(i + w for i, w in zip(inputs, weights, strict=True))
    devices = tuple((f"d{s}",) for s in range(count))
    return Workload(tuple(forward), devices, (*there, *back), comm, backward=both, sync=(0.0,) * count, weights=tuple(weights))


def equal(stages: int, forward: float = 1.0, inputs: float = 1.0, weights: float = 1.0) -> Workload:
    return chain([forward] * stages, [inputs] * stages, [weights] * stages)


def peaks(schedule: Schedule) -> list[int]:
    """The most microbatches in flight, by device: forward done, last of the backward pass not."""
    found = []
    for _, row in schedule.rows:
        split = any(action.kind == "W" for action in row)
        flight = most = 0
        for action in row:
            flight += {"F": 1, "W" if split else "B": -1}.get(action.kind, 0)
            most = max(most, flight)
        found.append(most)
    return found


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (4, 16), (8, 16), (8, 32)])
def test_known_makespans(stages: int, microbatches: int) -> None:
    """F = I = W = 1: bubbles of (p-1)(F+B) for GPipe and 1F1B, of (p-1)(F+I-W) for ZB-H1 (Qi et al., table 2). No step takes
    less than what the last stage waits for its first microbatch and then does."""
    load = equal(stages)
    ideal = 3.0 * microbatches
    bubble = {name: step(load, microbatches, name).period - ideal for name in FAMILIES}
    assert bubble["gpipe"] == bubble["1f1b"] == bubble["auto"] == 3.0 * (stages - 1)
    assert bubble["zb-h1"] == bubble["zb-h2"] == 1.0 * (stages - 1)
    assert peaks(step(load, microbatches, "gpipe")) == [microbatches] * stages
    assert peaks(step(load, microbatches, "1f1b")) == [min(microbatches, stages - s) for s in range(stages)]
    assert peaks(step(load, microbatches, "zb-h1")) == [stages] * stages
    assert peaks(step(load, microbatches, "zb-h2")) == [min(microbatches, 2 * stages - 1)] * stages


def test_where_weights_take_half_as_long_zb_h2_leaves_the_bubble_that_zb_h1_has() -> None:
    load = equal(4, weights=0.5)
    spans = {name: step(load, 16, name).period - 2.5 * 16 for name in ("1f1b", "zb-h1", "zb-h2")}
    assert spans == {"1f1b": 3 * 2.5, "zb-h1": 3 * 1.5, "zb-h2": 3 * 1.0}


@given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n)] * 3)),
    st.integers(1, 9),
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from(["sum", "overlap", "duplex"]),
    st.floats(0.0, 2.0),
)
@settings(deadline=None, max_examples=200)
def test_every_family_does_everything_once_and_ends(
    times: tuple[list[float], ...], microbatches: int, family: str, comm: str, delay: float
) -> None:
    load = chain(*times, delay, comm)
    schedule = step(load, microbatches, family)
    assert faults(schedule, load.flow) == []
    kinds = ("F", "I", "W") if family.startswith("zb") else ("F", "B")
    for stage, (_, row) in enumerate(schedule.rows):
        for kind in kinds:
            assert [a.microbatch for a in row if a.kind == kind] == list(range(microbatches)), (stage, kind)
    busiest = max(f + i + w for f, i, w in zip(*times, strict=True))
    assert schedule.period >= microbatches * busiest * (1 - 1e-9)


def test_depths_derived_from_slow_links_reach_the_pace_of_the_stages() -> None:
    """Four equal stages, F = 1, B = 2, transfers of 1.5 beside compute: 1F1B waits for gradients, deeper pipelines do not."""
    load = chain([1.0] * 4, [1.0] * 4, [1.0] * 4, 1.5, "duplex")

    def pace(family: str) -> float:
        return (step(load, 256, family).period - step(load, 128, family).period) / 128

    assert pace("1f1b") > 4.0
    assert pace("auto") == pytest.approx(3.0, rel=0.01)
    assert derived_depths(load, 256) > [4, 3, 2, 1]
    assert derived_depths(equal(4), 256) == [4, 3, 2, 1]


def test_replicas_take_the_microbatches_in_turn() -> None:
    load = Workload(
        (2.0, 1.0),
        (("a", "b"), ("c",)),
        (Wire(0, 1, 0.0, 0.0), Wire(1, 0, 0.0, 0.0, made="I", read="I")),
        backward=(2.0, 1.0),
        sync=(0.5, 0.0),
        weights=(1.0, 0.5),
    )
    for family in FAMILIES:
        schedule = step(load, 6, family)
        assert faults(schedule, load.flow) == []
        rows = dict(schedule.rows)
        assert [a.microbatch for a in rows["a"] if a.kind == "F"] == [0, 2, 4]
        assert [a.microbatch for a in rows["b"] if a.kind == "F"] == [1, 3, 5]
        assert rows["a"][-1] == rows["b"][-1] == Action("U", 0)
