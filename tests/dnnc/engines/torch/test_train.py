"""``dnnc train`` with real processes: its steps are those of the unsplit model, and a rank that fails ends all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnnc
from dnnc.cli import main
from dnnc.report import seconds_text
from dnnc.study.runs import read_rows, read_stated
from tests.dnnc.engines.onnxruntime.processes import children, gone, nothing_left
from tests.dnnc.engines.torch.training_builds import MODEL, TWO_STAGES, compiled, weights, write_source
from tests.dnnc.sealing import refresh

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
safetensors: Any = pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages with adam."""
    return compiled(tmp_path_factory.mktemp("train") / "build")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module ``misbehaving`` can be imported, by ranks too."""
    monkeypatch.setenv("PYTHONPATH", str(write_source(tmp_path)))


def same(one: Path, other: Path) -> bool:
    left, right = weights(one), weights(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_steps_are_those_of_the_unsplit_model(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with nothing_left():
        assert main(["train", str(build), "--steps", "3", "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["weights"], found["not_compared"]) == (3, 6, [])
    assert found["worst"]["difference"] < 1e-5
    assert children(os.getpid()) == []


@pytest.mark.parametrize("command", ["run", "check"])
def test_commands_for_inference_name_train(build: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(build)]) == 3
    assert "it is a build for training\n  hint: 'dnnc train" in capsys.readouterr().err


def test_simulate_tells_the_timeline_of_a_training_build(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(build)]) == 0
    assert "4 microbatches in" in capsys.readouterr().out


def test_inspect_tells_of_a_training_build(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(build)]) == 0
    told = capsys.readouterr().out
    assert "grad.adam" in told
    assert "4 microbatches a step" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--every", "2"), "--every: error[E4834]: there is no folder for checkpoints"),
        (("--runs", "rows.csv"), "--runs: error[E0139]: a row needs at least 3 steps"),
        (("--out", __file__), f"--out {__file__}: error[E4835]: this is a file"),
        (("--checkpoint", __file__), f"--checkpoint {__file__}: error[E4835]: this is a file"),
        (("--slow", "cpu1"), "--slow cpu1: error[E0740]: it is not DEVICE=K"),
        (("--slow", "cpu0=1", "--slow", "cpu0=2"), "--slow: error[E0112]: 'cpu0' has two values: 1 and 2"),
        (("--meet", "a:1"), "--meet: error[E0155]: it is of a training on several hosts"),
        (("--secret", "nosuch"), "--secret: error[E0155]: it is of a training on several hosts"),
        (("--nodes", "3", "--emulate"), "--nodes: error[E4807]: 3 hosts cannot take equal numbers of ranks"),
        (("--nodes", "2", "--emulate"), "--meet: error[E4808]: hosts must know where to meet"),
        (
            ("--nodes", "2", "--emulate", "--meet", "a:1", "--node", "2"),
            "--node: error[E4809]: this host is 2, of 2 counted from 0",
        ),
        (("--check", "--out", "there"), "--check: error[E0140]: --check trains from the build's weights on this host"),
    ],
)
def test_options_that_make_no_sense(
    build: Path, options: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(build), *options]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"every": 2}, "every: error[E4834]: there is no folder for checkpoints\n  hint: add checkpoint=DIR"),
        ({"out": __file__}, f'out="{__file__}": error[E4835]: this is a file'),
        (
            {"eval_data": {"x": np.zeros((0, 784), np.float32), "target": np.zeros((0, 10), np.float32)}},
            "eval_data: error[E0434]: array 'x' has",
        ),
        ({"data": 5}, "data: error[E1410]: found a value of type int; expected a path"),
    ],
)
def test_keywords_that_make_no_sense(build: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(dnnc.DnncError) as error:
        dnnc.Build(build).train(**options)
    assert told in str(error.value)


@pytest.mark.parametrize("given", [{"inputs": "nosuch.npz"}, {"samples": 2}, {"tolerance": 0.1}])
def test_what_a_check_of_training_does_not_take_is_refused(build: Path, given: dict[str, Any]) -> None:
    """It was ignored, and the check passed."""
    with pytest.raises(dnnc.UsageError, match=rf"^{next(iter(given))}: error\[E1419\]: of a build for training the steps are"):
        dnnc.load(build).check(steps=1, **given)


@pytest.mark.parametrize("option", [pytest.param("--data", marks=pytest.mark.slow), "--resume"])
def test_a_file_that_is_missing_is_no_valid_input(build: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = {"--data": "no.npz", "--resume": "no.safetensors"}[option]
    assert main(["train", str(build), option, name]) == 3
    assert f"{name}: error[E2001]: no such file; expected a" in capsys.readouterr().err


def test_a_plan_alone_has_no_programs_to_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = tmp_path / "training", tmp_path / "inference"
    asked = ["compile", MODEL, "-t", "preset:cpu-2", "--plan-only", "-q", "-o"]
    assert main([*asked, str(plans[0]), "--objective", "training", "--loss", "mse:y"]) == main([*asked, str(plans[1])]) == 0
    told = []
    for command, plan in (("run", plans[0]), ("train", plans[0]), ("train", plans[1])):
        assert main([command, str(plan)]) == 3
        told.append(capsys.readouterr().err)
    assert told[0] == told[1]
    assert "it holds a plan only, no programs\n  hint: compile again without --plan-only, with --loss" in told[1]
    assert "it is no build for training\n  hint: compile with --objective training and --loss" in told[2]


@pytest.mark.slow
def test_check_names_the_first_weight_that_differs(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = compiled(tmp_path / "other")
    path = other / "stages/stage1.py"
    path.write_text(path.read_text().replace("learning_rate=0.001,", "learning_rate=0.0011,", 1))
    assert main(["train", str(refresh(other, "stages/stage1.py")), "--steps", "3", "--check"]) == 5
    assert "stage 1 on cpu1: error[E0775]: weight 'fc" in capsys.readouterr().err
    assert children(os.getpid()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source_name", "code", "told"),
    [
        ("raises", 3, "misbehaving:raises: error[E0441]: it raised ArithmeticError: no more samples of this kind"),
        ("dies", 3, "stage 1 on cpu1: error[E0628]: was killed by SIGKILL while F of stage 1 of microbatch 0 in step 3"),
        ("hangs", 3, "stage 1 on cpu1: error[E4804]: it did not go on for 4 s, while F of stage 1 of microbatch 0 in step 3"),
        ("leaves", 1, "stage 1 on cpu1: error[E0628]: ended with status 7 while F of stage 1 of microbatch 0 in step 3"),
        (
            "leaves_quietly",
            1,
            "stage 1 on cpu1: error[E0628]: ended with status 0 while F of stage 1 of microbatch 0 in step 3",
        ),
        ("interrupts", 130, "stage 1 on cpu1: error[E4801]: it was interrupted, while F of stage 1 of microbatch 0 in step 3"),
        ("missing", 2, "--data misbehaving:missing: error[E0440]: module 'misbehaving' has no function 'missing'"),
    ],
)
def test_a_rank_that_fails_ends_all(
    build: Path, tmp_path: Path, source: None, source_name: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "9", "--data", f"misbehaving:{source_name}", "--timeout", "4"]
    with nothing_left():
        assert main(["train", str(build), *options, "--checkpoint", str(tmp_path / "kept"), "--every", "1"]) == code
    assert told in capsys.readouterr().err
    assert children(os.getpid()) == []
    if source_name != "missing":
        names = {path.name for path in (tmp_path / "kept").iterdir()}
        abrupt = source_name in ("dies", "leaves", "leaves_quietly")  # in the middle of writing that of step 2, perhaps
        assert names - {"step2"} == {"losses.json", "step1"}
        assert abrupt or "step2" in names
        assert [entry["step"] for entry in json.loads((tmp_path / "kept/losses.json").read_text())] == [1, 2]


@pytest.mark.slow
def test_a_checkpoint_of_another_model(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.safetensors"
    safetensors.save_file({"fc9.weight": torch.ones(2)}, other)
    safetensors.save_file({"fc9.weight": torch.ones(2)}, other, {"step": "3"})
    assert main(["train", str(build), "--resume", str(other)]) == 3
    told = capsys.readouterr().err
    assert f"{other}: error[E0735]: it holds a weight 'fc9.weight', which the plan lacks" in told
    assert "it holds no state" not in told  # that says nothing more
    assert children(os.getpid()) == []


@pytest.mark.slow
def test_a_program_that_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = compiled(tmp_path / "other")
    path = other / "stages/stage1.py"
    path.write_text(path.read_text().replace("target = inputs['target']", "target = inputs['nothing']", 1))
    assert main(["train", str(refresh(other, "stages/stage1.py")), "--steps", "3"]) == 1
    error = capsys.readouterr().err
    assert "stage 1 on cpu1: error[E4801]: KeyError: 'nothing' (stages/stage1.py:" in error
    assert "while F of stage 1 of microbatch 0 in step 1" in error


@pytest.mark.slow
@pytest.mark.usefixtures("source")
def test_resumed_after_a_kill_the_weights_are_those_without(build: Path, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    data = ["--data", "misbehaving:good", "--seed", "3"]
    assert main(["train", str(build), "--steps", "6", *data, "--checkpoint", str(whole), "-q"]) == 0
    killed = ["--data", "misbehaving:dies", "--seed", "3"]
    assert main(["train", str(build), "--steps", "6", *killed, "--checkpoint", str(part), "--every", "1", "-q"]) == 3
    last = max(part.glob("step*"))
    assert last.name in ("step1", "step2")  # the last step may not be written yet
    rest = str(6 - int(last.name.removeprefix("step")))
    assert main(["train", str(build), "--steps", rest, *data, "--resume", str(last), "--checkpoint", str(part), "-q"]) == 0
    assert same(whole / "step6", part / "step6")
    assert (whole / "losses.json").read_bytes() == (part / "losses.json").read_bytes()


@pytest.mark.slow
def test_a_step_is_measured(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it takes stands beside what was predicted, and is a row for 'dnnc calibrate'."""
    rows = tmp_path / "rows.csv"
    assert main(["train", str(build), "--steps", "3", "--runs", str(rows)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    (row,) = read_rows(rows)
    predicted = read_stated(row).value
    assert row.build == build.resolve()
    assert last == f"a step takes {seconds_text(row.seconds)} (predicted {seconds_text(predicted)})"
    assert main(["train", str(build), "--steps", "3", "--runs", str(rows), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["seconds_per_step"]
    assert told["predicted"] == predicted
    assert told["measured"] == pytest.approx(read_rows(rows)[1].seconds, rel=1e-4)


@pytest.mark.slow
def test_resumed_on_another_plan(build: Path, tmp_path: Path) -> None:
    one = compiled(tmp_path / "one", "--stages", "1", "--replicas", "1", "--mesh", "none")
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert main(["train", str(build), "--steps", "4", "--checkpoint", str(whole), "-q"]) == 0
    assert main(["train", str(one), "--steps", "2", "--checkpoint", str(part), "-q"]) == 0
    last = part / "step2"
    assert main(["train", str(build), "--steps", "2", "--resume", str(last), "--checkpoint", str(part), "-q"]) == 0
    left, right = weights(whole / "step4"), weights(part / "step4")
    assert left.keys() == right.keys()
    assert all(torch.allclose(left[name], right[name], rtol=1e-4, atol=1e-6) for name in left)


@pytest.mark.slow
def test_resumed_with_another_optimizer(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """State that the checkpoint lacks begins at zero, which is told; with its own optimizer nothing is."""
    momentum = compiled(tmp_path / "momentum", *TWO_STAGES, "--optimizer", "momentum")
    assert main(["train", str(momentum), "--steps", "1", "--checkpoint", str(tmp_path), "-q"]) == 0
    last = tmp_path / "step1"
    capsys.readouterr()
    assert main(["train", str(momentum), "--resume", str(last)]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["train", str(build), "--resume", str(last)]) == 0
    weights = ", ".join(f"fc{number}.{kind}" for number in (1, 2, 3) for kind in ("weight", "bias"))
    told = f"{last}: warning[W0737]: it holds no state of adam for {weights}: this begins at zero\n"
    assert told + "  hint: to go on as before, compile with --optimizer momentum" in capsys.readouterr().err


@pytest.mark.slow
def test_torchrun_by_hand_is_the_same(build: Path, tmp_path: Path) -> None:
    assert main(["train", str(build), "--steps", "2", "--checkpoint", str(tmp_path / "a"), "-q"]) == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "dnnc.engines.torch.rank", str(build)]
    done = subprocess.run(
        [*command, "--steps", "2", "--checkpoint", str(tmp_path / "b")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "step 2  loss " in done.stdout
    assert same(tmp_path / "a/step2", tmp_path / "b/step2")


@pytest.mark.slow
@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_whatever_ends_the_command_ends_its_ranks(build: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "dnnc", "train", str(build), "--steps", "1000", "--data", "misbehaving:slow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"step 1 ")
    ranks = children(process.pid)
    assert len(ranks) == 2
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert gone(ranks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (3, ("--stages", "3", "--replicas", "1", "--mesh", "none")),
        (4, ("--mesh", "2", "--stages", "2")),
        (2, ("--schedule", "gpipe", "--stages", "2", "--replicas", "1", "--mesh", "none")),
        (2, ("--schedule", "zb-h2", "--stages", "2", "--replicas", "1", "--mesh", "none")),
        (2, ("--recompute", "stage", "--stages", "1", "--replicas", "2", "--mesh", "none")),
        (2, ("--recompute", "stage", "--mesh", "2")),
        (2, ("--schedule", "interleaved")),
        (2, ("--split", "any")),
        (3, ("--schedule", "pipedream", "--microbatches", "1", "--stages", "3")),
        (3, ("--schedule", "pipedream", "--microbatches", "2", "--stages", "3", "--optimizer", "momentum")),
        (3, ("--schedule", "2bw", "--microbatches", "8", "--stages", "3")),
        (4, ("--mesh", "4", "--strategy", "data", "--sync", "sfb")),
        (4, ("--mesh", "2", "--stages", "2", "--strategy", "data", "--sync", "sfb")),
        (4, ("--mesh", "4", "--strategy", "data", "--sync", "ps")),
        (4, ("--mesh", "2x2", "--strategy", "data", "--sync", "auto")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_every_kind_of_plan_trains_as_the_unsplit_model(
    workers: int, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the kinds whose steps ``test_batch_loss.py`` compares with torch's own."""
    folder = compiled(tmp_path / "build", *options, topology=f"preset:cpu-{workers}")
    assert main(["train", str(folder), "--steps", "4", "--check"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_a_stage_on_a_mesh_gathers_what_it_sends_to_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is sent is the gathered value, of a name that the receiver does not have."""
    machines = tmp_path / "machines.toml"
    machines.write_text(
        'version = 1\n[types]\ncore = "preset:cpu-1"\n[[hosts]]\nname = "p"\n[[hosts]]\nname = "q"\n'
        '[[devices]]\nname = "p{0..1}"\ntype = "core"\nhost = "p"\n[[devices]]\nname = "q0"\ntype = "core"\nhost = "q"\n'
        '[[links]]\nends = ["p0", "p1", "q0"]\nbandwidth = "20 GB/s"\nlatency = "2 us"\n'
    )
    found = compiled(tmp_path / "found", "--mesh", "auto", "--stages", "2", topology=str(machines))
    plan = json.loads((found / "plan.json").read_text())
    ops = plan["stages"][0]["ops"]
    ops["fc1"], ops["relu1"] = {"x": "m"}, {"x": "d0"}  # rows are split
    edited, built = tmp_path / "edited.json", tmp_path / "built"
    edited.write_text(json.dumps(plan))
    assert main(["compile", MODEL, "-t", str(machines), "--loss", "mse:y", "--plan", str(edited), "-q", "-o", str(built)]) == 0
    text = (built / "plan.ir").read_text()
    sent, received = (
        re.search(pattern, text)
        for pattern in (r"comm\.send\((%\S+)\) \{channel = 0", r"(%\S+) = comm\.recv\(\) \{channel = 0")
    )
    assert sent is not None
    assert received is not None
    assert sent[1] != received[1]
    assert main(["train", str(built), "--steps", "2", "--check", "--emulate"]) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_stages_of_two_and_three_devices_pass_on_what_enters_their_hosts(
    sizes: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Activations from the members of a stage to one of the next, which passes them on, and gradients back to one. The
    order of the hosts that is not found is edited into the plan."""
    machines = tmp_path / "machines.toml"
    host = (
        '[[hosts]]\nname = "{0}"\n[[devices]]\nname = "{0}{{0..{1}}}"\ntype = "core"\nhost = "{0}"\n'
        '[[links]]\neach = "devices of {0}"\nto = "{0}"\nbandwidth = "8 GB/s"\nlatency = "6 us"\n'
        '[[links]]\neach = "{0}"\nto = "between"\nbandwidth = "50 MB/s"\nlatency = "0 us"\nshared = true\n'
    )
    types = '[types.core]\nkind = "cpu"\nmemory = "4 GiB"\nmemory_bandwidth = "20 GB/s"\nrates = { f32 = "0.2 GFLOP/s" }\n'
    text = f'version = 1\nswitches = ["between"]\n{types}{host.format("p", 1)}{host.format("q", 2)}'
    machines.write_text(text)
    model = "zoo:bert-small,layers=4,hidden=64,vocab=100,seq=16,batch=6"
    found, edited, built = tmp_path / "found", tmp_path / "edited.json", tmp_path / "built"
    asked = ["compile", model, "-t", str(machines), "--loss", "cross-entropy:logits", "-q"]
    step = ["--objective", "training", "--stages", "2"]
    assert main([*asked, *step, "--microbatches", "4", "--plan-only", "-o", str(found)]) == 0
    plan = json.loads((found / "plan.json").read_text())
    assert plan["gap"] < 0.001
    first, last = plan["stages"]
    if len(first["device"]) != sizes[0]:
        for key in ("device", "mesh"):
            first[key], last[key] = last[key], first[key]
    edited.write_text(json.dumps(plan))
    assert main([*asked, "--plan", str(edited), "-o", str(built)]) == 0, capsys.readouterr().err
    built_plan = json.loads((built / "plan.json").read_text())
    assert tuple(len(stage["device"]) for stage in built_plan["stages"]) == sizes
    assert main(["train", str(built), "--steps", "2", "--check", "--emulate"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_each_weight_is_synchronised_as_its_plan_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One by gathered factors, one through the second rank, the others by all-reduce."""
    built = compiled(tmp_path / "data", "--mesh", "2", "--strategy", "data")
    plan = json.loads((built / "plan.json").read_text())
    plan["stages"][0]["sync"] = {"fc1.weight": "sfb", "fc1.bias": "sfb", "fc2.weight": "ps(1)"}
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(plan))
    out = tmp_path / "edited"
    assert main(["compile", MODEL, "-t", "preset:cpu-2", "--loss", "mse:y", "--plan", str(edited), "-q", "-o", str(out)]) == 0
    assert json.loads((out / "plan.json").read_text())["stages"][0]["sync"] == plan["stages"][0]["sync"]
    assert "through = 1" in (out / "plan.ir").read_text()
    assert main(["train", str(out), "--steps", "3", "--check"]) == 0, capsys.readouterr().err


class Tied(torch.nn.Module):  # type: ignore[misc]
    """A language model whose output layer has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = torch.nn.Embedding(2000, 16), torch.nn.Linear(16, 2000)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(12)))
        self.output.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        return self.output(torch.tanh(self.layers(self.embedding(x))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--stages", "2", "--replicas", "1"), ("--schedule", "interleaved"), ("--schedule", "zb-v")],
    ids=lambda options: " ".join(options),
)
def test_stages_that_share_a_weight_add_up_its_gradients_once_a_step(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two ranks, or, of the first and the last stage in a V, on one."""
    pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
    import dnnc

    torch.manual_seed(0)
    dnnc.from_torch(Tied(), (torch.randint(0, 2000, (4, 8)),), tmp_path / "tied.onnx")
    loss = "cross-entropy:linear_12"
    folder = compiled(tmp_path / "build", *options, model=str(tmp_path / "tied.onnx"), loss=loss)
    assert any(" = yield " in path.read_text() for path in (folder / "stages").glob("*.py"))
    assert main(["train", str(folder), "--steps", "3", "--check"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_a_replica_without_a_microbatch_updates_as_the_others(tmp_path: Path) -> None:
    """A plan that was edited may have more replicas than microbatches."""
    built = compiled(tmp_path / "two", "--stages", "1", "--replicas", "1", "--mesh", "none")
    plan = json.loads((built / "plan.json").read_text())
    plan["microbatches"], plan["stages"][0]["device"] = 1, ["cpu0", "cpu1"]
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(plan))
    out = str(tmp_path / "one")
    assert main(["compile", MODEL, "-t", "preset:cpu-2", "--loss", "mse:y", "--plan", str(edited), "-q", "-o", out]) == 0
    assert "on [cpu0, cpu1]" in Path(out, "plan.ir").read_text()
    assert main(["train", out, "--check", "--steps", "2"]) == 0


@pytest.mark.slow
def test_a_replica_without_a_microbatch_begins_sums_in_the_order_of_the_others(tmp_path: Path) -> None:
    """With the passes apart sums begin in I, which makes the gradient of what is added, before those that begin in W."""
    wide = 100_000
    model = tmp_path / "m.ir"
    model.write_text(
        f"""
        module @m {{opset.onnx = 20}} {{
          resource @w1 : tensor<8x{wide}xf32> = random(normal, seed = 1, scale = 0.01)
          resource @shift : tensor<4x{wide}xf32> = random(normal, seed = 2, scale = 0.01)
          resource @w2 : tensor<{wide}x10xf32> = random(normal, seed = 3, scale = 0.01)
          resource @w3 : tensor<10x{2 * wide}xf32> = random(normal, seed = 4, scale = 0.01)
          func @main(%x : tensor<4x8xf32>) -> (%y : tensor<4x{2 * wide}xf32>) {{
            %a = onnx.MatMul(%x, @w1) : tensor<4x{wide}xf32>
            %b = onnx.Add(%a, @shift) : tensor<4x{wide}xf32>
            %c = onnx.MatMul(%b, @w2) : tensor<4x10xf32>
            %y = onnx.MatMul(%c, @w3) : tensor<4x{2 * wide}xf32>
          }}
        }}
        """
    )
    alone = tmp_path / "alone"
    options = ["-t", "preset:cpu-2", "--objective", "training", "--stages", "1", "--replicas", "1", "--mesh", "none"]
    assert main(["compile", str(model), *options, "--plan-only", "--loss", "mse:y", "-q", "-o", str(alone)]) == 0
    plan = json.loads((alone / "plan.json").read_text())
    plan["microbatches"], plan["stages"][0]["device"] = 1, ["cpu0", "cpu1"]
    edited, out = tmp_path / "edited.json", tmp_path / "one"
    edited.write_text(json.dumps(plan))
    options = ["-t", "preset:cpu-2", "--loss", "mse:y", "--schedule", "zb-h1", "--plan", str(edited)]
    assert main(["compile", str(model), *options, "-q", "-o", str(out)]) == 0
    lines = Path(out, "stages", "stage0.py").read_text().splitlines()
    begun, summed = (
        [re.search(r"channel=(\d+)", line)[1] for line in lines if f"comm.{name}(" in line]  # type: ignore[index]
        for name in ("add", "summed")
    )
    assert len(begun) > 2
    assert begun == summed
    assert begun != sorted(begun)
    assert main(["train", str(out), "--check", "--steps", "2"]) == 0
