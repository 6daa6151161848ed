"""The simulator: exact times by hand, the steady period against the formula, back-pressure, contention, deadlock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.diagnostics import InvalidInput
from ir.core.module import Action, Schedule
from ir.ops.row_faults import faults
from ir.ops.rows import by_turn, unrolled
from passes.partition.decoding.planned import serves_of
from passes.timeline.families import ASYNCHRONOUS, FAMILIES
from passes.timeline.families.base import rows_of as rows_of_step
from passes.timeline.orders import steady_period, stream
from passes.timeline.simulate import DeadlockError, Event, makespan, run_rows, simulate
from passes.timeline.workload import Wire, Workload, largest_load
from tests.ir.ops.test_rows import LONG, flows, rows_of
from tests.passes.staging import chain
from tests.passes.timeline.followed import run_rows_slowly
from tests.passes.timeline.test_families import placed


def workload(compute: list[float], wires: list[Wire], comm: str = "sum") -> Workload:
    return Workload(tuple(compute), tuple((f"d{i}",) for i in range(len(compute))), tuple(wires), comm)


def run(load: Workload, microbatches: int) -> list[Event]:
    return run_rows(load, unrolled(stream(load, 1.0), load.flow, microbatches))


def times(events: list[Event], device: str) -> list[tuple[str, int | None, float, float]]:
    return [(e.action.kind, e.action.microbatch, e.start, e.end) for e in events if e.device == device]


def test_two_stages_by_hand() -> None:
    events = run(workload([2.0, 1.0], [Wire(0, 1, send=0.5, receive=0.25)]), 2)
    assert times(events, "d0") == [("F", 0, 0.0, 2.0), ("send", 0, 2.0, 2.5), ("F", 1, 2.5, 4.5), ("send", 1, 4.5, 5.0)]
    assert times(events, "d1") == [("recv", 0, 2.5, 2.75), ("F", 0, 2.75, 3.75), ("recv", 1, 5.0, 5.25), ("F", 1, 5.25, 6.25)]


def test_a_slow_receiver_holds_the_sender_two_slots_back() -> None:
    events = run(workload([1.0, 10.0], [Wire(0, 1, 0.0, 0.0)]), 4)
    starts = [start for kind, _, start, _ in times(events, "d0") if kind == "F"]
    assert starts == [0.0, 1.0, 11.0, 21.0], "the third compute waits until the receiver is done with the first message"


def test_overlapped_transfers_hide_behind_compute() -> None:
    load = workload([2.0, 2.0], [Wire(0, 1, 1.0, 1.0)], "overlap")
    ends = [e.end for e in run(load, 20) if e.device == "d1" and e.action.kind == "F"]
    assert ends[10] - ends[9] == pytest.approx(2.0)


def test_a_shared_medium_serves_one_transfer_after_another() -> None:
    bus = ((("bus", 3.0),),)
    load = workload([1.0, 1.0, 1.0, 1.0], [Wire(0, 2, 1.0, 0.0, bus), Wire(1, 3, 1.0, 0.0, bus)])
    sends = sorted((e.start, e.device) for e in run(load, 1) if e.action.kind == "send")
    assert sends == [(1.0, "d0"), (4.0, "d1")], "both are ready at 1 s; the bus is busy for 3 s with the first"


def test_replicas_take_turns() -> None:
    load = Workload((4.0, 1.0), (("a", "b"), ("c",)), (Wire(0, 1, 0.0, 0.0),))
    events = run(load, 4)
    assert [m for kind, m, _, _ in times(events, "a") if kind == "F"] == [0, 2]
    assert [m for kind, m, _, _ in times(events, "b") if kind == "F"] == [1, 3]


def test_each_pair_of_replicas_has_buffers_of_its_own() -> None:
    """As the runtime has them: with the sender's two alone, a long sample of one replica would hold up the other."""
    load = Workload((5.0, 10.0), (("a",), ("b", "c")), (Wire(0, 1, 0.25, 0.5),))
    assert largest_load(load) == 5.25
    assert steady_period(load, stream(load, 5.25)) == pytest.approx(5.25)


