"""Verifies throughput and training: load and memory of every device, and the rules of a split.

With ``replicas`` R in its options, a result may have up to R devices of one kind with equal ``stage``. They hold the same nodes
and take samples in turn, so each has its share of the load. In training they average their gradients in 4 (r-1) W / (B r), with
W the bytes of the forward nodes, after each minibatch of their own or once per ``microbatches``, which r may not exceed.

With ``hierarchy`` GxS, the numbers of stages are numbers of devices in groups of S: a tensor that is produced and read in one
group is sent at ``inner_bandwidth``. Devices may be left out, and each replica takes a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeAlias

from dnnc.workloads.faults import BandwidthOfSplitUnknown
from dnnc.workloads.verify_plan.claims import Device, Report, groups_of, microbatches_of, statement_faults
from dnnc.workloads.verify_plan.numbers import Malformed, same, some, told
from dnnc.workloads.verify_plan.workload import Id, Machine, Workload
from ir.core.diagnostics import UsageError
from ir.core.objectives import TRAINING


def verify_devices(
    workload: Workload,
    devices: Sequence[Device],
    largest: Fraction | None,
    statement: Mapping[str, Any],
) -> Report:
    """Verifies a split for throughput or training; ``statement``: complete, from ``statement.chosen``."""
    options, comm = _options(statement), str(statement["comm"])
    if statement["kind"] == TRAINING.name and options.get("schedule", "1f1b") not in ("1f1b", "gpipe"):
        raise Malformed(f"the schedule of training is {told(options['schedule'])}, expected 1f1b or gpipe", result=True)
    rows = _rows(devices, options.get("replicas"))
    leaders = [row[0] for row in rows]
    machines = [workload.machine(device.kind, device.name) for device in leaders]
    home, wrong = _homes(workload, leaders)
    flush = microbatches_of(options) if statement["kind"] == TRAINING.name else None
    wrong += _replica_faults(rows, options.get("replicas"), flush)
    wrong += _machine_faults(workload, devices)
    wrong += _color_faults(workload, leaders, home)
    members = [{id_ for id_, at in home.items() if at == index} for index in range(len(rows))]
    groups = groups_of(statement, workload.bandwidth)
    near = _near(rows, groups)
    if groups is not None:
        wrong += _group_faults(rows, groups[0])
    sides = [
        _sides(workload, machine, len(row), inside, comm, statement, close)
        for machine, row, inside, close in zip(machines, rows, members, near, strict=True)
    ]
    shown: list[tuple[str, float, float]] = []
    for machine, row, inside, (load, _) in zip(machines, rows, members, sides, strict=True):
        size = sum((workload.nodes[v].size for v in inside), Fraction(0))
        wrong += _row_faults(workload, machine, row, inside, load, size)
        shown += [(device.name, float(load), float(size)) for device in row if inside]
    objective = max((load for load, _ in sides), default=Fraction(0))
    if statement.get("kind") == TRAINING.name and options.get("schedule") == "gpipe":
        objective = sum((max((side[k] for _, side in sides), default=Fraction(0)) for k in (0, 1)), Fraction(0))
    if largest is not None and not same(largest, objective):
        wrong.append(f"the objective is {float(objective):.12g}, not {float(largest):.12g} as claimed")
    if statement["split"] != "any":
        wrong += _cycles(workload, leaders, home)
    wrong += statement_faults(statement, largest)
    return Report(float(objective), shown, wrong)


def _homes(workload: Workload, devices: Sequence[Device]) -> tuple[dict[Id, int], list[str]]:
    """For each node the index of its device, and the violations."""
    home: dict[Id, int] = {}
    wrong = []
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
                home |= dict.fromkeys((id_, *workload.mates.get(id_, ())), index)
    unlisted = {mate for mates in workload.mates.values() for mate in mates}
    if missing := [id_ for id_ in workload.nodes if id_ not in home and id_ not in unlisted]:
        wrong.append(f"{len(missing)} nodes are on no device: {some(missing)}")
    return home, wrong


def _machine_faults(workload: Workload, devices: Sequence[Device]) -> Iterable[str]:
    names = [device.name for device in devices]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"device {name} is listed twice"
    if workload.machines:
        return  # devices of a topology are found by name
    for kind, limit in (("accelerator", workload.accelerators), ("cpu", workload.cpus)):
        used = sum(1 for device in devices if device.kind == kind and device.nodes)
        if limit is not None and used > limit:
            yield f"{used} devices of kind {kind} are used, there are {limit}"


def _color_faults(workload: Workload, devices: Sequence[Device], home: Mapping[Id, int]) -> Iterable[str]:
    colors: dict[object, Id] = {}
    for id_, at in home.items():
        color = workload.nodes[id_].color
        first = colors.setdefault(color, id_) if color is not None else id_
        if home[first] != at:
            where = f"{devices[home[first]].name} and {devices[at].name}"
            yield f"nodes {first!r} and {id_!r} have colour {color} and are on {where}"


def _sides(
    workload: Workload,
    machine: Machine,
    replicas: int,
    inside: set[Id],
    comm: str,
    statement: Mapping[str, Any],
    near: Near | None,
) -> tuple[Fraction, tuple[Fraction, Fraction]]:
    """Load of each replica per sample, and its forward and backward parts."""
    sync = _sync(workload, machine, inside, replicas, statement)
    whole = _load(workload, machine, inside, comm, near=near) / replicas + sync
    forward, backward = (_load(workload, machine, inside, comm, side) / replicas for side in (False, True))
    return whole, (forward, backward + sync)


def _row_faults(
    workload: Workload, machine: Machine, row: Sequence[Device], inside: set[Id], load: Fraction, size: Fraction
) -> Iterable[str]:
    """Violations of a device and its replicas: nodes that cannot run there, memory, wrong claims."""
    device = row[0]
    if device.kind != machine.kind:
        yield f"{device.name} is of kind {machine.kind}, not {device.kind} as claimed"
    for other in row[1:]:
        if workload.machine(other.kind, other.name) != machine:
            yield f"{other.name} and {device.name} are replicas and unlike devices"
    if stuck := [v for v in inside if machine.kind not in workload.nodes[v].seconds]:
        yield f"{device.name} is of kind {machine.kind}, which cannot run {some(sorted(stuck, key=str))}"
    if machine.memory is not None and size > machine.memory:
        needs, has, short = (f"{float(b):.12g}" for b in (size, machine.memory, size - machine.memory))
        yield f"{device.name} needs {needs} bytes, it has {has}: {short} short"
    for replica in row:
        name, claimed, held = replica.name, replica.load, replica.memory
        if claimed is not None and not same(claimed, load):
            yield f"the load of {name} is {float(load):.12g}, not {float(claimed):.12g} as claimed"
        if held is not None and abs(held - size) > len(inside):
            yield f"the memory of {name} is {float(size):.12g} bytes, not {float(held):.12g} as claimed"


def _options(statement: Mapping[str, Any]) -> dict[str, Any]:
    options = statement.get("options")
    return options if isinstance(options, dict) else {}


def _rows(devices: Sequence[Device], replicas: object) -> list[list[Device]]:
    """Devices of one stage together if the result has replicas, else each device alone."""
    rows: dict[object, list[Device]] = {}
    for index, device in enumerate(devices):
        staged = replicas is not None and device.nodes and isinstance(device.stage, int)
        rows.setdefault(("stage", device.stage) if staged else ("alone", index), []).append(device)
    return list(rows.values())


def _replica_faults(rows: Sequence[Sequence[Device]], most: object, microbatches: int | None) -> Iterable[str]:
    for row in rows:
        first = row[0]
        for other in row[1:]:
            if other.kind != first.kind:
                yield f"{other.name} and {first.name} are replicas and of different kinds"
            if sorted(map(repr, other.nodes)) != sorted(map(repr, first.nodes)):
                yield f"{other.name} and {first.name} are replicas and hold different nodes"
        if len(row) > 1 and (not isinstance(most, int) or len(row) > most):
            yield f"stage {first.stage} has {len(row)} replicas, the result says at most {most}"
        if microbatches is not None and len(row) > microbatches:
            yield f"stage {first.stage} has {len(row)} replicas; microbatches between two flushes: {microbatches}"


def _sync(workload: Workload, machine: Machine, inside: set[Id], replicas: int, statement: Mapping[str, Any]) -> Fraction:
    """Milliseconds per sample in which replicas average their gradients; 0 if their transfers are free."""
    if replicas == 1 or machine.free or statement.get("kind") != TRAINING.name:
        return Fraction(0)
    bandwidth = workload.bandwidth if machine.port is None else machine.port[1]
    if bandwidth is None:
        raise UsageError(BandwidthOfSplitUnknown("the averaging of gradients among replicas"))
    weights = sum((workload.nodes[v].size for v in inside if not workload.nodes[v].backward), Fraction(0))
    every = microbatches_of(_options(statement)) or replicas
    return 4 * (replicas - 1) * weights / (bandwidth * replicas * every)


Near: TypeAlias = "tuple[set[Id], Fraction]"
"""Nodes in the group of a device, and how many times faster transfers inside it are."""


def _near(rows: Sequence[Sequence[Device]], groups: tuple[int, Fraction] | None) -> list[Near | None]:
    """``Near`` of each row; None without groups."""
    if groups is None:
        return [None] * len(rows)
    size, faster = groups
    nodes_of: dict[int, set[Id]] = {}
    numbers = [_number(row[0]) // size for row in rows]
    for number, row in zip(numbers, rows, strict=True):
        nodes_of.setdefault(number, set()).update(row[0].nodes)
    return [(nodes_of[number], faster) for number in numbers]


def _group_faults(rows: Sequence[Sequence[Device]], size: int) -> Iterable[str]:
    """Violations of groups: two stages on one device, or a stage across groups. A stage uses consecutive devices."""
    holder: dict[int, str] = {}
    for row in rows:
        if not row[0].nodes:
            continue
        first = _number(row[0])
        if first < 0 or first // size != (first + len(row) - 1) // size:
            yield f"stage {first} on {len(row)} devices lies in more than one group of {size}"
        for number in range(first, first + len(row)):
            other = holder.setdefault(number, row[0].name)
            if other != row[0].name:
                yield f"{row[0].name} and {other} are both stage {number}"


def _number(device: Device) -> int:
    """The number of the stage of a device, 0 for one without nodes. Raises Malformed."""
    if not device.nodes:
        return 0
    if isinstance(device.stage, bool) or not isinstance(device.stage, int):
        raise Malformed(f"device {device.name}: expected the number of its 'stage'", result=True)
    return device.stage


def _load(
    workload: Workload, machine: Machine, inside: set[Id], comm: str, side: bool | None = None, near: Near | None = None
) -> Fraction:
    """Milliseconds of compute and transfers of a device, combined by ``comm``; each output that enters or leaves counts once.
    ``side``: only forward (False) or backward (True) nodes and their outputs. ``near``: the group of the device."""
    counted = {id_ for id_, node in workload.nodes.items() if side is None or node.backward == side}
    compute = sum((workload.nodes[v].seconds.get(machine.kind, Fraction(0)) for v in inside & counted), Fraction(0))
    received, sent = Fraction(0), Fraction(0)
    if not machine.free:
        for maker, readers in workload.readers.items():
            ends = readers if maker in inside else {maker}
            cost = workload.transfer(maker, machine) if readers else Fraction(0)
            if near is not None and ends <= near[0]:
                cost /= near[1]
            if maker in inside & counted:
                sent += cost if readers - inside else 0
            elif maker in counted and readers & inside:
                received += cost
    if comm == "overlap":
        return max(compute, received + sent)
    if comm == "duplex":
        return max(compute, received, sent)
    return compute + received + sent


def _cycles(workload: Workload, devices: Sequence[Device], home: Mapping[Id, int]) -> Iterable[str]:
    """A cycle of devices, described by its transfers."""
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


def _mates(workload: Workload, id_: Id) -> tuple[str, object]:
    """The key that nodes on a common device share: the colour, or the node itself."""
    color = workload.nodes[id_].color
    return ("node", id_) if color is None else ("colour", color)
