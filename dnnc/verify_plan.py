"""A split checked from the workload's file alone: what ``dnnc verify-plan`` does.

This file shares no code with the frontends, the passes or the solver, so that a fault of theirs cannot hide itself: it reads
both formats with a minimal reader of its own, adds up exact rationals, and knows nothing of ideals, groups or IR. A
workload that the frontends would refuse may pass here or be refused with fewer words; the split is what is judged.

Every rule that a split breaks is one line of ``Report.violations``:

- each node is on exactly one device, and every node named exists;
- no more accelerators and CPUs are used than there are; a node is where it can run; nodes of one colour share a device;
- the sizes of an accelerator's nodes fit its memory;
- loads and largest load are what the result claims (relative 1e-6, as the reference prints six digits);
- data flows forward only: a graph of devices, an edge wherever one sends to another, has no cycle (contiguous splits). For a
  workload with backward nodes this is asked of the forward nodes; a backward node without a forward mate (of its colour)
  stands for one that costs nothing, with the backward edges around it reversed.

PipeDream's objective (``kind`` of a ``dnnc.solve/1``) has rules of its own: devices of one stage are replicas and hold the same
nodes, stages run in the order of their numbers, and a device's load is the largest of compute with weight synchronisation, of
what comes in and of what goes out (Narayanan et al., SOSP 2019); memory is that of the schedule that the
result names.

Of a result in ``dnnc.solve/1`` also: the bound is not above the objective, gap and status agree with both, memory is as
claimed, no device is listed twice. The bound itself is an argument about all splits and is not repeated here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from ir.diagnostics import InvalidInput, UsageError

__all__ = ["Limits", "Report", "verify", "verify_files"]

Id: TypeAlias = int | str
CLOSE = Fraction(1, 10**6)
_PIPEDREAM_BANDWIDTH = Fraction(10**10)
_MS = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Machines that stand over the file's: counts, bytes, bytes per second; None: as the file says."""

    accelerators: int | None = None
    cpus: int | None = None
    memory: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class _Node:
    """Times in milliseconds, None where it cannot run."""

    accelerator: Fraction | None
    cpu: Fraction | None
    size: Fraction
    color: object
    backward: bool


@dataclass(slots=True)
class _Workload:
    """``send``: milliseconds of a node's output over an accelerator's link. Of profiles only: ``both``: milliseconds of both
    passes, ``output``: bytes, ``bandwidth``: bytes per millisecond."""

    nodes: dict[Id, _Node]
    readers: dict[Id, set[Id]]
    send: dict[Id, Fraction]
    accelerators: int | None
    cpus: int
    memory: Fraction | None
    both: dict[Id, Fraction] = field(default_factory=dict)
    output: dict[Id, Fraction] = field(default_factory=dict)
    bandwidth: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class _Device:
    """A device as the result claims it; None: no claim."""

    kind: str
    name: str
    nodes: tuple[Id, ...]
    load: Fraction | None
    memory: Fraction | None = None
    stage: object = None


@dataclass(slots=True)
class Report:
    """``objective``: the largest load, recomputed, in milliseconds; ``loads``: per device its name, load and bytes;
    ``violations``: empty for a split that is right."""

    objective: float
    loads: list[tuple[str, float, float]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        devices = [{"name": name, "load": load, "memory": memory} for name, load, memory in self.loads]
        return {"ok": not self.violations, "objective": self.objective, "devices": devices, "violations": self.violations}

    def text(self) -> str:
        return f"ok: largest load {self.objective:.9g} ms on {len(self.loads)} devices; all else as claimed"


def verify_files(
    workload: Path,
    result: Path,
    limits: Limits,
    *,
    format: str = "",
    comm: str = "",
    split: str = "",
    forward: bool = False,
) -> Report:
    """Reads both files and verifies. Raises InvalidInput for what cannot be read."""
    text = _read(workload)
    try:
        claimed = json.loads(_read(result))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"this is not JSON: {error}", where=str(result)) from None
    try:
        return verify(text, claimed, limits, format=format, comm=comm, split=split, forward=forward)
    except _Malformed as error:
        raise InvalidInput(str(error), where=str(result if error.result else workload)) from None