def test_a_replica_receives_its_next_sample_while_it_computes() -> None:
    load = Workload((4.0, 10.0, 4.0), (("a",), ("b", "c"), ("d",)), (Wire(0, 1, 0.5, 0.5), Wire(1, 2, 4.0, 4.0)), "overlap")
    assert steady_period(load, stream(load, 5.0)) == pytest.approx(largest_load(load)) == pytest.approx(5.0)


def test_stages_of_one_device_do_not_wait_for_what_is_still_on_its_way() -> None:
    """Its compute is busy all the time with both stages; a sample is on its way from one to the other for three periods."""
    wires = (Wire(0, 1, 0.5, 0.5), Wire(1, 2, 4.0, 4.0))
    load = Workload((2.0, 3.0, 2.0), (("a",), ("b",), ("a",)), wires, "duplex")
    assert steady_period(load, stream(load, 4.0)) == pytest.approx(largest_load(load)) == pytest.approx(4.0)


def test_a_medium_is_busy_with_the_turns_that_cross_it() -> None:
    rows = ((("net", 6.0),), ())  # every second sample stays inside a host
    load = Workload((1.0, 1.0), (("a", "b"), ("c", "d")), (Wire(0, 1, 1.0, 1.0, rows),))
    assert largest_load(load) == 3.0
    assert steady_period(load, stream(load, 3.0)) == pytest.approx(3.0)


def test_a_send_before_its_compute_is_a_deadlock_that_is_named() -> None:
    load = workload([1.0, 1.0], [Wire(0, 1, 1.0, 1.0)])
    rows = {"d0": [Action("send", 0, 0, 0), Action("F", 0, 0)], "d1": [Action("recv", 1, 0, 0), Action("F", 1, 0)]}
    with pytest.raises(DeadlockError) as raised:
        run_rows(load, rows)
    assert raised.value.waiting == (
        "send(0, 0, 0) on d0",
        "recv(1, 0, 0) on d1",
    )


def test_a_circle_between_two_devices_is_a_deadlock() -> None:
    load = workload([1.0, 1.0], [Wire(0, 1, 1.0, 1.0), Wire(1, 0, 1.0, 1.0)])
    with pytest.raises(DeadlockError):
        run_rows(load, unrolled(stream_unchecked(load), load.flow, 1))


def stream_unchecked(load: Workload) -> Schedule:
    """The row of each stage, without asking whether it can be run."""
    rows = tuple(
        (
            f"d{s}",
            (
                *(Action("recv", s, 0, c) for c, w in enumerate(load.wires) if w.target == s),
                Action("F", s, 0),
                *(Action("send", s, 0, c) for c, w in enumerate(load.wires) if w.source == s),
            ),
        )
        for s in range(2)
    )
    return Schedule("@s", "stream", rows, periodic=True)


def test_a_module_without_a_schedule_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no schedule to simulate"):
        simulate(chain([0]), 1)


@st.composite
def workloads(draw: st.DrawFn, comm: str) -> Workload:
    count = draw(st.integers(1, 6))
    seconds = st.floats(0.001, 1.0)
    pairs = [(i, i + 1) for i in range(count - 1)]
    if count > 1:
        ends = st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True)
        pairs += [tuple(sorted(pair)) for pair in draw(st.lists(ends, max_size=4))]
    wires = [Wire(a, b, draw(seconds), draw(seconds)) for a, b in sorted(pairs)]
    load = workload([draw(seconds) for _ in range(count)], wires, comm)
    if draw(st.booleans()):  # replicas
        widths = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=count, max_size=count))
        return replace(load, replicas=tuple(tuple(f"d{s}.{r}" for r in range(width)) for s, width in enumerate(widths)))
    return replace(load, replicas=tuple((f"d{draw(st.integers(0, 2 * count))}",) for _ in range(count)))  # some share one


