"""Whether the rows of a stream hand each stage its own microbatches.

In period k an action with microbatch number o works on microbatch k + o (``ir.ops.rows``, rule 4). So where a row has an
action once, it is done for every microbatch once, in their order, and the messages of a channel arrive in the order in which
they are sent. Of each device of each stage:

1. its row has the phase F of the stage once, a ``recv`` of each channel that its programs receive and a ``send`` of each that
   they send, and nothing else;
2. where one lane has them all (``comm = sum``), each ``recv`` of a microbatch stands before its F, and each ``send`` behind it:
   a row that is followed in its order hands F what arrived for this microbatch, and sends what F made of it;
3. members of a mesh, who exchange parts of each microbatch, have equal rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dnnc.check.proof.explain import REFUTED, Failure
from dnnc.check.proof.programs import StageText
from ir.core.facets import FORWARD
from ir.core.module import Action, Module, Plan, Schedule

ONE_LANE = "sum"


def row_faults(module: Module, texts: Sequence[StageText]) -> Iterator[Failure]:
    """What of the rows of a module does not follow; nothing where it has no schedule."""
    schedule, plan = module.first(Schedule), module.first(Plan)
    if schedule is None:
        return
    if not schedule.periodic or schedule.microbatches != 1:
        yield Failure(REFUTED, "its rows are not those of a stream, of one microbatch a period", schedule.name)
        return
    rows = dict(schedule.rows)
    wanted: dict[str, Counter[tuple[str, int, int | None]]] = {device: Counter() for device in rows}
    for text in texts:
        actions = _actions(text)
        for device in text.stage.devices:
            wanted.setdefault(device, Counter()).update(actions)
    in_order = plan is None or plan.comm == ONE_LANE
    for device, own in wanted.items():
        if fault := _fault(rows.get(device, ()), own, in_order):
            yield Failure(REFUTED, fault, f"row {device}")
    for text in texts:
        if text.mesh.axes and len({rows.get(device, ()) for device in text.stage.devices}) > 1:
            yield Failure(REFUTED, f"the members of stage {text.stage.index} have different rows", schedule.name)


def _actions(text: StageText) -> set[tuple[str, int, int | None]]:
    """What a device of the stage does for each microbatch: kind, stage and channel."""
    messages = {
        (line.op.name.removeprefix("comm."), text.stage.index, line.op.get("channel"))
        for unit in text.units
        for line in unit.lines
        if line.op.name in ("comm.recv", "comm.send")
    }
    return {(FORWARD, text.stage.index, None), *messages}


def _fault(row: Sequence[Action], wanted: Counter[tuple[str, int, int | None]], in_order: bool) -> str:
    """What is wrong with a row; empty where nothing is."""
    has = Counter((action.kind, action.stage, action.channel) for action in row)
    for key in dict.fromkeys((*wanted, *has)):
        if has[key] != wanted[key]:
            kind, stage, channel = key
            what = f"{kind} of stage {stage}" + ("" if channel is None else f" for channel {channel}")
            return f"{what} is there {has[key]} times, and must be {wanted[key]} times"
    if any(action.microbatch is None for action in row):
        return "an action has no microbatch"
    places = {(a.kind, a.stage, a.channel): (-(a.microbatch or 0), place) for place, a in enumerate(row)}
    for (kind, stage, channel), place in places.items() if in_order else ():
        work = places[FORWARD, stage, None]
        if (kind == "recv" and place > work) or (kind == "send" and place < work):
            side = "behind" if kind == "recv" else "before"
            return f"{kind} for channel {channel} of a microbatch stands {side} F of stage {stage} for it"
    return ""