def verify(
    text: str,
    claimed: object,
    limits: Limits,
    *,
    format: str = "",
    comm: str = "",
    split: str = "",
    forward: bool = False,
) -> Report:
    """Verifies ``claimed``, a parsed result, against the text of a workload. ``comm`` and ``split`` empty: as the
    result says, else sum and contiguous."""
    chosen = format or ("device-placement" if text.lstrip("\ufeff \t\r\n").startswith("{") else "pipedream")
    workload = _placement(text, limits) if chosen == "device-placement" else _pipedream(text, limits)
    if forward:
        workload.nodes = {id_: node for id_, node in workload.nodes.items() if not node.backward}
        workload.readers = {id_: readers & workload.nodes.keys() for id_, readers in workload.readers.items()}
    devices, largest, statement = _claims(claimed)
    if statement.get("kind") == "pipedream":
        return _verify_pipedream(workload, devices, largest, statement)
    comm = comm or str(statement.get("comm", "sum"))
    contiguous = (split or statement.get("split")) != "any"
    return _verify(workload, devices, largest, statement, comm, contiguous)


class _Malformed(Exception):
    """A file that cannot be read; ``result``: the claimed split, else the workload."""

    def __init__(self, message: str, result: bool = False) -> None:
        super().__init__(message)
        self.result = result


# --- judging ---------------------------------------------------------------------------------------------------------


def _verify(
    workload: _Workload,
    devices: Sequence[_Device],
    largest: Fraction | None,
    statement: Mapping[str, Any],
    comm: str,
    contiguous: bool,
) -> Report:
    wrong: list[str] = []
    home: dict[Id, int] = {}
    for index, device in enumerate(devices):
        for id_ in device.nodes:
            if id_ not in workload.nodes:
                wrong.append(f"{device.name} holds node {id_!r}, which the workload does not have")
            elif id_ in home:
                other = devices[home[id_]].name
                wrong.append(
                    f"node {id_!r} is on {device.name} and on {other}"
                    if other != device.name
                    else f"{device.name} lists node {id_!r} twice"
                )
            else:
                home[id_] = index
    missing = [id_ for id_ in workload.nodes if id_ not in home]
    if missing:
        wrong.append(f"{len(missing)} nodes are on no device: {_some(missing)}")
    names = [device.name for device in devices]
    wrong += [f"device {name} is listed twice" for name in sorted({name for name in names if names.count(name) > 1})]
    for kind, limit in (("accelerator", workload.accelerators), ("cpu", workload.cpus)):
        used = sum(1 for device in devices if device.kind == kind and device.nodes)
        if limit is not None and used > limit:
            wrong.append(f"{used} devices of kind {kind} are used, there are {limit}")
    members = [{id_ for id_, at in home.items() if at == index} for index in range(len(devices))]
    colors: dict[object, Id] = {}
    for id_, at in home.items():
        color = workload.nodes[id_].color
        first = colors.setdefault(color, id_) if color is not None else id_
        if home[first] != at:
            wrong.append(
                f"nodes {first!r} and {id_!r} have colour {color} and are on {devices[home[first]].name} and {devices[at].name}"
            )
    loads = []
    for device, inside in zip(devices, members, strict=True):
        load, size = _load(workload, device.kind, inside, comm), sum((workload.nodes[v].size for v in inside), Fraction(0))
        stuck = [v for v in inside if _seconds(workload.nodes[v], device.kind) is None]
        if stuck:
            wrong.append(f"{device.name} is of kind {device.kind}, which cannot run {_some(sorted(stuck, key=str))}")
        if device.kind == "accelerator" and workload.memory is not None and size > workload.memory:
            needs, has, short = (f"{float(b):.12g}" for b in (size, workload.memory, size - workload.memory))
            wrong.append(f"{device.name} needs {needs} bytes, it has {has}: {short} short")
        if device.load is not None and not _same(device.load, load):
            wrong.append(f"the load of {device.name} is {float(load):.12g}, not {float(device.load):.12g} as claimed")
        if device.memory is not None and abs(device.memory - size) > len(inside):
            wrong.append(f"the memory of {device.name} is {float(size):.12g} bytes, not {float(device.memory):.12g} as claimed")
        loads.append((device.name, load, size))
    objective = max((load for _, load, _ in loads), default=Fraction(0))
    options = statement.get("options")
    if statement.get("kind") == "training" and isinstance(options, dict) and options.get("schedule") == "gpipe":
        sides = [
            [_load(workload, device.kind, inside, comm, side) for side in (False, True)]
            for device, inside in zip(devices, members, strict=True)
        ]
        objective = sum((max((side[k] for side in sides), default=Fraction(0)) for k in (0, 1)), Fraction(0))
    if largest is not None and not _same(largest, objective):
        wrong.append(f"the objective is {float(objective):.12g}, not {float(largest):.12g} as claimed")
    if contiguous:
        wrong += _cycles(workload, devices, home)
    wrong += _statement_faults(statement, largest)
    shown = [(name, float(load), float(size)) for (name, load, size), inside in zip(loads, members, strict=True) if inside]
    return Report(float(objective), shown, wrong)


