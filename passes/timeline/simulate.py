"""A discrete-event simulation of a schedule: what every device does when.

What an action waits for, and in which lane of its device it is done, ``ir/ops/rows.py`` says, for the verifier and the runtime
too. Here seconds are added:

1. ``send`` occupies the sender for its seconds, ``recv`` the receiver.
2. Shared links: transfers that cross one medium follow each other; the medium is busy for the bytes over its bandwidth.
3. The members of a mesh work on each microbatch together, in equal rows: the first member's is run and holds for all.

Times are seconds from the first action. Rows whose actions wait for each other in a circle are a ``DeadlockError`` that names
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.limits import LIMITS
from ir.core.module import Action, Module, Plan, Schedule
from ir.ops.rows import shown, unrolled
from passes.graph.faults import Deadlock, NoScheduleToRun, TooManyActions
from passes.timeline.workload import Workload, workload

if TYPE_CHECKING:
    from passes.timeline.arrays import Followed


class Event(NamedTuple):
    """``device`` did ``action`` from ``start`` to ``end``."""

    device: str
    action: Action
    start: float
    end: float


class DeadlockError(Exception):
    """No action can go on although some are left: ``waiting`` says which, one per device and lane."""

    def __init__(self, waiting: Sequence[str]) -> None:
        self.waiting = tuple(waiting)
        super().__init__("the schedule cannot go on: " + "; ".join(waiting))


def simulate(module: Module, microbatches: int = 0) -> list[Event]:
    """The timeline of ``microbatches`` samples (0: as many as ``ir.ops.rows.shown``) through the module's schedule, or of the
    training step that it is of: by stage's device, then by start.

    Raises InvalidInput when the module has no plan, no schedule, or its schedule deadlocks, UsageError for so many samples that
    there are more actions than ``LIMITS`` say."""
    plan, schedule = module.first(Plan), module.first(Schedule)
    if plan is None or schedule is None:
        raise InvalidInput(NoScheduleToRun(), where=module.name)
    microbatches = microbatches or shown(schedule)
    _check_actions(schedule, microbatches)
    load = replace(workload(module), slots=schedule.slots)
    try:
        return run_rows(load, unrolled(schedule, load.flow, microbatches))
    except DeadlockError as error:
        raise InvalidInput(Deadlock(str(error)), where=schedule.name) from error


def _check_actions(schedule: Schedule, microbatches: int) -> None:
    """Raises UsageError where a stream has more actions than ``LIMITS`` say."""
    every = schedule.microbatches
    period = sum(len(actions) for _, actions in schedule.rows) if schedule.periodic else 0
    most = LIMITS.simulated_actions
    if microbatches * period > most * every:
        fault = TooManyActions(microbatches, microbatches * period // every, most, most * every // period)
        raise UsageError(fault, where=schedule.name)


def run_rows(load: Workload, rows: Mapping[str, Sequence[Action]]) -> list[Event]:
    """Runs rows of concrete actions. Raises DeadlockError, ValueError for an action of an unknown kind, stage or channel.

    Among actions that can start, the one that can start first does (ties: order of rows); so a medium serves transfers in the
    order in which they become ready."""
    new = tuple.__new__  # what a NamedTuple's own constructor calls, in a third of its time
    events = [new(Event, one) for one in _followed(load, rows).told()]
    leads = load.flow.leads
    if not leads:
        return events
    of_device: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        of_device[event.device].append(event)
    return [event._replace(device=device) for device in rows for event in of_device[leads.get(device, device)]]


def makespan(load: Workload, rows: Mapping[str, Sequence[Action]]) -> float:
    """When the last action of the rows ends. Raises as ``run_rows``."""
    return _followed(load, rows).makespan


def _followed(load: Workload, rows: Mapping[str, Sequence[Action]]) -> Followed:
    from passes.timeline.arrays import followed  # with numpy and numba, which commands load when they need them

    found = followed(load, rows)
    if found.stuck:
        raise DeadlockError(found.stuck)
    return found
