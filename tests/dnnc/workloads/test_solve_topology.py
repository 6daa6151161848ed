"""``dnnc solve -t``: splits over devices of three types are those of brute force, proven, and recomputed by the verifier."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.cli import main
from dnnc.machines.topology import load_topology
from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from dnnc.workloads.verify_plan import IR, Limits, verify
from dnnc.workloads.verify_plan.machines import ports_of
from ir.core.diagnostics import DiagnosticSink
from passes.costs.network import network
from tests.dnnc.workloads.workload_files import edge, node, placement, text_of

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
                facets.append(f"{name}<{', '.join(f'@{t} = {s / 1e3!r}' for t, s in sorted(stated.items()))}>")
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


def both_passes(units: Sequence[Unit], edges: Sequence[tuple[int, int]]) -> tuple[list[Unit], list[tuple[int, int]]]:
    """Units that state both passes as forward and backward ones: a gradient of each input goes back to the unit that made it,
    and the backward pass holds as many bytes as the unit sends."""
    n = len(units)
    colors = [u.color if u.color is not None else 100 + v for v, u in enumerate(units)]
    found = [Unit(u.seconds, u.size, u.sent, u.transfer, color) for u, color in zip(units, colors, strict=True)]
    found += [Unit(u.back or {}, u.sent, 0, None, color, True) for u, color in zip(units, colors, strict=True)]
    links = [*edges, *((v, n + v) for v in range(n))]
    for maker, reader in edges:
        sent = units[maker]
        gradient = Unit(dict.fromkeys(units[reader].back or {}, 0.0), 0, sent.sent, sent.transfer, colors[reader], True)
        links += [(n + reader, len(found)), (len(found), n + maker)]
        found.append(gradient)
    return found, links


def best(
    units: Sequence[Unit], edges: Sequence[tuple[int, int]], devices: Sequence[Device], comm: str, by_bytes: bool, any_: bool
) -> float:
    """The least largest load over every assignment, in milliseconds, from the definition of the port model."""
    keys = [("unit", v) if unit.color is None else ("color", unit.color) for v, unit in enumerate(units)]
    distinct = list(dict.fromkeys(keys))
    least = math.inf
    for choice in itertools.product(range(len(devices)), repeat=len(distinct)):
        at = dict(zip(distinct, choice, strict=True))
        least = min(least, value(units, edges, devices, [at[key] for key in keys], comm, by_bytes, any_))
    return least


def value(
    units: Sequence[Unit],
    edges: Sequence[tuple[int, int]],
    devices: Sequence[Device],
    home: Sequence[int],
    comm: str,
    by_bytes: bool,
    any_: bool,
) -> float:
    """The largest load where unit v is on device ``home[v]``; inf where it cannot be."""
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


def a_case(seed: int, most: int) -> tuple[random.Random, list[Unit], list[tuple[int, int]], list[Device]]:
    rng = random.Random(seed)
    count = rng.randint(1, most)
    return rng, random_units(rng, count), random_edges(rng, count), random_devices(rng)


def check(folder: Path, result: SolveResult, expected: float) -> None:
    """The result is the optimum, its bound is none above it, and the verifier finds no fault."""
    if math.isinf(expected):
        assert result.status == "infeasible"
        return
    assert result.objective == pytest.approx(expected, abs=1e-9)
    assert result.bound <= result.objective
    assert result.status == "optimal" or result.split == "any"
    assert faults(folder, result.to_json()) == []


SPLITS = st.sampled_from(("contiguous", "any"))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("sum", "overlap", "duplex")), st.booleans(), SPLITS)
def test_throughput_is_brute_force(
    tmp_path_factory: pytest.TempPathFactory, seed: int, comm: str, by_bytes: bool, split: str
) -> None:
    _, units, edges, devices = a_case(seed, 5)
    folder = tmp_path_factory.mktemp("three")
    result = solved(folder, workload_text(units, edges), topology_text(devices), comm=comm, by_bytes=by_bytes, split=split)
    check(folder, result, best(units, edges, devices, comm, by_bytes, split == "any"))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), SPLITS)
def test_training_is_brute_force(tmp_path_factory: pytest.TempPathFactory, seed: int, stated: bool, split: str) -> None:
    """With backward nodes, or of nodes that state both of their passes."""
    rng, units, edges, devices = a_case(seed, 4)
    if stated:
        units = [replace(u, back={name: float(rng.choice((0, 1, 3))) for name in u.seconds}) for u in units]
        text, (units, edges) = workload_text(units, edges), both_passes(units, edges)
    else:
        units, edges = trained(units, edges, rng)
        text = workload_text(units, edges)
    folder = tmp_path_factory.mktemp("training")
    result = solved(folder, text, topology_text(devices), split=split)
    assert result.kind == "training"
    check(folder, result, best(units, edges, devices, "sum", False, split == "any"))


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(("latency", "replicas", "gpipe", "synchronised", "greedy", "local-search", "metis"))
)
def test_other_splits_are_what_they_claim(tmp_path_factory: pytest.TempPathFactory, seed: int, sort: str) -> None:
    rng, units, edges, devices = a_case(seed, 4)
    options: dict[str, dict[str, Any]] = {
        "latency": {"objective": "latency", "pieces": rng.choice((1, 2))},
        "replicas": {"replicas": 2},
        "gpipe": {"schedule": "gpipe"},
        "synchronised": {"replicas": 2, "microbatches": rng.choice((None, 2))},
    }
    if sort in ("gpipe", "synchronised"):
        units, edges = trained(units, edges, rng)
    folder = tmp_path_factory.mktemp("others")
    result = solved(folder, workload_text(units, edges), topology_text(devices), **options.get(sort, {"method": sort}))
    if result.why is None:
        assert result.bound <= result.objective * (1 + 1e-9)
        assert faults(folder, result.to_json()) == []


@pytest.mark.parametrize("spec", ["preset:h100x4", "preset:2xa100x2", "preset:cpu-2,cores=2"])
def test_ports_are_counted_twice_alike(spec: str) -> None:
    topology = load_topology(spec, DiagnosticSink())
    net = network(topology)
    for name, (latency, width) in ports_of(topology).items():
        port = net.port(name)
        assert (float(latency) / 1e3, float(width or 0) * 1e3) == pytest.approx((port.latency, port.bandwidth))


MACHINES = """
version = 1
switches = ["s"]
types.h100 = { kind = "gpu", memory = "4 kB", rates = { f32 = "1 TFLOP/s" }, memory_bandwidth = "1 TB/s" }
types.a100 = { like = "h100", memory = "2 kB" }
types.host = { like = "h100", kind = "cpu", free_transfers = true }
devices = [{ name = "x{0..1}", type = "h100" }, { name = "y", type = "a100", memory = "3 kB" }, { name = "z", type = "a100" },
  { name = "c", type = "host" }]
