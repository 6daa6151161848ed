"""Verifies latency by its definition: accelerators run pieces in order, CPU nodes run when ready, the latest end counts.

A piece starts when its inputs from outside are ready and the previous piece of its accelerator has ended. It takes the sum of
its received tensors, its compute and its sent tensors; its outputs are ready at its end. A CPU node starts when its inputs are
ready. All times are exact rationals in milliseconds.

Rules: every node is in one piece or on a CPU, on a device that can run it; an accelerator runs at most ``options.pieces``
pieces, and the sizes of all of them fit its memory; nodes of one colour are all on CPUs or on one accelerator; nothing waits
for itself; start, finish, load and memory are as claimed. The format of the reference (``totalLatency``) lists pieces as
"fpgas": an equal number for each accelerator, one accelerator after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dnnc.workloads.verify_plan.claims import Report, claimed_outcome, statement_faults
from dnnc.workloads.verify_plan.numbers import CLOSE, Malformed, claim, same, some
from dnnc.workloads.verify_plan.workload import ACCELERATOR, CPU, Id, Machine, Workload
from ir.core.objectives import LATENCY


@dataclass(slots=True)
class _Piece:
    """Nodes of a piece with its claimed times, None if not stated."""

    nodes: tuple[Id, ...]
    start: Fraction | None = None
    finish: Fraction | None = None


@dataclass(slots=True)
class _Accelerator:
    name: str
    machine: Machine
    pieces: list[_Piece]
    load: Fraction | None = None
    memory: Fraction | None = None


@dataclass(slots=True)
class _Plan:
    accelerators: list[_Accelerator] = field(default_factory=list)
    on_cpu: list[Id] = field(default_factory=list)
    cpu: str = CPU
    most: int = 1
    latency: Fraction | None = None


def verify_latency(workload: Workload, claimed: object, statement: Mapping[str, Any]) -> Report:
    """Verifies ``claimed``, a parsed result; ``statement``: complete, from ``statement.chosen``. Raises Malformed for fields
    that cannot be read."""
    if not isinstance(claimed, dict):
        raise Malformed("a result must be a JSON object", result=True)
    if any(node.backward for node in workload.nodes.values()):
        raise Malformed("latency is of inference, and the workload has backward nodes: verify with --forward")
    stated = "devices" in claimed
    pieces_each = _pieces_each(statement)
    plan = _stated(claimed, workload, pieces_each or 1) if stated else _reference(claimed, workload, pieces_each)
    wrong = _places(workload, plan)
    pieces = [piece for device in plan.accelerators for piece in device.pieces]
    took = [_duration(workload, device.machine, piece) for device in plan.accelerators for piece in device.pieces]
    times, ready = _simulate(workload, plan, took)
    loads: list[tuple[str, float, float]] = []
    index = 0
    for device in plan.accelerators:
        size = sum((workload.nodes[v].size for p in device.pieces for v in p.nodes if v in workload.nodes), Fraction(0))
        busy = Fraction(0)
        for piece in device.pieces:
            busy += took[index]
            start = times.get(index)
            if start is not None:
                for what, said, true in (("starts", piece.start, start), ("ends", piece.finish, start + took[index])):
                    if said is not None and not same(said, true) and abs(said - true) > CLOSE * max(ready, default=Fraction(1)):
                        wrong.append(
                            f"a piece of {device.name} {what} at {float(true):.12g}, not {float(said):.12g} as claimed"
                        )
            index += 1
        limit = device.machine.memory
        if limit is not None and size > limit:
            needs, has, short = (f"{float(b):.12g}" for b in (size, limit, size - limit))
            wrong.append(f"{device.name} needs {needs} bytes, it has {has}: {short} short")
        if device.load is not None and not same(device.load, busy):
            wrong.append(f"the load of {device.name} is {float(busy):.12g}, not {float(device.load):.12g} as claimed")
        if device.memory is not None and abs(device.memory - size) > sum(len(p.nodes) for p in device.pieces):
            wrong.append(f"the memory of {device.name} is {float(size):.12g} bytes, not {float(device.memory):.12g} as claimed")
        if device.pieces:
            loads.append((device.name, float(busy), float(size)))
    if len(ready) < len(pieces) + len(set(plan.on_cpu) & workload.nodes.keys()):
        wrong.append("the plan cannot run: some piece waits for itself, so it is not contiguous")
    latency = max(ready, default=Fraction(0))
    if plan.latency is not None and not same(plan.latency, latency):
        wrong.append(f"the latency is {float(latency):.12g}, not {float(plan.latency):.12g} as claimed")
    if stated:
        wrong += statement_faults(claimed, plan.latency)
    return Report(float(latency), loads, wrong, LATENCY.name)


def _ids(row: Mapping[str, Any], where: str) -> tuple[Id, ...]:
    nodes = row.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(id_, int | str) and not isinstance(id_, bool) for id_ in nodes):
        raise Malformed(f"{where}: expected a list 'nodes' of ids, numbers or texts", result=True)
    return tuple(nodes)


def _objects(value: object, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise Malformed(f"{what} must be a list of objects", result=True)
    return value


def _pieces_each(statement: Mapping[str, Any]) -> int | None:
    """Most pieces of an accelerator; None if it is not stated. Raises Malformed."""
    most = statement["options"].get("pieces")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise Malformed("options.pieces must be an integer from 1 on", result=True)
    return most


def _cpu_kind(workload: Workload) -> str:
    """The kind of device with free transfers and unlimited memory; empty if there is none."""
    if not workload.machines:
        return CPU
    return next((machine.kind for machine in workload.machines.values() if machine.unlimited), "")


def _stated(claimed: Mapping[str, Any], workload: Workload, most: int) -> _Plan:
    """The plan of a ``dnnc.solve/1``."""
    if (status := claimed_outcome(claimed)) in ("infeasible", "undecided"):
        raise Malformed(f"the result holds no plan: its status is {status}", result=True)
    plan = _Plan(most=most, latency=claim(claimed, "objective"), cpu=_cpu_kind(workload))
    for row in _objects(claimed["devices"], "'devices'"):
        name, kind = str(row.get("name")), str(row.get("kind"))
        machine = workload.machines.get(name)
        if kind == plan.cpu and (machine is None or machine.unlimited):
            plan.on_cpu += _ids(row, name)
        elif kind == ACCELERATOR if machine is None else kind == machine.kind:
            pieces = [
                _Piece(_ids(piece, name), claim(piece, "start"), claim(piece, "finish"))
                for piece in _objects(row.get("pieces", []), f"'pieces' of {name}")
            ]
            if sorted(map(repr, _ids(row, name))) != sorted(repr(v) for piece in pieces for v in piece.nodes):
                raise Malformed(f"the nodes of {name} are not those of its pieces", result=True)
            plan.accelerators.append(
                _Accelerator(name, workload.machine(kind, name), pieces, claim(row, "load"), claim(row, "memory"))
            )
        else:
            expected = "a device of the topology, of its kind" if workload.machines else "a kind, accelerator or cpu"
            raise Malformed(f"device {name}: expected {expected}", result=True)
    return plan


def _reference(claimed: Mapping[str, Any], workload: Workload, pieces_each: int | None) -> _Plan:
    """The plan in the format of the reference, in which each accelerator has an equal number of rows."""
    listed = _objects(claimed.get("fpgas", []), "'fpgas'")
    rows = [_ids(row, "fpgas") for row in listed]
    count = workload.accelerators or 0
    most = pieces_each or (len(rows) // count if count and len(rows) % count == 0 and rows else 1)
    plan = _Plan(most=most, latency=claim(claimed, "totalLatency"), cpu=_cpu_kind(workload))
    for first in range(0, len(rows), most):
        pieces = [_Piece(nodes) for nodes in rows[first : first + most] if nodes]
        names = {str(row.get("device", f"fpgas[{first}]")) for row in listed[first : first + most]}
        if len(names) > 1:
            raise Malformed(f"fpgas[{first}] and the rows behind it, pieces of one device, name several", result=True)
        if pieces:
            (name,) = names
            plan.accelerators.append(_Accelerator(name, workload.machine(ACCELERATOR, name), pieces))
    for row in _objects(claimed.get("cpus", []), "'cpus'"):
        plan.on_cpu += _ids(row, "cpus")
    return plan


def _places(workload: Workload, plan: _Plan) -> list[str]:
    """Violations of the rules about where nodes are."""
    wrong: list[str] = []
    home: dict[Id, str] = {}
    listed = [(d.name, d.machine.kind, v) for d in plan.accelerators for piece in d.pieces for v in piece.nodes]
    cpus = bool(plan.cpu) if workload.machines else workload.cpus > 0
    for name, kind, id_ in [*listed, *(("a CPU", plan.cpu, v) for v in plan.on_cpu)]:
        if id_ not in workload.nodes:
            wrong.append(f"{name} holds node {id_!r}, which the workload does not have")
            continue
        if id_ in home:
            wrong.append(f"node {id_!r} is listed twice, on {home[id_]} and on {name}")
        home[id_] = name
        if kind not in workload.nodes[id_].seconds or (name == "a CPU" and not cpus):
            wrong.append(f"{name} cannot run node {id_!r}")
    if missing := [id_ for id_ in workload.nodes if id_ not in home]:
        wrong.append(f"{len(missing)} nodes are on no device: {some(missing)}")
    names = [device.name for device in plan.accelerators]
    wrong += [f"device {name} is listed twice" for name in sorted({name for name in names if names.count(name) > 1})]
    used = sum(1 for device in plan.accelerators if device.pieces)
    if not workload.machines and workload.accelerators is not None and used > workload.accelerators:
        wrong.append(f"{used} accelerators are used, there are {workload.accelerators}")
    for device in plan.accelerators:
        if len(device.pieces) > plan.most:
            wrong.append(f"{device.name} runs {len(device.pieces)} pieces, the result says at most {plan.most}")
        if any(not piece.nodes for piece in device.pieces):
            wrong.append(f"a piece of {device.name} is empty")
    colors: dict[object, Id] = {}
    for id_, name in home.items():
        color = workload.nodes[id_].color
        first = colors.setdefault(color, id_) if color is not None else id_
        if home[first] != name:
            wrong.append(f"nodes {first!r} and {id_!r} have colour {color} and are on {home[first]} and {name}")
    return wrong


def _duration(workload: Workload, machine: Machine, piece: _Piece) -> Fraction:
    """Milliseconds that a piece takes."""
    inside = {v for v in piece.nodes if v in workload.nodes}
    total = sum((workload.nodes[v].seconds.get(machine.kind, Fraction(0)) for v in inside), Fraction(0))
    for maker, readers in workload.readers.items():
        if (readers - inside) if maker in inside else (readers & inside):
            total += workload.transfer(maker, machine)
    return total


def _simulate(workload: Workload, plan: _Plan, took: Sequence[Fraction]) -> tuple[dict[int, Fraction], list[Fraction]]:
    """Simulates the plan: the start of each piece that can run, by number, and the ends of all pieces and CPU nodes that
    can."""
    units: list[set[Id]] = []
    length: list[Fraction] = list(took)
    after: list[int] = []  # the previous piece of its accelerator, -1 for none
    for device in plan.accelerators:
        for position, piece in enumerate(device.pieces):
            after.append(len(units) - 1 if position else -1)
            units.append({v for v in piece.nodes if v in workload.nodes})
    for v in plan.on_cpu:
        if v in workload.nodes:
            units.append({v})
            after.append(-1)
            length.append(workload.nodes[v].seconds.get(plan.cpu, Fraction(0)))
    home = {v: u for u, members in enumerate(units) for v in members}
    waits: list[set[int]] = [{before} - {-1} for before in after]
    for maker, readers in workload.readers.items():
        for reader in readers:
            if maker in home and reader in home and home[maker] != home[reader]:
                waits[home[reader]].add(home[maker])
    starts: dict[int, Fraction] = {}
    left = set(range(len(units)))
    while left:
        ready = [u for u in left if all(w in starts for w in waits[u])]
        if not ready:
            break
        for u in ready:
            starts[u] = max((starts[w] + length[w] for w in waits[u]), default=Fraction(0))
        left -= set(ready)
    ends = [starts[u] + length[u] for u in sorted(starts)]
    return {u: start for u, start in starts.items() if u < len(took)}, ends
