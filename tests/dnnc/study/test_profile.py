"""``dnnc profile``: what it writes, reads back and refuses, and what plans make of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dnnc.cli import main
from dnnc.compile.context import pass_context
from dnnc.compile.flags import CompileOptions
from dnnc.machines.facts import read_facts
from dnnc.machines.profile import _segments as segments
from dnnc.machines.profile import cores_of_type, evicting, read_profile, training_segments
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.facets import BackwardTime, Cost, Time
from ir.core.module import Module
from ir.core.topology import Device, DeviceType, Host, Topology
from passes.costs.learning import learning_seconds
from passes.costs.op_time import body_seconds
from passes.costs.profiled import Profile, is_of_training, key_of, passes_of, segments_of, types_of, with_profile

MODEL = "zoo:mlp,layers=4,hidden=64,batch=4"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "-o", str(path), "-q"]) == 0
    return path


@pytest.fixture(scope="module")
def trained(measured: Path) -> Path:
    """The profile with the passes of a training step beside the segments of inference."""
    path = measured.with_name("trained.json")
    path.write_text(measured.read_text())
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "--objective", "training", "-o", str(path), "-q"]) == 0
    return path


def costed(objective: str = "", model: str = MODEL) -> Module:
    from dnnc.study.profiling import costed

    options = CompileOptions(model, "preset:cpu-1", Path(), objective=objective)
    (module,), _, _ = costed(options, DiagnosticSink(), lambda label, fraction: None)
    return module


def test_a_plan_says_that_all_its_seconds_were_measured(measured: Path, tmp_path: Path) -> None:
    command = ["compile", MODEL, "-t", "preset:cpu-1", "--profile", str(measured), "--plan-only", "-q"]
    assert main([*command, "-o", str(tmp_path / "plan")]) == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert plan["certificate"]["seconds"].startswith("100.0% measured, 0.0% scaled, 0.0% modelled on ")


def test_segments_are_measured_on_the_cores_on_which_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of two cores and of one, in any order; where there are too few cores for all, devices of one type alone."""

    def cores(count: int, name: str) -> tuple[tuple[int, ...], ...]:
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(count)))
        facts = read_facts(tmp, affinity=frozenset(range(count)), gpus="")
        return cores_of_type(topology, topology.type(name), facts)

    tmp = Path("/nowhere")
    types = DeviceType("one"), DeviceType("two", cores=2), DeviceType("npu", provider="NpuExecutionProvider")
    devices = [Device(f"d{number}", name, "here") for number, name in enumerate(("npu", "one", "two", "one"))]
    topology = Topology("@t", types, (Host("here"),), tuple(devices), (), ())
    assert cores(8, "one") == ((0,), (3,))
    assert cores(8, "two") == ((1, 2),)
    assert cores(3, "two") == ((0, 1),)
    assert cores(1, "one") == ((0,),)


def test_processes_that_evict_caches_have_the_memory_for_it(tmp_path: Path) -> None:
    """Of a cache of 300 MB: with 1 GiB of memory, then with 256 MiB that a control group leaves, then with enough."""
    for name, text in {
        "sys/devices/system/cpu/cpu0/cache/index3/size": "300000K",
        "sys/devices/system/cpu/cpu0/cache/index3/level": "3",
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1048576 kB\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert evicting(4, tmp_path, core=0) == 128 << 20
    assert evicting(1, tmp_path, core=0) == 512 << 20
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{512 << 20}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{256 << 20}\n")
    assert evicting(4, tmp_path, core=0) == 32 << 20
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1073741824 kB\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert evicting(4, tmp_path, core=0) == 600000 << 10


def test_what_is_known_is_not_measured_again(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = measured.read_text()
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "-o", str(measured)]) == 0
    assert measured.read_text() == before
    assert "measured 0 kinds of operators" in capsys.readouterr().err


