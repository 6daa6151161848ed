"""Stages, replicas and meshes are chosen together: the best of all kinds of plan, with a bound that holds for all of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest

from dnnc.check.witness.verify import verify_build
from dnnc.compile.driver import CompileOptions, CompileResult, compile_model
from dnnc.compile.load import load_model
from dnnc.compile.training import TrainingOptions
from dnnc.machines.topology import load_topology
from dnnc.report.plan import plan_headline
from ir.core.diagnostics import DiagnosticSink, Infeasible, UsageError
from ir.core.module import Module, Plan
from ir.core.topology import Device, DeviceType, Host, Link, Switch, Topology
from ir.text.units import seconds_text
from passes.costs.network import network
from passes.framework.base import PassContext
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.partition.chain.submeshes import searched_sizes
from passes.partition.faults import NothingFits
from passes.partition.layouts.mesh.candidates import Candidate
from passes.partition.layouts.mesh.one_mesh import MeshSearch
from passes.partition.on_meshes import MeshesSearch
from passes.partition.partition_pass import PartitionPass
from passes.stages.from_ir import problem_of
from passes.stages.problem import stage_cost
from tests.passes.partition.on_meshes import on_meshes

MACHINES = """
version = 1
[types.core]
rates = {{ f32 = "1 GFLOP/s" }}
memory_bandwidth = "1 GB/s"
memory = "{memory} B"
[[devices]]
name = "d{{0..{last}}}"
type = "core"
[[links]]
mesh = "d*"
bandwidth = "{bandwidth} MB/s"
latency = "1 us"
"""


def machines(folder: Path, devices: int, memory: int = 10**9, bandwidth: int = 1000) -> str:
    path = folder / "machines.toml"
    path.write_text(MACHINES.format(last=devices - 1, memory=memory, bandwidth=bandwidth))
    return str(path)


def compiled(folder: Path, model: str, topology: str, **options: object) -> CompileResult:
    return compile_model(CompileOptions(model, topology, folder / "b", plan_only=True, **options))  # type: ignore[arg-type]


def value(folder: Path, model: str, topology: str, **options: object) -> float:
    try:
        return compiled(folder, model, topology, **options).plan.value
    except Infeasible:
        return math.inf


ONE_DOMINATES = "zoo:mlp,layers=3,inputs=2048,hidden=512,outputs=8,batch=8"


def test_a_model_that_one_op_dominates_gets_replicas(tmp_path: Path) -> None:
    """No pipeline of single devices is faster than its largest op: it had been called optimal."""
    topology = "preset:cpu-2,cores=2"
    plan = compiled(tmp_path, ONE_DOMINATES, topology).plan
    assert (plan.status, plan.value) == ("optimal", pytest.approx((plan.single + 150e-6) / 2)), "with hand-over"
    assert plan.stages[0].devices == ("cpu0", "cpu1")
    assert dict(plan.certificate)["kinds"].startswith("stages that may have replicas; stages that may be meshes: none below ")
    alone = compiled(tmp_path, ONE_DOMINATES, topology, replicas=1, mesh="none").plan
    assert alone.status == "optimal", "of what was allowed"
    assert alone.value > 1.2 * plan.value
    assert "kinds" not in dict(alone.certificate)
    told = dict(alone.certificate)["restricted"]
    best = f"{seconds_text(plan.value)} or less (the whole model on every device, in turn)"
    assert told == f"by --mesh none, --replicas 1; without, {best}"


def test_a_model_that_fits_no_device_gets_a_mesh(tmp_path: Path) -> None:
    """Its one product needs more bytes than a device has: only meshes hold it."""
    model, topology = "zoo:mlp,layers=1,inputs=512,outputs=512,batch=8", machines(tmp_path, 2, memory=800_000)
    with pytest.raises(Infeasible):
        compiled(tmp_path, model, topology, mesh="none")
    result = compiled(tmp_path, model, topology)
    assert result.plan.stages[0].mesh
    assert result.plan.status == "optimal"
    assert dict(result.plan.certificate)["kinds"] == "stages that may be meshes; stages that may have replicas: none fits"
    assert "mesh=any" in result.pipeline


def test_one_device_is_one_stage(tmp_path: Path) -> None:
    plan = compiled(tmp_path, "zoo:mlp,hidden=16,batch=2", "preset:cpu-1").plan
    assert [stage.devices for stage in plan.stages] == [("cpu0",)]
    assert {"kinds", "restricted"}.isdisjoint(dict(plan.certificate))


def chain(model: str, topology: Topology) -> Module:
    module = load_model(model, {}, DiagnosticSink()).module.extend([topology])
    return PassManager(parse_pipeline("canonicalize,cost")).run(module, PassContext())


def replicated(module: Module, topology: Topology) -> Iterator[float]:
    """The value of every plan of a chain in stages with replicas."""
    problem, devices = problem_of(module, topology, network(topology)), len(topology.devices)
    limit = topology.memory(topology.devices[0]) or math.inf
    for count in range(1, min(devices, problem.size) + 1):
        for cuts in combinations(range(1, problem.size), count - 1):
            ends = (0, *cuts, problem.size)
            costs = [stage_cost(problem, range(a, b), 0) for a, b in pairwise(ends)]
            if all(cost.memory <= limit for cost in costs):
                for replicas in product(range(1, devices + 1), repeat=count):
                    if sum(replicas) <= devices:
                        yield max(cost.load / r for cost, r in zip(costs, replicas, strict=True))


def meshes(module: Module, topology: Topology) -> Iterator[float]:
    """The value of the best plan of every number of stages on meshes of every size."""
    devices = len(topology.devices)
    for size in range(1, devices + 1):
        for count in range(1, devices // size + 1):
            step = on_meshes(mesh=str(size), stages=count)
            with suppress(Infeasible):
                plan = step.run(module, PassContext()).first(Plan)
                assert plan is not None
                yield plan.value


@pytest.mark.parametrize(("devices", "memory"), [(2, 10**9), (3, 10**9), (2, 48_000), (3, 24_000), (2, 9_000), (3, 9_000)])
@pytest.mark.parametrize("bandwidth", [10, 100_000])
def test_the_best_of_all_kinds(tmp_path: Path, devices: int, memory: int, bandwidth: int) -> None:
    """Against every plan in stages with replicas, counted one by one, and the best on meshes of each shape and number."""
    model, path = "zoo:mlp,layers=3,inputs=48,hidden=48,outputs=48,batch=12", machines(tmp_path, devices, memory, bandwidth)
    topology = load_topology(path, DiagnosticSink())
    module = chain(model, topology)
    every = [*replicated(module, topology), *meshes(module, topology)]
    if not every:
        with pytest.raises(Infeasible):
            compiled(tmp_path, model, path)
        return
    plan = compiled(tmp_path, model, path).plan
    assert plan.bound <= min(every) * (1 + 1e-9)
    assert plan.value <= min(every) * (1 + 1e-3)
    if plan.status == "optimal":
        assert plan.value == pytest.approx(min(every), rel=1e-6)


def test_both_kinds_count_stages_of_single_devices_alike(tmp_path: Path) -> None:
    """Hand-over included: a mesh had been preferred to a pipeline for seconds that only one of them counted."""
    model, topology = "zoo:mlp,layers=4,hidden=256,batch=8", "preset:cpu-2,cores=2"
    pipeline = compiled(tmp_path, model, topology, replicas=1, mesh="none", stages=2).plan
    sharded = compiled(tmp_path, model, topology, pipeline="canonicalize,cost,partition{stages=2,mesh=auto}").plan
    assert sharded.value == pytest.approx(pipeline.value, rel=1e-9)
    assert sharded.status == "optimal"


@pytest.mark.parametrize("memory", [10**9, 24_000])
def test_a_replayed_plan_keeps_the_proof_of_all_kinds(tmp_path: Path, memory: int) -> None:
    model, topology = "zoo:mlp,layers=3,inputs=48,hidden=48,outputs=48,batch=12", machines(tmp_path, 3, memory)
    found = compiled(tmp_path, model, topology).plan
    path = tmp_path / "plan.json"
    path.write_text((tmp_path / "b" / "plan.json").read_text())
    again = compiled(tmp_path, model, topology, plan=path).plan
    assert (again.value, again.bound, again.status) == (found.value, found.bound, found.status)
    assert json.loads(path.read_text())["certificate"]["kinds"] == dict(found.certificate)["kinds"]


def test_an_interrupt_keeps_the_plan_of_the_kind_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of meshes no more is known then than how much work all devices share."""

    def interrupted(self: MeshesSearch, module: Module, context: PassContext) -> Module:
        raise KeyboardInterrupt

    monkeypatch.setattr(MeshesSearch, "run", interrupted)
    result = compiled(tmp_path, "zoo:mlp,hidden=16,batch=2", "preset:cpu-2,cores=2")
    assert result.interrupted
    assert 0 < result.plan.bound < result.plan.value
    assert result.plan.status == "within-gap"
    least = seconds_text(result.plan.bound)
    kinds = f"stages that may have replicas; stages that may be meshes: none below {least}"
    assert dict(result.plan.certificate)["kinds"] == kinds


