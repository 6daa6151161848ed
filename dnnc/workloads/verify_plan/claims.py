"""The claims of a result: devices, loads, bound and gap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dnnc.workloads.faults import BandwidthOfSplitUnknown
from dnnc.workloads.verify_plan.numbers import CLOSE, Malformed, claim, fraction, told
from dnnc.workloads.verify_plan.workload import Id
from ir.core.diagnostics import UsageError
from ir.core.outcomes import OUTCOMES, Outcome, read_outcome


@dataclass(frozen=True, slots=True)
class Device:
    """A device as the result describes it; None: not stated."""

    kind: str
    name: str
    nodes: tuple[Id, ...]
    load: Fraction | None
    memory: Fraction | None = None
    stage: object = None


@dataclass(slots=True)
class Report:
    """``objective``: computed anew, in milliseconds; ``measure``: its name; ``loads``: name, load and bytes of each device;
    ``violations``: empty if the split is right; ``hint``: set if violations may come from an objective that is not stated."""

    objective: float
    loads: list[tuple[str, float, float]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    measure: str = "largest load"
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        devices = [{"name": name, "load": load, "memory": memory} for name, load, memory in self.loads]
        told = {"ok": not self.violations, "objective": self.objective, "devices": devices, "violations": self.violations}
        return told | ({"hint": self.hint} if self.hint else {})

    def text(self) -> str:
        return f"ok: {self.measure} {self.objective:.9g} ms on {len(self.loads)} devices; all else as claimed"


def claims_of(claimed: object, types: Mapping[str, str] | None = None) -> tuple[list[Device], Fraction | None]:
    """Devices and claimed largest load. The format of the reference lists accelerators in the order of stages. ``types``: type
    of each device of a topology, None for accelerators and CPUs."""
    if not isinstance(claimed, dict):
        raise Malformed("a result must be a JSON object", result=True)
    rows: list[tuple[str, str, Any]]
    if "devices" in claimed:
        if not isinstance(claimed["devices"], list) or not all(isinstance(row, dict) for row in claimed["devices"]):
            raise Malformed("'devices' must be a list of objects", result=True)
        if (status := claimed_outcome(claimed)) in ("infeasible", "undecided"):
            raise Malformed(f"the result holds no split: its status is {status}", result=True)
        rows = [(str(row.get("kind")), str(row.get("name")), row) for row in claimed["devices"]]
        largest = claim(claimed, "objective")
    elif "fpgas" in claimed or "cpus" in claimed:
        rows = []
        for key, kind in (("fpgas", "accelerator"), ("cpus", "cpu")):
            listed = claimed.get(key, [])
            if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
                raise Malformed(f"'{key}' must be a list of objects", result=True)
            staged = kind == "accelerator"
            for i, row in enumerate(listed):
                name = str(row.get("device", f"{key}[{i}]"))
                rows.append(((types or {}).get(name, kind), name, {"stage": i, **row} if staged else row))
        largest = claim(claimed, "maxLoad")
    else:
        raise Malformed("expected 'devices' (dnnc solve --json), or 'fpgas' and 'cpus' (the reference's format)", result=True)
    devices = []
    known = ("accelerator", "cpu") if types is None else sorted(set(types.values()))
    for kind, name, row in rows:
        nodes = row.get("nodes")
        if kind not in known or not isinstance(nodes, list):
            hint = "" if types is not None else "; one of a topology is checked with -t"
            expected = " or ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)
            raise Malformed(f"device {name}: expected a kind, {expected}, and a list 'nodes'{hint}", result=True)
        if not all(isinstance(id_, int | str) for id_ in nodes):
            raise Malformed(f"device {name}: a node is named by its id, a number or a text", result=True)
        load, memory = claim(row, "load"), claim(row, "memory")
        devices.append(Device(kind, name, tuple(nodes), load, memory, row.get("stage")))
    return devices, largest


def claimed_outcome(statement: Mapping[str, Any]) -> Outcome | None:
    """The ``status`` of a ``dnnc.solve/1``, of earlier versions too; None where it states none. Raises Malformed."""
    status = statement.get("status")
    try:
        return None if status is None else read_outcome(status)
    except ValueError:
        raise Malformed(f"'status' is {told(status)}, expected one of {', '.join(OUTCOMES)}", result=True) from None


def microbatches_of(options: Mapping[str, Any]) -> int | None:
    """Microbatches between two flushes; None if the result states none."""
    count = options.get("microbatches")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise Malformed("options.microbatches must be an integer from 1 on", result=True)
    return count


def groups_of(statement: Mapping[str, Any], bandwidth: Fraction | None) -> tuple[int, Fraction] | None:
    """Machines in a group, and how many times faster links inside a group are; None if the result has no ``hierarchy``. Between
    groups: ``bandwidth``, bytes per millisecond; inside: ``inner_bandwidth`` of the result, bytes per second."""
    options = statement.get("options")
    if not isinstance(options, dict) or options.get("hierarchy") is None:
        return None
    sizes = str(options["hierarchy"]).split("x")
    inner = claim(options, "inner_bandwidth")
    if len(sizes) != 2 or not all(size.isascii() and size.isdigit() and int(size) for size in sizes) or not inner:
        raise Malformed("expected a 'hierarchy' such as 4x8, and its 'inner_bandwidth'", result=True)
    if bandwidth is None:
        raise UsageError(BandwidthOfSplitUnknown("a transfer between groups"))
    return int(sizes[1]), inner / (bandwidth * 1000)


def statement_faults(statement: Mapping[str, Any], objective: Fraction | None) -> Iterable[str]:
    """Contradictions among bound, gap, status and objective of a ``dnnc.solve/1``."""
    bound, gap, status = claim(statement, "bound"), fraction(statement.get("gap")), claimed_outcome(statement)
    if bound is None or objective is None:
        return
    if bound > objective * (1 + Fraction(1, 10**9)):
        yield f"the bound {float(bound):.12g} is above the objective {float(objective):.12g}"
    true_gap = objective / bound - 1 if bound else None
    if gap is not None and true_gap is not None and abs(gap - true_gap) > CLOSE:
        yield f"the gap is {float(true_gap):.6g}, not {float(gap):.6g} as claimed"
    if status == "optimal" and objective > bound * (1 + Fraction(1, 10**6)):
        yield "the status is optimal, but the bound is below the objective"