links = [{ ends = ["x0", "x1", "s"], bandwidth = "2 MB/s" }, { ends = ["y", "z", "c", "s"], bandwidth = "1 MB/s" }]
"""


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    (tmp_path / "m.toml").write_text(MACHINES)
    return tmp_path / "m.toml"


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """Four nodes of 1900 bytes, of which only y of the a100 and the h100 hold more than one; z holds one."""
    nodes = [node(i, float(time), size=1900.0) for i, time in enumerate((4, 3, 2, 2))]
    path = tmp_path / "w.json"
    path.write_text(text_of(placement(nodes, [edge(i, i + 1, 0.5, size=1000.0) for i in range(3)])))
    return path


def dnnc(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(list(map(str, arguments)))
    return code, *capsys.readouterr()


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = dnnc(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_devices_of_one_type_that_differ_are_told_apart(
    workload: Path, machines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = answer(capsys, "solve", workload, "-t", machines)
    assert data["machines"] == {
        "topology": str(machines),
        "bytes": False,
        "seconds": "h100, a100 at the seconds of accelerator; host at the seconds of cpu",
    }
    assert (data["objective"], data["status"]) == (4.5, "optimal")
    limits = {device["name"]: (device["kind"], device["limit"]) for device in data["devices"]}
    assert limits["y"] == ("a100", 3000)
    assert limits["z"] == ("a100", 2000)
    assert limits["c"] == ("host", 4000)
    assert all(device["memory"] <= device["limit"] for device in data["devices"])
    by_bytes = answer(capsys, "solve", workload, "-t", machines, "--bytes")
    assert by_bytes["objective"] == 4.5  # 1000 bytes in 0.5 ms on an h100
    _, out, _ = dnnc(capsys, "solve", workload, "-t", machines)
    assert out.splitlines()[0].split()[:3] == ["device", "type", "nodes"]
    assert "h100, a100 at the seconds of accelerator" in out


@pytest.mark.parametrize("extra", [(), ("--bytes", "--split", "any"), ("--objective", "latency", "--pieces", "2")])
def test_both_formats_are_verified_and_simulated(
    workload: Path, machines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: tuple[str, ...]
) -> None:
    written, told = tmp_path / "split.json", tmp_path / "told.json"
    told.write_text(json.dumps(answer(capsys, "solve", workload, "-t", machines, *extra, "-o", written)))
    rows = json.loads(written.read_text())
    assert all("device" in row for row in (*rows["fpgas"], *rows["cpus"]))
    for path in (written, told):
        code, _, err = dnnc(capsys, "verify-plan", workload, path, "-t", machines)
        assert (code, err) == (0, ""), err
        code, _, err = dnnc(capsys, "simulate", path)
        assert code == 0, err
        assert dnnc(capsys, "verify-plan", workload, path)[0] == 2
    moved = tmp_path / "elsewhere" / "m.toml"
    moved.parent.mkdir()
    machines.rename(moved)
    assert dnnc(capsys, "simulate", told)[0] == 3
    assert dnnc(capsys, "simulate", told, "-t", moved)[0] == 0


Change = Callable[[dict[str, Any]], object]
WRONG: dict[str, tuple[Change, str]] = {
    "of another type": (lambda r: r["devices"][0].update(kind="a100"), "x1 is of kind h100, not a100 as claimed"),
    "a full device": (lambda r: r["devices"][0].update(name="z", kind="a100"), "z needs 3800 bytes, it has 2000"),
    "twice": (lambda r: r["devices"][0].update(name="y"), "device y is listed twice"),
    "load": (lambda r: r["devices"][0].update(load=1.0), "the load of"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_wrong_splits_are_found(
    workload: Path, machines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, words: str
) -> None:
    data = answer(capsys, "solve", workload, "-t", machines)
    data["devices"].sort(key=lambda device: (-len(device["nodes"]), device["name"]))
    change(data)
    (tmp_path / "wrong.json").write_text(json.dumps(data))
    code, _, err = dnnc(capsys, "verify-plan", workload, tmp_path / "wrong.json", "-t", machines)
    assert code == 5
    assert words in err


def test_text_may_hold_its_own_machines(workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``import`` writes the machines of the file; the split of the text is that of the file."""
    assert main(["import", str(workload), "-o", str(tmp_path / "w.ir")]) == 0
    capsys.readouterr()
    of_file, of_text = answer(capsys, "solve", workload), answer(capsys, "solve", tmp_path / "w.ir")
    assert (of_text["objective"], of_text["format"]) == (of_file["objective"], "ir")
    assert of_text["stages"] == of_file["stages"]
    (tmp_path / "told.json").write_text(json.dumps(of_text))
    assert dnnc(capsys, "verify-plan", tmp_path / "w.ir", tmp_path / "told.json")[0] == 0
    assert dnnc(capsys, "simulate", tmp_path / "told.json")[0] == 0