def test_predicted_and_measured_seconds_stand_side_by_side(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "-o", str(measured), "--compare"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["operator", "copies", "predicted", "measured", "ratio"]
    ops = Counter(op.name.removeprefix("onnx.") for op in costed().entry.ops)
    for row in rows:
        operator, copies, *_, ratio = row.split()
        assert 1 <= int(copies) <= ops[operator]  # epilogues are measured with the op before them
        assert float(ratio.removesuffix("x")) > 0
    (products,) = (row.split() for row in rows if row.split()[0] in ("Gemm", "MatMul"))
    entries = [entry["seconds"] for entry in json.loads(measured.read_text())["segments"]]
    seconds = float(products[4]) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[products[5]]
    assert min(entries) * int(products[1]) <= seconds * 1.01 <= max(entries) * int(products[1]) * 1.03


def test_segments_that_several_pipelines_have_count_once() -> None:
    module = costed()
    (type_,) = module.first(Topology).types
    once = module, body_seconds(module.entry.ops, type_)
    assert segments([once, once]) == segments([once])


def test_copies_of_a_layer_have_one_key_and_its_epilogues_no_seconds() -> None:
    module = costed(model="zoo:bert-small,layers=2,hidden=64,heads=2,vocab=64,seq=16,batch=2")
    entry, types = module.entry, types_of(module, module.entry)
    segments = segments_of(entry)
    keys = [key_of([entry.ops[i] for i in segment], types) for segment in segments]
    views = {i for i, op in enumerate(entry.ops) if op.facet(Cost, Cost()).kind == "view"}
    assert views, "the model reshapes"
    assert sorted(i for segment in segments for i in segment) == sorted(set(range(len(entry.ops))) - views)
    assert any(len(segment) > 1 for segment in segments)
    assert len(set(keys)) < len(keys)
    type_ = pass_type(module)
    told, origins = with_profile(module, Profile({(type_.name, key): 0.5 for key in keys if key}))
    seconds = body_seconds(told.entry.ops, type_)
    assert sum(seconds) == pytest.approx(len(segments) * (0.5 + type_.overhead) + len(views) * type_.overhead)
    assert origins[type_.name].modelled == origins[type_.name].scaled == 0


def test_classes_with_too_few_measured_ops_keep_the_model() -> None:
    module = costed()
    entry, types, type_ = module.entry, types_of(module, module.entry), pass_type(module)
    first = key_of([entry.ops[i] for i in segments_of(entry)[0]], types)
    told, origins = with_profile(module, Profile({(type_.name, first or ""): 0.5}))
    assert origins[type_.name].scaled == 0
    assert origins[type_.name].modelled > 0
    assert any(op.facet(Time) is None for op in told.entry.ops)
    assert with_profile(module, Profile({("other", first or ""): 0.5}))[0] == replace(module)


def pass_type(module: Module) -> Any:
    from ir.core.topology import Topology

    topology = module.first(Topology)
    assert topology is not None
    assert pass_context(DiagnosticSink()).profile is None
    return topology.types[0]


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"schema": "dnnc.profile/9"}, "schema"),
        ({"machine": {"processor": "x"}}, "machine"),
        ({"more": 1}, "the profile"),
        ({"segments": [{"device_type": "core", "key": "k", "seconds": -1.0, "spread": 0.0, "runs": 1}]}, "segments[0].seconds"),
        ({"segments": [{"device_type": "core", "key": "k", "seconds": 1.0, "spread": 0.0, "runs": True}]}, "segments[0].runs"),
        ({"segments": [{"device_type": "core", "key": "k", "seconds": 1, "spread": 0, "runs": 1}] * 2}, "segments[1]"),
    ],
)
def test_faults_of_a_file_are_told_with_their_place(tmp_path: Path, change: dict[str, Any], at: str) -> None:
    path = tmp_path / "profile.json"
    machine = {"processor": "x", "onnxruntime": "1"}
    path.write_text(json.dumps({"schema": "dnnc.profile/1", "machine": machine, "segments": [], **change}))
    with pytest.raises(InvalidInput) as error:
        read_profile(path)
    assert error.value.diagnostics[0].where == f"{path}: {at}"


def test_profiles_of_other_machines_are_refused(measured: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(measured.read_text().replace('"processor": "', '"processor": "another '))
    out = str(tmp_path / "out.json")
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "--merge", str(other), "-o", out, "-q"]) == 3
    assert main(["profile", MODEL, "-t", "preset:h100x1", "-o", out, "-q"]) == 3
    assert not Path(out).exists()


@pytest.mark.slow
def test_a_training_step_is_planned_by_measured_passes(trained: Path, measured: Path, tmp_path: Path) -> None:
    """The plan's step adds up what the file says of each op, forward and backward, for each of 4 microbatches."""
    command = ["compile", MODEL, "-t", "preset:cpu-1", "--objective", "training", "--microbatches", "4", "--plan-only", "-q"]
    loss = ["--loss", "cross-entropy:y"]
    assert main([*command, *loss, "--profile", str(trained), "-o", str(tmp_path / "plan")]) == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert plan["certificate"]["seconds"].startswith("100.0% measured, 0.0% scaled, 0.0% modelled on ")
    profile, (stage,) = read_profile(trained), plan["stages"]
    assert profile.entries.keys() > read_profile(measured).entries.keys()
    assert "torch" in profile.machine
    passes = [(one.forward, one.backward) for one in passes_of(costed("training"))]
    seconds = [[profile.entries["core", key].seconds if key else 0.0 for key in both] for both in passes]
    assert stage["seconds"]["backward"] == pytest.approx(sum(backward for _, backward in seconds))
    assert plan["value"] == pytest.approx(4 * sum(map(sum, seconds)) + stage["seconds"]["sync"])


