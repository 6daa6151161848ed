"""``dnnc compile --objective training``: what is asked of a step stands in the passes, and a build is written that trains."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from dnnc.cli import main
from dnnc.compile.flags import CompileOptions
from dnnc.compile.options import build_pipeline
from dnnc.compile.training import TrainingOptions
from passes.framework.pipeline import parse_pipeline, pipeline_text

MLP = "zoo:mlp,hidden=32,batch=4"
PAIR = (
    '[[devices]]\nname = "a"\ntype = "small"\n[[devices]]\nname = "b"\ntype = "small"\n'
    '[[links]]\nends = ["a", "b"]\nbandwidth = "20 GB/s"\nlatency = "10 us"\n'
)
TWO = "preset:cpu-2,cores=2"


def text_of(**asked: object) -> str:
    training = TrainingOptions(loss="mse:y", optimizer="sgd", learning_rate=0.5, schedule="gpipe", frozen=("fc1*",))
    options = CompileOptions(MLP, TWO, Path("b"), objective="training", training=training, **asked)  # type: ignore[arg-type]
    pipeline = build_pipeline(options)
    assert parse_pipeline(pipeline_text(pipeline)) == pipeline
    return pipeline_text(pipeline)


def test_options_stand_in_the_passes_that_have_them() -> None:
    text = text_of(mesh="none", microbatches=3)
    assert [step.name for step in parse_pipeline(text)] == [
        "training",
        "canonicalize",
        "cost",
        "partition",
        "place",
        "differentiate",
        "schedule",
        "lower",
        "localize",
    ]
    for words in ("loss=mse:y", "optimizer=sgd", "frozen=", "microbatches=3", "learning-rate=0.5", "family=gpipe"):
        assert words in text


def test_a_plan_alone_counts_the_loss_and_differentiates_nothing() -> None:
    names = [step.name for step in parse_pipeline(text_of(mesh="2", plan_only=True))]
    assert names == ["training", "canonicalize", "cost", "partition", "place", "schedule"]


@pytest.mark.skipif(importlib.util.find_spec("safetensors") is None, reason="needs dnnc[train]")
@pytest.mark.parametrize("kind", [("--mesh", "none", "--stages", "2"), ("--mesh", "2"), ()])
def test_a_build_has_a_file_for_each_program(kind: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "b"
    asked = ("--objective", "training", "--loss", "mse:y", "--optimizer", "momentum", "--microbatches", "4", "--json")
    assert main(["compile", MLP, "-t", TWO, "-o", str(out), *asked, *kind]) == 0, capsys.readouterr().err
    told = json.loads(capsys.readouterr().out)
    plan = json.loads((out / "plan.json").read_text())
    assert told["microbatches"] == plan["microbatches"] == 4
    assert told["bound"] <= told["objective"]
    assert told["objective"] <= told["single"] * 4 or len(plan["stages"]) > 1  # which were asked for, and hand over
    assert len(list((out / "stages").glob("*.py"))) >= len(plan["stages"])
    assert {cut["from"] > cut["to"] for cut in plan["cuts"]} == ({True, False} if len(plan["stages"]) > 1 else set())


def test_without_torch_a_plan_is_all_that_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    asked = ("--objective", "training", "--loss", "mse:y")
    assert main(["compile", MLP, "-t", TWO, "-o", str(tmp_path / "b"), *asked]) == 2
    said = capsys.readouterr().err
    assert "torch is not installed" in said
    assert "dnnc[train]" in said


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--schedule", "zb-v", "--chunks", "3"), "--schedule zb-v needs 2 stages on each device"),
        (("--schedule", "interleaved", "--chunks", "1"), "--schedule interleaved needs several stages on each device"),
        (("--schedule", "interleaved", "--mesh", "2"), "--schedule interleaved: not an option of mesh=2"),
        (("--chunks", "2", "--stages", "3"), "--chunks 2 says how many stages there are"),
    ],
)
def test_chunks_that_make_no_sense(
    options: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--objective", "training", "--loss", "mse:y", "--plan-only")
    assert main(["compile", MLP, "-t", TWO, "-o", str(tmp_path / "b"), *asked, *options]) == 2
    assert told in capsys.readouterr().err


def test_stages_on_each_device_are_told_with_the_seconds_of_their_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--objective", "training", "--loss", "mse:y", "--plan-only", "--schedule", "interleaved")
    assert main(["compile", MLP, "-t", TWO, "-o", str(tmp_path / "b"), *asked]) == 0
    out = capsys.readouterr().out
    assert "4 stages on 2 devices" in out
    assert "each on the slowest device, which waits" in out
    assert main(["simulate", str(tmp_path / "b")]) == 0


def test_an_order_of_work_that_memory_has_no_space_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPipe holds all microbatches of a step, 1F1B no more than there are stages: between both is a limit."""
    asked = [
        "--objective",
        "training",
        "--plan-only",
        "--stages",
        "2",
        "--replicas",
        "1",
        "--mesh",
        "none",
        "--microbatches",
        "9",
    ]
    model = ["zoo:mlp,layers=6,hidden=64,batch=512", *asked, "--loss", "mse:y"]

    def peak(family: str, topology: str, out: Path) -> int:
        assert main(["compile", *model, "-t", topology, "-o", str(out), "--schedule", family, "-q"]) == 0
        assert main(["simulate", str(out), "--json"]) == 0
        return max(device["memory"] for device in json.loads(capsys.readouterr().out)["devices"])

    one, all_ = peak("1f1b", TWO, tmp_path / "1f1b"), peak("gpipe", TWO, tmp_path / "gpipe")
    assert all_ > 2 * one
    machines = tmp_path / "machines.toml"
    limit = (2 * one + all_) // 3
    machines.write_text(f'version = 1\n[types.small]\nlike = "preset:cpu-1"\nmemory = "{limit} B"\n' + PAIR)
    assert main(["compile", *model, "-t", str(machines), "-o", str(tmp_path / "fits"), "-q"]) == 0
    assert main(["compile", *model, "-t", str(machines), "-o", str(tmp_path / "not"), "--schedule", "gpipe"]) == 4
    said = capsys.readouterr().err
    assert "error[E3204]: the weights, their state and saved values alone are " in said
    assert f"all 2 devices have {2 * limit}: " in said
    assert "--recompute stage or another --schedule holds less" in said
    assert not (tmp_path / "not").exists()


