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
    """Stages on single devices are searched for the latency of a model only where devices pay for their transfers; stages on
    meshes are searched in any case."""

    message = "{types}: with free transfers the latency of a model is not searched in stages on single devices"
    hint = "compile with --mesh auto, or give the type no free transfers; 'dnnc solve' takes the CPUs of profiles"
    types: str
