"""Where memory is tight, a training step has a plan whose rows fit, or none: a plan that does not fit is never given."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from dnnc.build.plan_json import plan_to_json
from dnnc.check.witness.facts import facts_of
from dnnc.check.witness.verify import verified
from dnnc.compile.driver import CompileOptions, plan_model
from dnnc.compile.training import TrainingOptions
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Plan, Schedule
from ir.core.topology import Topology
from ir.ops.rows import shown, unrolled
from passes.graph.folding import expand
from passes.timeline.memory import memory_over_time, with_memory
from passes.timeline.simulate import run_rows
from passes.timeline.workload import workload

MODEL = "zoo:gpt2,layers=4,hidden=64,heads=4,batch=8,seq=32,vocab=128,weights=declared"
PLENTY = 10_891_388
"""What the plan without a limit holds on each device."""


def machines(preset: str, memory: int) -> Topology:
    topology = load_topology(preset, DiagnosticSink())
    types = tuple(replace(one, memory=memory, reserved=0) for one in topology.types)
    return replace(topology, types=types, devices=tuple(replace(one, memory=None) for one in topology.devices))


def planned(preset: str, memory: int, schedule: str = "", **options: Any) -> Plan:
    """The plan, whose rows were followed: what devices hold then is within their memory."""
    sink = DiagnosticSink()
    training = TrainingOptions(schedule=schedule)
    asked = CompileOptions(MODEL, plan_only=True, objective="training", training=training, **options)
    module = plan_model(asked, machines=machines(preset, memory), sink=sink).module
    assert not sink.diagnostics
    load, rows = with_memory(module, workload(module)), module.first(Schedule)
    assert rows is not None
    held = memory_over_time(module, run_rows(load, unrolled(rows, load.flow, shown(rows))))
    assert all(over_time.peak <= memory for over_time in held.values())
    plan = module.first(Plan)
    assert plan is not None
    assert plan.bound <= plan.value
    return plan


@pytest.mark.parametrize("share", [0.7, 0.6])
def test_stages_hold_more_or_fewer_microbatches_by_their_place(share: float) -> None:
    plan = planned("preset:h100x4", int(PLENTY * share), mesh="none")
    assert [len(stage.devices) for stage in plan.stages] == [1, 1, 1, 1]


@pytest.mark.parametrize(("stages", "share"), [(2, 0.8), (4, 0.7)])
def test_the_fastest_order_that_fits_is_no_slower_than_one_that_was_asked_for(stages: int, share: float) -> None:
    """What an order holds is counted pass by pass: as if a microbatch more were saved, they were taken not to fit."""
    values = [
        planned("preset:h100x4", int(PLENTY * share), order, mesh="none", stages=stages).value for order in ("auto", "1f1b")
    ]
    assert values == sorted(values)


def test_less_memory_gives_no_better_plan() -> None:
    values = [planned("preset:h100x4", int(PLENTY * share), "auto", mesh="none", stages=4).value for share in (1.0, 0.6)]
    assert values == sorted(values)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["", "gpipe", "zb-h1"])
@pytest.mark.parametrize("mesh", ["", "none", "2"])
def test_no_plan_is_over_memory(mesh: str, schedule: str) -> None:
    plans = 0
    for share in (5.0, 1.5, 0.9, 0.6, 0.45):
        with suppress(Infeasible):
            planned("preset:h100x4", int(PLENTY * share), schedule, mesh=mesh, stages=2 if mesh == "2" else None)
            plans += 1
    assert plans


def test_no_memory_at_all_is_told_without_a_warning_of_numpy(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(Infeasible):
        planned("preset:h100x4", 0)
    assert not recwarn.list


def test_a_weight_of_two_stages_has_the_state_of_its_optimizer_in_the_first_alone() -> None:
    """Planner, place and verify-plan count it there: devices with the memory that a plan is said to need have that plan."""
    topology = machines("preset:h100x2", 1 << 34)
    asked = CompileOptions(
        "zoo:gpt2,layers=2,hidden=64,heads=2,vocab=4000,positions=32,seq=16,weights=declared",
        plan_only=True,
        objective="training",
        stages=2,
        mesh="none",
        microbatches=4,
    )
    free = plan_model(asked, machines=topology, sink=DiagnosticSink()).module.first(Plan)
    assert free is not None
    needed = {name: stage.memory for stage in free.stages for name in stage.devices}
    assert max(needed.values()) > 1.5 * min(needed.values())
    tight = replace(topology, devices=tuple(replace(one, memory=needed[one.name]) for one in topology.devices))
    module = plan_model(asked, machines=tight, sink=DiagnosticSink()).module
    found = module.first(Plan)
    assert found is not None
    assert found.value == pytest.approx(free.value)
    assert not verified(facts_of(module, "plan.ir"), plan_to_json(expand(module))).violations