def _verify_pipedream(
    workload: _Workload, devices: Sequence[_Device], largest: Fraction | None, statement: Mapping[str, Any]
) -> Report:
    wrong: list[str] = []
    if not workload.both:
        raise _Malformed("PipeDream's objective is of PipeDream profiles, which state both passes of a node")
    rows: dict[int, list[_Device]] = {}
    for device in devices:
        if device.nodes:
            if isinstance(device.stage, bool) or not isinstance(device.stage, int):
                raise _Malformed(f"device {device.name}: expected the number of its 'stage'", result=True)
            rows.setdefault(device.stage, []).append(device)
    stages = [rows[number] for number in sorted(rows)]
    for row in stages:
        wrong += [
            f"{other.name} and {row[0].name} are replicas and hold different nodes"
            for other in row
            if set(other.nodes) != set(row[0].nodes)
        ]
    where: dict[Id, int] = {}
    for index, row in enumerate(stages):
        for id_ in row[0].nodes:
            if id_ not in workload.nodes:
                wrong.append(f"{row[0].name} holds node {id_!r}, which the workload does not have")
            elif id_ in where:
                wrong.append(f"node {id_!r} is listed twice, on {stages[where[id_]][0].name} and on {row[0].name}")
            else:
                where[id_] = index
    if missing := [id_ for id_ in workload.nodes if id_ not in where]:
        wrong.append(f"{len(missing)} nodes are on no device: {_some(missing)}")
    for maker, readers in workload.readers.items():
        for reader in sorted(readers, key=str):
            if maker in where and reader in where and where[reader] < where[maker]:
                names = stages[where[maker]][0].name, stages[where[reader]][0].name
                wrong.append(
                    f"the split is not contiguous: {names[0]} sends node {maker!r} back to {names[1]} (node {reader!r})"
                )
    used = sum(len(row) for row in stages)
    if workload.accelerators is not None and used > workload.accelerators:
        wrong.append(f"{used} devices are used, there are {workload.accelerators}")
    options = statement.get("options") if isinstance(statement.get("options"), dict) else {}
    assert isinstance(options, dict)
    if options.get("straight") and any(len(row) > 1 for row in stages):
        wrong.append("a stage has replicas, and the result says straight")
    loads: list[tuple[str, float, float]] = []
    objective, before, onward = Fraction(0), set[Id](), used
    for index, row in enumerate(stages):
        inside = {id_ for id_, at in where.items() if at == index}
        load, needed = _stage(workload, inside, before, len(row), onward, options, 0 < index < len(stages) - 1)
        objective = max(objective, load)
        for device in row:
            if device.load is not None and not _same(device.load, load):
                wrong.append(f"the load of {device.name} is {float(load):.12g}, not {float(device.load):.12g} as claimed")
            if device.memory is not None and abs(device.memory - needed) > used * (len(inside) + 1):
                wrong.append(
                    f"the memory of {device.name} is {float(needed):.12g} bytes, not {float(device.memory):.12g} as claimed"
                )
            if workload.memory is not None and needed > workload.memory:
                wrong.append(f"{device.name} needs {float(needed):.12g} bytes, it has {float(workload.memory):.12g}")
            loads.append((device.name, float(load), float(needed)))
        before |= inside
        onward -= len(row)
    if largest is not None and not _same(largest, objective):
        wrong.append(f"the objective is {float(objective):.12g}, not {float(largest):.12g} as claimed")
    return Report(float(objective), loads, wrong + list(_statement_faults(statement, largest)))


