"""Plans of several stages on links that they share: never quicker than the bytes that cross, and as quick as when every message
is followed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.training import TrainingOptions
from dnnc.report import plan_headline
from dnnc.workloads.scheduled import scheduled
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Mesh, Module, Plan, Resource, Schedule
from passes.costs.memory.liveness import SLOTS
from passes.graph.graph import cuts_of
from passes.meshes.costs.count import count
from passes.meshes.costs.cross_mesh import message_bytes, parties

BUS = """version = 1
[types.core]
rates = {{ f32 = "{rate} GFLOP/s" }}
memory_bandwidth = "20 GB/s"
[[devices]]
name = "c{{0..3}}"
type = "core"
[[links]]
name = "bus"
ends = ["host", "devices of host"]
bandwidth = "{bandwidth} GB/s"
latency = "1 us"
shared = true
"""
SAMPLES = 60


@dataclass(slots=True)
class Phase:
    """Something that a stage does for a sample: ``seconds`` of it alone, of which the bus is busy ``busy``; ``send`` and
    ``receive``: the stage at the other end."""

    seconds: float
    busy: float = 0.0
    send: int = -1
    receive: int = -1


def phases_of(module: Module, bandwidth: float) -> list[list[Phase]]:
    """What each stage does for a sample, in order: receives, its arithmetic in equal parts around its collectives, sends. The
    bytes that cross the bus are counted message by message."""
    plan = module.first(Plan)
    assert plan is not None
    sides = [side for side, *_ in parties(plan, {mesh.name: mesh for mesh in module.of_type(Mesh)})]
    counted = count(module)
    found: list[list[Phase]] = []
    cuts = cuts_of(module.entry)
    for stage in plan.stages:
        members = max(1, len(stage.devices))
        own = [one for one in counted if one.stage == stage.index]
        rows = []
        for cut in cuts:
            if cut.target == stage.index:
                size = message_bytes(cut.tensor.type, sides[cut.source], sides[cut.target])
                rows.append(Phase(1e-6 + size / bandwidth * max(1, members), 0.0, receive=cut.source))
        part = stage.compute / (len(own) + 1)
        for one in own:
            rows += [Phase(part), Phase(one.seconds, members * one.sent / bandwidth)]
        rows.append(Phase(part))
        for cut in cuts:
            if cut.source == stage.index:
                size = message_bytes(cut.tensor.type, sides[cut.source], sides[cut.target])
                busy = size * len(sides[cut.target].devices) / bandwidth
                rows.append(Phase(max(1e-6 + size / bandwidth, busy), busy, send=cut.target))
        found.append(rows)
    return found


def period(stages: Sequence[Sequence[Phase]]) -> float:
    """Seconds from one sample to the next, once the pipeline is full: every phase is followed, and those that are on the bus at
    once are as much slower as it is asked for more than it has."""
    at = [(0, 0)] * len(stages)  # sample and phase of each stage
    left = [1.0] * len(stages)
    sent: dict[tuple[int, int], int] = {}
    received: dict[tuple[int, int], int] = {}
    ends: list[float] = []
    now = 0.0

    def ready(stage: int) -> bool:
        sample, number = at[stage]
        if sample == SAMPLES:
            return False
        phase = stages[stage][number]
        if phase.receive >= 0:
            return sent.get((phase.receive, stage), 0) > sample
        if phase.send >= 0:
            return received.get((stage, phase.send), 0) > sample - SLOTS
        return True

    while any(sample < SAMPLES for sample, _ in at):
        active = [stage for stage in range(len(stages)) if ready(stage)]
        assert active, "all wait"
        asked = sum(stages[s][at[s][1]].busy / max(stages[s][at[s][1]].seconds, 1e-15) for s in active)
        speed = {s: 1 / max(1.0, asked) if stages[s][at[s][1]].busy else 1.0 for s in active}
        step = min(left[s] * stages[s][at[s][1]].seconds / speed[s] for s in active)
        now += step
        for s in active:
            seconds = stages[s][at[s][1]].seconds
            left[s] -= step * speed[s] / seconds if seconds else 1.0
            if left[s] <= 1e-9:
                sample, number = at[s]
                phase = stages[s][number]
                if phase.send >= 0:
                    sent[s, phase.send] = sample + 1
                if phase.receive >= 0:
                    received[phase.receive, s] = sample + 1
                left[s] = 1.0
                at[s] = (sample, number + 1) if number + 1 < len(stages[s]) else (sample + 1, 0)
                if s == len(stages) - 1 and at[s][1] == 0:
                    ends.append(now)
    return (ends[-1] - ends[SAMPLES // 3]) / (len(ends) - 1 - SAMPLES // 3)


def planned(tmp_path: Path, model: str, machines: str, **options: object) -> Module:
    (tmp_path / "bus.toml").write_text(machines)
    asked = CompileOptions(model, str(tmp_path / "bus.toml"), tmp_path / "build", plan_only=True, **options)  # type: ignore[arg-type]
    compile_model(asked)
    return scheduled(tmp_path / "build", "", DiagnosticSink())


@pytest.mark.parametrize(("strategy", "bandwidth", "rate"), [("", 0.25, 200), ("data", 4.0, 1000), ("megatron", 4.0, 200)])
def test_a_stream_is_as_quick_as_its_messages(tmp_path: Path, strategy: str, bandwidth: float, rate: float) -> None:
    """The bus is busy for less than the slowest stage."""
    plan, crossing, followed = stream(tmp_path, strategy, bandwidth, rate)
    assert crossing < 0.7 * plan.value
    assert followed == pytest.approx(plan.value, rel=0.05)
    assert "sets the pace" not in plan_headline(plan)


@pytest.mark.parametrize(("bandwidth", "rate"), [(0.25, 200), (0.25, 1000)])
def test_a_stream_is_no_quicker_than_its_bytes(tmp_path: Path, bandwidth: float, rate: float) -> None:
    """The bus is busy for longer than any stage; following the messages shows besides that it is idle at times."""
    plan, crossing, followed = stream(tmp_path, "megatron", bandwidth, rate)
    slowest = max(stage.working + stage.receive + stage.send for stage in plan.stages)
    assert slowest * 1.04 < crossing
    assert crossing * (1 - 1e-9) <= plan.value <= followed
    assert followed < 1.25 * plan.value
    assert "a link that stages share sets the pace: no device is busy for more than" in plan_headline(plan)
    assert simulated(tmp_path) == pytest.approx(plan.value, rel=0.01)


def stream(tmp_path: Path, strategy: str, bandwidth: float, rate: float) -> tuple[Plan, float, float]:
    """The plan in two stages of two devices each, the seconds that the bytes of a sample take on the bus, and those from one
    sample to the next where every message is followed."""
    machines = BUS.format(rate=rate, bandwidth=bandwidth)
    module = planned(tmp_path, "zoo:mlp,hidden=512,layers=8,batch=64", machines, mesh="2", stages=2, strategy=strategy)
    plan = module.first(Plan)
    assert plan is not None
    assert len(plan.stages) == 2
    assert plan.bound <= plan.value
    phases = phases_of(module, bandwidth * 1e9)
    return plan, math.fsum(phase.busy for stage in phases for phase in stage), period(phases)


def simulated(tmp_path: Path) -> float:
    """Seconds per sample of a long stream, as ``dnnc simulate`` has it."""
    schedule = scheduled(tmp_path / "build", "", DiagnosticSink()).first(Schedule)
    assert schedule is not None
    return schedule.period / schedule.microbatches


@pytest.mark.parametrize("kind", ["replicas", "mesh"])
def test_a_step_is_no_quicker_than_its_bytes(tmp_path: Path, kind: str) -> None:
    """Both stages sum their gradients over one bus; each alone is far from filling the step."""
    machines = BUS.format(rate=2000, bandwidth=0.1)
    training = TrainingOptions(loss="mse:y", optimizer="sgd")
    options: dict[str, Any] = {"objective": "training", "microbatches": 2, "training": training}
    model = "zoo:mlp,hidden=256,inputs=256,outputs=256,layers=4,batch=2"
    if kind == "mesh":
        module = planned(tmp_path, model, machines, mesh="2", stages=2, strategy="data", **options)
    else:
        planned(tmp_path, model, machines, mesh="none", replicas=1, stages=2, **options)
        stated = json.loads((tmp_path / "build" / "plan.json").read_text())
        for number, stage in enumerate(stated["stages"]):
            stage["device"] = [f"c{2 * number}", f"c{2 * number + 1}"]
        (tmp_path / "edited.json").write_text(json.dumps(stated))
        module = planned(tmp_path, model, machines, plan=tmp_path / "edited.json", training=training)
    plan = module.first(Plan)
    assert plan is not None
    assert [len(stage.devices) for stage in plan.stages] == [2, 2]
    summed = 2 * sum(resource.type.nbytes or 0 for resource in module.of_type(Resource))  # n = 2: each member sends all once
    assert plan.value >= summed / 0.1e9
    assert all(dict(stage.shared)["bus"] > 0 for stage in plan.stages)
