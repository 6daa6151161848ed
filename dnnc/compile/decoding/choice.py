"""How many sequences and groups a decoder is planned with, where nobody states them (``--batch auto``, ``--groups auto``).

On single devices and replicas, ``Choosing`` plans the step of a group of any allowed number of sequences, in any allowed number
of groups, together with the stages: the step of one batch is the step of another, with numbers that are linear in the batch
(``Batches``). The compilation then plans the stages for the batch and the groups that were best, and its plan has the bound of
all of them.

On meshes a few are planned: of 1, 2, 4, .. groups each about the largest batch that fits, for a step takes little longer with
more sequences, which share its weights. Of plans on meshes the bound is for the batch and the groups that were chosen alone.

The choice counts memory less exactly than the compilation. Where what is chosen does not fit after all, or a stated chunk of
prompts does not fit beside it, ``Choosing.that_fits`` chooses among fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from dnnc.compile.context import pass_context
from dnnc.compile.decoding.step_of_batch import SECONDS, StepOfBatch
from dnnc.compile.decoding.steps import with_states
from dnnc.compile.faults import ChunkOverMemory, ProfileOfOneBatch
from dnnc.compile.flags import AUTO, CompileOptions
from dnnc.compile.notes import noted
from dnnc.compile.options import build_pipeline, with_programs
from ir.core.diagnostics import DiagnosticSink, Infeasible, UsageError
from ir.core.module import Plan
from ir.core.outcomes import outcome
from ir.core.topology import Topology
from ir.text.witness import BOUND_FOR, CHOSEN, ON_MESHES_FOR
from passes.costs.memory.liveness import resource_bytes
from passes.framework.base import NoBetterPlan, needed
from passes.framework.registry import ANY_FORM, ANY_MESH, NO_MESH
from passes.meshes.mesh import read_shape
from passes.partition.options import MeshOptions

SIZES = (*range(1, 9), *(size << power for power in range(1, 6) for size in range(5, 9)))
"""Batches that are tried at first: all to 8, then four for each doubling."""
MOST_BETWEEN = 8
"""Batches between the neighbours of the best that are tried then."""
MOST_GROUPS = 256
ON_MESHES = 2.0
"""Seconds of counted work of the search on meshes of any shape, for one batch."""
IN_ANY_MEMORY = 0.25
"""The same, of a plan in unlimited memory."""
BETTER = 1.001
"""Tokens a second of a plan on meshes over those of the best plan so far from which on it is chosen."""
T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """``batch``, ``groups``: those that are best; no plan of single devices and replicas, of any that were allowed, has more
    than ``most`` tokens a second (0: no bound is known). ``most_groups``: the largest number of groups that was allowed;
    ``allowed``: batches and groups that were, in words; ``rate``: tokens a second of the best plan."""

    batch: int
    groups: int
    most: float
    most_groups: int
    allowed: str
    rate: float = 0.0


class Choosing:
    """The choice for ``options``, which leave the batch or the groups open. ``timed``: a context in which it is made. Raises as
    ``load_model``."""

    def __init__(self, options: CompileOptions, topology: Topology, timed: Callable[[], AbstractContextManager[None]]) -> None:
        if options.profile:
            raise UsageError(ProfileOfOneBatch(), where="--profile")
        one = replace(options, groups=1)
        pipeline = with_states(with_programs(build_pipeline(replace(one, batch=1))), one)
        with timed():
            self.options, self.step = options, StepOfBatch(options, pipeline, topology)
        self.timed = timed
        self.search: Any = next(step for step in pipeline if step.name == "partition")

    def best(self, most: int = 0) -> tuple[CompileOptions, Choice | None]:
        """The options with the best numbers, and how these were found. Where nothing fits the devices the numbers are the
        least, for the search to say what is missing, and there is no choice. ``most``: sequences of a group at most, or groups
        where the batch is stated; 0: no other limit than that of the search."""
        options, sizes, groups = self.options, self.sizes(most), self.groups(most)
        with self.timed():
            choice = self.found(sizes, groups)
        if choice is None:
            return replace(options, batch=sizes[0], groups=groups[0]), None
        return replace(options, batch=choice.batch, groups=choice.groups), choice

    def found(self, sizes: Sequence[int], groups: tuple[int, int]) -> Choice | None:
        """The best of these; None where nothing fits."""
        search, topology = self.search, self.step.topology
        choice = _on_devices(self.step, sizes, groups) if search.mesh in (NO_MESH, ANY_FORM) else None
        if search.mesh == NO_MESH or search.without_mesh or len(topology.devices) == 1:
            return choice
        if search.mesh == ANY_FORM and not search.allows_meshes(topology):  # as in the compilation
            return choice
        return _with_meshes(self.step, search, sizes, groups, choice)

    def sizes(self, most: int) -> tuple[int, ...]:
        """The batches that are tried at first."""
        if self.options.batch != AUTO:
            return (int(self.options.batch or 1),)
        return self.step.tried([*(size for size in SIZES if not most or size < most), *([most] if most else [])])

    def groups(self, most: int) -> tuple[int, int]:
        """The fewest and the most groups."""
        if self.options.groups != AUTO:
            return (int(self.options.groups or 1),) * 2
        return 1, most if most and self.options.batch != AUTO else MOST_GROUPS

    def that_fits(self, sink: DiagnosticSink, planned: Callable[[CompileOptions, Choice | None], T]) -> T:
        """What ``planned`` makes of the best numbers. Where these do not fit after all, or a stated chunk of prompts does not
        beside them, of fewer sequences of a group, or groups where the batch is stated: a 32nd fewer, then a 16th, and so on
        until it fits. Raises as ``planned``; ``sink`` has what the last plan told."""
        before, (options, choice) = len(sink.diagnostics), self.best()
        first = int((options.batch if self.options.batch == AUTO else options.groups) or 1)
        most, fewer, beside = first, max(1, first // 32), ""
        while True:
            try:
                return planned(options, choice)
            except Infeasible as error:
                if choice is None or most == 1:
                    raise
                if error.diagnostics[0].code == ChunkOverMemory.code:
                    beside = f", beside which chunks of {options.chunk} fit"
            most, fewer = max(1, first - fewer), 2 * fewer
            del sink.diagnostics[before:]
            options, choice = self.best(most)
            if choice is not None:
                choice = replace(choice, allowed=choice.allowed + beside)


def with_choice(plan: Plan, choice: Choice | None) -> Plan:
    """The plan, whose bound is of all batches and groups that were allowed; that of stages on meshes is of its own."""
    if choice is None or plan.value <= 0:
        return plan
    bound = min(plan.bound, 1 / choice.most if choice.most else plan.bound, plan.value)
    alone = f"{choice.groups} group{'s' * (choice.groups > 1)} of {choice.batch} alone"
    told = f"among {choice.allowed}"
    if not choice.most:
        told += f"{BOUND_FOR}{alone}"
    elif "kinds" in dict(plan.certificate):
        told += f"; no plan has replicas beside a mesh{ON_MESHES_FOR}{alone}"
    return noted(replace(plan, bound=bound, status=outcome(plan.value, bound)), **{CHOSEN: told})


def _on_devices(step: StepOfBatch, sizes: Sequence[int], groups: tuple[int, int]) -> Choice | None:
    """The best on single devices and replicas; None where nothing fits."""
    best = step.searched(sizes, groups, SECONDS[0])
    if best is None:
        return None
    allowed = f"{groups[0]} to {groups[1]} groups" if groups[0] < groups[1] else f"{groups[0]} groups"
    allowed = f"{allowed} and {_batches(sizes)}"
    place = sizes.index(best.batch)
    low, high = sizes[max(place - 1, 0)] + 1, sizes[min(place + 1, len(sizes) - 1)]
    near_best = range(low, high)
    near_best = near_best[:: 1 + len(near_best) // MOST_BETWEEN]
    between = step.tried([size for size in near_best if size not in sizes])
    if between and (near := step.searched(between, groups, SECONDS[1])) is not None:
        best = replace(max(best, near, key=lambda plan: plan.tokens_per_second), bound=max(best.bound, near.bound))
        allowed = f"{allowed}, and {_batches(between)}"
    return Choice(best.batch, best.groups, best.bound, groups[1], allowed, best.tokens_per_second)


def _with_meshes(
    step: StepOfBatch, search: Any, sizes: Sequence[int], groups: tuple[int, int], alone: Choice | None
) -> Choice | None:
    """The best of ``alone``, the choice on single devices and replicas, and of a few plans on meshes; None where nothing fits.
    ``search``: the pass ``partition``. Numbers of groups are tried until more have no more tokens a second."""
    asked: dict[str, Any] = {field.name: getattr(search, field.name) for field in fields(MeshOptions)}
    if not search.shape:
        asked |= {"time_limit": min(search.time_limit or ON_MESHES, ON_MESHES)}
    if search.mesh == ANY_FORM:
        asked |= {"mesh": ANY_MESH, "replicas": 1}
    meshes, devices = type(search)(**asked), len(step.topology.devices)
    most = devices // math.prod(read_shape(meshes.shape, devices) if meshes.shape else (1,))
    numbers = [groups[0]]
    if groups[0] < groups[1]:
        limit = min(groups[1], search.stages or most)
        numbers = [limit] if search.stages else [2**n for n in range(limit.bit_length())]
    allowed, bound, worth = _batches(sizes), 0.0, 0.0
    if alone is not None:
        allowed, bound, worth = alone.allowed, alone.most, alone.rate * BETTER
    best, tried, last = alone, list[int](), 0.0
    for number in numbers:
        tried.append(number)
        size, rate = _near_largest(step, meshes, sizes, number, worth)
        if rate > (best.rate * BETTER if best is not None else 0.0):
            best = Choice(size, number, bound, number if search.stages == 1 else groups[1], allowed, rate)
        if last and rate <= last * BETTER:
            break
        last = rate
    if best is None or (len(sizes) == len(tried) == 1):
        return best
    largest = "about the largest that fits"
    if alone is None and len(tried) == 1:
        return replace(best, allowed=f"{allowed}, {largest} on the mesh")
    each = f"{largest} in {'each of ' * (len(tried) > 1)}{', '.join(map(str, tried))} group{'s' * (tried != [1])}"
    return replace(best, allowed=f"{allowed}, {each}" if alone is None else f"{allowed}; on meshes {each}")


def _near_largest(step: StepOfBatch, search: Any, sizes: Sequence[int], groups: int, better: float) -> tuple[int, float]:
    """The largest of the batches, but for a sixteenth, for which there is a plan on meshes of so many groups, or one smaller by
    a quarter or a half, whichever has most tokens a second, and these; zeros where there is none, or it has no more than
    ``better``. Where memory is tight, caches of fewer sequences leave room for layouts that take less."""
    best, missed = (0, 0.0), False

    def fits(size: int, asked: Any = search) -> bool:
        """Whether a plan is found. Raises NoBetterPlan where none is better than the best so far. Where there is none yet, the
        first time, and where this is not proven, it may be for want of memory: then the answer is no."""
        nonlocal best, missed
        context, worth = pass_context(DiagnosticSink()), max(better, best[1] * BETTER)
        if worth:
            known = Plan("@plan", search.objective, "sum", 1 / worth, 1 / worth, 0.0, "within-gap", math.inf, ())
            context = replace(context, incumbent=known)
        try:
            rate = 1 / needed(asked.run(step.at(size, groups), context), Plan).value
        except NoBetterPlan as error:
            if best[0] or asked is not search or (missed and error.bound * worth >= 1):
                raise
            missed = True
            return False
        except Infeasible:
            return False
        best = (size, rate) if asked is search else best
        return True

    every = step.tried(range(sizes[0], _most_within(step, sizes, groups) + 1))
    low, high = 0, len(every)
    place = high - 1
    with suppress(NoBetterPlan):
        if better and every:
            # Without a better plan in unlimited memory fewer sequences have none, either.
            fits(every[-1], replace(search, device_memory=-1, time_limit=min(search.time_limit or ON_MESHES, IN_ANY_MEMORY)))
        while low < high and (not low or high - low > low // 16):
            low, high = (place + 1, high) if fits(every[place]) else (low, place)
            place = (low + high) // 2
        largest = best[0]
        for part in (3, 2):
            smaller = [size for size in every if 4 * size <= part * largest]
            if smaller:
                fits(smaller[-1])
    return best


def _most_within(step: StepOfBatch, sizes: Sequence[int], groups: int) -> int:
    """The largest batch, up to the last of ``sizes``, whose caches all devices hold together beside one copy of the weights.
    Where there is none, a number below the first of ``sizes``."""
    memory = [step.topology.memory(device) for device in step.topology.devices]
    if None in memory or len(sizes) == 1:
        return sizes[-1]
    room = sum(filter(None, memory))
    least, most = (sum(resource_bytes(step.at(size, groups), groups).values()) for size in (sizes[0], sizes[-1]))
    if most <= room:
        return sizes[-1]
    if most == least:
        return sizes[0] - 1
    return sizes[0] + math.floor((room - least) / (most - least) * (sizes[-1] - sizes[0]))


def _batches(sizes: Sequence[int]) -> str:
    """Batches in words."""
    return f"{len(sizes)} batches from {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"a batch of {sizes[0]}"