def _stage(
    workload: _Workload, inside: set[Id], before: set[Id], replicas: int, onward: int, options: Mapping[str, Any], sends: bool
) -> tuple[Fraction, Fraction]:
    """Milliseconds per minibatch and bytes of a stage; ``onward``: machines from it to the end."""
    share = workload.bandwidth * replicas
    weights = sum((workload.nodes[v].size for v in inside), Fraction(0))
    compute = sum((workload.both[v] for v in inside), Fraction(0)) / replicas
    load = compute + 4 * (replicas - 1) * weights / share / replicas
    load = max(load, 2 * _cut(workload, before) / share)
    if sends:
        load = max(load, 2 * _cut(workload, before | inside) / share)
    schedule, microbatches = options.get("schedule", "stash"), options.get("microbatches")
    flight = math.ceil(Fraction(onward, replicas))
    if microbatches and schedule in ("flush", "gpipe"):
        flight = int(microbatches) if schedule == "gpipe" else min(flight, int(microbatches))
    copies = {"stash": flight, "2bw": 2}.get(str(schedule), 1)
    return load, copies * weights + flight * sum((workload.output[v] for v in inside), Fraction(0))


def _cut(workload: _Workload, ideal: set[Id]) -> Fraction:
    """Bytes made inside and read outside, each output once."""
    return sum((workload.output[v] for v in ideal if workload.readers[v] - ideal), Fraction(0))


def _seconds(node: _Node, kind: str) -> Fraction | None:
    return node.cpu if kind == "cpu" else node.accelerator


def _load(workload: _Workload, kind: str, inside: set[Id], comm: str, side: bool | None = None) -> Fraction:
    """Compute plus transfers of one device; each output that enters or leaves counts once. ``side``: of forward (False) or
    backward (True) nodes and what these make alone."""
    counted = {id_ for id_, node in workload.nodes.items() if side is None or node.backward == side}
    compute = sum((_seconds(workload.nodes[v], kind) or Fraction(0) for v in inside & counted), Fraction(0))
    received, sent = Fraction(0), Fraction(0)
    if kind != "cpu":
        for maker, readers in workload.readers.items():
            if maker in inside & counted:
                sent += workload.send[maker] if readers - inside else 0
            elif maker in counted and readers & inside:
                received += workload.send[maker]
    if comm == "overlap":
        return max(compute, received + sent)
    if comm == "duplex":
        return max(compute, received, sent)
    return compute + received + sent


def _cycles(workload: _Workload, devices: Sequence[_Device], home: Mapping[Id, int]) -> Iterable[str]:
    """A cycle among devices, told by the nodes that make it."""
    edge: dict[int, dict[int, tuple[Id, Id]]] = {}
    mated = {_mates(workload, id_) for id_, node in workload.nodes.items() if not node.backward}
    for maker, readers in workload.readers.items():
        for reader in readers:
            if maker not in home or reader not in home or home[maker] == home[reader]:
                continue
            sides = workload.nodes[maker].backward, workload.nodes[reader].backward
            if sides == (False, False):
                edge.setdefault(home[maker], {}).setdefault(home[reader], (maker, reader))
            elif sides == (True, True) and not {_mates(workload, maker), _mates(workload, reader)} <= mated:
                edge.setdefault(home[reader], {}).setdefault(home[maker], (reader, maker))
    left = set(edge) | {target for targets in edge.values() for target in targets}
    while True:
        sinks = {v for v in left if not any(target in left for target in edge.get(v, {}))}
        if not sinks:
            break
        left -= sinks
    if not left:
        return
    path = [min(left)]
    while path.count(path[-1]) < 2:
        path.append(min(target for target in edge[path[-1]] if target in left))
    cycle = path[path.index(path[-1]) :]
    steps = ", ".join(
        f"{devices[a].name} sends node {edge[a][b][0]!r} to {devices[b].name} (node {edge[a][b][1]!r})"
        for a, b in pairwise(cycle)
    )
    yield f"the split is not contiguous: {steps}"