@st.composite
def with_turns(draw: st.DrawFn, load: Workload, seconds: st.SearchStrategy[float]) -> Workload:
    """The workload with seconds of each replica of stages of unlike turns."""

    def each(stage: int) -> tuple[float, ...]:
        of_replica = [draw(seconds) for _ in load.replicas[stage]]
        return by_turn(of_replica, load.serves[stage])

    return replace(
        load,
        paces=tuple(each(stage) for stage in range(len(load.compute))),
        wires=tuple(replace(wire, sends=each(wire.source), receives=each(wire.target)) for wire in load.wires),
    )


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_the_stream_reaches_the_period_of_the_formula(comm: str) -> None:
    @given(workloads(comm))
    @settings(deadline=None, max_examples=10)
    def check(load: Workload) -> None:
        formula = largest_load(load)
        samples = 100
        schedule = stream(load, formula)
        # The last stage may be ahead of the bottleneck until the buffers between them are full, but never behind: the
        # bottleneck works on every sample.
        end = max(event.end for event in run_rows(load, unrolled(schedule, load.flow, samples)))
        whole = samples - samples % max(map(len, load.replicas))  # replicas take samples in turn
        assert whole * formula * (1 - 1e-9) <= end
        assert steady_period(load, schedule) <= formula * (1 + 1e-6)

    check()


@st.composite
def in_turns(draw: st.DrawFn) -> Workload:
    """A chain of stages whose devices have turns in proportion to their speed, of rounds of one length."""
    turns, count = draw(st.integers(4, 24)), draw(st.integers(1, 4))
    replicas, serves, paces = list[tuple[str, ...]](), list[tuple[int, ...]](), list[list[float]]()
    for stage in range(count):
        cuts = draw(st.lists(st.integers(1, turns - 1), max_size=3, unique=True).map(sorted))
        shares = [behind - first for first, behind in pairwise([0, *cuts, turns])]
        least = draw(st.floats(0.5, 1.0))
        replicas.append(tuple(f"d{stage}.{number}" for number in range(len(shares))))
        serves.append(serves_of(shares) or tuple(turn % len(shares) for turn in range(turns)))
        paces.append([least * turns / share for share in shares])
    wires = [
        Wire(a, a + 1, 0.0, 0.0, sends=by_turn([0.05] * len(replicas[a]), serves[a]), receives=(0.05,) * turns)
        for a in range(count - 1)
    ]
    each = tuple(by_turn(pace, own) for pace, own in zip(paces, serves, strict=True))
    load = workload([max(pace) for pace in paces], wires)
    return replace(load, replicas=tuple(replicas), serves=tuple(serves), paces=each)


@given(in_turns())
@settings(deadline=None, max_examples=30)
def test_devices_with_turns_by_their_speed_reach_the_period_of_the_formula(load: Workload) -> None:
    """No device waits for another whose turn it is: buffers hold as many microbatches as there are turns between."""
    formula = largest_load(load)
    schedule = stream(load, formula)
    assert formula <= schedule.period <= formula * 1.001
    turns = len(load.serves[0])
    events = run_rows(load, unrolled(schedule, load.flow, 2 * turns))
    assert max(event.end for event in events) >= 2 * turns * formula * (1 - 1e-9)


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_no_device_does_two_things_at_once_in_a_lane(comm: str) -> None:
    @given(workloads(comm))
    @settings(deadline=None, max_examples=20)
    def check(load: Workload) -> None:
        events = run(load, 5)
        computes = {}
        for event in events:
            if comm == "sum" or event.action.kind == "F":
                assert event.start >= computes.get(event.device, 0.0)
                computes[event.device] = event.end
        assert len(events) == 5 * (len(load.compute) + 2 * len(load.wires))

    check()


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_the_simulator_completes_just_the_rows_that_the_verifier_accepts(data: st.DataObject) -> None:
    flow = data.draw(flows())
    schedule = data.draw(rows_of(flow))
    seconds = st.floats(0.0, 1.0)
    wires = tuple(
        Wire(channel.source, channel.target, data.draw(seconds), data.draw(seconds)) for channel in flow.channels.values()
    )
    compute = tuple(data.draw(seconds) for _ in flow.devices)
    load = Workload(compute, flow.devices, wires, flow.comm, flow.slots, flow.together, serves=flow.serves)
    assert load.flow == flow
    try:
        done = len(run_rows(load, unrolled(schedule, flow, LONG)))
    except DeadlockError:
        done = -1
    assert (done < 0) == bool(faults(schedule, flow))


