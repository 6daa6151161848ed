"""Where memory is tight, a training step has a plan whose rows fit, or none: a plan that does not fit is never given."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
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


@pytest.mark.parametrize("share", [0.7, pytest.param(0.6, marks=pytest.mark.slow)])
def test_stages_hold_more_or_fewer_microbatches_by_their_place(share: float) -> None:
    plan = planned("preset:h100x4", int(PLENTY * share), mesh="none")
    assert [len(stage.devices) for stage in plan.stages] == [1, 1, 1, 1]


@pytest.mark.slow
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
@pytest.mark.parametrize(
    ("mesh", "schedule", "shares"),
    [("", "", (0.45,)), *itertools.product(("none", "2"), ("", "gpipe", "zb-h1"), [(5.0, 0.9, 0.45)])],
)
def test_no_plan_is_over_memory(mesh: str, schedule: str, shares: tuple[float, ...]) -> None:
    plans = 0
    for share in shares:
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


GPIPE = "canonicalize,cost,partition{objective=training,stages=2,mesh=none,microbatches=64},place,schedule{family=gpipe}"
"""Searched as 1F1B is ordered, which holds two microbatches of the first stage; in the order of GPipe it holds all 64."""


@pytest.fixture(scope="module")
def narrowing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nine products, whose first four are of wider matrices, so that the first stage holds most."""
    widths = [256] * 5 + [64] * 5
    lines = [f"m{i} = MatMul(x{i}, w{i})\n x{i + 1} = Tanh(m{i})" for i in range(9)]
    weights = ", ".join(f"float[{a},{b}] w{i}" for i, (a, b) in enumerate(pairwise(widths)))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        m (float[32,256] x0, {weights}) => (float[32,64] x9) {{ {chr(10).join(lines)} }}"""
    )
    while len(model.graph.input) > 1:
        one = model.graph.input.pop()
        shape = [size.dim_value for size in one.type.tensor_type.shape.dim]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), one.name))
    path = tmp_path_factory.mktemp("narrowing") / "narrowing.onnx"
    onnx.save(model, path)
    return str(path)


def test_a_plan_that_its_order_of_work_refuses_is_not_the_end(narrowing: str) -> None:
    """The plan of the first search holds 16 072 704 bytes; another has its bound, and fits."""
    asked, sink = CompileOptions(narrowing, plan_only=True, pipeline=GPIPE), DiagnosticSink()
    free, tight = (
        plan_model(asked, machines=machines("preset:h100x2", memory), sink=sink).module for memory in (1 << 34, 16_000_000)
    )
    first, found = free.first(Plan), tight.first(Plan)
    assert first is not None
    assert found is not None
    assert max(stage.memory for stage in first.stages) > 16_000_000 >= max(stage.memory for stage in found.stages)
    assert first.bound == found.bound < first.value < found.value
    assert "memory" in dict(found.certificate)
    assert not sink.diagnostics
    assert not verified(facts_of(tight, "plan.ir"), plan_to_json(expand(tight))).violations


def test_where_no_plan_fits_the_first_refusal_is_told(narrowing: str) -> None:
    asked, sink = CompileOptions(narrowing, plan_only=True, pipeline=GPIPE), DiagnosticSink()
    with pytest.raises(Infeasible, match="in the order gpipe it holds 16072704 bytes and has 8000000") as raised:
        plan_model(asked, machines=machines("preset:h100x2", 8_000_000), sink=sink)
    assert not raised.value.proven
    assert not sink.diagnostics
