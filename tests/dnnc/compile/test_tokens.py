"""Plans for tokens: batch, groups and stages together, replicas of unlike devices, and what is refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.build.plan_json import plan_to_json
from dnnc.check.witness import verify_build
from dnnc.check.witness.facts import facts_of
from dnnc.check.witness.verify import verified
from dnnc.compile.decoding import with_states
from dnnc.compile.decoding.choice import Choice, Choosing
from dnnc.compile.decoding.step_of_batch import StepOfBatch
from dnnc.compile.driver import CompileOptions, build_pipeline, compile_model, plan_model
from dnnc.compile.flags import AUTO
from dnnc.machines import machines_of
from dnnc.report.plan import proof_text
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput, UsageError
from ir.core.module import Plan
from passes.costs.network import network
from passes.partition.decoding import asked_of
from passes.partition.faults import NothingFits
from passes.stages.from_ir import problem_of
from passes.stages.problem import stage_cost
from tests.passes.prepare.states.test_decoding import MODELS

LLAMA = f"zoo:llama-7b,cache=inplace,{MODELS['llama-7b']}"
TYPE = """[types.{name}]
kind = "cpu"
rates = {{ f32 = "{rate} MFLOP/s" }}
memory_bandwidth = "{bandwidth} MB/s"
memory = "{memory} KiB"
"""
LINKS = """[[links]]
ends = ["host", "devices of host"]
bandwidth = "1 GB/s"
latency = "1 us"
"""


def machines(path: Path, *types: tuple[str, int, int, int]) -> Path:
    """Types with their speed (rate and bandwidth in proportion to it), devices and KiB of memory."""
    text = "version = 1\n"
    for name, speed, _, memory in types:
        text += TYPE.format(name=name, rate=100 * speed, bandwidth=100 * speed, memory=memory)
    for name, _, count, _ in types:
        text += f'[[devices]]\nname = "{name}{{0..{count - 1}}}"\ntype = "{name}"\n'
    path.write_text(text + LINKS)
    return path


def options(topology: Path | str, out: Path | None = None, **more: Any) -> CompileOptions:
    given: dict[str, Any] = {"objective": "tokens", "context": 32, "plan_only": True, "report": False, "model": LLAMA, **more}
    return CompileOptions(topology=str(topology), out=out, **given)


def planned(topology: Path | str, **more: Any) -> Plan:
    return plan_model(options(topology, **more), sink=DiagnosticSink()).plan


def test_unlike_replicas_serve_groups_in_proportion_to_speed(tmp_path: Path) -> None:
    two = machines(tmp_path / "t.toml", ("fast", 2, 1, 4000), ("slow", 1, 1, 1200))
    result = compile_model(options(two, tmp_path / "b", batch=4, groups=6, stages=1), sink=DiagnosticSink())
    (stage,) = result.plan.stages
    assert (stage.devices, sorted(stage.serves)) == (("fast0", "slow0"), [0, 0, 0, 0, 1, 1])
    assert stage.steps[1] == pytest.approx(2 * stage.steps[0], rel=1e-3)
    assert result.plan.value == pytest.approx(max(4 * stage.steps[0], 2 * stage.steps[1]) / 6 / 4)
    told = dict(result.plan.certificate)["tokens"]
    assert "6 groups of 4 in turn" in told
    assert "to the first token of a prompt of 16, in chunks of 31" in told
    assert "stages wait" not in told, "the replicas are busy all the time"
    data = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert data["decoding"]["serving"] == {"0": list(stage.serves)}
    assert verify_build(tmp_path / "b").violations == []
    again = options(two, tmp_path / "c", objective="", context=None, plan=tmp_path / "b" / "plan.json")
    replayed = compile_model(again, sink=DiagnosticSink()).plan
    assert (replayed.value, replayed.objective, replayed.stages) == (result.plan.value, "tokens", result.plan.stages)
    data["decoding"]["serving"]["0"] = [0] * 6
    (tmp_path / "b" / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match="listed as '0,0,0,0,0,0'"):
        compile_model(again, sink=DiagnosticSink())


@pytest.mark.slow
def test_batch_and_groups_are_the_best_of_all(tmp_path: Path) -> None:
    """Oracle: each batch and number of groups planned by itself."""
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 500))
    chosen = planned(two, mesh="none")
    best, fits = 0.0, 0
    for batch in (1, 2, 3, 4, 6, 8, 10, 12, 14, 16):
        for groups in (1, 2, 3, 4):
            try:
                plan = planned(two, batch=batch, groups=groups, mesh="none")
            except Infeasible:
                continue
            fits += 1
            best = max(best, 1 / plan.value)
    assert fits > 4
    assert 1 / chosen.value >= best * (1 - 3e-3)
    assert chosen.bound <= 1 / best * (1 + 1e-9)
    assert "256 groups" in dict(chosen.certificate)["chosen"]


def test_steps_of_other_batches_follow_from_two(tmp_path: Path) -> None:
    """What a run of units takes by the tables of a batch that was not read is what its ops take in the module that is."""
    asked, sink = options("preset:cpu-2", batch=AUTO), DiagnosticSink()
    topology = machines_of("preset:cpu-2", sink, lambda label, fraction: None, training=False)
    pipeline = with_states(build_pipeline(options("preset:cpu-2", mesh="none")), asked)
    step, net = StepOfBatch(asked, pipeline, topology), network(topology)
    assert step.linear.alike
    for batch in (5, 9):
        found = asked_of({batch: step.linear.at(batch)}, topology, net, (1, 1))
        problem = problem_of(step.read(batch), topology, net)
        units, tables = found.decoding.units, found.decoding
        seconds, held = tables.seconds_of_runs(0, 0)[0] * batch, tables.memory_of_runs(0) + batch * cache_runs(tables.caches)
        woken = float(tables.borders.handover[0]) if tables.borders is not None else 0.0
        for first, behind in ((0, units), (0, units // 2), (units // 3, units // 2), (units // 2, units)):
            own = [op for unit in found.units[first:behind] for op in unit]
            cost = stage_cost(problem, own, 0)
            assert seconds[first, behind] == pytest.approx(cost.compute + cost.receive + cost.send + woken, rel=1e-3)
            assert held[first, behind] == pytest.approx(cost.memory, rel=1e-9)


def cache_runs(caches: Any) -> Any:
    up_to = np.concatenate([[0.0], np.cumsum(caches)])
    return up_to[None, :] - up_to[:-1, None]


def test_one_user_has_one_group(tmp_path: Path) -> None:
    two = machines(tmp_path / "t.toml", ("fast", 2, 1, 4000), ("slow", 1, 1, 4000))
    plan = planned(two, objective="token-latency", mesh="none")
    assert [stage.devices for stage in plan.stages] == [("fast0",)]
    assert (plan.tokens, plan.status) == (1, "optimal")
    assert plan.value == pytest.approx(plan.single)


@pytest.mark.slow
def test_one_user_has_the_members_of_a_mesh(tmp_path: Path) -> None:
    """Two devices read weights twice as fast as one; a mesh that is stated is the one that is chosen."""
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 4000))
    result = compile_model(options(two, tmp_path / "b", objective="token-latency"), sink=DiagnosticSink())
    (stage,) = result.plan.stages
    assert (result.plan.objective, result.plan.tokens, len(stage.devices)) == ("token-latency", 1, 2)
    assert stage.mesh
    assert result.plan.value == pytest.approx(stage.compute + stage.collectives)
    assert result.plan.bound >= result.plan.value / 1.05
    assert result.plan.value < 0.6 * planned(two, objective="token-latency", mesh="none").value
    assert verify_build(tmp_path / "b").violations == []
    stated = planned(two, objective="token-latency", mesh="2")
    assert stated.value == pytest.approx(result.plan.value)
    again = options(two, tmp_path / "c", objective="", plan=tmp_path / "b" / "plan.json", batch=1, groups=1)
    replayed = compile_model(again, sink=DiagnosticSink()).plan
    assert (replayed.objective, replayed.value) == ("token-latency", pytest.approx(result.plan.value))


def test_a_replay_on_a_mesh_counts_each_token_of_a_batch(tmp_path: Path) -> None:
    """A plan whose value is of a step, where it states one per token, is a violation."""
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 4000))
    plan = compile_model(options(two, tmp_path / "b", mesh="2", batch=2, groups=2), sink=DiagnosticSink()).plan
    again = options(two, tmp_path / "c", objective="", plan=tmp_path / "b" / "plan.json", batch=2, groups=2)
    replayed = compile_model(again, sink=DiagnosticSink())
    numbers = [(one.value, one.bound, one.single, one.tokens, one.status) for one in (plan, replayed.plan)]
    assert numbers[0] == numbers[1]
    assert verify_build(tmp_path / "c").violations == []
    of_step = replace(plan, value=plan.period, port_value=plan.period, bound=2 * plan.bound, tokens=1)
    module = replayed.module.replace(replayed.plan, of_step)
    violations = verified(facts_of(module, "plan.ir"), plan_to_json(module)).violations
    assert f"the value is {of_step.value!r} s, counted {plan.value!r} s" in violations


def test_the_bound_on_a_mesh_says_of_how_many_groups_it_is(tmp_path: Path) -> None:
    """Where nobody states them, a mesh of all devices has one; where they are stated there are no others."""
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 4000))
    free, stated = (planned(two, mesh="auto", batch=1, groups=groups) for groups in (None, 1))
    assert (free.value, free.bound, free.status) == (stated.value, stated.bound, "optimal")
    assert proof_text(free).startswith("optimal for 1 group of 1 alone: lower bound ")
    assert proof_text(stated).startswith("optimal: lower bound ")


@pytest.mark.slow
def test_few_groups_have_stages_on_meshes(tmp_path: Path) -> None:
    """Two groups keep two stages busy; of four devices each stage has two, and a token is at least the half of a round."""
    four = machines(tmp_path / "t.toml", ("core", 1, 4, 4000))
    result = compile_model(options(four, tmp_path / "b", batch=2, groups=2, stages=2), sink=DiagnosticSink())
    plan = result.plan
    assert [len(stage.devices) for stage in plan.stages] == [2, 2]
    assert all(stage.mesh for stage in plan.stages)
    seconds = [stage.compute + stage.collectives + stage.receive + stage.send for stage in plan.stages]
    assert plan.value == pytest.approx(max(*seconds, sum(seconds) / 2) / 2)
    assert plan.bound <= plan.value < planned(four, batch=2, groups=2, mesh="none").value
    assert verify_build(tmp_path / "b").violations == []


@pytest.mark.slow
def test_the_batch_of_a_stated_mesh_is_half_of_the_largest_that_fits_or_more(tmp_path: Path) -> None:
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 300))
    result = compile_model(options(two, tmp_path / "b", mesh="2"), sink=DiagnosticSink())
    batch = result.plan.tokens
    assert batch > 1
    assert "the largest that fits" in dict(result.plan.certificate)["chosen"]
    assert verify_build(tmp_path / "b").violations == []
    with pytest.raises(Infeasible):
        planned(two, mesh="2", batch=2 * batch + batch // 8 + 2, groups=1)


@pytest.mark.slow
def test_one_group_has_the_batch_that_is_best_on_meshes(tmp_path: Path) -> None:
    """A group alone keeps one of two stages busy, and both members of a mesh: the choice without meshes is of one device."""
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 500))
    chosen = planned(two, groups=1)
    assert chosen.stages[0].mesh
    told = dict(chosen.certificate)["chosen"]
    assert (
        "; on meshes about the largest that fits in 1 group; no plan has replicas beside a mesh; that of plans on meshes is"
        in told
    )
    assert f" (of plans on meshes, of those with 1 group of {chosen.tokens} alone): lower bound" in proof_text(chosen)
    alone = planned(two, groups=1, mesh="none")
    assert chosen.value <= planned(two, groups=1, batch=alone.tokens).value < alone.value


@pytest.mark.slow
def test_as_many_groups_as_are_best_on_meshes(tmp_path: Path) -> None:
    """Two stages of one device each need two groups, and exchange less than a mesh of two."""
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 4000))
    two.write_text(two.read_text().replace("1 us", "2000 us"))
    found = compile_model(options(two, tmp_path / "b", batch=4, mesh="auto", stages=0), sink=DiagnosticSink()).plan
    assert "the largest that fits in each of 1, 2" in dict(found.certificate)["chosen"]
    groups = json.loads((tmp_path / "b" / "plan.json").read_text())["decoding"]["groups"]
    assert groups == len(found.stages) == 2
    assert found.value < planned(two, mesh="auto", batch=4).value


@pytest.mark.slow
def test_one_mesh_may_have_fewer_devices(tmp_path: Path) -> None:
    """Of eight members of which two work apart, the others would compute what these do. A stated shape has all its members."""
    eight = machines(tmp_path / "t.toml", ("core", 1, 8, 4000))
    eight.write_text(eight.read_text().replace("1 us", "300 us"))
    found = planned(eight, mesh="auto", batch=1, groups=1)
    assert [len(stage.devices) for stage in found.stages] == [2]
    assert found.value <= min(planned(eight, mesh=mesh, batch=1, groups=1).value for mesh in ("8", "2x4"))
    assert "on one mesh of all devices no plan is below" in dict(found.certificate)["idle"]


@pytest.mark.slow
def test_stages_that_leave_no_device_for_a_mesh_have_the_batch_that_is_best_on_devices(tmp_path: Path) -> None:
    """The compilation searches no meshes then, and has no plan for the larger batch of a search that cuts at fewer places."""
    three = machines(tmp_path / "t.toml", ("small", 300, 2, 3072), ("big", 600, 1, 102400))
    plan = planned(three, model="zoo:gpt2,layers=4,hidden=128,vocab=3000,cache=concat", context=64, stages=3)
    assert [len(stage.devices) for stage in plan.stages] == [1, 1, 1]
    assert "on meshes" not in dict(plan.certificate)["chosen"]


@pytest.mark.slow
def test_a_batch_for_meshes_is_found_where_larger_ones_do_not_fit(tmp_path: Path) -> None:
    """Of six sequences in two groups no plan fits; a search that asks for better ones than on devices does not tell this from
    there being none."""
    four = machines(tmp_path / "t.toml", ("fast", 6, 1, 250), ("slow", 3, 3, 150))
    model = "zoo:gpt2,cache=concat,layers=2,hidden=32,heads=4,vocab=400"
    plan = planned(four, model=model, stages=2)
    assert (plan.tokens, plan.value) == (3, pytest.approx(planned(four, model=model, stages=2, mesh="auto").value, rel=1e-3))


def test_fewer_sequences_are_planned_where_those_that_were_chosen_do_not_fit(tmp_path: Path) -> None:
    asked = options(machines(tmp_path / "t.toml", ("core", 1, 1, 4000)), batch=AUTO, groups=AUTO)
    sink, tried = DiagnosticSink(), list[int]()

    def third(one: CompileOptions, choice: Choice | None) -> Choice | None:
        tried.append(int(one.batch or 0))
        if len(tried) < 3:
            raise Infeasible(NothingFits(), where="t")
        return choice

    choice = Choosing(asked, machines_of(asked.topology, sink), nullcontext).that_fits(sink, third)
    assert choice is not None
    assert choice.batch == tried[2] < tried[1] < tried[0]
    assert "chunks" not in choice.allowed


@pytest.mark.slow
def test_a_batch_is_chosen_beside_a_stated_chunk(tmp_path: Path) -> None:
    core = machines(tmp_path / "t.toml", ("core", 1, 1, 600))
    free, beside = planned(core), planned(core, chunk=31)
    assert free.tokens > beside.tokens
    assert "beside which chunks of 31 fit" in dict(beside.certificate)["chosen"]
    assert "in chunks of 31" in dict(beside.certificate)["tokens"]


def test_what_tokens_exclude_is_told(tmp_path: Path) -> None:
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 4000))
    for more, words in (
        ({"context": None}, "only with --context or --state: --objective tokens"),
        ({"objective": "", "batch": AUTO}, "only with --objective tokens: --batch auto"),
        ({"objective": "token-latency", "groups": 2}, "plans one group"),
        ({"profile": (Path("p.json"),)}, "those of one batch"),
        ({"comm": "overlap"}, "--comm overlap"),
    ):
        with pytest.raises(UsageError, match=words):
            planned(two, **more)
    with pytest.raises(Infeasible) as error:
        planned(machines(tmp_path / "s.toml", ("core", 1, 2, 100)))
    assert "short" in str(error.value)
    with pytest.raises(InvalidInput) as unknown:
        planned(two, model="zoo:llama-77b,layers=2")
    assert [one.where for one in unknown.value.diagnostics] == ["zoo:llama-77b,layers=2"]
    with pytest.raises(InvalidInput, match="no input of the model is a cache"):
        planned(two, model=f"zoo:llama-7b,{MODELS['llama-7b']}", batch=2, groups=1)
