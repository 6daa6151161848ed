"""Families of training schedules: bubbles and peaks of the literature, random pipelines without deadlock, slow links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.diagnostics import UsageError
from ir.core.module import Action, Schedule
from ir.ops.row_faults import faults
from ir.ops.rows import delay as updates_behind
from ir.ops.rows import shown, unrolled
from passes.costs.learning import InFlight
from passes.costs.memory.stage import StageBytes
from passes.timeline.families import ASYNCHRONOUS, FAMILIES, derived_depths, in_flight, step
from passes.timeline.families.auto import fits
from passes.timeline.families.base import rows_of
from passes.timeline.families.one_f_one_b import in_turn
from passes.timeline.simulate import Event, makespan, run_rows
from passes.timeline.workload import Wire, Workload

FLUSHED = sorted({*FAMILIES} - {*ASYNCHRONOUS})


def chain(forward: list[float], inputs: list[float], weights: list[float], delay: float = 0.0, comm: str = "sum") -> Workload:
    """Stages in a row, whose transfers take ``delay`` each way, half of it at either end."""
    count = len(forward)
    there = [Wire(s, s + 1, delay / 2, delay / 2) for s in range(count - 1)]
    back = [Wire(s + 1, s, delay / 2, delay / 2, made="I", read="I") for s in range(count - 1)]
    both = tuple(i + w for i, w in zip(inputs, weights, strict=True))
    devices = tuple((f"d{s}",) for s in range(count))
    return Workload(tuple(forward), devices, (*there, *back), comm, backward=both, sync=(0.0,) * count, weights=tuple(weights))


def saving(*sizes: int) -> tuple[StageBytes, ...]:
    """What stages hold that save so many bytes of a microbatch in flight, and nothing else."""
    return tuple(StageBytes(saved={("F", "W"): size}) for size in sizes)


def equal(stages: int, forward: float = 1.0, inputs: float = 1.0, weights: float = 1.0) -> Workload:
    return chain([forward] * stages, [inputs] * stages, [weights] * stages)


def chunked(devices: int, each: int, place: str = "loop") -> Workload:
    """``each`` equal stages on each device, which together take F = I = W = 1, dealt out in loops or as a V."""
    stages = devices * each
    on = [s % devices if place == "loop" else min(s, stages - 1 - s) for s in range(stages)]
    load = equal(stages, 1.0 / each, 1.0 / each, 1.0 / each)
    return replace(load, replicas=tuple((f"d{d}",) for d in on))


def placed(family: str, devices: int) -> Workload:
    """Equal stages where the family needs them."""
    return chunked(devices, 1 + (family in ("interleaved", "zb-v")), "v" if family == "zb-v" else "loop")


def spans(load: Workload, schedule: Schedule) -> list[float]:
    """Seconds from the first action to the last, by device."""
    return spans_of(run_rows(load, dict(schedule.rows)))


def spans_of(events: Iterable[Event]) -> list[float]:
    found: dict[str, list[float]] = {}
    for event in events:
        found.setdefault(event.device, []).extend((event.start, event.end))
    return [max(times) - min(times) for times in found.values()]


def peaks(rows: Mapping[str, Sequence[Action]]) -> list[int]:
    """The most stages' microbatches in flight, by device: forward done, last of the backward pass not."""
    found = []
    for row in rows.values():
        flight = most = 0
        for action in row:
            flight += {"F": 1, "W": -1, "B": -1}.get(action.kind, 0)
            most = max(most, flight)
        found.append(most)
    return found