def test_an_interrupt_within_a_kind_leaves_out_the_kinds_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Ctrl-C had ended the search of one mesh alone, and what the next kind counted said that nothing was interrupted."""
    whole, looked = MeshSearch.look, []

    def look(self: MeshSearch, number: int, candidate: Candidate) -> None:
        if number:
            raise KeyboardInterrupt
        looked.append(candidate.sizes)
        whole(self, number, candidate)

    monkeypatch.setattr(MeshSearch, "look", look)
    topology = tmp_path / "unequal.toml"
    topology.write_text(UNEQUAL)
    result = compiled(tmp_path, ONE_PRODUCT, str(topology), objective="training")
    assert looked
    assert result.interrupted
    assert result.plan.bound == 0.0
    assert dict(result.plan.certificate)["kinds"] == "stages on meshes; stages that may have replicas: not searched to the end"


UNEQUAL = """
version = 1
[types.fast]
rates = { f32 = "2 GFLOP/s" }
memory_bandwidth = "10 GB/s"
memory = "1 GB"
[types.slow]
like = "fast"
rates = { f32 = "1 GFLOP/s" }
[[devices]]
name = "a"
type = "fast"
[[devices]]
name = "b{0..1}"
type = "slow"
[[links]]
mesh = "*"
bandwidth = "10 GB/s"
latency = "1 us"
"""
ONE_PRODUCT = "zoo:mlp,layers=1,inputs=512,outputs=512,batch=64"


SHAPED = {"mesh": "3", "stages": 0}


@pytest.mark.parametrize(
    "asked",
    [{"objective": "training"}, {"mesh": "auto", "stages": 0}, {}, SHAPED, {"objective": "training", **SHAPED}],
)
def test_parts_by_speed_are_searched_wherever_any_number_of_stages_is(tmp_path: Path, asked: dict[str, object]) -> None:
    """The bound of stages in equal parts had been told as one of all meshes, above the plan of ``stages=1``."""
    topology = tmp_path / "unequal.toml"
    topology.write_text(UNEQUAL)
    plan = compiled(tmp_path, ONE_PRODUCT, str(topology), **asked).plan
    microbatches = {"microbatches": 8} if asked.get("objective") else {}
    one = compiled(tmp_path, ONE_PRODUCT, str(topology), **{"mesh": "auto", **asked, "stages": 1}, **microbatches).plan
    assert plan.value == pytest.approx(one.value)
    assert plan.bound <= one.value
    if asked:
        assert dict(plan.certificate)["shares"].startswith("2:1:1")
    else:  # as quick, and without exchanging anything
        assert [plan.stages[0].serves.count(device) for device in range(3)] == [2, 1, 1]
    assert ("kinds" in dict(plan.certificate)) == ("mesh" not in asked), "one kind is no choice"


@pytest.mark.parametrize(
    ("machines", "meshes"), [("cpu-3,cores=3", ""), pytest.param("2xh100x2", "of 1, 2 or 4 devices", marks=pytest.mark.slow)]
)
def test_a_plan_says_which_meshes_were_not_searched(tmp_path: Path, machines: str, meshes: str) -> None:
    """Optimal was said of all meshes, though those of some sizes were left out."""
    for asked in ({}, {"objective": "training"}):
        plan = compiled(tmp_path, "zoo:mlp,hidden=16,batch=4", f"preset:{machines}", **asked).plan
        told = f"{meshes} (no other sizes are searched)" if meshes else ""
        assert dict(plan.certificate).get("meshes", "") == told
        assert told in plan_headline(plan)
    alone = compiled(tmp_path, "zoo:mlp,hidden=16,batch=4", f"preset:{machines}", mesh="none").plan
    assert "meshes" not in dict(alone.certificate)


def test_one_stage_says_on_which_meshes_it_was_searched(tmp_path: Path) -> None:
    """Optimal was said of all meshes, though of two of three equal devices none was looked at."""
    plan = compiled(tmp_path, "zoo:mlp,hidden=16,batch=4", "preset:cpu-3,cores=3", stages=1).plan
    assert dict(plan.certificate)["meshes"].startswith("of all devices, or all of some types on some hosts")


FREE = UNEQUAL.replace("[types.slow]", "free_transfers = true\n[types.slow]")


def test_devices_with_free_transfers_have_meshes_too(tmp_path: Path) -> None:
    """Optimal was said without a word that no mesh had been searched."""
    topology = tmp_path / "free.toml"
    topology.write_text(FREE)
    plan = compiled(tmp_path, ONE_PRODUCT, str(topology), objective="training").plan
    one = compiled(tmp_path, ONE_PRODUCT, str(topology), objective="training", mesh="auto", stages=1, microbatches=8).plan
    assert plan.value == pytest.approx(one.value)
    assert plan.bound <= one.value
    assert "stages on meshes" in dict(plan.certificate)["kinds"]


@pytest.mark.parametrize(("proven", "bound"), [(True, math.inf), (False, 1e-9)])
def test_a_kind_without_a_plan_bounds_the_others_plan_as_far_as_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proven: bool, bound: float
) -> None:
    """That no plan was found had counted as a proof that none fits, where another kind had one already."""

    def refused(self: MeshesSearch, module: Module, context: PassContext) -> Module:
        error = Infeasible(NothingFits())
        error.proven, error.bound = proven, 0.0 if proven else bound
        raise error

    monkeypatch.setattr(MeshesSearch, "run", refused)
    plan = compiled(tmp_path, "zoo:mlp,hidden=16,batch=2", "preset:cpu-2,cores=2").plan
    assert plan.bound == (plan.value if proven else bound)
    assert plan.status == ("optimal" if proven else "within-gap")
    told = "none fits" if proven else f"none below {seconds_text(bound)}"
    assert dict(plan.certificate)["kinds"] == f"stages that may have replicas; stages that may be meshes: {told}"


def test_of_many_devices_a_plan_says_where_its_blocks_may_begin(tmp_path: Path) -> None:
    """Blocks of more than 64 devices begin at multiples of their sizes, and have few shapes."""
    plan = compiled(tmp_path, "zoo:mlp,hidden=16,layers=2,batch=72", "preset:cpu-72,cores=72").plan
    told = dict(plan.certificate)["meshes"]
    assert ", each beginning at a multiple of its size, as one axis or with a second one inside the hosts" in told
    assert told.endswith("(no others are searched)")


def test_many_stages_on_many_devices_have_blocks_that_are_small_enough() -> None:
    """Blocks of two devices and more alone had left 36 places for 38 stages, and the plan had been called impossible."""
    topology = load_topology("preset:9xh200x8", DiagnosticSink())
    any_number, so_many = (searched_sizes(topology, network(topology), stages=stages)[0] for stages in (0, 38))
    assert min(any_number) == 2
    assert min(so_many) == 1


@pytest.mark.slow
def test_plans_without_meshes_do_not_load_their_search(tmp_path: Path) -> None:
    """The sentence on sizes of mesh had loaded it for every plan."""
    code = (
        "import sys; from pathlib import Path; from dnnc.compile.driver import CompileOptions, compile_model; "
        f"compile_model(CompileOptions('zoo:mlp,hidden=16', 'preset:cpu-2', Path({str(tmp_path / 'b')!r}), plan_only=True, "
        "mesh='none')); print('passes.partition.layouts' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_of_one_sample_alone_optimal_says_of_what(tmp_path: Path) -> None:
    model, machine = "zoo:mlp,hidden=16,batch=2", "preset:cpu-2,cores=2"
    plan = compiled(tmp_path, model, machine, objective="latency", mesh="none").plan
    assert "  optimal among stages of single devices: lower bound" in plan_headline(plan)
    plan = compiled(tmp_path, model, machine, objective="latency").plan
    assert "  optimal: lower bound" in plan_headline(plan)


@pytest.mark.parametrize(("memory", "bandwidth", "most"), [(10**9, 1000, 0.3), (1_500_000, 1000, 0.3), (10**9, 1, 0.5)])
def test_one_sample_alone_has_the_best_of_stages_and_meshes(tmp_path: Path, memory: int, bandwidth: int, most: float) -> None:
    """Split over all devices on quick links, where one device holds the model and where two do; and over some on slow ones."""
    machine = machines(tmp_path, 4, memory, bandwidth)
    model = "zoo:mlp,layers=4,inputs=256,hidden=256,outputs=256,batch=4"
    found = compiled(tmp_path, model, machine, objective="latency").plan
    alone, *meshes = (
        value(tmp_path, model, machine, objective="latency", mesh=mesh) for mesh in ("none", "auto", "4", "2x2", "2")
    )
    assert found.value <= min(alone, *meshes) * 1.01
    assert found.bound <= min(alone, *meshes)
    assert found.value <= most * alone


def test_one_sample_alone_on_devices_with_free_transfers_is_split_over_a_mesh(tmp_path: Path) -> None:
    """Stages on single devices are not searched for it."""
    machine = tmp_path / "free.toml"
    types = '[types.t]\nrates = { f32 = "1 TFLOP/s" }\nmemory_bandwidth = "1 TB/s"\nfree_transfers = true\n'
    links = '[[links]]\nmesh = "d*"\nbandwidth = "1 GB/s"\n'
    machine.write_text(f'version = 1\n{types}[[devices]]\nname = "d{{0..1}}"\ntype = "t"\n{links}')
    plan = compiled(tmp_path, "zoo:mlp,hidden=256,batch=4", str(machine), objective="latency").plan
    assert (plan.on_meshes, plan.status) == (True, "optimal")
    assert plan.value == pytest.approx(plan.single / 2, rel=0.05)
    with pytest.raises(UsageError, match="compile with --mesh auto"):
        compiled(tmp_path, "zoo:mlp,hidden=256,batch=4", str(machine), objective="latency", mesh="none")


@pytest.mark.slow
def test_one_sample_alone_over_several_hosts_is_no_slower_than_on_one_mesh(tmp_path: Path) -> None:
    """The search in stages had used its time before it came to the mesh inside a host."""
    model, machine = "zoo:bert-base,layers=4", "preset:4xt4x4"
    one = value(tmp_path, model, machine, objective="latency", mesh="2x2")
    assert value(tmp_path, model, machine, objective="latency") <= one * (1 + 1e-9)


def test_one_sample_alone_may_be_on_a_mesh_that_no_stage_has(tmp_path: Path) -> None:
    """Four of nine devices in three hosts: three on one host and one on the next, where stages have one host or whole ones. Of
    its sizes only two divides the model, and the plan on that was called optimal."""
    hosts = ["a", "b", "c"]
    text = 'version = 1\nswitches = ["s"]\n[types.t]\nrates = { f32 = "1 TFLOP/s" }\nmemory_bandwidth = "1 TB/s"\n'
    text += "".join(f'[[hosts]]\nname = "{host}"\n' for host in hosts)
    text += "".join(f'[[devices]]\nname = "{host}{{0..2}}"\ntype = "t"\nhost = "{host}"\n' for host in hosts)
    text += f'[[links]]\neach = {json.dumps([f"devices of {host}" for host in hosts])}\nto = "s"\nbandwidth = "100 GB/s"\n'
    (tmp_path / "nine.toml").write_text(text)
    model = "zoo:mlp,layers=2,inputs=256,hidden=256,outputs=256,batch=4"
    found = compiled(tmp_path, model, str(tmp_path / "nine.toml"), objective="latency").plan
    auto = value(tmp_path, model, str(tmp_path / "nine.toml"), objective="latency", mesh="auto")
    assert found.bound <= auto
    assert found.value == pytest.approx(auto)
    assert "4" in dict(found.certificate)["meshes"]


@pytest.mark.parametrize(
    ("hosts", "covers"),
    [("aabb", True), ("aaaa", True), ("abab", False), ("aaabbb", True), ("aab", False), ("aaaabb", False)],
)
def test_the_search_in_stages_bounds_one_mesh_where_stages_have_all_its_meshes(hosts: str, covers: bool) -> None:
    """For one sample alone: all devices, the first half, and so on, in the order of the file. Stages have devices host by host:
    a part of one host, or whole ones."""
    devices = tuple(Device(f"d{number}", "t", host) for number, host in enumerate(hosts))
    links = tuple(Link(f"l{device.name}", (device.name, "s"), 1e9, 0.0) for device in devices)
    every = tuple(map(Host, dict.fromkeys(hosts)))
    topology = Topology("@t", (DeviceType("t"),), every, devices, (Switch("s"),), links)
    one, stages = PartitionPass(objective="latency", mesh="any", replicas=1).on_meshes(topology)
    assert (one.stages, one.whole, stages.stages, stages.whole) == (1, covers, 0, covers)


@pytest.mark.slow
def test_the_order_of_two_axes_matters(tmp_path: Path) -> None:
    """Twelve heads are divided by the first axis, then by the second. Of axes with like links one order alone was searched, and
    its plan called optimal."""
    machine, model = machines(tmp_path, 8, bandwidth=10000), "zoo:gpt2,layers=1,hidden=96,heads=12,seq=64,vocab=97"
    found = compiled(tmp_path, model, machine, objective="latency", mesh="auto", stages=0).plan
    one, other = (value(tmp_path, model, machine, objective="latency", mesh=mesh) for mesh in ("2x4", "4x2"))
    assert other < one * 0.9998
    assert found.value == pytest.approx(other, rel=1e-4)
    assert found.bound <= other


def test_without_replicas_the_kind_beside_meshes_is_single_devices(tmp_path: Path) -> None:
    """It had been called stages with replicas, with the value of a plan without them."""
    plan = compiled(tmp_path, ONE_DOMINATES, "preset:cpu-2,cores=2", replicas=1).plan
    single = compiled(tmp_path, ONE_DOMINATES, "preset:cpu-2,cores=2", replicas=1, mesh="none").plan
    assert dict(plan.certificate)["kinds"] == f"stages on meshes; stages of single devices: {seconds_text(single.value)}"


def test_what_is_warned_of_is_warned_of_once(tmp_path: Path) -> None:
    """Both kinds count costs, and only the warnings of the kind that is taken are told."""
    sink = DiagnosticSink()
    options = CompileOptions("zoo:mlp,hidden=16,batch=2", "preset:cpu-4,cores=1", tmp_path / "b", plan_only=True)
    compile_model(options, sink=sink)
    told = [str(diagnostic) for diagnostic in sink.diagnostics]
    assert len(told) == len(set(told))


@pytest.mark.parametrize("memory", [72_000, 88_000])
def test_a_training_step_in_stages_on_meshes_fits_or_is_refused(tmp_path: Path, memory: int) -> None:
    """A plan that the exact count of its rows found too large had been written with a warning, which verify-plan refused."""
    model, path = "zoo:mlp,layers=3,inputs=48,hidden=48,outputs=48,batch=48", machines(tmp_path, 4, memory, 100)
    loss = TrainingOptions(loss="mse:y")
    asked = CompileOptions(model, str(path), tmp_path / "b", objective="training", microbatches=4, training=loss)
    sink, asked = DiagnosticSink(), replace(asked, mesh="2", stages=2)
    if memory < 80_000:
        with pytest.raises(Infeasible, match="needs at least"):
            compile_model(asked, sink=sink)
        assert not (tmp_path / "b").exists()
        return
    plan = compile_model(asked, sink=sink).plan
    assert max(stage.memory for stage in plan.stages) <= memory
    assert not verify_build(tmp_path / "b").violations


def test_more_stages_than_places_to_cut_are_refused(tmp_path: Path) -> None:
    """What the nearest plan lacks had been asked of no plan at all."""
    with pytest.raises(Infeasible, match="no plan of 9 stages"):
        compiled(tmp_path, "zoo:mlp,layers=2,hidden=16,batch=8", "preset:cpu-9,cores=9", mesh="auto", stages=9)


def test_a_weight_of_two_stages_is_updated_once(tmp_path: Path) -> None:
    """The search on meshes counted its update in both stages: the bound was above what the plan takes."""
    topology = tmp_path / "machines.toml"
    topology.write_text(
        """
