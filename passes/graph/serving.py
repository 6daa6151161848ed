"""Groups of sequences in flight, and the replicas of a stage that serve them.

A decoder keeps the states of each group on one device of each stage: of a stage with replicas, a group is always work of one of
them. So replicas that take groups in turn share them evenly where their number divides that of the groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ir.core.diagnostics import InvalidInput
from ir.core.module import Module
from ir.core.objectives import objective_of
from ir.core.types import TensorType
from passes.graph.faults import NotADecoder
from passes.graph.positional import POSITION

IDS = "decoding.ids"
"""The attribute of an entry function that names its argument of tokens, of which the first dimension is the batch."""


MOST_ROUND = 1024
"""Microbatches until stages whose replicas have unlike turns are all back at their first ones, at most: links have buffers for
each."""


def batch_of(module: Module, objective: str) -> int:
    """The sequences of a group, which ``objective`` counts. Raises InvalidInput for a module that is no step of a decoder."""
    entry = module.entry
    name = dict(entry.attributes)[IDS].value if IDS in dict(entry.attributes) else ""
    type_ = next((arg.type for arg in entry.args if name and arg.name == f"%{name}"), None)
    shape = type_.shape if isinstance(type_, TensorType) else None
    if not module.states or not shape or not isinstance(shape[0], int):
        raise InvalidInput(NotADecoder(objective, module.name), where="--objective")
    return shape[0]


def groups_of(module: Module) -> int:
    """The groups of a decoder. 1 of another model with states, which go from microbatch to microbatch on one device; 0 of a
    model without, whose microbatches any number of replicas may take in turn."""
    sets = max((state.sets for state in module.states.values()), default=0)
    return sets if POSITION in dict(module.entry.attributes) else min(sets, 1)


def tokens_of(module: Module, objective: str) -> int:
    """What the seconds of a step are divided by for the value of ``objective``: the sequences of a group for tokens of all, 1
    for the time of one group alone, and for an objective that decodes nothing. Raises as ``batch_of``."""
    goal = objective_of(objective)
    batch = batch_of(module, objective) if goal.decodes else 1
    return 1 if goal.alone else batch


def shared_evenly(groups: int, replicas: int) -> bool:
    """Whether so many replicas have equally many of the ``groups`` (as of ``groups_of``)."""
    return groups % replicas == 0


def most_groups(groups: int, replicas: int, serves: Sequence[int] = ()) -> int:
    """The most groups that one of the replicas of a stage serves. ``serves``: the replica of each group; empty for turns."""
    return max(Counter(serves).values(), default=0) or -(-groups // replicas)
