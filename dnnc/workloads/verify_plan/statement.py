"""The objective that a result minimises: as the result states, unless options of the command state another.

``dnnc.solve/1`` states it in its own fields. The format of the reference has no field for it; ``dnnc solve -o`` adds an object
``"dnnc": {"kind", "split", "comm", "options", "forward", "unit"}`` with the meanings of ``dnnc.solve/1``. Without either, the
file is verified for latency if it has ``totalLatency``, else for the objective that the workload suggests, and ``unsaid`` names
the options that may be missing.
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
"""Parameters of each objective that can be given for a file that does not state them."""


def statement_of(claimed: object) -> dict[str, Any]:
    """The fields in which a parsed result states its objective; empty if it states none. Raises Malformed."""
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
    """``stated``, overridden by the command; ``suggested``: the objective if neither states one. Raises UsageError for options
    of other objectives, Malformed for an unknown ``comm``."""
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
    """Advice for a result that does not state its objective and breaks a rule."""
    kind, split, comm = (statement[key] for key in ("kind", "split", "comm"))
    schedule = f", schedule {statement['options'].get('schedule', '1f1b')}" if kind == TRAINING.name else ""
    return (
        f"the result does not state its objective, and was verified for {kind} ({split}, comm {comm}{schedule}); if it has "
        "another, state it with --objective, --split, --comm, --schedule, --straight, --microbatches, --pieces, --hierarchy or "
        "--forward; give --bandwidth, --memory and numbers of devices with the values that the split was made for"
    )
