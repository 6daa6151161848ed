"""What TAG's search refuses. Codes E09.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class TooManyGroups(Fault, code="E0901"):
    """TAG's search chooses among all subsets of the groups of equal devices of a host. Their number doubles with each group."""

    message = "the topology has {groups} groups of equal devices of one host; TAG's search takes at most {most}"
    hint = "leave --search out, or describe fewer hosts"
    groups: int
    most: int


class WrongPrior(Fault, code="E0902"):
    """The arrays of the file are not those of the network that TAG's search uses."""

    message = "the file is no prior of 'dnnc tag train': {reason}"
    hint = "name a file that 'dnnc tag train' wrote"
    reason: str


class PriorNotFinite(Fault, code="E0903"):
    """A weight of the network is NaN or infinite."""

    message = "array '{array}' holds numbers that are not finite"
    hint = "train the prior again with 'dnnc tag train'"
    array: str


class OpsNotGrouped(Fault, code="E0904"):
    """TAG's search groups operators with METIS, which is not installed."""

    message = "the operators cannot be grouped: {reason}"
    reason: str