def _mates(workload: _Workload, id_: Id) -> tuple[str, object]:
    """What a node shares its device with: its colour, or itself alone."""
    color = workload.nodes[id_].color
    return ("node", id_) if color is None else ("colour", color)


def _statement_faults(statement: Mapping[str, Any], objective: Fraction | None) -> Iterable[str]:
    """What a ``dnnc.solve/1`` says of its own proof."""
    bound, gap, status = _fraction(statement.get("bound")), _fraction(statement.get("gap")), statement.get("status")
    if bound is None or objective is None:
        return
    if bound > objective * (1 + Fraction(1, 10**9)):
        yield f"the bound {float(bound):.12g} is above the objective {float(objective):.12g}"
    true_gap = objective / bound - 1 if bound else None
    if gap is not None and true_gap is not None and abs(gap - true_gap) > CLOSE:
        yield f"the gap is {float(true_gap):.6g}, not {float(gap):.6g} as claimed"
    if status == "optimal" and objective > bound * (1 + Fraction(1, 10**6)):
        yield "the status is optimal, but the bound is below the objective"


def _same(claimed: Fraction, true: Fraction) -> bool:
    return abs(claimed - true) <= CLOSE * max(abs(true), abs(claimed))


def _some(ids: Sequence[Id]) -> str:
    return ", ".join(repr(id_) for id_ in ids[:8]) + (", ..." if len(ids) > 8 else "")


# --- reading ---------------------------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read: {error.strerror or error}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidInput("expected text, found bytes that are not UTF-8", where=str(path)) from None


