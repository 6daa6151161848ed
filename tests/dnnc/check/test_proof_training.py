"""``dnnc check --prove`` of training builds: valid steps are proven, damaged ones are not."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from dnnc.build.snapshot import Snapshot
from dnnc.build.training import Step
from dnnc.check.proof import prove
from dnnc.check.proof.training import prove_step
from dnnc.check.proof.training.units import phase_faults
from dnnc.cli import main
from dnnc.engines.torch.files import read_step
from dnnc.onnx import DIALECTS
from ir.core.attributes import Dense, attributes
from ir.core.facets import Phase
from ir.core.module import Program, Schedule, Stage
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from tests.bench.damage_training import KINDS, damaged_step
from tests.dnnc.sealing import refresh

MLP = "zoo:mlp,layers=4,hidden=16,batch=8"
RESNET = "zoo:resnet50,batch=4,image=32,width=4,classes=10"
GPT2 = "zoo:gpt2,layers=2,hidden=32,heads=4,vocab=64,positions=16,seq=8,batch=4"
STAGES = ("--mesh", "none", "--replicas", "1", "--microbatches", "4")
CLIPPED = ("--clip-norm", "0.5", "--ema", "0.9", "--learning-rate-schedule", "cosine,steps=9,warmup=2", "--no-decay")
BUILDS: dict[str, tuple[str, ...]] = {
    "pipeline": (MLP, "-t", "preset:cpu-2", "--stages", "2", *STAGES, "--optimizer", "sgd"),
    "data": (MLP, "-t", "preset:cpu-2", "--mesh", "2", "--strategy", "data", "--microbatches", "2", "--optimizer", "momentum"),
    "replicas": (
        "zoo:mlp,layers=4,hidden=512,batch=64", "-t", "preset:cpu-4", "--stages", "2", "--mesh", "none", "--replicas", "2",
        "--microbatches", "4", "--recompute", "stage",
    ),
    "uneven": ("zoo:mlp,layers=3,hidden=10,batch=5", "-t", "preset:cpu-3", "--mesh", "3", "--microbatches", "2"),
    "meshes": (MLP, "-t", "preset:cpu-4", "--stages", "2", "--mesh", "2", "--microbatches", "4", "--optimizer", "adamw"),
    **{
        schedule: (MLP, "-t", "preset:cpu-4", "--stages", "4", *STAGES, "--schedule", schedule)
        for schedule in ("gpipe", "1f1b", "zb-h1", "zb-h2", "pipedream", "2bw")
    },
    **{schedule: (MLP, "-t", "preset:cpu-2", *STAGES, "--schedule", schedule) for schedule in ("interleaved", "zb-v")},
    **{
        f"{sync} {strategy}": (
            MLP, "-t", "preset:cpu-4", "--mesh", "2x2", "--strategy", strategy, "--sync", sync, "--microbatches", "2",
        )
        for sync in ("all_reduce", "reduce_scatter", "sfb", "ps", "auto")
        for strategy in ("data", "megatron")
    },
    **{
        f"clipped {sync}": (
            MLP, "-t", "preset:cpu-4", "--mesh", "2x2", "--strategy", strategy, "--sync", sync, "--microbatches", "2", *CLIPPED,
        )
        for sync, strategy in (("all_reduce", "megatron"), ("reduce_scatter", "data"), ("sfb", "data"), ("ps", "data"))
    },
    "clipped replicas": (
        "zoo:mlp,layers=4,hidden=512,batch=64", "-t", "preset:cpu-4", "--stages", "2", "--mesh", "none", "--replicas", "2",
        "--microbatches", "4", *CLIPPED,
    ),
    "clipped tied weights": (GPT2, "-t", "preset:cpu-2", "--stages", "2", *STAGES, *CLIPPED),
    "groups of adafactor": (
        MLP, "-t", "preset:cpu-4", "--stages", "2", "--mesh", "2", "--microbatches", "4", "--optimizer", "adafactor",
        "--group", "fc1*,learning-rate=0.5,weight-decay=0.1", "--clip-norm", "1",
    ),
    "recomputed averages of replicas": (
        RESNET, "-t", "preset:cpu-2", "--stages", "1", "--mesh", "none", "--replicas", "2", "--microbatches", "4",
        "--recompute", "stage",
    ),
    "recomputed averages": (RESNET, "-t", "preset:cpu-2", "--stages", "2", *STAGES, "--recompute", "stage"),
    "tied weights": (GPT2, "-t", "preset:cpu-2", "--stages", "2", *STAGES, "--dropout", "on"),
    "tied weights on one device": (GPT2, "-t", "preset:cpu-2", *STAGES, "--schedule", "zb-v", "--optimizer", "sgd"),
    "tied weights on meshes": (GPT2, "-t", "preset:cpu-4", "--stages", "2", "--mesh", "2", "--microbatches", "4"),
    "tied weights of which one mesh keeps parts": (
        GPT2, "-t", "preset:cpu-4", "--stages", "2", "--mesh", "2", "--strategy", "megatron", "--microbatches", "2",
    ),
}  # fmt: skip
QUICK = ("pipeline",)
DAMAGED = (
    "uneven", "2bw", "zb-v", "reduce_scatter megatron", "sfb data", "ps data", "clipped replicas", "clipped tied weights",
    "groups of adafactor", "tied weights of which one mesh keeps parts",
)  # fmt: skip
"""Builds of which each has a construct of programs that the others lack."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the builds of this file, each made at its first use."""
    return tmp_path_factory.mktemp("builds")


