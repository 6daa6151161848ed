"""Workload files into IR: what is read, what is dropped, what is refused and where."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.compile.load import load_model
from dnnc.data.workloads import Machines, in_unit, lower, read_profile
from dnnc.onnx import DIALECTS
from ir import parse_module, print_module, verify
from ir.core.diagnostics import Diagnostic, DiagnosticSink, InvalidInput, UsageError
from ir.core.facets import BackwardTime, Color, Direction, Time, Transfer
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.topology import Topology
from passes.costs.network import network
from passes.stages.from_ir import problem_of
from passes.stages.problem import Problem
from tests.dnnc.workloads.workload_files import PROFILE, chain, edge, node, placement, random_placement, text_of


@dataclass(frozen=True)
class Workload:
    """A file as read and lowered."""

    module: Module
    format: str
    has_backward_nodes: bool


def read(
    tmp_path: Path,
    text: str | dict[str, Any],
    *,
    format: str = "",
    machines: Machines | None = None,
    backward: bool = False,
    sink: DiagnosticSink | None = None,
) -> Workload:
    path = tmp_path / "workload"
    path.write_text(text if isinstance(text, str) else text_of(text))
    sink = sink if sink is not None else DiagnosticSink()
    profile = read_profile(path, sink=sink, format=format)
    module = lower(profile, machines or Machines(), backward=backward, sink=sink)
    assert verify(module, dialects=DIALECTS) == []
    assert parse_module(print_module(module)) == module
    return Workload(module, profile.format, profile.has_backward_nodes)


def ops(workload: Workload) -> dict[Any, Op]:
    return {op.get("id"): op for op in workload.module.entry.ops}


def faults(tmp_path: Path, text: str | dict[str, Any], **options: Any) -> tuple[Diagnostic, ...]:
    with pytest.raises(InvalidInput) as raised:
        read(tmp_path, text, **options)
    return raised.value.diagnostics


def problem(workload: Workload) -> Problem:
    topology = workload.module.first(Topology)
    assert topology is not None
    found = problem_of(workload.module, topology, network(topology))
    found.check()
    return found


def test_a_node_becomes_an_op_with_what_the_file_says_of_it(tmp_path: Path) -> None:
    data = placement(
        [node(7, 0.25, 2.5, size=1024.0, colorClass=-3, name="conv1"), node(3, 0.5, 5.0, supportedOnFpga=0)],
        [edge(7, 3, 0.125, size=64.0)],
        maxCPUs=1,
    )
    workload = read(tmp_path, data)
    first, second = workload.module.entry.ops
    assert print_module(workload.module).splitlines()[2:4] == [
        "    %n7 = dnnc.work() {id = 7, size = 1024} : bytes<64> color<0> time<@accelerator = 0.00025, @cpu = 0.0025> "
        'transfer<0.000125> loc("main", "conv1")',
        '    %n3 = dnnc.work(%n7) {id = 3} : bytes<0> time<@cpu = 0.005> loc("main", "layer3")',
    ]
    assert first.facet(Transfer) == Transfer((0.000125,))
    assert second.facet(Transfer) is None
    topology = workload.module.first(Topology)
    assert topology is not None
    assert [(d.name, d.type, topology.memory(d)) for d in topology.devices] == [
        ("acc0", "accelerator", 10**9),
        ("acc1", "accelerator", 10**9),
        ("cpu0", "cpu", None),
    ]
    assert topology.type("cpu").free_transfers


def test_options_stand_over_the_file(tmp_path: Path) -> None:
    machines = Machines(accelerators=1, cpus=2, memory=77, bandwidth=1e6)
    workload = read(tmp_path, chain([1.0, 2.0]), machines=machines)
    topology = workload.module.first(Topology)
    assert topology is not None
    assert [device.name for device in topology.devices] == ["acc0", "cpu0", "cpu1"]
    assert topology.type("accelerator").memory == 77
    # 1000 bytes at 1 MB/s, once per accelerator; the cost of the file no longer counts.
    assert problem(workload).transfer.tolist() == [[1e-3], [0.0]]
    assert problem(read(tmp_path, chain([1.0, 2.0]))).transfer.tolist() == [[0.5e-3]]


def test_order_is_topological_with_ties_by_the_file(tmp_path: Path) -> None:
    nodes = [node(i, 1.0) for i in (5, 4, 3, 2)]
    workload = read(tmp_path, placement(nodes, [edge(2, 5), edge(3, 5), edge(3, 5)]))
    assert [op.get("id") for op in workload.module.entry.ops] == [4, 3, 2, 5]
    assert ops(workload)[5].operands == ("%n3", "%n2")


def test_backward_nodes_are_kept_with_their_phase_or_left_out(tmp_path: Path) -> None:
    nodes = [node(1, 1.0, colorClass=1), node(2, 2.0, colorClass=1, isBackwardNode=1), node(3, 1.0)]
    data = placement(nodes, [edge(1, 3), edge(3, 2), edge(1, 2)])
    both = ops(read(tmp_path, data, backward=True))
    assert {i: (op.facet(Direction) or Direction("")).direction for i, op in both.items()} == {1: "fw", 3: "fw", 2: "bw"}
    assert both[2].operands == ("%n1", "%n3")
    sink = DiagnosticSink()
    forward = read(tmp_path, data, sink=sink)
    assert list(ops(forward)) == [1, 3]
    assert forward.has_backward_nodes
    assert all(op.facet(Direction) is None for op in forward.module.entry.ops)
    assert "1 backward nodes are left out" in str(sink.diagnostics[0])


def test_colours_share_a_number_whatever_they_are_called(tmp_path: Path) -> None:
    nodes = [node(i, 1.0, **({"colorClass": c} if c is not None else {})) for i, c in enumerate((9, None, -1, 9))]
    found = ops(read(tmp_path, placement(nodes, [])))
    assert [op.facet(Color) for op in found.values()] == [Color(0), None, Color(1), Color(0)]


def test_a_pipedream_profile(tmp_path: Path) -> None:
    workload = read(tmp_path, PROFILE, machines=Machines(accelerators=2), backward=True)
    assert workload.format == "pipedream"
    found = ops(workload)
    assert list(found) == ["node2", "node3", "node5"]  # no input, no __getitem__ that nothing reads
    conv = found["node2"]
    assert conv.location.node == "Conv2d(3, 64, kernel_size=(3, 3))"
    assert conv.facet(Time) == Time((("@accelerator", 0.002),))
    assert conv.facet(BackwardTime) == BackwardTime((("@accelerator", 0.004),))
    assert (conv.get("weight"), conv.results[0].type.nbytes) == (1024, 4_000_000)  # type: ignore[union-attr]
    assert found["node3"].results[0].type.nbytes == 2_000_000  # type: ignore[union-attr]
    assert found["node3"].operands == ("%node2",)  # an edge that stands twice counts once
    assert problem(workload).transfer.tolist() == [[4e-4, 2e-4]]  # 10 GB/s unless told
    faster = read(tmp_path, PROFILE, machines=Machines(accelerators=2, bandwidth=2e10))
    assert problem(faster).transfer.tolist() == [[2e-4, 1e-4]]
    assert all(op.facet(BackwardTime) is None for op in faster.module.entry.ops)


def test_models_are_workloads_by_their_suffix(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(PROFILE)
    module = load_model(str(path), {}, DiagnosticSink()).module
    assert [op.name for op in module.entry.ops] == ["dnnc.work"] * 3
    assert module.first(Topology) is None  # the profile names no machines


@pytest.mark.parametrize("value", [0.1, 0.539, 27.918568, 1e-9, 123456.789, 0.0])
def test_the_unit_comes_back_as_it_was(value: float) -> None:
    assert in_unit(value / 1000) == value


JSON_FAULTS: list[tuple[dict[str, Any], str, str]] = [
    (placement([node(1, 1.0)], [edge(1, 2)]), "edge 0 names node 2, which is not in 'nodes'", '"destId": 2'),
    (placement([node(1, 1.0), node(1, 2.0)], []), "id 1 is taken", '"id": 1'),
    (placement([node(1, -1.0, 1.0)], []), "'fpgaLatency' is -1.0", "-1.0"),
    (placement([node(1, 1.0, size=-4)], []), "'size' is -4", "-4"),
    (placement([node(1, 1.0), node(2, 1.0)], [edge(1, 2, -0.5)]), "'cost' is -0.5", "-0.5"),
    (placement([node(1, 1.0, cpuLatency="2 ms")], []), "'cpuLatency' is \"2 ms\", expected a number", "2 ms"),
    (placement([node(1, 1e300, 1.0)], []), "expected a finite number", "1e+300"),
    (placement([node(1, 1.0, supportedOnFpga="yes")], []), "expected true, false, 1 or 0", "yes"),
    (placement([node(1, 1.0, colorClass=[1])], []), "'colorClass' is a list", "colorClass"),
    (placement([{"id": 1, "cpuLatency": 1.0}], []), "node 1 has no 'fpgaLatency'", "{"),
    (placement([{"cpuLatency": 1.0}], []), "node 0 has no 'id'", "{"),
    (placement([node(1, 1.0), node(2, 1.0)], [edge(1, 2) | {"cost": None}]), "edge 0 has no 'cost'", "{"),
    (placement([node(1, 1.0)], [], maxFPGAs=1.5), "'maxFPGAs' is 1.5, expected a whole number", "1.5"),
    (placement([node(1, 1.0)], [], maxFPGAs=10**9), "expected a whole number from 0 to 65536", "1000000000"),
    (placement([node(1, 1.0)], [edge(1, 1)]), "edge 0 leads from node 1 to itself", "{"),
    (placement([node(1, 1.0), node(2, 1.0)], [{"sourceId": 1, "destId": 2}]), "edge 0 has no 'cost'", "{"),
    (placement([node(1, 1.0), node(2, 1.0)], [edge(1, 2), edge(2, 1)]), "the edges form a cycle: 1 -> 2 -> 1", "{"),
    (
        placement([node(i, 1.0) for i in range(3)], [edge(0, 1, 0.5), edge(0, 2, 0.75)]),
        "the cost 0.75 differs from 0.5, that of edge 0 out of the same node",
        "0.75",
    ),
    (
        placement([node(1, 1.0, isBackwardNode=True), node(2, 1.0)], [edge(1, 2)]),
        "edge 0 leads from backward node 1 to forward node 2",
        "{",
    ),
]


@pytest.mark.parametrize(("data", "words", "place"), JSON_FAULTS, ids=[words[:40] for _, words, _ in JSON_FAULTS])
def test_a_fault_of_json_is_located(tmp_path: Path, data: dict[str, Any], words: str, place: str) -> None:
    (found,) = faults(tmp_path, data)
    assert words in found.message
    assert found.code[1:3] in ("18", "21")  # of workloads, or of JSON
    assert found.span is not None
    assert place in found.span.source_line


def test_all_nodes_together_have_bytes_that_can_be_counted(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, placement([node(i, 1.0, size=4e18) for i in range(4)], []))
    assert "all nodes together have 16000000000000000000 bytes" in found.message


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    data = placement([node(1, -1.0, 1.0), node(2, 1.0, size="big")], [edge(1, 9), edge(8, 2)])
    assert len(faults(tmp_path, data)) == 4


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ('{"nodes": [}', "not valid JSON: Expecting value", 1),
        ('{"nodes": 3, "edges": []}', "expected a list 'nodes' of objects, found 3", 1),
        ('{"edges": []}', "expected a list 'nodes' of objects, found none", None),
        ('{"nodes": [3], "edges": []}', "node 0 is 3, expected an object", 1),
        ("", "found neither device-placement JSON", None),
        ("hello\n", "found neither device-placement JSON", 1),
        ("[" * 100000, "found neither", 1),
        ('{"nodes": ' + "[" * 100000, "nest more than 100 deep", None),
    ],
)
def test_text_that_is_no_workload(tmp_path: Path, text: str, words: str, line: int | None) -> None:
    (found,) = faults(tmp_path, text)
    assert words in found.message
    assert found.code[1:3] in ("18", "21")  # of workloads, or of JSON
    assert (found.span.line if found.span else None) == line


LINE = "node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=2.0,"


@pytest.mark.parametrize(
    ("old", "new", "words", "line", "column"),
    [
        ("\tnode3 -- node5", "\tnode3 -- node9", "the edge names node 'node9', which is not defined", 10, 11),
        ("node3 -- Split", "node2 -- Split", "node 'node2' is there already, at line 2", 3, 1),
        ("\tnode2 -- node3\n\tnode2", "\tnode5 -- node2\n\tnode2", "a cycle: node2 -> node3 -> node5 -> node2", 2, 1),
        (LINE, LINE.replace("2.0", "-2.0"), "forward_compute_time is '-2.0', which is negative", 2, 47),
        (LINE, LINE.replace("2.0", "2.0ms"), "forward_compute_time is '2.0ms', which is no plain number", 2, 47),
        (LINE, LINE.replace("2.0", "nan"), "which is no plain number", 2, 47),
        ("forward_compute_time=2.0, ", "", "node 'node2' lacks forward_compute_time", 2, 1),
        ("node3 -- Split -- ", "node3 -- ", "found a line that is neither a node nor an edge", 3, 1),
        (", parameter_size=1024.0", "", "node 'node2' lacks parameter_size", 2, 1),
        ("parameter_size=1024.0", "parameters=1024.0", "found the unknown key 'parameters'", 2, 127),
        ("\tnode1 -- node2", "\tnode1 node2", "found an indented line that is no edge", 6, 1),
        ("\tnode1 -- node2", "\tnode2 -- node2", "node 'node2' reads itself", 6, 1),
    ],
)  # fmt: skip
def test_a_fault_of_a_profile_is_located(tmp_path: Path, old: str, new: str, words: str, line: int, column: int) -> None:
    assert old in PROFILE
    found = faults(tmp_path, PROFILE.replace(old, new))
    told = [f for f in found if words in f.message]
    assert told, [f.message for f in found]
    assert told[0].span is not None
    assert (told[0].span.line, told[0].span.column) == (line, column)


def test_bytes_are_needed_for_a_bandwidth(tmp_path: Path) -> None:
    data = placement([node(1, 1.0), node(2, 1.0)], [edge(1, 2, 0.5)])
    (found,) = faults(tmp_path, data, machines=Machines(bandwidth=1e9))
    assert "the edges of node 1 have a cost and no size" in found.message


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'tar' is no format of workloads"):
        read(tmp_path, PROFILE, format="tar")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        read_profile(tmp_path / "absent", sink=DiagnosticSink())
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="byte 0xff at offset 0, which is not UTF-8"):
        read_profile(tmp_path / "binary", sink=DiagnosticSink())


def test_a_part_of_a_byte_counts_as_one_and_is_told(tmp_path: Path) -> None:
    sink = DiagnosticSink()
    workload = read(tmp_path, placement([node(1, 1.0, size=1.5), node(2, 1.0, size=2)], []), sink=sink)
    assert [op.get("size") for op in workload.module.entry.ops] == [2, 2]
    assert [d.message for d in sink.diagnostics] == ["the sizes of 1 nodes are no whole bytes and are rounded up"]


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_the_file_gives_one_problem_through_text_too(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """File -> IR -> text -> IR: the numbers of the problem are those of the file."""
    data = random_placement(seed)
    workload = read(tmp_path_factory.mktemp("random"), data)
    again = Workload(parse_module(print_module(workload.module)), workload.format, False)
    for found in (problem(workload), problem(again)):
        ids = [op.get("id") for op in workload.module.entry.ops]
        given_nodes = {n["id"]: n for n in data["nodes"]}
        kinds = [kind.type for kind in found.kinds]
        for row, kind in enumerate(kinds):
            for v, id_ in enumerate(ids):
                one = given_nodes[id_]
                on_accelerator = one["fpgaLatency"] / 1000 if one["supportedOnFpga"] else float("inf")
                assert found.seconds[row, v] == (one["cpuLatency"] / 1000 if kind == "cpu" else on_accelerator)
        held = {int(readers[0]): int(size) for size, readers in zip(found.weight_bytes, found.weight_readers, strict=True)}
        assert [held.get(v, 0) for v in range(len(ids))] == [int(given_nodes[id_]["size"]) for id_ in ids]
        pairs = {(ids[int(u)], ids[v]) for u, readers in zip(found.producer, found.consumers, strict=True) for v in readers}
        assert pairs == {(e["sourceId"], e["destId"]) for e in data["edges"]}
        costs = {e["sourceId"]: e["cost"] / 1000 for e in data["edges"]}
        for row, kind in enumerate(kinds):
            for h, maker in enumerate(found.producer):
                assert found.transfer[row, h] == (0.0 if kind == "cpu" else costs[ids[int(maker)]])


@settings(max_examples=100)
@given(seed=st.integers(0, 10**9), cuts=st.integers(0, 8))
def test_damaged_files_are_refused_never_crash(tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: int) -> None:
    rng = random.Random(seed)
    text = text_of(random_placement(seed)) if rng.random() < 0.5 else PROFILE
    for _ in range(cuts):
        at = rng.randrange(len(text))
        text = (
            text[:at]
            + rng.choice(["", "9", "-", '"', "\n", "\t", " -- ", "null", "{}", "[", "=", "x"])
            + text[at + rng.randint(0, 3) :]
        )
    with suppress(InvalidInput):
        assert read(tmp_path_factory.mktemp("damaged"), text).format


def test_the_reader_of_json_accepts_what_the_reference_does(tmp_path: Path) -> None:
    """Debug fields, a byte order mark, whole numbers for flags and times."""
    data = placement([node(1, 1, 2, layerId=4, supportedOnFpga=1, isBackwardNode=0)], [], comment="kept by other tools")
    assert len(ops(read(tmp_path, "\ufeff" + json.dumps(data)))) == 1
