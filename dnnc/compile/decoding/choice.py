"""How many sequences and groups a decoder is planned with, where nobody states them (``--batch auto``, ``--groups auto``).

``chosen`` plans the step of a group of any allowed number of sequences, in any allowed number of groups, together with the
stages: the step of one batch is the step of another, with numbers that are linear in the batch (``Batches``). The compilation
then plans the stages for the batch and the groups that were best, and its plan has the bound of all of them.

That is of stages on single devices and replicas. On meshes of a stated shape the batch is the largest that fits: a step takes
little longer with more sequences, which share its weights. Each stage has a group in work.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnnc.compile.context import pass_context, with_topology
from dnnc.compile.decoding.steps import fixed_batch, read_at, unsized, with_states
from dnnc.compile.faults import ProfileOfOneBatch
from dnnc.compile.flags import AUTO, CompileOptions
from dnnc.compile.notes import noted
from dnnc.compile.options import build_pipeline, with_programs
from ir.core.diagnostics import DiagnosticSink, Infeasible, UsageError
from ir.core.module import Module, Plan, Resource, State
from ir.core.outcomes import outcome
from ir.core.topology import Topology
from ir.text.witness import BOUND_FOR, CHOSEN
from passes.costs.network import network
from passes.framework.base import Pass
from passes.framework.registry import ANY_FORM, NO_MESH
from passes.partition.decoding import Batches, DecodingPlan, DecodingSearch, asked_of

SIZES = (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8), *range(144, 257, 16))
"""Batches that are tried at first; then all between the neighbours of the best."""
MOST_GROUPS = 256
READ = (2, 3)
"""Batches at which a model is read: with one sequence, dimensions of length 1 may be left out."""
GAP = 2e-3
"""Relative: how far the bound of all batches may be from the best of them."""
SECONDS = 20.0
"""Of counted work, of each of both searches."""


@dataclass(frozen=True)
class Choice:
    """``batch``, ``groups``: those that are best; no plan of single devices and replicas, of any that were allowed, has more
    than ``most`` tokens a second (0: no bound is known). ``most_groups``: the largest number of groups that was allowed;
    ``allowed``: batches and groups that were, in words."""

    batch: int
    groups: int
    most: float
    most_groups: int
    allowed: str


def chosen(options: CompileOptions, topology: Topology, sink: DiagnosticSink) -> tuple[CompileOptions, Choice | None]:
    """The options with numbers for what they leave open, and how these were found; None where nothing is open. Where nothing
    fits the devices the numbers are the least, for the search to say what is missing. Raises as ``load_model``."""
    if AUTO not in (options.batch, options.groups):
        return options, None
    if options.profile:
        raise UsageError(ProfileOfOneBatch(), where="--profile")
    pipeline = with_states(with_programs(build_pipeline(replace(options, batch=1, groups=1))), replace(options, groups=1))
    groups = (1, MOST_GROUPS) if options.groups == AUTO else (int(options.groups or 1), int(options.groups or 1))
    step = _Step(options, pipeline, topology)
    search: Any = next(one for one in pipeline if one.name == "partition")
    if search.mesh not in (NO_MESH, ANY_FORM):
        return _on_mesh(step, search)
    sizes = step.tried(SIZES) if options.batch == AUTO else (int(options.batch or 1),)
    best = step.searched(sizes, groups, sink)
    allowed = f"{groups[0]} to {groups[1]} groups" if groups[0] < groups[1] else f"{groups[0]} groups"
    allowed = f"{allowed} and {_batches(sizes)}"
    if best is None:
        return replace(options, batch=sizes[0], groups=groups[0]), None
    place = sizes.index(best.batch)
    near_best = range(sizes[max(place - 1, 0)] + 1, sizes[min(place + 1, len(sizes) - 1)])
    between = step.tried([size for size in near_best if size not in sizes])
    if between and (near := step.searched(between, groups, sink)) is not None:
        best = replace(max(best, near, key=lambda plan: plan.tokens_per_second), bound=max(best.bound, near.bound))
        allowed = f"{allowed}, and {_batches(between)}"
    choice = Choice(best.batch, best.groups, best.bound, groups[1], allowed)
    return replace(options, batch=best.batch, groups=best.groups), choice


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
        told += f"; stages on meshes were searched for {alone}"
    return noted(replace(plan, bound=bound, status=outcome(plan.value, bound)), **{CHOSEN: told})


def _on_mesh(step: _Step, search: Any) -> tuple[CompileOptions, Choice]:
    """The options with the largest batch for which there is a plan on meshes of the shape that ``search``, the pass
    ``partition``, is asked for, and a group for each stage."""
    options = step.options
    groups = int(options.groups) if options.groups not in (None, AUTO) else max(search.stages, 1)
    sizes = step.tried(SIZES) if options.batch == AUTO else (int(options.batch or 1),)

    def too_large(size: int) -> bool:
        try:
            search.run(step.at(size, groups), pass_context(DiagnosticSink(), lambda label, fraction: None))
        except Infeasible:
            return True
        return False

    fits = bisect.bisect_left(sizes, True, key=too_large) if len(sizes) > 1 else 1
    batch = sizes[max(fits - 1, 0)]
    allowed = _batches(sizes) + (", the largest that fits on the mesh" if len(sizes) > 1 else "")
    return replace(options, batch=batch, groups=groups), Choice(batch, groups, 0.0, groups, allowed)


class _Step:
    """The step of a decoder, for any batch."""

    def __init__(self, options: CompileOptions, pipeline: Sequence[Pass], topology: Topology) -> None:
        self.options, self.pipeline, self.topology = options, pipeline, topology
        self.file = unsized(options)
        self.fixed = fixed_batch(self.file, options)
        """The batch that the file fixes."""
        self.linear = Batches(*((batch, self.read(batch)) for batch in READ)) if self.fixed is None else None
        self.alike = self.linear is not None and self.linear.alike

    def tried(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Those of the batches that are planned: every fourth where each is read by itself."""
        if self.fixed is not None:
            return (self.fixed,) if sizes else ()
        return tuple(sizes if self.alike else sizes[::4])

    def read(self, batch: int) -> Module:
        """The module of the step, with costs."""
        options = replace(self.options, batch=batch, groups=1)
        module = read_at(options, 1, self.pipeline, pass_context(DiagnosticSink()), self.file)
        return with_topology(module, self.topology, self.pipeline)

    def at(self, batch: int, groups: int) -> Module:
        """The step of ``groups`` groups of ``batch`` sequences."""
        module = self.linear.at(batch) if self.alike and self.linear is not None else self.read(batch)
        symbols = (
            replace(one, data=replace(one.data, sets=groups))
            if isinstance(one, Resource) and isinstance(one.data, State)
            else one
            for one in module.symbols
        )
        return replace(module, symbols=tuple(symbols))

    def searched(self, sizes: Sequence[int], groups: tuple[int, int], sink: DiagnosticSink) -> DecodingPlan | None:
        """The best plan of these batches, with its bound; None where nothing fits."""
        modules = {size: self.at(size, 1) for size in sizes}
        net, asked = network(self.topology), self.options
        found = asked_of(modules, self.topology, net, groups, stages=asked.stages or 0, replicas=asked.replicas or 0)
        return DecodingSearch(found.decoding, GAP, SECONDS).run()


def _batches(sizes: Sequence[int]) -> str:
    """Batches in words."""
    return f"{len(sizes)} batches from {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"a batch of {sizes[0]}"
