"""Several stages on each device: where they are put, and what such a plan says of itself."""

from __future__ import annotations

import pytest

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink, DnncError
from ir.core.module import Module, Plan, Schedule
from ir.core.topology import Topology
from passes.costs.learning import InFlight
from passes.costs.network import network
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.partition.bridge.steps import Steps
from passes.partition.place import PlacePass, stage_ops

MODEL = "zoo:mlp,layers=8,hidden=64,batch=8"
EVEN = "zoo:bert-base,layers=8,hidden=256,heads=4,seq=64,batch=32,vocab=50,positions=64"
"""Of layers that take all its time."""


def planned(options: str, family: str = "1f1b", topology: str = "preset:cpu-2,cores=2", model: str = MODEL) -> Module:
    sink = DiagnosticSink()
    module = load_model(model, {}, sink).module.extend([load_topology(topology, sink)])
    loss = "mse:y" if model == MODEL else "mse:pooler_output"
    search = f"partition{{objective=training,{options}}},place,schedule{{family={family}}}"
    text = f"training{{loss={loss}}},canonicalize,cost,{search}"
    return PassManager(parse_pipeline(text)).run(module, pass_context(sink))


@pytest.mark.parametrize(
    ("options", "family", "devices"),
    [
        ("chunks=2", "interleaved", "0101"),
        ("chunks=3", "interleaved", "010101"),
        ("chunks=2,chunk-order=v", "zb-v", "0110"),
        ("chunks=3,chunk-order=v", "1f1b", "011001"),
    ],
)
def test_stages_are_put_on_devices_in_order(options: str, family: str, devices: str) -> None:
    module = planned(options, family)
    plan, schedule = module.first(Plan), module.first(Schedule)
    assert plan is not None
    assert schedule is not None
    assert "".join(stage.devices[0].removeprefix("cpu") for stage in plan.stages) == devices
    assert plan.value == schedule.latency
    work = plan.microbatches * sum(stage.compute for stage in plan.stages) / 2
    assert plan.bound == pytest.approx(work)
    assert plan.bound < plan.value


@pytest.mark.parametrize(
    ("options", "family", "order"), [("chunks=2", "interleaved", "loop"), ("chunks=2,chunk-order=v", "zb-v", "v")]
)
def test_chunks_hold_what_their_schedule_keeps(options: str, family: str, order: str) -> None:
    """The search had counted as many microbatches as a stage of 1F1B keeps."""
    module = planned(f"{options},family={family}", family)
    plan, topology = module.first(Plan), module.first(Topology)
    assert plan is not None
    assert topology is not None
    own, alone = stage_ops(module, plan), (1,) * len(plan.stages)
    steps = Steps(module, topology, network(topology), plan.microbatches, family, 1, order)
    held = steps.in_flight(alone, own)
    assert held == PlacePass(family=family).in_flight(module, plan, own)
    assert held.microbatches != InFlight.of(plan.microbatches, alone).microbatches


def test_stages_of_a_device_wait_less_where_they_are_shorter() -> None:
    """The bubble of interleaved 1F1B is that of 1F1B over the chunks of a device; ZB-V has nearly none."""
    waits = []
    for options, family in (("stages=2", "1f1b"), ("chunks=2", "interleaved"), ("chunks=2,chunk-order=v", "zb-v")):
        module = planned(options, family, "preset:h100x2", EVEN)
        plan, schedule = module.first(Plan), module.first(Schedule)
        assert plan is not None
        assert schedule is not None
        busy = plan.microbatches * max(
            sum(stage.compute for stage in plan.stages if stage.devices == on) for on in {s.devices for s in plan.stages}
        )
        waits.append(1 - busy / schedule.latency)
    assert waits[0] > waits[1] > waits[2]


@pytest.mark.parametrize(
    ("options", "topology", "told"),
    [
        ("chunks=2", "preset:cpu-1", "there is one device"),
        ("chunks=2,chunk-order=ring", "preset:cpu-2", "chunk-order is 'ring', expected loop or v"),
        ("chunks=2,stages=2", "preset:cpu-2", "--chunks 2 says how many stages there are"),
        ("chunks=2,replicas=2", "preset:cpu-2", "--chunks 2 says how many stages there are"),
        ("chunks=60", "preset:cpu-2", "120 stages"),
    ],
)
def test_what_cannot_be(options: str, topology: str, told: str) -> None:
    with pytest.raises(DnncError) as error:
        planned(options, topology=topology)
    assert told in str(error.value)
