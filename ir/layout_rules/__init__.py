"""Layout rules: how each op may be split over a mesh axis, forward and backward, as data beside the op definitions.

``rule_of`` gives the rule of one op; ``rules`` and ``coverage`` those of a function. ``LayoutRule`` defines what a rule is,
``localise`` makes the op that runs on a shard, ``backward_rule`` gives the layouts of gradients.

The rules stand by family of ops: ``pointwise``, ``moves``, ``indexing``, ``reductions``, ``products``, ``attention``,
``quantised``, and of training ``kernels`` (losses, backward kernels) and ``updates``.
"""

from ir.layout_rules.adapt import (
    Adapt,
    AsReshape,
    FixedResult,
    LocalAttribute,
    LocalEntry,
    LocalShape,
    ScaleResult,
    ShiftIndices,
)
from ir.layout_rules.draft import Constants, Numbers
from ir.layout_rules.localise import Cut, local_type, localise
from ir.layout_rules.rule import Backward, Factor, Kind, LayoutRule, Linear, Strategy, backward_rule
from ir.layout_rules.table import RULES, Surroundings, coverage, numbers_of, resource_numbers, rule_of, rules

__all__ = [
    "RULES",
    "Adapt",
    "AsReshape",
    "Backward",
    "Constants",
    "Cut",
    "Factor",
    "FixedResult",
    "Kind",
    "LayoutRule",
    "Linear",
    "LocalAttribute",
    "LocalEntry",
    "LocalShape",
    "Numbers",
    "ScaleResult",
    "ShiftIndices",
    "Strategy",
    "Surroundings",
    "backward_rule",
    "coverage",
    "local_type",
    "localise",
    "numbers_of",
    "resource_numbers",
    "rule_of",
    "rules",
]
