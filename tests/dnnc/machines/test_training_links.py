"""What links do in training (``training`` of a link): it counts in plans of training steps, and in no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.machines.topology import read_topology, topology_to_toml
from dnnc.study.calibrate import machines_at, numbers_of
from dnnc.study.whatif import what_if
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.topology import Topology

MACHINES = """version = 1
[types.core]
rates = { f32 = "100 GFLOP/s" }
memory_bandwidth = "20 GB/s"
[[devices]]
name = "c{0..1}"
type = "core"
[[links]]
name = "bus"
ends = ["host", "devices of host"]
bandwidth = "LINK"
"""
NEAR = 'bandwidth = "20 GB/s"\nlatency = "10 us"'
FAR = 'bandwidth = "2 GB/s"\nlatency = "50 us"\ncollectives = { start = "3 ms" }'
BOTH = f'{NEAR}\ntraining = {{ bandwidth = "2 GB/s", latency = "50 us", start = "3 ms" }}'
MODEL = "zoo:gpt2,layers=1,hidden=32,heads=2,vocab=50,seq=16,batch=4"
STEP: dict[str, Any] = {"objective": "training", "microbatches": 4}


def machines(link: str) -> str:
    return MACHINES.replace('bandwidth = "LINK"', link)


def options(folder: Path, link: str, **more: Any) -> CompileOptions:
    file = folder / "machines.toml"
    file.write_text(machines(link), encoding="utf-8")
    return CompileOptions(MODEL, str(file), folder / "build", plan_only=True, **more)


@pytest.mark.parametrize(
    "more",
    [
        {"mesh": "2", "strategy": "megatron"},
        {"stages": 2, "mesh": "none"},
        *(pytest.param(more, marks=pytest.mark.slow) for more in ({"mesh": "2"}, {})),
    ],
)
def test_a_step_counts_them(tmp_path: Path, more: dict[str, Any]) -> None:
    """As if they were all that the link had; a plan for inference as if they were not there."""
    for trains, same in ((STEP, FAR), ({}, NEAR)):
        found, wanted = (compile_model(options(tmp_path, link, **trains, **more)).plan for link in (BOTH, same))
        assert (found.value, found.bound, found.stages) == (wanted.value, wanted.bound, wanted.stages)


def test_many_small_collectives_are_not_the_default(tmp_path: Path) -> None:
    """Split op by op, each layer would wait 3 ms several times; over shared memory the same plan is the best."""
    near, far = (compile_model(options(tmp_path, link, **STEP)).plan for link in (NEAR, BOTH))
    assert near.value < far.value
    for stage in far.stages:
        assert stage.collectives < 3e-3, "no collective in each microbatch"


@pytest.mark.slow
def test_what_if_counts_them(tmp_path: Path) -> None:
    sink = DiagnosticSink()
    found, wanted = (what_if(options(tmp_path, link, **STEP), [], sink=sink).whole.value for link in (BOTH, FAR))
    assert found == wanted


def test_calibration_puts_them_where_they_were() -> None:
    """Numbers fitted to training steps become those of the link in training."""
    topology = read_topology(machines(BOTH))
    numbers = numbers_of("core", [topology.trained()], Path("rows"))
    slower = machines_at(
        topology, numbers, [2.0 if number.key in ("bandwidth", "latency") else number.now for number in numbers]
    )
    (link,), (before,) = slower.links, topology.links
    assert (link.training_bandwidth, link.training_latency, link.training_start) == (1e9, 100e-6, 6e-3)
    assert (link.bandwidth, link.latency, link.start) == (before.bandwidth, before.latency, before.start)


def test_they_are_read_and_written() -> None:
    topology = read_topology(machines(BOTH))
    assert read_topology(topology_to_toml(topology)) == topology
    trained = topology.trained()
    assert trained.links == read_topology(machines(FAR)).links
    assert trained.trained() == trained


def test_a_key_that_is_none_is_told_at_its_place() -> None:
    with pytest.raises(InvalidInput, match="small"):
        read_topology(machines(BOTH.replace('start = "3 ms"', 'small = "3 GB/s"')))
    with pytest.raises(InvalidInput, match="more than 0"):
        read_topology(machines(BOTH.replace('training = { bandwidth = "2 GB/s"', 'training = { bandwidth = "0 GB/s"')))
    assert isinstance(read_topology(machines(NEAR)), Topology)