def _fraction(value: object) -> Fraction | None:
    """A JSON number as the decimal that it prints as: exact, and equal for equal texts."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        return None
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _need(value: object, what: str) -> Fraction:
    found = _fraction(value)
    if found is None:
        raise _Malformed(f"{what} is {value!r}, expected a number")
    return found


def _claims(claimed: object) -> tuple[list[_Device], Fraction | None, dict[str, Any]]:
    """Devices, claimed largest load, and what else the result states."""
    if not isinstance(claimed, dict):
        raise _Malformed("a result is a JSON object", result=True)
    rows: list[tuple[str, str, Any]]
    if "devices" in claimed:
        if not isinstance(claimed["devices"], list) or not all(isinstance(row, dict) for row in claimed["devices"]):
            raise _Malformed("'devices' is a list of objects", result=True)
        if claimed.get("status") in ("infeasible", "unknown"):
            raise _Malformed(f"the result holds no split: its status is {claimed['status']}", result=True)
        rows = [(str(row.get("kind")), str(row.get("name")), row) for row in claimed["devices"]]
        largest, statement = _fraction(claimed.get("objective")), claimed
    elif "fpgas" in claimed or "cpus" in claimed:
        rows = []
        for key, kind in (("fpgas", "accelerator"), ("cpus", "cpu")):
            found = claimed.get(key, [])
            if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
                raise _Malformed(f"'{key}' is a list of objects", result=True)
            rows += [(kind, f"{key}[{index}]", row) for index, row in enumerate(found)]
        largest, statement = _fraction(claimed.get("maxLoad")), {}
    else:
        raise _Malformed("expected 'devices' (dnnc solve --json), or 'fpgas' and 'cpus' (the reference's format)", result=True)
    devices = []
    for kind, name, row in rows:
        nodes = row.get("nodes")
        if kind not in ("accelerator", "cpu") or not isinstance(nodes, list):
            raise _Malformed(f"device {name}: expected a kind, accelerator or cpu, and a list 'nodes'", result=True)
        if not all(isinstance(id_, int | str) for id_ in nodes):
            raise _Malformed(f"device {name}: a node is named by its id, a number or a text", result=True)
        load, memory = _fraction(row.get("load")), _fraction(row.get("memory"))
        devices.append(_Device(kind, name, tuple(nodes), load, memory, row.get("stage")))
    return devices, largest, statement


def _placement(text: str, limits: Limits) -> _Workload:
    try:
        data = json.loads(text.removeprefix("\ufeff"))
        nodes = {
            node["id"]: _Node(
                _need(node.get("fpgaLatency"), f"fpgaLatency of node {node['id']}") if node.get("supportedOnFpga", 1) else None,
                _fraction(node.get("cpuLatency")),
                _need(node.get("size") or 0, f"size of node {node['id']}"),
                node.get("colorClass"),
                bool(node.get("isBackwardNode", 0)),
            )
            for node in data["nodes"]
        }
        readers: dict[Id, set[Id]] = {id_: set() for id_ in nodes}
        send: dict[Id, Fraction] = {}
        size: dict[Id, Fraction] = {}
        for edge in data["edges"]:
            source = edge["sourceId"]
            readers[source].add(edge["destId"])
            send.setdefault(source, _need(edge["cost"], f"cost of an edge out of node {source}"))
            size[source] = max(size.get(source, Fraction(0)), _need(edge.get("size") or 0, "size of an edge"))
        if limits.bandwidth is not None:
            send = {id_: math.ceil(size[id_]) / Fraction(limits.bandwidth) * _MS for id_ in send}
        memory = _fraction(data.get("maxSizePerFPGA"))
        accelerators, cpus = data.get("maxFPGAs"), data.get("maxCPUs") or 0
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise _Malformed(f"not a device-placement workload: {type(error).__name__} {error}") from None
    return _limited(_Workload(nodes, readers, send, accelerators, cpus, memory), limits)


_PROFILE_NODE = re.compile(
    r"(\S+) -- (.*) -- forward_compute_time=([^,]+), *backward_compute_time=([^,]+), *"
    r"activation_size=(\[[^\]]*\]|[^,]+), *parameter_size=(\S+)"
)


def _pipedream(text: str, limits: Limits) -> _Workload:
    nodes: dict[Id, _Node] = {}
    readers: dict[Id, set[Id]] = {}
    size: dict[Id, Fraction] = {}
    both: dict[Id, Fraction] = {}
    about: dict[Id, str] = {}
    try:
        for line in text.splitlines():
            if line[:1].isspace() and line.strip():
                source, target = line.strip().split(" -- ")
                readers.setdefault(source, set()).add(target)
            elif line.strip() and not line.startswith("#"):
                match = _PROFILE_NODE.match(line)
                if match is None:
                    raise _Malformed(f"not a PipeDream profile: {line[:60]!r}")
                id_, desc, forward, backward, activation, weight = match.groups()
                about[id_], both[id_] = desc, Fraction(forward) + Fraction(backward)
                nodes[id_] = _Node(Fraction(forward), None, Fraction(weight), None, False)
                size[id_] = sum((Fraction(part.strip()) for part in activation.strip("[]").split(";")), Fraction(0))
    except ValueError as error:
        raise _Malformed(f"not a PipeDream profile: {error}") from None
    gone = {id_ for id_ in nodes if about[id_].startswith("Input")}
    gone |= {id_ for id_ in nodes if about[id_].startswith("__getitem__") and not readers.get(id_, set()) - gone}
    bandwidth = _PIPEDREAM_BANDWIDTH if limits.bandwidth is None else Fraction(limits.bandwidth)
    kept = {id_: node for id_, node in nodes.items() if id_ not in gone}
    sent = {id_: readers.get(id_, set()) - gone for id_ in kept}
    send = {id_: math.ceil(size[id_]) / bandwidth * _MS for id_ in kept}
    output = {id_: Fraction(math.ceil(size[id_])) for id_ in kept}
    return _limited(_Workload(kept, sent, send, None, 0, None, both, output, bandwidth / _MS), limits)


def _limited(workload: _Workload, limits: Limits) -> _Workload:
    """The workload with the machines of ``limits``. Raises UsageError when nobody says how many accelerators there are."""
    if limits.accelerators is not None:
        workload.accelerators = limits.accelerators
    if limits.cpus is not None:
        workload.cpus = limits.cpus
    if limits.memory is not None:
        workload.memory = Fraction(limits.memory)
    if workload.accelerators is None:
        raise UsageError("the workload does not say how many accelerators there are", hint="add --accelerators N")
    return workload
