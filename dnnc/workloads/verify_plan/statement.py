"""What a result minimises: as it says itself, or as options of the command say, which stand over it.

A ``dnnc.solve/1`` says so in its own fields. The reference's format has no word for it; ``dnnc solve -o`` adds one
object, ``"dnnc": {"kind", "split", "comm", "options", "forward", "unit"}``, with the meanings of ``dnnc.solve/1``. A
file with neither is checked as ``totalLatency`` or the workload suggests, and ``unsaid`` names what may have been left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnc.workloads.faults import InnerBandwidthWithoutGroups, OptionNotOfSplit
from dnnc.workloads.verify_plan.numbers import Malformed, told
from ir.core.diagnostics import UsageError
from ir.core.objectives import LATENCY, PIPEDREAM, THROUGHPUT, TRAINING

OPTIONS = {
    THROUGHPUT.name: ("hierarchy", "inner_bandwidth"),
    TRAINING.name: ("schedule", "microbatches"),
    PIPEDREAM.name: ("straight", "schedule", "microbatches", "hierarchy", "inner_bandwidth"),
    LATENCY.name: ("pieces",),
}
"""What defines each objective beside its name, of all that a file without replicas may mean."""


def statement_of(claimed: object) -> dict[str, Any]:
    """What a parsed result says of itself, empty where it says nothing. Raises Malformed."""
    if not isinstance(claimed, dict):
        return {}
    stated = claimed if "devices" in claimed else claimed.get("dnnc", {})
    if not isinstance(stated, dict) or not isinstance(stated.get("options", {}), dict):
        raise Malformed("what a result says of itself, and its 'options', are JSON objects", result=True)
    if stated.get("kind") not in (None, *OPTIONS):
        raise Malformed(f"'kind' is {told(stated['kind'])}, expected one of {', '.join(OPTIONS)}", result=True)
    if stated.get("unit") not in (None, "ms"):
        raise Malformed(f"'unit' is {told(stated['unit'])}, expected ms", result=True)
    return stated


def chosen(
    stated: Mapping[str, Any],
    suggested: str,
    *,
    objective: str,
    comm: str,
    split: str,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """``stated`` with what the command says over it; ``suggested``: the objective where nobody names one. Raises UsageError for
    options of other objectives, Malformed for what is none."""
    kind = objective or str(stated.get("kind") or suggested)
    if foreign := [name for name in options if name not in OPTIONS[kind]]:
        flags = tuple(f"--{name.replace('_', '-')}" for name in foreign)
        others = tuple(name for name, taken in OPTIONS.items() if set(foreign) <= set(taken))
        raise UsageError(OptionNotOfSplit(flags, kind, others))
    comm = comm or str(stated.get("comm", "sum"))
    if comm not in ("sum", "overlap", "duplex"):
        raise Malformed(f"'comm' is {comm!r}, expected sum, overlap or duplex", result=True)
    split = split or str(stated.get("split", "contiguous"))
    own = stated.get("options", {}) if kind == stated.get("kind", kind) else {}
    merged = {**own, **options}
    if "inner_bandwidth" in options and not merged.get("hierarchy"):
        raise UsageError(InnerBandwidthWithoutGroups())
    return {**stated, "kind": kind, "comm": comm, "split": split, "options": merged}


def unsaid(statement: Mapping[str, Any]) -> str:
    """What to try where a result that says nothing of itself breaks a rule."""
    kind, split, comm = (statement[key] for key in ("kind", "split", "comm"))
    schedule = f", schedule {statement['options'].get('schedule', '1f1b')}" if kind == TRAINING.name else ""
    return (
        f"the result does not say what it minimises, and was checked as {kind} ({split}, comm {comm}{schedule}); if it is of "
        "another sort, say so with --objective, --split, --comm, --schedule, --straight, --microbatches, --pieces, "
        "--hierarchy or --forward; give --bandwidth, --memory and numbers of devices as for the split itself"
    )


__all__ = ["OPTIONS", "chosen", "statement_of", "unsaid"]