def build_of(name: str, folder: Path) -> Path:
    out = folder / name
    if not out.exists():
        model, *options = BUILDS[name]
        assert main(["compile", model, "--objective", "training", *options, "-q", "-o", str(out)]) == 0
    return out


def step_of(name: str, folder: Path) -> Step:
    return _step(build_of(name, folder))


@cache
def _step(folder: Path) -> Step:
    return read_step(Snapshot.open(folder))


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BUILDS])
def test_valid_steps_are_proven(name: str, folder: Path) -> None:
    report = prove(build_of(name, folder))
    assert report.proven, report.failures
    assert report.error() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_pipeline_is_refuted(kind: str, folder: Path) -> None:
    module = damaged_step(step_of("pipeline", folder).module, kind, random.Random(kind))
    if module is not None:
        assert prove_step(Step(module)).verdict == "refuted"


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_refuted(name: str, folder: Path) -> None:
    """Each kind of damage at a place of each build."""
    step = step_of(name, folder)
    for kind in KINDS:
        module = damaged_step(step.module, kind, random.Random(f"{kind} 0"))
        assert module is None or prove_step(Step(module)).verdict == "refuted", kind


@pytest.mark.slow
def test_averages_of_replicas_become_their_mean(folder: Path) -> None:
    """A mean over one replica more, and averages that the replicas do not exchange."""
    step = step_of("recomputed averages of replicas", folder)
    (program,) = step.module.of_type(Program)
    (scaled,) = (op for op in program.ops if op.operands[:1] == ("%averages",))
    (summed,) = (op for op in program.ops if op.operands[:1] == (scaled.id,))
    wrong = (
        tuple(replace(op, operands=(*op.operands[:1] * 2,)) if op is scaled else op for op in program.ops),
        tuple(replace(op, operands=("%averages",)) if op is summed else op for op in program.ops),
    )
    for ops in wrong:
        report = prove_step(Step(step.module.replace(program, replace(program, ops=ops))))
        assert report.verdict == "refuted"
        assert "%averages is not joined, summed over the replicas" in report.failures[0][1].message