@pytest.mark.parametrize(
    ("devices", "microbatches"),
    [(4, 8), (4, 16), pytest.param(8, 16, marks=pytest.mark.slow), pytest.param(8, 32, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(("weights", "inputs"), [(1.0, 1.0), (0.5, 1.0), (0.5, 1.5)])
def test_bubbles_of_equal_stages_are_those_of_the_literature(
    devices: int, microbatches: int, weights: float, inputs: float
) -> None:
    """From first to last action of the slowest device; W takes no longer than I."""
    work = microbatches * (1.0 + inputs + weights)

    def bubble(family: str) -> float:
        load = equal(devices, 1.0, inputs, weights)
        return max(spans(load, step(load, microbatches, family))) - work

    others = devices - 1
    assert bubble("gpipe") == bubble("1f1b") == others * (1.0 + inputs + weights)
    assert bubble("auto") == others * (1.0 + inputs)
    assert bubble("zb-h1") == others * (1.0 + inputs - weights)
    assert bubble("zb-h2") == others * (1.0 + inputs - 2 * weights)


def test_peaks_of_the_families_of_one_stage_per_device() -> None:
    load = equal(4)
    wanted = {"gpipe": [9] * 4, "1f1b": [4, 3, 2, 1], "auto": [4, 3, 2, 1], "zb-h1": [4] * 4, "zb-h2": [7] * 4}
    assert {family: peaks(dict(step(load, 9, family).rows)) for family in wanted} == wanted


def test_a_v_wastes_little_at_the_memory_of_1f1b() -> None:
    """8 devices, 32 microbatches: 3.5 % of the step, all of it before a device's first pass or behind its last; 1F1B 17.9 %."""
    load = placed("zb-v", 8)
    schedule = step(load, 32, "zb-v")
    assert 1 - 96 / schedule.period <= 0.036
    assert spans(load, schedule) == [96.0] * 8
    assert [peak / 2 for peak in peaks(dict(schedule.rows))] == [8.0] * 8
    assert 1 - 96 / step(equal(8), 32).period == pytest.approx(0.179, abs=1e-3)


@given(
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(FLUSHED),
    st.sampled_from(["sum", "overlap", "duplex"]),
    st.floats(0.0, 2.0),
    st.data(),
)
@settings(deadline=None, max_examples=50)
def test_every_family_does_everything_once_and_ends(
    devices: int, microbatches: int, family: str, comm: str, delay: float, data: st.DataObject
) -> None:
    """Whatever the seconds, the number of microbatches and, of families for any placement, the devices of the stages."""
    load = placed(family, devices) if family in ("interleaved", "zb-v") else equal(data.draw(st.integers(1, 6)))
    count = len(load.compute)
    seconds = [[data.draw(st.floats(0.01, 1.0)) for _ in range(count)] for _ in range(3)]
    on = load.replicas
    if family not in ("interleaved", "zb-v") and data.draw(st.booleans()):
        on = tuple((f"d{data.draw(st.integers(0, devices))}",) for _ in range(count))
    load = replace(chain(*seconds, delay, comm), replicas=on)
    schedule = step(load, microbatches, family)
    assert faults(schedule, load.flow) == []
    rows = dict(schedule.rows)
    split = family.startswith("zb") or family == "auto"
    for stage, (device,) in enumerate(on):
        for kind in ("F", "I", "W") if split else ("F", "B"):
            done = [a.microbatch for a in rows[device] if a.kind == kind and a.stage == stage]
            assert sorted(filter(lambda m: m is not None, done)) == list(range(microbatches)), (stage, kind)  # type: ignore[type-var]
    busy = {device: sum(sum(s[stage] for s in seconds) for stage in range(count) if on[stage] == (device,)) for device in rows}
    assert schedule.period >= microbatches * max(busy.values()) * (1 - 1e-9)


@given(st.integers(1, 6), st.sampled_from(["sum", "overlap", "duplex"]), st.floats(0.0, 2.0), st.data())
@settings(deadline=None, max_examples=20)
def test_auto_ends_whatever_space_its_devices_have(microbatches: int, comm: str, delay: float, data: st.DataObject) -> None:
    """A first stage with space for one microbatch, before others with space for more, among them; replicas too. No family that
    fits is faster."""
    replicas = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    count, each = len(replicas), st.floats(0.01, 1.0)
    load = chain(*([data.draw(each) for _ in range(count)] for _ in range(3)), delay, comm)
    devices = tuple(tuple(f"d{stage}.{one}" for one in range(on)) for stage, on in enumerate(replicas))
    space = tuple((device, data.draw(st.integers(0, 60))) for on in devices for device in on)
    load = replace(load, replicas=devices, holds=saving(*(data.draw(st.integers(0, 20)) for _ in range(count))), memory=space)
    schedule = step(load, microbatches, "auto")
    assert faults(schedule, load.flow) == []
    for family in ("1f1b", "gpipe", "zb-h1", "zb-h2"):
        other = step(load, microbatches, family)
        if fits(
            load, {device: [(a.kind, a.stage, a.microbatch) for a in row if a.kind in "FBIW"] for device, row in other.rows}
        ):
            assert schedule.period <= other.period * 1.01


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "auto"])
def test_stages_that_share_devices_hold_what_their_depths_say(family: str) -> None:
    """Pieces of an any-split: a device comes back to the chain later."""
    load = replace(equal(5), replicas=(("a",), ("b",), ("a",), ("c",), ("b",)))
    schedule = step(load, 12, family)
    assert faults(schedule, load.flow) == []
    late = range(5) if family == "zb-h1" else [0] * 5
    for stage in range(5):
        own = {"r": [action for _, row in schedule.rows for action in row if action.stage == stage]}
        assert peaks(own)[0] <= 5 - stage + late[stage]
    assert schedule.period < 1.35 * 12 * 6, "two devices have two stages; a pass at a time would take 180"


@pytest.mark.parametrize(
    ("load", "family", "message"),
    [
        (equal(4), "interleaved", "needs several stages on each device, as many on all; the plan has 4 on 4"),
        (chunked(2, 3), "zb-v", "needs 2 stages on each device, as many on all; the plan has 6 on 2"),
        (chunked(2, 2), "zb-v", "needs stage 2 on d1; the plan has it on d0"),
        (chunked(2, 2, "v"), "interleaved", "needs stage 2 on d0; the plan has it on d1"),
    ],
)
def test_a_family_of_chunks_refuses_other_placements(load: Workload, family: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"--schedule {family}: error.E31...: {message}"):
        step(load, 4, family)


def test_depths_derived_from_slow_links_reach_the_pace_of_the_stages() -> None:
    """Four equal stages, F = 1, B = 2, transfers of 1.5 beside compute: 1F1B waits for gradients, deeper pipelines do not."""
    load = chain([1.0] * 4, [1.0] * 4, [1.0] * 4, 1.5, "duplex")

    def pace(depths: list[int]) -> float:
        long, short = (makespan(load, rows_of(load, in_turn(load, m, depths, [0] * 4))) for m in (256, 128))
        return (long - short) / 128

    assert (step(load, 256).period - step(load, 128).period) / 128 > 4.0
    derived = derived_depths(load, 256)
    assert pace(derived) == pytest.approx(3.0, rel=0.01)
    assert [pace([*derived[:s], derived[s] - 1, *derived[s + 1 :]]) > 3.0 for s in range(3)] == [True] * 3, "the least"
    assert derived_depths(equal(4), 256) == [4, 3, 2, 1]


def test_resnet50_on_slow_links_is_nearly_as_many_times_as_fast_as_it_has_machines() -> None:
    """PipeDream's four stages of its profile at 10 GB/s, 128 minibatches: the slowest stage would allow 3.98."""
    forward, backward = (0.049013, 0.042085, 0.046059, 0.045331), (0.062246, 0.068589, 0.065438, 0.064658)
    transfers = (0.051380224, 0.0411041792, 0.0205520896)
    there = [Wire(s, s + 1, seconds, 0.0) for s, seconds in enumerate(transfers)]
    back = [Wire(wire.target, wire.source, wire.send, 0.0, made="I", read="I") for wire in there]
    load = replace(equal(4), comm="duplex", compute=forward, backward=backward, wires=(*there, *back), weights=(0.0,) * 4)
    alone = 128 * sum((*forward, *backward))
    assert alone / step(load, 128, "auto").period >= 3.84
    assert alone / step(load, 128).period == pytest.approx(2.51, abs=0.01)


def test_auto_goes_no_deeper_than_memory_has_space() -> None:
    load = replace(
        chain([1.0] * 3, [1.0] * 3, [1.0] * 3, 1.5, "duplex"), holds=saving(10, 10, 10), memory=(("d0", 39), ("d1", 500))
    )
    assert peaks(dict(step(load, 20, "auto").rows))[0] == 3
    assert peaks(dict(step(replace(load, memory=()), 20, "auto").rows))[0] > 3


@pytest.mark.parametrize(
    ("load", "space", "family"),
    [
        (equal(4), None, "zb-h1"),  # as short as zb-h2, which has more in flight
        (equal(4), 40, "zb-h1"),
        (equal(4, weights=0.5), None, "zb-h2"),
        (equal(4, weights=0.5), 69, "zb-h1"),
        (chunked(4, 2, "v"), 80, "zb-v"),
    ],
)
def test_auto_takes_the_shortest_order_that_memory_has_space_for(load: Workload, space: int | None, family: str) -> None:
    devices = dict.fromkeys(name for on in load.replicas for name in on)
    memory = tuple((name, space) for name in devices if space is not None)
    known = replace(load, holds=saving(*(10,) * len(load.compute)), memory=memory)
    assert step(known, 16, "auto").rows == step(load, 16, family).rows
    smaller = replace(known, memory=tuple((name, 10) for name in devices))
    assert step(smaller, 16, "auto").period > step(known, 16, "auto").period


def test_replicas_take_the_microbatches_in_turn() -> None:
    load = Workload(
        (2.0, 1.0),
        (("a", "b"), ("c",)),
        (Wire(0, 1, 0.0, 0.0), Wire(1, 0, 0.0, 0.0, made="I", read="I")),
        backward=(2.0, 1.0),
        sync=(0.5, 0.0),
        weights=(1.0, 0.5),
    )
    for family in sorted({*FLUSHED} - {"interleaved", "zb-v"}):
        schedule = step(load, 6, family)
        assert faults(schedule, load.flow) == []
        rows = dict(schedule.rows)
        assert [a.microbatch for a in rows["a"] if a.kind == "F"] == [0, 2, 4]
        assert [a.microbatch for a in rows["b"] if a.kind == "F"] == [1, 3, 5]
        assert rows["a"][-1] == rows["b"][-1] == Action("U", 0)


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=5),
    st.integers(1, 6),
    st.sampled_from(["sum", "overlap", "duplex"]),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from(ASYNCHRONOUS),
)
@settings(deadline=None, max_examples=30)
def test_steps_without_a_flush_do_everything_once_and_keep_the_pace(
    forward: list[float], microbatches: int, comm: str, delay: float, family: str
) -> None:
    """Two versions at most of ``2bw``, all one update late; of ``pipedream`` as many as are in flight; the last stage none."""
    count = len(forward)
    load = chain(forward, forward, forward, delay, comm)
    load = replace(load, sync=(0.25,) * count, updates=frozenset(range(count)))
    try:
        schedule = step(load, microbatches, family)
    except UsageError:
        assert family == "2bw"
        assert max(derived_depths(replace(load, weights=()), 1000)) > microbatches
        return
    assert faults(schedule, load.flow) == []
    lacks = [updates_behind(row, stage, microbatches) for stage, (_, row) in enumerate(schedule.rows)]
    depths = derived_depths(replace(load, weights=()), 1000)
    assert lacks == ([1] * count if family == "2bw" else [-(-(depth - 1) // microbatches) for depth in depths])
    own = [3 * seconds * microbatches + 0.25 for seconds in forward]
    if comm == "sum" and not delay:
        assert schedule.period == pytest.approx(max(own))
    assert schedule.period >= max(own) * (1 - 1e-9)
    assert schedule.latency >= sum(3 * seconds for seconds in forward)


def test_the_pipeline_stays_full() -> None:
    """4 equal stages, a microbatch a step: 3.5 s a step with the update, where 1F1B with a flush needs 12.5."""
    load = replace(equal(4), sync=(0.5,) * 4)
    assert step(load, 1, "pipedream").period == 3.5
    assert step(load, 1).period == 12.5
    assert step(load, 4, "2bw").period == 12.5
    assert step(load, 4).period == 21.5


@pytest.mark.parametrize("family", ["1f1b", "gpipe", "zb-h1", "zb-h2", *ASYNCHRONOUS])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (3, 2), (4, 4), (4, 9)])
def test_what_the_search_counts_in_flight_is_what_the_rows_have(family: str, stages: int, microbatches: int) -> None:
    if family == "2bw" and microbatches < stages:
        return
    load = equal(stages)
    schedule = step(load, microbatches, family)
    assert peaks(unrolled(schedule, load.flow, shown(schedule))) == [
        *InFlight.of(microbatches, [1] * stages, family).microbatches
    ]


@pytest.mark.parametrize(("family", "devices", "microbatches"), [("interleaved", 2, 8), ("interleaved", 3, 2), ("zb-v", 3, 8)])
def test_what_stages_of_a_device_hold_together_is_what_its_rows_have(family: str, devices: int, microbatches: int) -> None:
    load = placed(family, devices)
    counted = in_flight(load.replicas, microbatches, family, [1] * len(load.replicas)).microbatches
    schedule = step(load, microbatches, family)
    of_device = [
        sum(count for count, on in zip(counted, load.replicas, strict=True) if device in on) for device, _ in schedule.rows
    ]
    assert of_device == peaks(dict(schedule.rows))


def test_what_replicas_have_in_flight() -> None:
    assert InFlight.of(9, [2, 1]).microbatches == (2, 1)
    assert InFlight.of(9, [2, 1], "gpipe").microbatches == (5, 9)
    assert InFlight.of(9, [2, 1], "zb-h1").microbatches == (2, 3)
