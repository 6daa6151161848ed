"""What is read of a host: control groups of both versions, NUMA nodes, GPUs; on made trees of files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dnnc.machines import Facts, detected, missing_providers, read_facts
from dnnc.machines.detect import core_kinds, split_cores
from dnnc.machines.facts import Gpu, Node, core_caches
from dnnc.machines.topology import read_topology, topology_to_toml
from ir.core.diagnostics import UsageError

GIB = 1 << 30
GPUS = "0, NVIDIA A100-SXM4-80GB, 81920\n1, NVIDIA GeForce RTX 1234, 8192\n"


def tree(root: Path, **files: str) -> Path:
    """A root with files, ``__`` in a name for ``/``."""
    texts = {
        "proc__meminfo": "MemTotal:       67108864 kB\nMemFree: 1 kB\n",
        "proc__cpuinfo": "model name\t: Zeta 9\n",
        **files,
    }
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def facts(root: Path, cores: int = 8, gpus: str = "") -> Facts:
    return read_facts(root, affinity=frozenset(range(cores)), gpus=gpus)


def test_limits_of_version_2_are_those_of_all_groups_above(tmp_path: Path) -> None:
    group = "sys__fs__cgroup__a"
    files = {
        "proc__self__cgroup": "0::/a/b\n",
        f"{group}__b__cpu.max": "max 100000\n",
        f"{group}__cpu.max": "250000 100000\n",
        f"{group}__b__memory.max": f"{40 * GIB}\n",
        f"{group}__memory.max": "max\n",
    }
    found = facts(tree(tmp_path, **files))
    assert (found.quota, found.usable, found.memory) == (2.5, 3, 40 * GIB)


def test_limits_of_version_1(tmp_path: Path) -> None:
    files = {
        "proc__self__cgroup": "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/\n",
        "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "400000\n",  # a container sees its own group as the root
        "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n",
        "sys__fs__cgroup__memory__docker__x__memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys__fs__cgroup__memory__memory.limit_in_bytes": "9223372036854771712\n",
    }
    found = facts(tree(tmp_path, **files))
    assert (found.quota, found.usable, found.memory, found.memory_limit) == (4.0, 4, 2 * GIB, 2 * GIB)


def test_without_limits(tmp_path: Path) -> None:
    found = facts(tree(tmp_path, proc__self__cgroup="0::/\n", sys__fs__cgroup__cpu__cpu="junk"))
    assert (found.quota, found.usable, found.memory, found.processor) == (None, 8, 64 * GIB, "Zeta 9")


def test_nodes_and_affinity(tmp_path: Path) -> None:
    node = "sys__devices__system__node__node"
    root = tree(tmp_path, **{f"{node}0__cpulist": "0-3,8-11\n", f"{node}1__cpulist": "4-7,12-15\n"})
    found = read_facts(root, affinity=frozenset({1, 2, 3, 5, 12, 13}), gpus="")
    assert found.nodes == (Node(0, (1, 2, 3)), Node(1, (5, 12, 13)))
    topology, notes = detected(found)
    assert [device.type for device in topology.devices] == ["cores3", "cores3"]
    assert notes["devices.cpu0", ""] == "read: cores of cpu0: 1-3; cpu1: 5,12-13"
    four, _ = detected(found, 4)
    assert [device.type for device in four.devices] == ["core"] * 4
    with pytest.raises(UsageError, match="may use 6 cores"):
        detected(found, 7)


def test_the_cache_of_a_core_is_that_of_level_2(tmp_path: Path) -> None:
    """Beside those of instructions and that of level 3, which is shared and the largest that a run can leave weights in."""
    levels = {"0": ("1", "48K"), "1": ("1", "32K"), "2": ("2", "2048K"), "3": ("3", "307200K")}
    files = {f"sys__devices__system__cpu__cpu0__cache__index{n}__level": f"{level}\n" for n, (level, _) in levels.items()}
    sizes = {f"sys__devices__system__cpu__cpu0__cache__index{n}__size": f"{size}\n" for n, (_, size) in levels.items()}
    found = facts(tree(tmp_path, **files, **sizes), cores=2)
    assert core_caches(tmp_path, 0) == {1: 48 << 10, 2: 2 << 20, 3: 300 << 20}
    assert core_caches(tmp_path, 1) == {}
    assert found.cache == 2 << 20
    assert [type_.cache for type_ in detected(found)[0].types] == [4 << 20], "of both cores together"


def test_unequal_cores_are_devices_of_types_of_their_own(tmp_path: Path) -> None:
    """Two large cores of nearly one clock, two small ones: one type each, by the slowest core of a device."""
    clocks = [3_000_000, 1_800_000, 3_100_000, 1_800_000]
    files = {f"sys__devices__system__cpu__cpu{n}__cpufreq__cpuinfo_max_freq": f"{clock}\n" for n, clock in enumerate(clocks)}
    found = facts(tree(tmp_path, **files), cores=4)
    assert found.speeds == tuple(clocks)
    assert core_kinds(found) == {0: 0, 1: 1, 2: 0, 3: 1}
    topology, notes = detected(found, 4)
    assert [device.type for device in topology.devices] == ["core", "core-2", "core", "core-2"]
    assert "the quickest" in notes["types.core", ""]
    assert "kind 2 from the quickest on" in notes["types.core-2", ""]
    mixed, told = detected(found, 2)
    assert [device.type for device in mixed.devices] == ["cores2-2"] * 2
    assert "threads wait for the slowest" in told["types.cores2-2", ""]
    assert read_topology(topology_to_toml(topology, notes), name=topology.name[1:]) == topology
    capacities = {
        f"sys__devices__system__cpu__cpu{n}__cpu_capacity": f"{size}\n" for n, size in enumerate((1024, 400, 1024, 400))
    }
    assert facts(tree(tmp_path, **files, **capacities), cores=4).speeds == (1024, 400, 1024, 400)
    assert facts(tree(tmp_path), cores=5).speeds == (), "of a fifth core the system says nothing"


def test_gpus_that_cuda_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    found = facts(tree(tmp_path), 2, GPUS)
    assert found.gpus == (Gpu(0, "NVIDIA GeForce RTX 1234", 8 * GIB), Gpu(1, "NVIDIA A100-SXM4-80GB", 80 * GIB))
    topology, notes = detected(found)
    assert [(d.name, d.type, d.device_id) for d in topology.devices[1:]] == [
        ("gpu0", "nvidia-geforce-rtx-1234", 0),
        ("gpu1", "a100", 1),
    ]
    assert notes["types.a100", "rates"].startswith("vendor")
    assert notes["types.nvidia-geforce-rtx-1234", "rates"].startswith("guess")
    assert missing_providers(topology, ["CPUExecutionProvider"]) == ["CUDAExecutionProvider"]


def test_a_core_is_left_for_the_process_of_each_gpu(tmp_path: Path) -> None:
    one = replace(facts(tree(tmp_path), 8, GPUS), providers=("CUDAExecutionProvider",))
    assert split_cores(one, None) == (tuple(range(6)),)
    assert split_cores(one, 3) == ((0, 1), (2, 3), (4, 5))
    two = replace(one, nodes=(Node(0, (0, 1, 2, 3)), Node(1, (4, 5, 6, 7))))
    assert split_cores(two, None) == ((0, 1, 2), (4, 5, 6))
    small = replace(one, cores=(0, 1), nodes=(Node(0, (0, 1)),))
    assert split_cores(small, None) == ((0,),)
    assert split_cores(small, 2) == ((0,), (1,)), "as many devices as are asked for, where there are cores for them alone"
    with pytest.raises(UsageError, match="found 3 devices, and this process may use 2 cores"):
        split_cores(small, 3)


@pytest.mark.parametrize("devices", [None, 1, 3, 8])
def test_what_is_written_reads_back(tmp_path: Path, devices: int | None) -> None:
    """With a comment for every number, all of known kinds, and control characters of names shown as spaces."""
    root = tree(tmp_path, proc__cpuinfo="model name\t: Zeta\x1b[31m # 9\n", proc__self__cgroup="0::/\n")
    topology, notes = detected(facts(root, 8, GPUS), devices)
    text = topology_to_toml(topology, notes)
    assert read_topology(text) == topology
    assert "\x1b" not in text
    assert re.search(r'^scalar_rate = "[\d.]+ GOP/s"', text, re.MULTILINE), "steps are no floating-point operations"
    numbers = [line for line in text.splitlines() if line.startswith(("rates", "bandwidth", "latency", "memory", "cores"))]
    assert numbers
    assert all(line.partition("  # ")[2].startswith(("read: ", "vendor: ", "guess")) for line in numbers)
    assert sum(topology.memory(device) or 0 for device in topology.devices if device.name.startswith("cpu")) <= 64 * GIB
