"""A split checked from the workload's file alone: what ``dnnc verify-plan`` does.

This package shares no code with the frontends, the passes or the solver, so that a fault of theirs cannot hide itself: it reads
both formats with a minimal reader of its own, adds up exact rationals, and knows nothing of ideals or groups. IR text and a
topology are the language's own data, of which it takes no more than numbers (``ir_text``, ``machines``). A workload that the
frontends would refuse may pass here or be refused with fewer words; the split is what is judged.

Every rule that a split breaks is one line of ``Report.violations``:

- each node is on exactly one device, and every node named exists;
- no more accelerators and CPUs are used than there are, and of a topology devices that it has, each once; a node is where it
  can run; nodes of one colour share a device;
- the sizes of a device's nodes fit its memory;
- loads and largest load are what the result claims (relative 1e-6, as the reference prints six digits);
- data flows forward only: a graph of devices, an edge wherever one sends to another, has no cycle (contiguous splits). For a
  workload with backward nodes this is asked of the forward nodes; a backward node without a forward mate (of its colour)
  stands for one that costs nothing, with the backward edges around it reversed.

Which objective a result is of is told in ``statement``. PipeDream's has rules of its own: devices of one stage are replicas
and hold the same nodes, stages run in the order of their numbers, and a device's load is the largest of compute with weight
synchronisation, of what comes in and of what goes out (Narayanan et al., SOSP 2019); memory is that of the schedule that the
result names.

Latency has rules of its own too: see ``latency``.

Of a result in ``dnnc.solve/1`` also: the bound is not above the objective, gap and status agree with both, memory is
as claimed, no device is listed twice. The bound itself is an argument about all splits and is not repeated here.
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


def verify_files(
    workload: Path,
    result: Path,
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
) -> Report:
    """Reads both files and verifies. Raises InvalidInput for what cannot be read, UsageError for options that make no sense."""
    text = read_input_text(workload, "a workload", LIMITS.text_bytes)
    claimed = parse_json(read_input_text(result, "a split as JSON", LIMITS.text_bytes), str(result))
    try:
        return verify(
            text,
            claimed,
            limits,
            topology=topology,
            by_bytes=by_bytes,
            format=format or (IR if workload.suffix == ".ir" else ""),
            objective=objective,
            comm=comm,
            split=split,
            options=options,
            forward=forward,
            where=str(workload),
        )
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
    """Verifies ``claimed``, a parsed result, against the text of a workload. What is empty is as the result says; where it says
    nothing, the objective is as the workload suggests, with sum and contiguous. ``options``: what else defines the
    objective, by its names in ``dnnc.solve/1``. ``topology``: devices in place of the workload's own; ``by_bytes``:
    transfers are bytes over its links, whatever seconds the workload states, also where the result does not say so."""
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