version = 1
[types.g]
kind = "gpu"
rates = { f32 = "4 TFLOP/s" }
memory_bandwidth = "200 GB/s"
memory = "20 MiB"
[[devices]]
name = "a"
type = "g"
[[devices]]
name = "b"
type = "g"
[[links]]
mesh = ["a", "b"]
bandwidth = "50 GB/s"
latency = "3 us"
"""
    )
    spec = "zoo:gpt2,layers=2,hidden=64,seq=16,vocab=1024,batch=4"
    plan = compile_model(
        CompileOptions(
            spec, str(topology), tmp_path / "b", objective="training", microbatches=4, mesh="1", stages=2, plan_only=True
        )
    ).plan
    assert (len(plan.stages), plan.status) == (2, "within-gap")
    assert plan.bound < plan.value


UNLIKE_PORTS = """
version = 1
switches = ["hub"]
[types.core]
rates = { f32 = "1 GFLOP/s" }
memory_bandwidth = "1 GB/s"
overhead = "1 us"
[[hosts]]
name = "host{0..3}"
""" + "".join(
    f"""
[[devices]]
name = "d{number}"
type = "core"
host = "host{number}"
[[links]]
ends = ["d{number}", "host{number}"]
bandwidth = "100 MB/s"
latency = "100 ns"
[[links]]
ends = ["host{number}", "hub"]
bandwidth = "{bandwidth} MB/s"
latency = "{latency} ns"
"""
    for number, (bandwidth, latency) in enumerate([(10, 100), (300, 100), (10, 100), (300, 1000)])
)
"""Devices of one type, two of them slow to reach, and one of the others a little later."""


@pytest.mark.parametrize(
    ("training", "replicas", "value"),
    [({}, 4, 4.502e-3), ({"objective": "training"}, 4, 0.18285), ({"objective": "training", "microbatches": 2}, 2, 0.0609)],
    ids=["inference", "training", "few microbatches"],
)
def test_replicas_are_on_devices_of_unlike_ports(
    training: dict[str, object], replicas: int, value: float, tmp_path: Path
) -> None:
    """Two replicas, on ports alike, were said to be optimal. Of two microbatches more than two have nothing to do: those on
    the quick ports."""
    (tmp_path / "ports.toml").write_text(UNLIKE_PORTS)
    spec, machines = "zoo:gpt2,layers=1,hidden=64,heads=8,vocab=128,seq=16,batch=8", str(tmp_path / "ports.toml")
    options = {"mesh": "none", "stages": 1, **training}
    result = compiled(tmp_path, spec, machines, **options)
    plan, (stage,) = result.plan, result.plan.stages
    assert stage.replicas == replicas
    assert replicas == 4 or stage.devices == ("d1", "d3")
    assert plan.value == pytest.approx(value, rel=1e-3)
    assert plan.value * (1 - 1e-3) < plan.bound <= plan.value
    told, edited = json.loads((tmp_path / "b" / "plan.json").read_text()), tmp_path / "edited.json"
    told["stages"][0]["device"] = ["d0", "d1", "d2", "d3"]
    edited.write_text(json.dumps(told))
    again = compiled(tmp_path, spec, machines, plan=edited).plan
    assert len(again.stages[0].devices) == 4
    assert again.bound <= again.value * (1 + 1e-9)
