"""Faults of the problems of the literature: what a workload or a model lacks for them. Codes 32, as ``passes.partition``."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NotBothPasses(Fault, code="E3207"):
    """PipeDream's objective counts forward and backward times, and the workload lacks one of them."""

    message = "{op} does not state both of its passes on {type}"
    hint = "PipeDream's objective needs a PipeDream profile, which holds forward and backward times of each node"
    op: str
    type: str


class NoSplit(Fault, code="E3208"):
    """This way to split a model is not offered for this objective."""

    message = "there is no split={split} of objective={objective}{more}"
    split: str
    objective: str
    more: str = ""


class FreeTransfers(Fault, code="E3213"):
    """The latency of a model in stages on single devices is counted with the time of its transfers, which this type of device
    does not pay for."""

    message = "{types}: latency of a model in stages on single devices is of devices that pay for transfers"
    hint = "leave out --mesh none, or give the type no free transfers; 'dnnc solve' takes the CPUs of profiles"
    types: str
