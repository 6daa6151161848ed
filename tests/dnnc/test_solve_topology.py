"""``dnnc solve -t``: splits over devices of three types are those of brute force, proven, and recomputed by the verifier."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.cli import main
from dnnc.frontends import load_topology
from dnnc.solve import SolveOptions, SolveResult, solve_file
from dnnc.verify_plan import IR, Limits, verify
from dnnc.verify_plan.machines import ports_of
from ir.diagnostics import DiagnosticSink, InvalidInput, UsageError
from passes.model.network import network
from tests.dnnc.workload_files import chain, edge, node, placement, profile_line, text_of

TYPES = ("fast", "slow", "host")


@dataclass(frozen=True)
class Unit:
    """A node: milliseconds by type; bytes that it holds and sends; milliseconds of its transfer where it states them."""

    seconds: Mapping[str, float]
    size: int = 0
    sent: int = 0
    transfer: float | None = None
    color: int | None = None
    backward: bool = False
    back: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Device:
    """One device on a switch: bytes of memory, milliseconds of latency and bytes per millisecond of its link."""

    type: str
    memory: int | None
    latency: float
    width: float


def workload_text(units: Sequence[Unit], edges: Sequence[tuple[int, int]]) -> str:
    lines = []
    for v, unit in enumerate(units):
        reads = ", ".join(f"%u{a}" for a, b in edges if b == v)
        attributes = f" {{size = {unit.size}}}" if unit.size else ""
        facets = [f"color<{unit.color}>"] if unit.color is not None else []
        if any(u.backward for u in units):
            facets.append(f"pass<{'bw' if unit.backward else 'fw'}>")
        for name, stated in (("time", unit.seconds), ("backward", unit.back)):
            if stated is not None:
                facets.append(f"{name}<{', '.join(f'@{t} = {repr(s / 1e3)}' for t, s in sorted(stated.items()))}>")
        if unit.transfer is not None:
            facets.append(f"transfer<{unit.transfer / 1e3!r}>")
        lines.append(f"    %u{v} = dnnc.work({reads}){attributes} : bytes<{unit.sent}> {' '.join(facets)}")
    body = "\n".join(lines)
    return f"module @w {{\n  func @main() -> () {{\n{body}\n  }}\n}}\n"


def topology_text(devices: Sequence[Device]) -> str:
    lines = ["version = 1", 'switches = ["s"]']
    for name in TYPES:
        free = ', kind = "cpu", free_transfers = true' if name == "host" else ', kind = "gpu"'
        rates = 'rates = { f32 = "1 TFLOP/s" }, memory_bandwidth = "1 TB/s"'
        lines.append(f"types.{name} = {{ {rates}{free} }}")
    for number, device in enumerate(devices):
        limit = f'memory = "{device.memory} B"\n' if device.memory is not None else ""
        lines.append(f'[[devices]]\nname = "d{number}"\ntype = "{device.type}"\n{limit}')
        speed = f'bandwidth = "{device.width * 1e3:.0f} B/s"\nlatency = "{device.latency * 1e3:.0f} us"'
        lines.append(f'[[links]]\nends = ["d{number}", "s"]\n{speed}')
    return "\n".join(lines) + "\n"


def random_devices(rng: random.Random) -> list[Device]:
    def device() -> Device:
        name = rng.choice(TYPES)
        memory = None if name == "host" else rng.choice((None, 6, 12))
        return Device(name, memory, rng.choice((0.0, 0.0, 0.125)), rng.choice((4.0, 8.0, 16.0)))

    return [device() for _ in range(rng.randint(2, 4))]


def random_units(rng: random.Random, count: int) -> list[Unit]:
    """Units of which the first runs on every type; one that states the milliseconds of its transfer sends bytes as well."""

    def unit(v: int) -> Unit:
        seconds = {name: float(rng.choice((0, 1, 2, 3, 5))) for name in TYPES if v == 0 or rng.random() < 0.9}
        sent = rng.choice((0, 4, 8))
        return Unit(
            seconds, rng.choice((0, 1, 3)), sent, rng.choice((None, 0.5)) if sent else None, rng.choice((None, None, 0, 1))
        )

    return [unit(v) for v in range(count)]


def random_edges(rng: random.Random, count: int) -> list[tuple[int, int]]:
    return [(a, b) for a, b in itertools.combinations(range(count), 2) if rng.random() < 0.5]


def trained(
    units: Sequence[Unit], edges: Sequence[tuple[int, int]], rng: random.Random
) -> tuple[list[Unit], list[tuple[int, int]]]:
    """Forward units with colours of their own and a backward unit of each, with the edges the other way round."""
    n = len(units)
    forward = [Unit(u.seconds, u.size, u.sent, u.transfer, v) for v, u in enumerate(units)]
    backward = [
        Unit({name: float(rng.choice((0, 1, 4))) for name in u.seconds}, 1, rng.choice((0, 8)), None, n - 1 - i, True)
        for i, u in enumerate(reversed(units))
    ]
    mate = {v: 2 * n - 1 - v for v in range(n)}
    more = [(v, mate[v]) for v in range(n)] + [(mate[b], mate[a]) for a, b in edges]
    return [*forward, *backward], [*edges, *more]


def best(
    units: Sequence[Unit], edges: Sequence[tuple[int, int]], devices: Sequence[Device], comm: str, by_bytes: bool, any_: bool
) -> float:
    """The least largest load over every assignment, in milliseconds, from the definition of the port model."""
    values = (
        value(units, edges, devices, home, comm, by_bytes, any_)
        for home in itertools.product(range(len(devices)), repeat=len(units))
    )
    return min(values, default=math.inf)


def value(
    units: Sequence[Unit],
    edges: Sequence[tuple[int, int]],
    devices: Sequence[Device],
    home: Sequence[int],
    comm: str,
    by_bytes: bool,
    any_: bool,
) -> float:
    colors: dict[int, int] = {}
    for unit, at in zip(units, home, strict=True):
        if unit.color is not None and colors.setdefault(unit.color, at) != at:
            return math.inf
    moved = {(home[a], home[b]) for a, b in edges if home[a] != home[b] and not (units[a].backward or units[b].backward)}
    if not any_ and cyclic(moved):
        return math.inf
    worst = 0.0
    for number in set(home):
        device, others = devices[number], [d for n, d in enumerate(devices) if n != number]
        inside = [v for v, at in enumerate(home) if at == number]
        if any(device.type not in units[v].seconds for v in inside):
            return math.inf
        if device.memory is not None and sum(units[v].size for v in inside) > device.memory:
            return math.inf
        latency = min(device.latency + other.latency for other in others)
        width = max(min(device.width, other.width) for other in others)
        sent = received = 0.0
        for v, unit in enumerate(units):
            ends = {home[b] for a, b in edges if a == v} | {home[v]}
            if device.type == "host" or number not in ends or len(ends) == 1:
                continue
            paid = latency + unit.sent / width if by_bytes or unit.transfer is None else unit.transfer
            if home[v] == number:
                sent += paid
            else:
                received += paid
        compute = sum(units[v].seconds[device.type] for v in inside)
        parts = {"sum": compute + sent + received, "overlap": max(compute, sent + received)}
        worst = max(worst, parts.get(comm, max(compute, sent, received)))
    return worst


def cyclic(moved: set[tuple[int, int]]) -> bool:
    left = {v for pair in moved for v in pair}
    while ready := {v for v in left if not any(b == v and a in left for a, b in moved)}:
        left -= ready
    return bool(left)


def solved(folder: Path, workload: str, machines: str, **options: Any) -> SolveResult:
    (folder / "w.ir").write_text(workload)
    (folder / "m.toml").write_text(machines)
    given = SolveOptions(str(folder / "w.ir"), topology=str(folder / "m.toml"), **options)
    return solve_file(given, sink=DiagnosticSink())


def faults(folder: Path, claimed: Mapping[str, Any]) -> list[str]:
    topology = load_topology(str(folder / "m.toml"), DiagnosticSink())
    told = json.loads(json.dumps(claimed))
    return verify((folder / "w.ir").read_text(), told, Limits(), topology=topology, format=IR).violations


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(("sum", "overlap", "duplex")), st.booleans(), st.sampled_from(("contiguous", "any"))
)
def test_throughput_on_three_types_is_brute_force(
    tmp_path_factory: pytest.TempPathFactory, seed: int, comm: str, by_bytes: bool, split: str
) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 5)
    units, edges, devices = random_units(rng, count), random_edges(rng, count), random_devices(rng)
    folder = tmp_path_factory.mktemp("three")
    result = solved(folder, workload_text(units, edges), topology_text(devices), comm=comm, by_bytes=by_bytes, split=split)
    expected = best(units, edges, devices, comm, by_bytes, split == "any")
    if math.isinf(expected):
        assert result.status == "infeasible"
        return
    assert result.objective == pytest.approx(expected, abs=1e-9)
    assert result.bound <= result.objective
    if split == "contiguous":
        assert result.status == "optimal"
    assert faults(folder, result.to_json()) == []


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("contiguous", "any")))
def test_training_on_three_types_is_brute_force(tmp_path_factory: pytest.TempPathFactory, seed: int, split: str) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 3)
    edges, devices = random_edges(rng, count), random_devices(rng)
    units, edges = trained(random_units(rng, count), edges, rng)
    folder = tmp_path_factory.mktemp("training")
    result = solved(folder, workload_text(units, edges), topology_text(devices), split=split)
    expected = best(units, edges, devices, "sum", False, split == "any")
    if math.isinf(expected):
        assert result.status == "infeasible"
        return
    assert (result.kind, result.objective) == ("training", pytest.approx(expected, abs=1e-9))
    assert result.bound <= result.objective
    assert faults(folder, result.to_json()) == []
