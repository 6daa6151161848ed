"""Rows without seconds: the graph of one period says just when a run of any length deadlocks (slow twin: run it)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ir.core.module import Action, Schedule
from ir.ops.row_faults import faults
from ir.ops.rows import BACKWARD, COMPUTE, INPUT_GRADIENT, Channel, Flow, Places, delay, edge_slots, lanes, unrolled

LONG = 40
"""Microbatches of a run in which every small deadlock shows."""


def left_over(schedule: Schedule, flow: Flow, microbatches: int) -> list[Action]:
    """What a run of the rows, one action after the other as long as any can go on, does not come to."""
    queues = [
        lane
        for device, actions in unrolled(schedule, flow, microbatches).items()
        if device not in flow.leads
        for lane in lanes(actions, flow.comm)
    ]
    done: set[Action] = set()
    while ready := [queue for queue in queues if queue and all(action in done for action in flow.needs(queue[0]))]:
        for queue in ready:
            done.add(queue.pop(0))
    return [action for queue in queues for action in queue]


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    """Up to four stages with channels between them: devices of their own, replicas, meshes, or shared by several stages."""
    count = draw(st.integers(1, 4))
    devices: list[tuple[str, ...]] = []
    together = set()
    for stage in range(count):
        how = draw(st.sampled_from(["own", "shared", "replicas", "mesh"]))
        others = [on for number, on in enumerate(devices) if number not in together]
        if how == "shared" and others:
            devices.append(draw(st.sampled_from(others)))
            continue
        devices.append(tuple(f"d{stage}.{n}" for n in range(draw(st.integers(2, 3)) if how in ("replicas", "mesh") else 1)))
        together |= {stage} if how == "mesh" else set()
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=5)) if pairs else []
    channels = {number: Channel(*pair) for number, pair in enumerate(sorted(chosen))}
    comm = draw(st.sampled_from(["sum", "sum", "overlap", "duplex"]))
    serves = draw(turns_of(devices, together)) if draw(st.booleans()) else ()
    return Flow(tuple(devices), channels, comm, draw(st.integers(1, 3)), frozenset(together), serves=serves)


@st.composite
def turns_of(draw: st.DrawFn, devices: Sequence[tuple[str, ...]], together: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """The replica of each turn of each stage; none of a mesh, and of devices of several stages."""
    found = []
    for stage, on in enumerate(devices):
        shared = any(set(on) & set(other) for other in (*devices[:stage], *devices[stage + 1 :]))
        if shared or stage in together or draw(st.booleans()):
            found.append(())
            continue
        more = draw(st.lists(st.integers(0, len(on) - 1), max_size=3))
        found.append(tuple(draw(st.permutations([*range(len(on)), *more]))))
    return tuple(found)


@st.composite
def rows_of(draw: st.DrawFn, flow: Flow) -> Schedule:
    """Any order of the right actions, with any small offsets."""
    rows: dict[str, list[Action]] = {}
    for stage, on in enumerate(flow.devices):
        base = draw(st.integers(0, 3))
        own = [Action(kind, stage, base + draw(st.integers(-1, 1)), channel) for kind, channel in flow.actions(stage)]
        for device in on:
            rows.setdefault(device, []).extend(own)
    mixed = draw(st.booleans())
    for device, actions in rows.items():
        if mixed and device not in flow.leads:
            rows[device] = draw(st.permutations(actions))
    rows |= {other: rows[lead] for other, lead in flow.leads.items()}
    return Schedule("@s", "stream", tuple((d, tuple(a)) for d, a in rows.items()), periodic=True, slots=flow.slots)


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_a_deadlock_is_found_just_where_a_long_run_has_one(data: st.DataObject) -> None:
    flow = data.draw(flows())
    schedule = data.draw(rows_of(flow))
    found = faults(schedule, flow)
    event("deadlock" if found else "runs")
    assert bool(left_over(schedule, flow, LONG)) == bool(found)
    if not found:
        for microbatches in (1, 2, 3):
            assert not left_over(schedule, flow, microbatches), "what runs for ever runs for a while"


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_an_action_that_lacks_or_stands_twice_is_named(data: st.DataObject) -> None:
    flow = data.draw(flows())
    schedule = data.draw(rows_of(flow))
    rows = [(device, list(actions)) for device, actions in schedule.rows]
    device, actions = data.draw(st.sampled_from(rows))
    position = data.draw(st.integers(0, len(actions) - 1))
    action = actions.pop(position)
    assert any(
        f"'{device}' lacks {action.kind} of stage {action.stage}" in fault for fault in faults(_with(schedule, rows), flow)
    )
    actions += [action, replace(action, microbatch=(action.microbatch or 0) + 1)]
    assert any(
        f"'{device}' has {action.kind} of stage {action.stage}" in fault for fault in faults(_with(schedule, rows), flow)
    )


def _with(schedule: Schedule, rows: list[tuple[str, list[Action]]]) -> Schedule:
    return replace(schedule, rows=tuple((device, tuple(actions)) for device, actions in rows))


def two(*rows: tuple[str, list[Action]], **more: object) -> Iterator[str]:
    flow = Flow((("a",), ("b",)), {0: Channel(0, 1)})
    yield from faults(replace(_with(Schedule("@s", "stream", (), periodic=True), list(rows)), **more), flow)  # type: ignore[arg-type]


def test_what_does_not_belong_into_a_row_is_named() -> None:
    first, second = ("a", [Action("F", 0, 0), Action("send", 0, 0, 0)]), ("b", [Action("recv", 1, 0, 0), Action("F", 1, 0)])
    assert not list(two(first, second))
    assert list(two(("a", [*first[1], Action("F", 7, 0)]), second)) == ["the row of 'a' has F(7, 0), but there is no stage 7"]
    assert list(two(("a", [*first[1], Action("F", 1, 0)]), second)) == ["the row of 'a' has F(1, 0), but stage 1 is on b"]
    assert list(two(("a", [*first[1], Action("recv", 0, 0, 0)]), second)) == [
        "the row of 'a' has recv(0, 0, 0), which stage 0 does not do; it does F, send of channel 0"
    ]
    assert list(two(first, ("b", [Action("recv", 1, None, 0), second[1][1]]))) == [
        "the row of 'b' has recv(1, _, 0) without a microbatch"
    ]


def test_a_device_is_one_replica_of_a_stage() -> None:
    """It would have to take every turn, in one row."""
    flow = Flow((("a",), ("b", "b")), {0: Channel(0, 1)})
    first, second = ("a", [Action("F", 0, 0), Action("send", 0, 0, 0)]), ("b", [Action("recv", 1, 0, 0), Action("F", 1, 0)])
    schedule = _with(Schedule("@s", "stream", (), periodic=True), [first, second])
    assert faults(schedule, flow) == ["stage 1 has 'b' 2 times"]


def test_rows_that_are_not_periodic_hold_every_microbatch_once() -> None:
    made = [Action(kind, 0, m, c) for m in range(2) for kind, c in (("F", None), ("send", 0))]
    read = [Action(kind, 1, m, c) for m in range(2) for kind, c in (("recv", 0), ("F", None))]
    assert not list(two(("a", made), ("b", read), periodic=False, microbatches=2))
    assert list(two(("a", made[:-1]), ("b", read), periodic=False, microbatches=2)) == [
        "the row of 'a' lacks send of stage 0 for channel 0 and microbatch 1"
    ]
    turned = [made[1], made[0], *made[2:]]
    assert list(two(("a", turned), ("b", read), periodic=False, microbatches=2)) == [
        "the rows wait for each other in a circle: on a, F(0, 0) stands behind send(0, 0, 0), which waits for F(0, 0)"
    ]


def test_many_stages_are_followed_in_little_time() -> None:
    """A thousand stages, of which several share a device: paths are found at the first visit of each action."""
    count = 1000
    devices = tuple((f"d{stage % 250}",) for stage in range(count))
    flow = Flow(devices, {stage: Channel(stage, stage + 1) for stage in range(count - 1)})
    rows: dict[str, list[Action]] = {}
    for stage, (device,) in enumerate(devices):
        own = [Action(kind, stage, count - stage, channel) for kind, channel in flow.actions(stage)]
        rows.setdefault(device, []).extend(own)
    schedule = Schedule("@s", "stream", tuple((d, tuple(a)) for d, a in rows.items()), periodic=True)
    assert faults(schedule, flow) == []


def test_replicas_that_rarely_meet_are_followed_in_little_time() -> None:
    """Widths without a common divisor: all replicas are back at their first turn after 9,699,690 microbatches."""
    widths = (2, 3, 5, 7, 11, 13, 17, 19)
    devices = tuple(tuple(f"d{stage}.{n}" for n in range(width)) for stage, width in enumerate(widths))
    flow = Flow(devices, {stage: Channel(stage, stage + 1) for stage in range(len(widths) - 1)})
    rows = {
        device: [Action(kind, stage, len(widths) - stage, channel) for kind, channel in flow.actions(stage)]
        for stage, on in enumerate(devices)
        for device in on
    }
    schedule = _with(Schedule("@s", "stream", (), periodic=True), list(rows.items()))
    assert faults(schedule, flow) == []
    for stage in range(len(widths)):
        rows[devices[stage][1]].reverse()
    (fault,) = faults(_with(schedule, list(rows.items())), flow)
    assert "rows of replicas differ and meet again after 9699690 microbatches" in fault


def test_an_edge_that_passes_over_stages_has_more_buffers() -> None:
    assert [edge_slots("sum", 0, target) for target in (1, 2, 4)] == [2, 3, 5]
    assert [edge_slots("duplex", 0, target) for target in (1, 2)] == [4, 7]


@st.composite
def endless(draw: st.DrawFn) -> tuple[Schedule, Flow]:
    """Rows of training without a flush, of a chain of stages, some of which return no gradients: 1F1B of some depths, in which
    some actions are moved, or come a period earlier or later."""
    count, every = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    learns = [draw(st.integers(0, 3)) > 0 for _ in range(count - 1)]
    channels = [Channel(s, s + 1) for s in range(count - 1)]
    channels += [Channel(s + 1, s, INPUT_GRADIENT, INPUT_GRADIENT) for s in range(count - 1) if learns[s]]
    comm = draw(st.sampled_from(["sum", "overlap", "duplex"]))
    devices = tuple((f"d{s}",) for s in range(count))
    flow = Flow(devices, dict(enumerate(channels)), comm, training=True, updates=frozenset(range(count)))
    rows = []
    for stage in range(count):
        depth, row = draw(st.integers(1, 4)), list[Action]()
        for number in range(every):
            for kind, own in ((BACKWARD, number), (COMPUTE, number + depth)):
                reads = [c for c in flow.received.get(stage, ()) if flow.does(flow.channels[c].read, stage) == kind]
                makes = [c for c in flow.sent.get(stage, ()) if flow.does(flow.channels[c].made, stage) == kind]
                row += [Action("recv", stage, own, c) for c in reads] + [Action(kind, stage, own)]
                row += [Action("send", stage, own, c) for c in makes]
        row.insert(len(row) - draw(st.integers(0, 1)), Action("U", stage, every - 1 + every * (draw(st.integers(0, 9)) // 9)))
        for _ in range(draw(st.integers(0, 3)) // 3):
            row.insert(draw(st.integers(0, len(row) - 1)), row.pop(draw(st.integers(0, len(row) - 1))))
        for _ in range(draw(st.integers(0, 3)) // 3):
            at = draw(st.integers(0, len(row) - 1))
            row[at] = replace(row[at], microbatch=(row[at].microbatch or 0) + every * draw(st.sampled_from([-1, 1])))
        rows.append((f"d{stage}", tuple(row)))
    return Schedule("@s", "pipedream", tuple(rows), microbatches=every, periodic=True), flow


@given(endless())
@settings(deadline=None, max_examples=75)
def test_rows_without_a_flush_are_followed_just_where_nothing_is_wrong_with_them(given: tuple[Schedule, Flow]) -> None:
    schedule, flow = given
    found, steps = faults(schedule, flow), 12
    misplaced = False
    for stage, (_, row) in enumerate(schedule.rows):
        did = [(a.kind, (a.microbatch or 0) // schedule.microbatches) for a in done_of(schedule, flow, stage, steps)]
        misplaced |= any(did[at + 1 :].count(("B", step)) for at, (kind, step) in enumerate(did) if kind == "U")
        misplaced |= any(
            step > did[:at].count(("U", step - 1)) * step for at, (kind, step) in enumerate(did) if kind == "B" and step
        )
        first = [did[: did.index(("F", step))] for step in range(steps)]
        lacks = [step - sum(kind == "U" for kind, _ in before) for step, before in enumerate(first)]
        assert max(0, lacks[steps // 2]) == delay(row, stage, schedule.microbatches)
    event("misplaced" if misplaced else "circle" if found else "runs")
    assert misplaced == any("wrong side" in fault for fault in found)
    if not misplaced:
        assert bool(left_over(schedule, flow, steps * schedule.microbatches)) == bool(found)


def done_of(schedule: Schedule, flow: Flow, stage: int, steps: int) -> list[Action]:
    """The row of a stage in so many steps."""
    return unrolled(schedule, flow, steps * schedule.microbatches)[flow.devices[stage][0]]


@given(endless())
@settings(deadline=None, max_examples=50)
def test_places_are_in_the_order_of_the_row(given: tuple[Schedule, Flow]) -> None:
    schedule, flow = given
    for stage, (_, row) in enumerate(schedule.rows):
        places = [Places.in_row(row, schedule.microbatches).of(action) for action in done_of(schedule, flow, stage, 6)]
        assert None not in places
        assert places == sorted(places)  # type: ignore[type-var]
        assert len({*places}) == len(places)


def test_what_rows_without_a_flush_cannot_have_is_told() -> None:
    chain = {0: Channel(0, 1), 1: Channel(1, 0, INPUT_GRADIENT, INPUT_GRADIENT)}
    rows = tuple((name, ()) for name in ("a", "b", "c"))
    schedule = Schedule("@s", "pipedream", rows, microbatches=2, periodic=True)
    flow = Flow((("a", "b"), ("c",)), chain, training=True)
    assert "stage 0 is on 2 devices; rows without a flush are of single ones" in faults(schedule, flow)
    flow = Flow((("a",), ("a",)), chain, training=True)
    assert "stages 0 and 1 share devices; rows without a flush are of one stage on each" in faults(schedule, flow)
    flow = Flow((("a",), ("b",)), {**chain, 2: Channel(1, 0, "U", "U")}, training=True)
    told = "stage 1 sends gradients of a weight that another stage updates; rows without a flush lack that"
    assert told in faults(schedule, flow)
    flow = Flow((("a",), ("b",)), {0: Channel(0, 1)})
    assert "a period is of 2 microbatches; at inference it is of one" in faults(schedule, flow)
    late = replace(schedule, rows=(("a", (Action("U", 0, 0),)),))
    told = "the row of 'a' has U(0, 0), but an update has the number of the last microbatch of its step: U(0, 1)"
    assert told in faults(late, Flow((("a",),), {}, training=True))
