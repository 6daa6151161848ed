"""Presets: their names, their numbers, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.machines.topology import load_topology, read_topology
from dnnc.machines.topology.read import slowed
from ir.core.diagnostics import DiagnosticSink, ExitCode, InvalidInput
from ir.core.topology import Topology
from ir.system.host import local_cores, local_memory
from ir.text.parser import parse_module
from passes.costs.network import Network, device_classes
from tests.calls import calls_of
from tests.slow_cases import slow_but


def load(name: str):  # type: ignore[no-untyped-def]
    return load_topology(f"preset:{name}", DiagnosticSink())


def test_a_slower_device_takes_longer_for_everything() -> None:
    fast = replace(load("cpu-1").types[0], launch=3e-6)
    (slow,) = slowed(replace(load("cpu-1"), types=(fast,)), 4).types
    for key in ("overhead", "launch", "handover"):
        assert getattr(slow, key) == 4 * getattr(fast, key) > 0
    assert slow.memory_bandwidth == fast.memory_bandwidth / 4
    assert slow.rates == tuple((dtype, rate / 4) for dtype, rate in fast.rates)


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 100])
def test_cpu_workers_share_the_machine(workers: int) -> None:
    topology = load(f"cpu-{workers},cores=4,memory=16GiB")
    assert [device.name for device in topology.devices] == [f"cpu{number}" for number in range(workers)]
    assert topology.hosts[0].cores == 4
    core, one = topology.types[0], load("cpu-1,cores=4,memory=16GiB").types[0]
    slowdown = max(1, workers / 4)
    assert dict(core.rates)["f32"] == dict(one.rates)["f32"] / slowdown
    assert core.overhead == one.overhead * slowdown
    assert ("share each core" in core.source) == (workers > 4)
    assert core.memory is not None
    assert 0 <= 16 * 2**30 - core.memory * workers < workers << 20


def test_cpu_workers_know_this_machine() -> None:
    topology = load("cpu-2")
    assert (topology.hosts[0].cores, topology.hosts[0].memory) == (local_cores(), local_memory())
    assert load("cpu") == load("cpu-1") or load("cpu").devices == load("cpu-1").devices


def test_gpus_have_the_rates_of_their_datasheets() -> None:
    a100, h100 = load("a100").types[0], load("h100").types[0]
    assert (dict(a100.rates)["f16"], a100.memory, a100.memory_bandwidth) == (312e12, 80 << 30, 2.039e12)
    assert (dict(h100.rates)["bf16"], h100.memory, h100.memory_bandwidth) == (989.4e12, 80 << 30, 3.35e12)
    assert "datasheet" in a100.source
    assert "dense" in h100.source


def test_one_host_of_eight() -> None:
    topology = load("h100x8")
    assert [device.name for device in topology.devices] == [f"gpu{number}" for number in range(8)]
    path = Network(topology).path("gpu0", "gpu7")
    assert (path.bandwidth, path.latency) == (325e9, pytest.approx(0.7e-6))
    assert len(device_classes(topology)) == 1


def test_eight_hosts_of_eight() -> None:
    topology = load("8xh100x8")
    assert (len(topology.hosts), len(topology.devices)) == (8, 64)
    network = Network(topology)
    inside, across = network.path("node3.gpu0", "node3.gpu7"), network.path("node3.gpu0", "node4.gpu0")
    assert (inside.bandwidth, across.bandwidth) == (325e9, 50e9)
    assert inside.latency < across.latency
    assert all(topology.links[0].shared is False and link.shared for link in topology.links if "fabric" in link.ends)
    assert [len(group) for group in device_classes(topology)] == [8] * 8


def ports(name: str) -> None:
    Network(load(name)).port("node0.gpu0")


def test_ports_are_searched_from_one_device_of_each_host() -> None:
    """Eight times the hosts are eight times the searches, each over eight times the devices."""
    few, many = calls_of(partial(ports, "8xh100x8")), calls_of(partial(ports, "64xh100x8"))
    assert few < many < 64 * few


@pytest.mark.parametrize(
    ("name", "kind", "hosts", "devices"),
    [
        ("rtx4090", "rtx4090", 1, 1),  # no host of 4090
        ("rtx4090x2", "rtx4090", 1, 2),
        ("2xrtx3090", "rtx3090", 2, 2),
        ("2xgtx1080tix4", "gtx1080ti", 2, 8),
        ("tpu-v5ex8", "tpu-v5e", 1, 8),
        ("l40sx2", "l40s", 1, 2),
        ("2xb200x8", "b200", 2, 16),
    ],
)
def test_digits_of_a_kind_are_no_count(name: str, kind: str, hosts: int, devices: int) -> None:
    topology = load(name)
    assert [type_.name for type_ in topology.types] == [kind]
    assert (len(topology.hosts), len(topology.devices)) == (hosts, devices)


def test_the_testbed_of_tag_has_its_bandwidths() -> None:
    topology = load("tag-testbed")
    assert [len(group) for group in device_classes(topology)] == [4, 8, 4]
    network = Network(topology)
    for ends, bandwidth in (
        (("v100-0", "v100-3"), 8e9),
        (("gtx1080ti-0", "gtx1080ti-7"), 3e9),
        (("p100-0", "p100-1"), 3e9),
        (("v100-0", "p100-0"), 2.81e9),
    ):
        path = network.path(*ends)
        assert (path.bandwidth, path.latency) == (bandwidth, pytest.approx(12e-6))


def test_unequal_hosts_have_the_links_of_their_kinds() -> None:
    network = Network(load("a100-v100"))
    inside, across = network.path("v100.gpu0", "v100.gpu7"), network.path("a100.gpu0", "v100.gpu0")
    assert (inside.bandwidth, across.bandwidth) == (150e9, 25e9)


def test_a_preset_of_several_types_is_no_type() -> None:
    with pytest.raises(InvalidInput, match="has devices of several types: a100, v100") as caught:
        read_topology('version = 1\n[types]\nt = "preset:a100-v100"\n[[devices]]\nname = "d"\ntype = "t"\n')
    assert caught.value.diagnostics[0].span is not None


@pytest.mark.parametrize(
    "target", slow_but(["jetson-orinx2", "tag-testbed", "a100-v100"], "jetson-orinx2")
)  # names with hyphens; unequal devices
def test_a_model_compiles_for_it(target: str, tmp_path: Path) -> None:
    options = CompileOptions("zoo:mlp,layers=4,hidden=64,batch=8", f"preset:{target}", tmp_path, plan_only=True)
    plan = compile_model(options).plan
    assert 0 < plan.bound <= plan.value
    written = parse_module((tmp_path / "plan.ir").read_text()).first(Topology)
    assert written is not None
    assert written.devices == load(target).devices


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rtx409", "did you mean 'preset:rtx4090'?"),
        ("2xa100-v100", "did you mean 'preset:a100-v100'?"),
        ("a10", "did you mean 'preset:a100'?"),
        ("zzz", "expected one of: cpu-N, local, a100"),
        ("", "unknown preset ''"),
        ("cpu-0", "found 0 devices"),
        ("cpu-99999", "found 99999 devices, expected 1 to 4096"),
        ("cpu-2,threads=3", "expected cores=N or memory=NGiB"),
        ("cpu-2,cores=0", "expected cores=N or memory=NGiB"),
        ("a100x0", "found 0 devices"),
        ("100xa100x100", "found 10000 devices, expected 1 to 4096"),
        ("a100x8,cores=2", "only cpu-N takes options"),
        ("../cpu", "unknown preset '../cpu'"),
        ("a100.cluster", "unknown preset"),
    ],
)
def test_wrong_presets(name: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(name)
    assert words in str(caught.value)
    assert caught.value.diagnostics[0].where == f"preset:{name}"
    assert caught.value.exit_code is ExitCode.INVALID_INPUT


def test_a_type_may_start_from_a_preset() -> None:
    text = """
version = 1
[types.slow]
like = "preset:a100"
memory = "40 GiB"
rates = { f32 = "10 TFLOP/s" }
[types]
plain = "preset:cpu-1"
[[devices]]
name = "a"
type = "slow"
"""
    topology = read_topology(text)
    slow = topology.types[0]
    assert (slow.name, slow.memory, dict(slow.rates)["f32"], dict(slow.rates)["f16"]) == ("slow", 40 << 30, 10e12, 312e12)
    assert topology.types[1].name == "plain"


def test_the_command_prints_a_file_to_start_from(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from dnnc.cli.app import tree

    shown = CliRunner().invoke(tree(), ["topology", "show", "preset:2xt4x4", "--toml"])
    assert shown.exit_code == 0
    file = tmp_path / "start.toml"
    file.write_text(shown.stdout)
    assert load_topology(str(file), DiagnosticSink()) == load("2xt4x4")