@pytest.mark.slow
def test_a_weight_of_two_stages_of_a_device_is_updated_once(folder: Path) -> None:
    """Both stages have the gradient and update the weight by it; the device keeps one tensor, which it changes in place."""
    module = step_of("tied weights on one device", folder).module
    first, *_, last = module.of_type(Stage)
    assert first.devices == last.devices
    (update,) = (op for op in first.ops if op.name == "grad.sgd" and op.operands[0] == "@wte.weight")
    gradient, new = update.operands[1], update.results[0].name
    sending = [replace(op, operands=_renamed(op, new, gradient)) if op.name == "comm.send" else op for op in first.ops]
    updating: list[Op] = []
    for op in last.ops:
        arrives = op.name == "comm.recv" and op.results[0].name == new
        updating += [replace(op, results=(replace(op.results[0], name=gradient),)), update] if arrives else [op]
    module = module.replace(first, replace(first, ops=tuple(sending))).replace(last, replace(last, ops=tuple(updating)))
    assert len(updating) == len(last.ops) + 1
    report = prove_step(Step.of(module, DIALECTS))
    assert report.verdict == "refuted"
    assert "both read @wte.weight in phase U" in report.failures[0][1].message


@pytest.mark.slow
def test_a_weight_of_two_stages_of_a_device_needs_a_flush(folder: Path) -> None:
    """Each stage keeps the weights of the steps under way, and copies them when it alone is about to change them."""
    module = step_of("tied weights on one device", folder).module
    (schedule,) = module.of_type(Schedule)
    report = prove_step(Step(module.replace(schedule, replace(schedule, kind="2bw", periodic=True))))
    assert report.verdict == "refuted"
    assert any("stages 0 and 3 share @wte.weight" in failure.message for _, failure in report.failures)


@pytest.mark.parametrize("name", ["@const.f32.1.0", "@fc4.bias"])
def test_what_an_optimizer_changes_is_assigned(name: str, folder: Path) -> None:
    """Nobody reads what it makes; but it changes a constant, or once more a weight, in place."""
    module = step_of("pipeline", folder).module
    _, program = module.of_type(Program)
    (update,) = (op for op in program.ops if op.name == "grad.sgd" and op.operands[0] == "@fc4.bias")
    unread = replace(update, operands=(name, *update.operands[1:]), results=(replace(update.results[0], name="%unread"),))
    report = prove_step(Step(module.replace(program, replace(program, ops=(*program.ops, unread)))))
    assert report.verdict == "refuted"
    assert f"an optimizer changes {name} in place" in report.failures[0][1].message


def test_averages_are_read_in_the_forward_pass_alone() -> None:
    """In a backward pass, the forward pass of the next microbatch may have moved them."""
    type_ = TensorType(DType.F32, (2,))
    moved = Op("onnx.Mul", ("@average", "%x"), (Value("%moved", type_),))
    read = Op("onnx.Mul", ("%moved", "@average"), (Value("%grad", type_),), facets=(Phase("I"),))
    ops = (moved, Op("grad.assign", ("@average", "%moved")), read)
    assert not list(phase_faults(ops[:2], ["%x"], []))
    (fault,) = phase_faults(ops, ["%x"], [])
    assert fault.endswith("reads @average, which phase F of later microbatches may have assigned by then")


def test_a_lost_sum_of_gradients_is_told_in_words(folder: Path) -> None:
    step = step_of("data", folder)
    module = damaged_step(step.module, "program lost sum", random.Random(0))
    assert module is not None
    ((where, failure),) = prove_step(Step(module)).failures
    assert where == "stage 0 on cpu0, cpu1"
    assert failure.verdict == "refuted"
    assert "a term of the sum over axis x of" in failure.message


def test_a_wrong_gradient_is_refuted_though_all_programs_have_it(folder: Path) -> None:
    module = damaged_step(step_of("pipeline", folder).module, "step other operand", random.Random(2))
    assert module is not None
    failures = prove_step(Step(module)).failures
    assert any(failure.message.endswith("does not follow from the forward ops") for _, failure in failures)