def test_passes_of_training_and_segments_of_inference_do_not_stand_for_each_other(trained: Path, tmp_path: Path) -> None:
    both = json.loads(trained.read_text())
    out = str(tmp_path / "out")
    command = ["compile", MODEL, "-t", "preset:cpu-1", "--plan-only", "-q", "-o", out]
    for training in (True, False):
        rows = [row for row in both["segments"] if is_of_training(row["key"]) == training]
        assert rows
        one = tmp_path / f"{training}.json"
        one.write_text(json.dumps({**both, "segments": rows}))
        assert main([*command, "--profile", str(one), *(["--objective", "training"] if not training else [])]) == 2
        assert not Path(out).exists()
    assert main([*command, "--profile", str(trained)]) == 0


def test_what_is_of_training_needs_its_objective_and_a_loss(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.json")
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "--loss", "cross-entropy:y", "-o", out, "-q"]) == 2
    assert "--loss: only with --objective training" in capsys.readouterr().err
    bert = "zoo:bert-base,layers=1,hidden=64,heads=2,vocab=50,seq=4"
    assert main(["profile", bert, "-t", "preset:cpu-1", "--objective", "training", "-o", out, "-q"]) == 2
    assert "needs a loss; the model's outputs are" in capsys.readouterr().err
    assert not Path(out).exists()
    other = tmp_path / "other.json"
    other.write_text(trained.read_text().replace('"torch": "', '"torch": "9.'))
    assert main(["profile", MODEL, "-t", "preset:cpu-1", "--objective", "training", "-o", str(other), "-q"]) == 3
    assert "and torch 9." in capsys.readouterr().err


def test_the_passes_of_copies_are_one_and_say_which_operands_learn() -> None:
    module = costed("training")
    type_ = pass_type(module)
    found = list(passes_of(module))
    keys = {key for one in found for key in (one.forward, one.backward) if key}
    layers = [one for one in found if one.op.name == "onnx.Gemm"]
    assert len(layers) == 4
    assert len({one.backward for one in layers}) == 3  # the first one's input is data, the last one is narrower
    assert (layers[0].backward or "").endswith("gradients of 1 2")
    profile = Profile({(type_.name, key): 0.25 if "backward" in key else 0.5 for key in keys}, training=True)
    told, origins = with_profile(module, profile)
    for one, passes, op in zip(found, learning_seconds(told, type_), told.entry.ops, strict=True):
        assert passes.forward == 0.5
        assert passes.backward == (0.25 if one.backward else 0.0)
        assert (op.facet(BackwardTime) is not None) == (one.backward is not None)
    assert origins[type_.name].modelled == origins[type_.name].scaled == 0


def test_what_is_measured_under_the_key_of_a_pass_is_that_pass() -> None:
    """A forward pass makes what the op makes, a backward pass a gradient of the type of each operand that learns."""
    module = costed("training")
    types = types_of(module, module.entry)
    measured, refused = training_segments([module], pass_type(module))
    assert not refused
    made = {segment.key: [value.type for value in segment.func.results] for segment in measured}
    for one in passes_of(module):
        assert made.pop(one.forward or "", [v.type for v in one.op.results])[0] == one.op.results[0].type
        if one.backward in made:
            wanted = [types[name] for name, learns in zip(one.op.operands, one.learned, strict=True) if learns]
            assert sorted(map(str, made.pop(one.backward))) == sorted(map(str, wanted))
    assert not made


def test_a_pass_that_is_not_measured_is_scaled_by_the_same_pass_of_its_class() -> None:
    """Forward passes take 3 times as long as modelled, and so do those of sigmoids, of whose class there are others. Backward
    passes of the class were not measured: all keep the model."""
    module = costed("training", "zoo:llama-7b,layers=1,hidden=16,heads=2,kv_heads=1,vocab=11,seq=4,ffn=8")
    type_ = pass_type(module)
    modelled = learning_seconds(module, type_)
    stated = {}
    elementwise = [op.facet(Cost, Cost()).kind == "elementwise" for op in module.entry.ops]
    for one, passes in zip(passes_of(module), modelled, strict=True):
        if one.op.name != "onnx.Sigmoid" and one.forward is not None:
            stated[type_.name, one.forward] = 3 * passes.forward
        if not elementwise[one.index] and one.backward is not None:
            stated[type_.name, one.backward] = 3 * passes.backward
    told, origins = with_profile(module, Profile(stated, training=True))
    after = learning_seconds(told, type_)
    (sigmoid,) = (i for i, op in enumerate(module.entry.ops) if op.name == "onnx.Sigmoid")
    assert after[sigmoid].forward == pytest.approx(3 * modelled[sigmoid].forward)
    assert origins[type_.name].scaled == pytest.approx(3 * modelled[sigmoid].forward)
    backward = [i for i, kept in enumerate(elementwise) if kept]
    assert [after[i].backward for i in backward] == pytest.approx([modelled[i].backward for i in backward])
