"""Stages on a GPU: what they compute, and that what travels lies in pinned memory. Skipped where onnxruntime runs no GPU."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from dnnc.check.check import check_build
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import run_build
from dnnc.engines.onnxruntime.session import pinned
from dnnc.engines.onnxruntime.transport.edges import anonymous_memory, map_memory
from dnnc.machines import read_facts
from dnnc.machines.kernels.gpus import measured_gpus
from dnnc.machines.topology import load_topology
from dnnc.onnx.providers import CUDA
from ir.core.diagnostics import DiagnosticSink
from tests.dnnc.engines.onnxruntime.test_providers import built

GPU = pytest.mark.skipif(
    CUDA not in onnxruntime.get_available_providers() or not read_facts().gpus, reason="onnxruntime runs no GPU here"
)


@GPU
@pytest.mark.parametrize("source", ["zoo:mlp,layers=2,hidden=16,batch=4", "zoo:bert-base,layers=1,seq=16,vocab=100"])
def test_a_stage_on_the_gpu_computes_what_the_cpu_does(tmp_path: Path, source: str) -> None:
    build = built(tmp_path / "gpu", f'provider = "{CUDA}"', source)
    other = built(tmp_path / "cpu", "", source)
    batch = random_inputs(other)
    (found,), (expected,) = run_build(build, batch).outputs, run_build(other, batch).outputs
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=0.01 * float(np.abs(value).max()))  # TF32
    assert check_build(build).passed  # in full precision


@GPU
def test_a_gpu_is_measured() -> None:
    topology = load_topology("preset:t4", DiagnosticSink())
    topology = replace(topology, types=(replace(topology.types[0], provider=CUDA),))
    host, device = topology.hosts[0].name, topology.devices[0].name
    found, notes = measured_gpus(topology, host, {"t4": device}, (0,), 0, lambda *_: None)
    assert notes["types.t4", "rates"].startswith("measured")
    assert dict(found.types[0].rates)["f32"] > 1e12


def test_the_mapping_that_an_array_lies_in_is_pinned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(pinned, "_register", lambda: lambda place, size, flags: calls.append((place.value, size.value)))
    monkeypatch.setattr(pinned, "_pinned", set())
    memory = map_memory(anonymous_memory(3 * mmap.PAGESIZE), 3 * mmap.PAGESIZE)
    for array in (memory[100:200].view(np.float32), memory[mmap.PAGESIZE :], np.empty(4), np.empty(0)[:0]):
        pinned.pin(array)
    assert calls == [(memory.ctypes.data, 3 * mmap.PAGESIZE)]
