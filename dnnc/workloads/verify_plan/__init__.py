"""``dnnc verify-plan``: verifies a split from the file of its workload.

This package shares no code with the other readers, the passes or the solver, so that it finds their faults. It reads both
formats with a minimal reader of its own, computes with exact rationals, and does not use ideals or groups of nodes. From IR
text and a topology it takes only numbers (``ir_text``, ``machines``). It verifies the split, not the workload: a workload that
``dnnc solve`` refuses may pass here, or be refused with a shorter message.

Every rule that a split breaks gives a line of ``Report.violations``:

- each node is on exactly one device, and every node named exists;
- no more accelerators and CPUs are used than exist; on a topology, every device used exists and is used once. A node is on a
  device that can run it; nodes of one colour share a device;
- the sizes of a device's nodes fit its memory;
- loads and the largest load are as the result claims (relative 1e-6, since the reference prints six digits);
- for contiguous splits, the graph of devices, with an edge from each sender to each receiver, has no cycle. For a workload with
  backward nodes this holds for the forward nodes; a backward node without a forward node of its colour counts as a forward
  node without cost, with the backward edges around it reversed.

``claims`` reads what a result claims, ``statement`` its objective. PipeDream's has rules of its own: devices of one stage are
replicas and hold the same nodes, stages run in the order of their numbers, and the load of a device is the largest of compute
with weight synchronisation, of received bytes and of sent bytes over the bandwidth (Narayanan et al., SOSP 2019); memory
depends on the schedule that the result names. Latency too has rules of its own: see ``latency``.

In a result of ``dnnc.solve/1``, also: the bound is at most the objective, gap and status agree with both, memory is as claimed,
no device is listed twice. The bound is a statement about all splits and is not verified here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dnnc.workloads.faults import (
    AcceleratorsUnknown,
    DevicesUnknown,
    SplitNotOnTopology,
    TopologyMissing,
    WrongSplit,
    WrongWorkload,
)
from dnnc.workloads.verify_plan.claims import Report, claims_of
from dnnc.workloads.verify_plan.devices import verify_devices
from dnnc.workloads.verify_plan.ir_text import read_ir
from dnnc.workloads.verify_plan.latency import verify_latency
from dnnc.workloads.verify_plan.machines import on_topology, with_backward_nodes
from dnnc.workloads.verify_plan.numbers import Malformed
from dnnc.workloads.verify_plan.pipedream import verify_pipedream
from dnnc.workloads.verify_plan.statement import chosen, statement_of, unsaid
from dnnc.workloads.verify_plan.workload import Limits, read_workload
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.limits import LIMITS
from ir.core.objectives import LATENCY, PIPEDREAM, THROUGHPUT, TRAINING
from ir.core.topology import Topology
from ir.system.files import read_input_text
from ir.text.json_text import parse_json

__all__ = ["IR", "Limits", "Report", "verify", "verify_files"]

IR = "ir"
"""The format of a workload in IR text."""


def verify_files(workload: Path, result: Path, limits: Limits, *, format: str = "", **asked: Any) -> Report:
    """Reads both files and verifies, as ``verify`` is ``asked``. Raises InvalidInput for a file that cannot be read, UsageError
    for wrong options."""
    text = read_input_text(workload, "a workload", LIMITS.text_bytes)
    claimed = parse_json(read_input_text(result, "a split as JSON", LIMITS.text_bytes), str(result))
    format = format or (IR if workload.suffix == ".ir" else "")
    try:
        return verify(text, claimed, limits, format=format, where=str(workload), **asked)
    except Malformed as error:
        fault = WrongSplit(str(error)) if error.result else WrongWorkload(str(error))
        raise InvalidInput(fault, where=str(result if error.result else workload)) from None


def verify(
    text: str,
    claimed: object,
    limits: Limits,
    *,
    topology: Topology | None = None,
    by_bytes: bool = False,
    format: str = "",
    objective: str = "",
    comm: str = "",
    split: str = "",
    options: Mapping[str, Any] | None = None,
    forward: bool = False,
    where: str = "",
) -> Report:
    """Verifies ``claimed``, a parsed result, against the text of a workload. An empty argument means: as the result states; if
    it states nothing, the objective that the workload suggests, with comm sum and split contiguous. ``options``: parameters of
    the objective, named as in ``dnnc.solve/1``. ``topology``: replaces the machines of the workload. ``by_bytes``: transfers
    take the time of their bytes on its links, not the seconds that the workload states, whatever the result states."""
    stated = statement_of(claimed)
    if format == IR:
        workload, own = read_ir(text, where)
        topology = topology or own
    else:
        workload = read_workload(text, limits, format=format)
    machines = stated["machines"] if isinstance(stated.get("machines"), dict) else {}
    if topology is None and machines.get("topology") is not None:
        raise UsageError(TopologyMissing(str(machines["topology"])[:80]), where=where)
    if topology is None and workload.accelerators is None:
        raise UsageError(DevicesUnknown() if format == IR else AcceleratorsUnknown(), where=where)
    if topology is not None:
        workload = on_topology(workload, topology, by_bytes=by_bytes or machines.get("bytes") is True)
    if forward or stated.get("forward") is True:
        workload.nodes = {id_: node for id_, node in workload.nodes.items() if not node.backward}
        workload.readers = {id_: readers & workload.nodes.keys() for id_, readers in workload.readers.items()}
    if isinstance(claimed, dict) and "totalLatency" in claimed:
        suggested = LATENCY.name
    else:
        backward = any(node.backward for node in workload.nodes.values())
        suggested = (TRAINING if backward else THROUGHPUT).name
    statement = chosen(stated, suggested, objective=objective, comm=comm, split=split, options=options or {})
    if topology is not None and statement["kind"] == PIPEDREAM.name:
        raise UsageError(SplitNotOnTopology(), where=where)
    if statement["kind"] == LATENCY.name:
        report = verify_latency(workload, claimed, statement)
    else:
        if topology is not None and statement["kind"] == TRAINING.name:
            workload = with_backward_nodes(workload)
        types = {name: machine.kind for name, machine in workload.machines.items()} if workload.machines else None
        devices, largest = claims_of(claimed, types)
        of_kind = verify_pipedream if statement["kind"] == PIPEDREAM.name else verify_devices
        report = of_kind(workload, devices, largest, statement)
    if report.violations and "kind" not in stated:
        report.hint = unsaid(statement)
    return report