@st.composite
def steps(draw: st.DrawFn) -> tuple[Workload, int, str]:
    """A training step of any family, of few different seconds, so that much happens at once; links are shared or not."""
    family = draw(st.sampled_from(sorted({*FAMILIES} - {*ASYNCHRONOUS})))
    count, comm = draw(st.integers(1, 4)), draw(st.sampled_from(["sum", "overlap", "duplex"]))
    load = placed(family, count)
    seconds = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0])
    media = st.lists(st.tuples(st.sampled_from(["a", "b"]), seconds), max_size=2, unique_by=lambda one: one[0])
    wires = tuple(
        replace(wire, send=draw(seconds), receive=draw(seconds), media=tuple(map(tuple, draw(st.lists(media, max_size=2)))))
        for wire in load.wires
    )
    times = [tuple(draw(seconds) for _ in load.compute) for _ in range(4)]
    load = replace(load, comm=comm, wires=wires, compute=times[0], backward=times[1], sync=times[2])
    load = replace(load, weights=tuple(both * 0.3 for both in times[1]))
    if family not in ("interleaved", "zb-v") and draw(st.booleans()):
        load = replace(load, replicas=(("m", "n"), *load.replicas[1:]), together=frozenset(draw(st.sets(st.just(0)))))
    return load, draw(st.integers(1, 7)), family


@given(steps())
@settings(deadline=None, max_examples=40)
def test_the_compiled_loop_does_what_its_slow_twin_does(drawn: tuple[Workload, int, str]) -> None:
    load, microbatches, family = drawn
    rows = rows_of_step(load, FAMILIES[family](load, microbatches))
    assert run_rows(load, rows) == run_rows_slowly(load, rows)
    assert makespan(load, rows) == max(event.end for event in run_rows_slowly(load, rows))


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_of_any_rows_of_a_stream_the_twin_says_the_same(data: st.DataObject) -> None:
    """Deadlocks included: the same lanes are stuck."""
    flow = data.draw(flows())
    schedule = data.draw(rows_of(flow))
    seconds = st.sampled_from([0.0, 0.25, 0.1, 1.0])
    wires = tuple(
        Wire(channel.source, channel.target, data.draw(seconds), data.draw(seconds)) for channel in flow.channels.values()
    )
    load = Workload(tuple(data.draw(seconds) for _ in flow.devices), flow.devices, wires, flow.comm, flow.slots, flow.together)
    load = data.draw(with_turns(replace(load, serves=flow.serves), seconds)) if flow.serves else load
    rows = unrolled(schedule, flow, 6)

    def told(run: Callable[[Workload, Mapping[str, Sequence[Action]]], list[Event]]) -> object:
        try:
            return run(load, rows)
        except DeadlockError as error:
            return error.waiting

    assert told(run_rows) == told(run_rows_slowly)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Action("F", 2, 0), r"F\(2, 0\): no such stage"),
        (Action("send", 0, 0, 7), r"send\(0, 0, 7\): no such channel"),
        (Action("B", 0, 0), r"B\(0, 0\): no such stage"),
        (Action("Q", 0, 0), "Q: no such kind"),
    ],
)
def test_actions_of_nothing_that_there_is_are_told(action: Action, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_rows(workload([1.0, 1.0], [Wire(0, 1, 1.0, 1.0)]), {"d0": [action]})


@given(steps(), st.data())
@settings(deadline=None, max_examples=25)
def test_of_a_step_too_the_simulator_completes_just_what_the_verifier_accepts(
    drawn: tuple[Workload, int, str], data: st.DataObject
) -> None:
    load, microbatches, family = drawn
    rows = rows_of_step(load, FAMILIES[family](load, microbatches))
    device = data.draw(st.sampled_from([on for on, row in rows.items() if len(row) > 1 and on not in load.flow.leads]))
    updates = [action for action in rows[device] if action.kind == "U"]
    others = [action for action in rows[device] if action.kind != "U"]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(others) - 1))
        others.insert(data.draw(st.integers(0, len(others) - 1)), others.pop(at))
    rows[device] = (*others, *updates)
    rows |= {other: rows[lead] for other, lead in load.flow.leads.items()}
    found = faults(Schedule("@s", family, tuple(rows.items()), microbatches), load.flow)
    if found:
        assert all("wait for each other in a circle" in fault for fault in found)
        with pytest.raises(DeadlockError):
            run_rows(load, rows)
    else:
        assert len(run_rows(load, rows)) == sum(map(len, rows.values()))