def test_a_split_made_by_hand_and_every_baseline(
    workload: Path, machines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "told.json"
    told.write_text(json.dumps(answer(capsys, "solve", workload, "-t", machines)))
    rows = answer(capsys, "solve", workload, "-t", machines, "--compare", "--expert", told)["compare"]
    assert {row["method"]: row["objective"] for row in rows}["expert"] == 4.5
    assert all(row["objective"] is None or row["ratio"] >= 1 or row["split"] == "any" for row in rows)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--accelerators", "2", "--memory", "1GiB"), "E1318]: --accelerators, --memory: not with a topology"),
        (("--hierarchy", "2x2"), "E1318]: --hierarchy: not with a topology"),
        (("--objective", "pipedream"), "minimise throughput, latency or training on a topology"),
        (("--objective", "latency", "--split", "any"), "no method solves"),
    ],
)
def test_options_that_are_not_of_a_topology(
    workload: Path, machines: Path, capsys: pytest.CaptureFixture[str], extra: tuple[str, ...], words: str
) -> None:
    code, out, err = dnnc(capsys, "solve", workload, "-t", machines, *extra)
    assert (code, out) == (2, "")
    assert words in err


def test_what_cannot_be_read(workload: Path, machines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = dnnc(capsys, "solve", workload, "--bytes")
    assert (code, "E1317]: --bytes needs the links of a topology" in err) == (2, True)
    (tmp_path / "w.ir").write_text(workload_text([Unit({"tpu": 1.0})], []))
    code, _, err = dnnc(capsys, "solve", tmp_path / "w.ir", "-t", machines)
    assert (code, "the profile has seconds of tpu, and the devices are of h100, a100, host" in err) == (3, True)
    code, _, err = dnnc(capsys, "solve", tmp_path / "w.ir")
    assert (code, "add -t TOPOLOGY" in err) == (2, True)
    (tmp_path / "w.json").write_text(text_of(placement([node(1, 1.0), node(2, 1.0)], [edge(1, 2, 0.5)])))
    code, _, err = dnnc(capsys, "solve", tmp_path / "w.json", "-t", machines, "--bytes")
    assert (code, "its transfer states seconds and no bytes" in err) == (3, True)
    two = workload_text([Unit({"h100": 1.0}, size=1), Unit({"h100": 1.0})], [])
    (tmp_path / "twice.ir").write_text(two.replace("{size = 1}", '{id = "u1"}'))
    code, _, err = dnnc(capsys, "solve", tmp_path / "twice.ir", "-t", machines)
    assert (code, "%u1: error[E1363]: two nodes have the id 'u1'" in err) == (3, True)