def test_forward_ops_that_do_not_fit_are_told(folder: Path) -> None:
    """The rule of Div fails for a numerator of more dimensions than the loss has."""
    module = step_of("pipeline", folder).module
    entry = module.entry
    ops = tuple(replace(op, operands=("%relu2", *op.operands[1:])) if op.id == "%loss" else op for op in entry.ops)
    assert ops != entry.ops
    failures = prove_step(Step(module.replace(entry, replace(entry, ops=ops)))).failures
    assert any("the forward ops of the step cannot be differentiated" in failure.message for _, failure in failures)


def test_state_is_not_the_constant_that_it_begins_as(folder: Path) -> None:
    """Momentum is zeros before the first step; a program has zeros in its place for ever."""
    module = step_of("data", folder).module
    (program,) = module.of_type(Program)
    zeros = Dense(TensorType(DType.F32, (10,)), bytes(40))
    constant = Op("onnx.Constant", (), (Value("%zeros", zeros.type),), attributes(value=zeros), facets=(Phase("U"),))
    name = "@fc4.bias.momentum"
    ops = [replace(op, operands=(*op.operands[:2], "%zeros")) if op.operands[2:] == (name,) else op for op in program.ops]
    assert ops != list(program.ops)
    report = prove_step(Step(module.replace(program, replace(program, ops=(constant, *ops)))))
    assert report.verdict == "refuted"


def test_what_arrives_is_what_its_reader_takes_it_for(folder: Path) -> None:
    """A sender that sends another value of the step, which the stage of the reader names, but not its program."""
    module = step_of("pipeline", folder).module
    sender, reader = module.of_type(Program)
    _, stage = module.of_type(Stage)
    other = next(op.results[0] for op in sender.ops if op.name == "onnx.Relu")
    named = [
        replace(op, results=(other,)) if op.name == "comm.recv" else replace(op, operands=_renamed(op, "%fc2", other.name))
        for op in stage.ops
    ]
    sent = [
        replace(op, operands=(other.name,)) if op.operands == ("%fc2",) and op.name == "comm.send" else op for op in sender.ops
    ]
    module = module.replace(stage, replace(stage, ops=tuple(named))).replace(sender, replace(sender, ops=tuple(sent)))
    assert any(op.results and op.results[0].name == "%fc2" for op in reader.ops if op.name == "comm.recv")
    assert prove_step(Step(module)).verdict == "refuted"


def _renamed(op: Op, old: str, new: str) -> tuple[str, ...]:
    return tuple(new if name == old else name for name in op.operands)


@pytest.mark.parametrize("name", ["stages/stage1.py", "weights.safetensors"])
def test_other_bytes_of_a_file_are_refuted(name: str, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(build_of("pipeline", folder), tmp_path / "build")
    data = bytearray((copy / name).read_bytes())
    data[-9] ^= 1
    (copy / name).write_bytes(data)
    refresh(copy, name)
    ((_, failure),) = prove(copy).failures
    assert (failure.verdict, failure.origin) == ("refuted", name)


def test_weights_of_another_form_are_told(folder: Path, tmp_path: Path) -> None:
    """The header of the file is lists in lists, deeper than any parser goes."""
    copy = shutil.copytree(build_of("pipeline", folder), tmp_path / "build")
    header = b"[" * 100_000
    (copy / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    refresh(copy, "weights.safetensors")
    ((_, failure),) = prove(copy).failures
    assert failure.message == "weights.safetensors cannot be read"


def test_the_command_lists_what_it_trusts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = build_of("pipeline", folder)
    assert main(["check", str(build), "--prove", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["verdict"], [stage["verdict"] for stage in data["stages"]]) == (
        "dnnc.proof/1",
        "proven",
        ["proven", "proven"],
    )
    assert any("differentiate" in trusted for trusted in data["trusted"])
