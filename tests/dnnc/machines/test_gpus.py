"""GPUs are measured by what runs on them: numbers are found again from a device that takes what another type predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from dnnc.machines.detect import read_topology_of
from dnnc.machines.kernels import gpus
from dnnc.machines.kernels.gpus import _Link, _linked, _measured, gpus_of
from dnnc.machines.probes import NotRun, Sample
from dnnc.machines.samples import CHAIN, Workload, chain, product
from dnnc.onnx.providers import CUDA, Provider
from ir.core.topology import DeviceType
from passes.costs.op_time import op_seconds

LAUNCH = 20e-6
"""Seconds of a run, beside its ops."""


@dataclass
class Device:
    """Stands for the processes on a GPU: takes what ``type_`` predicts, multiplies no bf16."""

    type_: DeviceType

    def run(self, model: bytes) -> Sample:
        ops = {chain(1): 1, chain(CHAIN + 1): CHAIN + 1}[model]
        return Sample(LAUNCH + ops * self.type_.overhead, 0.0)

    def op(self, work: Workload) -> Sample:
        if "bf16" in str(work.op.results[0].type):
            raise NotRun("no such kernel")
        return Sample(op_seconds(work.op, self.type_) - self.type_.overhead, 0.0)  # launches hide behind what runs


@pytest.mark.parametrize("preset", ["h100", "t4"])
def test_the_numbers_of_a_device_are_found(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "zoo_ops", lambda batch: [])
    monkeypatch.setattr(gpus, "SIDE", 1024)
    stated = read_topology_of(preset).types[0]
    rates = {**dict(stated.rates), "f32": dict(stated.rates)["f32"] * 0.4, "f16": dict(stated.rates)["f16"] * 0.7}
    true = replace(stated, overhead=9e-6, memory_bandwidth=stated.memory_bandwidth * 0.6, rates=tuple(sorted(rates.items())))
    found = _measured(stated, Device(true))  # type: ignore[arg-type]
    assert found.type_.overhead == pytest.approx(true.overhead, rel=0.01)
    assert found.type_.memory_bandwidth == pytest.approx(true.memory_bandwidth, rel=0.03)
    for dtype in ("f32", "f16"):
        work = product(dtype, 1024)
        assert op_seconds(work.op, found.type_) == pytest.approx(op_seconds(work.op, true), rel=0.03)
    assert found.missing == ["bf16"]


def test_a_type_without_a_rate_of_f32_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "zoo_ops", lambda batch: [])
    monkeypatch.setattr(gpus, "SIDE", 1024)
    stated = replace(read_topology_of("t4").types[0], rates=(("f16", 65e12),))
    assert dict(_measured(stated, Device(stated)).type_.rates)["f32"] > 0  # type: ignore[arg-type]


def test_only_devices_that_cuda_runs_are_measured() -> None:
    topology = read_topology_of("h100x2")
    assert not gpus_of(topology, "host0", (CUDA,))
    cuda = replace(topology, types=tuple(replace(type_, provider=CUDA) for type_ in topology.types))
    assert gpus_of(cuda, "host0", (CUDA,)) == {"h100": "gpu0"}
    assert not gpus_of(cuda, "host0", ())
    assert not gpus_of(cuda, "host1", (CUDA,))


def test_links_to_the_host_alone_are_changed() -> None:
    topology = read_topology_of("h100x2")
    changed, notes = _linked(topology, "host0", "h100", _Link(50e9, 5e-6, 0.02, 2e-5))
    assert changed == topology
    assert not notes


def test_a_check_multiplies_in_full_precision() -> None:
    assert Provider(CUDA, (("device_id", "1"),)).in_full_precision.options == (("device_id", "1"), ("use_tf32", "0"))
    wanted = Provider(CUDA, (("use_tf32", "1"),))
    assert wanted.in_full_precision == wanted
    assert Provider().in_full_precision == Provider()