def test_sharded_updates_on_a_mesh_and_a_word_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compile", f"{MLP[:-1]}64", "-t", TWO, "--objective", "training", "--loss", "mse:y", "--sync", "reduce_scatter"]
    mesh = ("--mesh", "2", "--strategy", "data", "--microbatches", "8")
    assert main([*asked, "-o", str(tmp_path / "mesh"), *mesh, "-q"]) == 0
    text = (tmp_path / "mesh" / "plan.ir").read_text()
    assert "@fc1.weight : tensor<32x784xf32> " in text
    assert "@fc1.weight.exp_avg : tensor<32x784xf32, @mesh[S(0)]>" in text
    turns = ("--passes", "default-training", "--replicas", "2", "--stages", "1")
    assert main([*asked, "-o", str(tmp_path / "turns"), *turns]) == 0
    assert "replicas of a stage each update all of its weights" in capsys.readouterr().err
    assert main([*asked, "-o", str(tmp_path / "none"), "--mesh", "none", "--plan-only"]) == 2
    assert "error[E1012]: --sync reduce_scatter needs a mesh, which --mesh none excludes" in capsys.readouterr().err


def test_recomputation_takes_time_and_saves_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The planner counts both: each stage runs its forward pass again, and keeps one microbatch instead of two."""
    asked = ["--objective", "training", "--plan-only", "--stages", "2", "--replicas", "1", "--mesh", "none", "--loss", "mse:y"]
    model = ["compile", "zoo:mlp,layers=6,hidden=256,batch=512", "-t", TWO, *asked, "-q"]
    plans = {}
    for name in ("none", "stage"):
        assert main([*model, "--recompute", name, "-o", str(tmp_path / name)]) == 0
        plans[name] = json.loads((tmp_path / name / "plan.json").read_text())
        assert main(["simulate", str(tmp_path / name), "--json"]) == 0
        plans[name]["held"] = [device["memory"] for device in json.loads(capsys.readouterr().out)["devices"]]
    kept, again = plans["none"], plans["stage"]
    assert 1.2 * kept["value"] < again["value"] < 1.5 * kept["value"]
    assert again["stages"][0]["memory"]["workspace"] < 0.75 * kept["stages"][0]["memory"]["workspace"]
    assert again["held"][0] < kept["held"][0]


def test_recomputation_where_memory_does_not_suffice_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--objective", "training", "--plan-only", "--stages", "2", "--replicas", "1", "--mesh", "none", "--loss", "mse:y"]
    model = ["compile", "zoo:mlp,layers=12,inputs=64,hidden=64,batch=8192", *asked]
    for memory, warned in (("1 GiB", False), ("24 MiB", True)):
        machines = tmp_path / f"{warned}.toml"
        machines.write_text(f'version = 1\n[types.small]\nlike = "preset:cpu-1"\nmemory = "{memory}"\n' + PAIR)
        assert main([*model, "-t", str(machines), "-o", str(tmp_path / str(warned)), "--recompute", "auto"]) == 0
        assert ("stages recompute, because without it" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("kind", "warned"),
    [
        (("--mesh", "none", "--stages", "1", "--replicas", "1"), True),
        (("--mesh", "none", "--stages", "1", "--replicas", "1", "--schedule", "gpipe"), False),
        (("--mesh", "2"), True),
        (("--mesh", "none", "--stages", "2"), False),
    ],
)
def test_recomputation_that_saves_nothing(
    kind: tuple[str, ...], warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stage that has one microbatch in work holds all of its values when the backward pass begins."""
    asked = ["--objective", "training", "--plan-only", "--loss", "mse:y", "--microbatches", "4", "--recompute", "stage"]
    assert main(["compile", MLP, "-t", TWO, "-o", str(tmp_path / "b"), *asked, *kind]) == 0
    told = "--recompute stage: warning[W1028]: forward ops run again and no memory is saved"
    assert (told in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("decay", "warned"),
    [
        ((), True),
        (("--weight-decay", "0.1"), False),
        (("--optimizer", "adamw"), False),
        (("--group", "*,weight-decay=1"), False),
    ],
)
def test_no_decay_where_nothing_decays(
    decay: tuple[str, ...], warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adam has no weight decay unless it is told one, so --no-decay alone changes nothing."""
    asked = ["--objective", "training", "--plan-only", "--loss", "mse:y", "--no-decay", *decay]
    assert main(["compile", MLP, "-t", TWO, "-o", str(tmp_path / "b"), *asked]) == 0
    assert ("--no-decay: warning[W1032]: no weight decays" in capsys.readouterr().err) == warned


def test_a_replayed_plan_has_a_bound_of_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of both passes and updates on all devices; what was proven with recomputation says nothing of steps without it."""
    model = ["zoo:mlp,layers=6,hidden=256,batch=128", "-t", "preset:cpu-4,cores=4", "--loss", "mse:y", "--plan-only", "-q"]
    again = ["--recompute", "stage"]
    asked = ["--objective", "training", "--mesh", "none"]
    assert main(["compile", *model, *asked, *again, "-o", str(tmp_path / "made")]) == 0
    stated = tmp_path / "made" / "plan.json"
    made = json.loads(stated.read_text())

    def replayed(name: str, *options: str) -> dict[str, Any]:
        assert main(["compile", *model, "--plan", str(stated), *options, "-o", str(tmp_path / name)]) == 0
        found: dict[str, Any] = json.loads((tmp_path / name / "plan.json").read_text())
        return found

    same = replayed("same")  # recomputes as the plan does
    assert {key: same[key] for key in ("bound", "value", "recompute")} == {
        "bound": made["bound"],
        "value": made["value"],
        "recompute": "stage",
    }
    without = replayed("without", "--recompute", "none")
    assert "recompute" not in without
    assert "load balance" in without["certificate"]["bound"]
    assert without["value"] < made["bound"]
    assert without["value"] / 1.25 < without["bound"] <= without["value"]


def test_the_rows_of_a_plan_say_in_which_order_it_works(tmp_path: Path) -> None:
    """So its memory and its seconds are those of the order, whether or not ``--schedule`` says it again."""
    asked = ["--objective", "training", "--mesh", "none", "--stages", "2", "--replicas", "1", "--schedule", "gpipe"]
    model = ["compile", MLP, "-t", TWO, "--loss", "mse:y", "--plan-only", "-q", "-o"]
    assert main([*model, str(tmp_path / "a"), *asked]) == 0
    assert main([*model, str(tmp_path / "b"), "--plan", str(tmp_path / "a" / "plan.ir")]) == 0
    made, again = (json.loads((tmp_path / name / "plan.json").read_text()) for name in "ab")
    assert (tmp_path / "b" / "plan.ir").read_text().count("kind = gpipe") == 1
    assert [stage["memory"] for stage in again["stages"]] == [stage["memory"] for stage in made["stages"]]
    assert again["value"] == made["value"]


@pytest.mark.skipif(importlib.util.find_spec("safetensors") is None, reason="needs dnnc[train]")
@pytest.mark.parametrize(
    "kind",
    [
        ("--mesh", "2", "--recompute", "stage"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in (("--mesh", "2"), ("--schedule", "zb-v"))),
    ],
)
def test_the_plan_of_a_build_is_built_again(kind: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From its plan.json, which states the forward pass alone, and from its plan.ir with its rows."""
    made = ["compile", MLP, "-t", TWO, "--loss", "mse:y", "-q", "-o"]
    assert main([*made, str(tmp_path / "a"), "--objective", "training", "--microbatches", "4", *kind]) == 0
    texts = []
    for name in ("a", "json", "ir"):
        if name != "a":
            assert main([*made, str(tmp_path / name), "--plan", str(tmp_path / f"a/plan.{name}")]) == 0, capsys.readouterr().err
        rows = "schedule @" if name == "ir" else " row cpu0"
        lines = (tmp_path / name / "plan.ir").read_text().splitlines()
        texts.append([line for line in lines if line.startswith(("    %", "    grad.", rows))])
    assert texts[0] == texts[1] or kind[0] == "--schedule"  # whose rows plan.json does not state
    assert [line for line in texts[0] if "row" not in line] == [line for line in texts[2] if "schedule" not in line]


@pytest.mark.skipif(importlib.util.find_spec("safetensors") is None, reason="needs dnnc[train]")
def test_rows_mean_the_same_with_programs_and_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gradients that go back over two borders have the same channels in a build and in its plan alone: each replays the
    other."""
    model = ["compile", "zoo:mlp,layers=4,hidden=16,batch=4", "-t", "preset:cpu-3,cores=3", "--loss", "mse:y", "-q", "-o"]
    asked = ["--objective", "training", "--microbatches", "3", "--mesh", "none", "--replicas", "1", "--stages", "3"]
    plans = [tmp_path / name / "plan.ir" for name in ("build", "alone", "again")]
    for more, plan in zip([asked, ["--plan", str(plans[0]), "--plan-only"], ["--plan", str(plans[1])]], plans, strict=True):
        assert main([*model, str(plan.parent), *more]) == 0, capsys.readouterr().err
    build, alone, again = ([line for line in plan.read_text().splitlines() if "  row " in line] for plan in plans)
    assert len(build) == 3
    assert build == alone == again


def test_a_plan_with_a_loss_is_replayed_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Most ops of a small model are those of its loss: without it, it is no plan of another model."""
    model = ["compile", "zoo:mlp,layers=2,hidden=16,batch=4", "-t", TWO, "--plan-only", "-q", "-o"]
    asked = ["--objective", "training", "--mesh", "none", "--loss", "cross-entropy:y"]
    assert main([*model, str(tmp_path / "a"), *asked]) == 0
    for name in ("plan.json", "plan.ir"):
        assert main([*model, str(tmp_path / "b"), "--plan", str(tmp_path / "a" / name)]) == 3
        assert capsys.readouterr().err.splitlines() == [
            f"{tmp_path / 'a' / name}: error[E3422]: the plan has the ops of a loss, and the model has no loss",
            "  hint: give the loss that the plan was made with, such as --loss mse:OUTPUT",
        ]


@pytest.mark.parametrize(
    "option",
    [
        *("--sync auto", "--recompute stage", "--clip-norm 1.0", "--ema 0.0", "--optimizer sgd", "--loss-scale dynamic"),
        *("--frozen w*", "--no-decay", "--group b*,weight-decay=0", "--learning-rate-schedule constant", "--dropout off"),
    ],
)
def test_what_gradients_decide_needs_a_loss(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compile", MLP, "-t", TWO, "--objective", "training", *option.split(), "--plan-only", "-o", str(tmp_path / "plan")]
    assert main(asked) == 2
    assert f"{option.split()[0]}: error[E1013]: {option} needs the gradients of a loss" in capsys.readouterr().err


def test_a_plan_that_recomputes_nothing_known_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["compile", MLP, "-t", TWO, "--loss", "mse:y", "--plan-only", "-q", "-o", str(tmp_path / "a")]
    assert main([*model, "--objective", "training", "--recompute", "stage", "--mesh", "none"]) == 0
    path = tmp_path / "a/plan.json"
    path.write_text(path.read_text().replace('"recompute": "stage"', '"recompute": "some"'))
    assert main([*model, "--plan", str(path)]) == 3
    assert "recompute: error[E0342]: expected 'none' or 'stage', found 'some'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "node", ["some = Reshape(w, shape)", "some = Compress<axis=0>(w, keep)", "some, places = TopK(w, shape)"]
)
def test_a_size_that_depends_on_values_is_refused_on_the_way_of_a_gradient(
    node: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    step (int64[1] shape, bool[4] keep) => (float loss) <float[4] w = {{1, 2, 3, 4}}> {{
        {node}
        squares = Mul(some, some)
        loss = ReduceMean<keepdims=0>(squares)
    }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    asked = ("--objective", "training", "--loss", "output:loss", "-o", str(tmp_path / "b"), "-q", "-v")
    assert main(["compile", str(tmp_path / "model.onnx"), "-t", TWO, *asked]) == 3
    told = capsys.readouterr().err
    assert "canonicalize: " in told
    assert "partition: " not in told  # before a plan is searched
    assert "%loss: error[E3610]: onnx.ReduceMean: the gradient needs the shape of %squares, which is tensor<" in told
    assert "--frozen GLOB" in told


@pytest.mark.parametrize("order", ["zb-h2", pytest.param("zb-v", marks=pytest.mark.slow), "gpipe"])
def test_a_replay_keeps_the_order_of_work(order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """plan.json did not tell it, so that the same plan was another. What is printed to do next can be done."""
    model = ["compile", MLP, "-t", TWO]
    stages = () if order == "zb-v" else ("--stages", "2", "--replicas", "1")
    asked = ["--objective", "training", "--loss", "mse:y", "--microbatches", "4", "--schedule", order, *stages]
    assert main([*model, *asked, "--mesh", "none", "--plan-only", "-o", str(tmp_path / "a")]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    replay = told.partition("replay it with ")[2].split()
    assert replay == ["--plan", f"{tmp_path}/a/plan.json", "--loss", "mse:y"]
    assert main([*model, *replay, "-o", str(tmp_path / "b"), "-q"]) == 0
    one, two = (json.loads((tmp_path / name / "plan.json").read_text()) for name in "ab")
    assert one["schedule"] == two["schedule"] == order
    assert one["value"] == pytest.approx(two["value"], rel=2e-3)  # programs tell which stages have no gradients of weights
    (tmp_path / "c.json").write_text(json.dumps({**one, "schedule": "zb-h3"}))
    assert main([*model, "--plan", str(tmp_path / "c.json"), "--loss", "mse:y", "-o", str(tmp_path / "c")]) == 3
    assert "c.json: schedule: error[E0342]: expected one of 1f1b, gpipe, interleaved, " in capsys.readouterr().err
