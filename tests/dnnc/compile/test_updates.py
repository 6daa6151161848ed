"""The options of an update: what they make of the passes, and what is wrong with others, each at its flag."""

from __future__ import annotations

from pathlib import Path

import pytest

import dnnc
from dnnc.cli import main
from dnnc.compile.rates import rate_schedule
from dnnc.compile.training import TrainingOptions, with_training
from ir.core.diagnostics import UsageError
from ir.ops.rates import RateSchedule
from passes.framework.pipeline import parse_pipeline, pipeline_text

MLP = ("zoo:mlp,layers=2,hidden=8,batch=4", "-t", "preset:cpu-2", "--objective", "training", "--loss", "mse:y")
FUNCTIONS = """
def half(done): return 0.5**done
def text(done): return "x"
def negative(done): return -1
def infinite(done): return float("inf")
def raises(done): return [1.0][done]
number = 3
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "functions_of_a_test.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))


def text_of(options: TrainingOptions) -> str:
    return pipeline_text(with_training(parse_pipeline("training,differentiate"), options, plan_only=False))


def test_options_go_to_their_passes() -> None:
    schedule = "cosine, steps=9"
    options = TrainingOptions(
        optimizer="adamw", beta1=0.8, clip_norm=1.0, ema=0.9, no_decay=True, group=("*.b,weight-decay=0",),
        learning_rate_schedule=schedule,
    )  # fmt: skip
    assert text_of(options) == (
        'training{optimizer=adamw,clip-norm=1.0,rate="cosine,steps=9",ema=0.9,groups=["*.b,weight-decay=0"],no-decay=true},'
        "differentiate{beta1=0.8}"
    )


@pytest.mark.parametrize(("momentum", "optimizer"), [(0.9, "momentum"), (0.0, "sgd")])
def test_sgd_with_momentum(momentum: float, optimizer: str) -> None:
    text = text_of(TrainingOptions(optimizer="sgd", momentum=momentum))
    assert text.startswith(f"training{{optimizer={optimizer}}}")
    assert ("momentum=0.9}" in text) == (momentum > 0)


@pytest.mark.usefixtures("functions")
def test_a_function_gives_a_table() -> None:
    assert rate_schedule("functions_of_a_test:half,steps=3") == RateSchedule("table", values=(1.0, 0.5, 0.25))


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("half", "no number"),
        ("functions_of_a_test:half", "E1032]: a function takes steps=N, from 1 to 65536, not ''"),
        ("functions_of_a_test:half,steps=0", "E1032]: a function takes steps=N, from 1 to 65536, not 'steps=0'"),
        ("functions_of_a_test:half,steps=2,warmup=1", "E1032]: a function takes steps=N"),
        ("no_such_module:half,steps=2", "E1033]: 'no_such_module:half' cannot be imported: ModuleNotFoundError: No module"),
        ("functions_of_a_test:other,steps=2", "E1033]: 'functions_of_a_test:other' cannot be imported: AttributeError"),
        ("functions_of_a_test:number,steps=2", "E1033]: 'functions_of_a_test:number' cannot be imported: it is no function"),
        ("functions_of_a_test:text,steps=2", "E1034]: 'functions_of_a_test:text' gives no factor for step 1: it returned 'x'"),
        ("functions_of_a_test:negative,steps=2", "gives no factor for step 1: it returned -1"),
        ("functions_of_a_test:infinite,steps=2", "gives no factor for step 1: it returned inf"),
        ("functions_of_a_test:raises,steps=2", "gives no factor for step 2: IndexError: list index out of range"),
    ],
)
def test_functions_that_give_no_factors(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        rate_schedule(text)
    assert str(caught.value).startswith(f"--learning-rate-schedule {text}: error[")
    assert told in str(caught.value) or text == "half"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--clip-norm 0", "--clip-norm: error[E1032]: --clip-norm is a finite number of more than 0, not 0"),
        ("--clip-norm nan", "--clip-norm: error[E0108]: found nan, expected a finite number"),
        ("--ema 1", "--ema: error[E1032]: --ema is a finite number of at least 0 and less than 1, not 1"),
        ("--beta2 -0.5", "--beta2: error[E1032]: --beta2 is a finite number of at least 0 and less than 1, not -0.5"),
        ("--epsilon -1", "--epsilon: error[E1032]: --epsilon is a finite number of at least 0, not -1"),
        ("--optimizer adafactor --threshold 0.5", "--threshold: error[E1032]: --threshold is a finite number of at least 1"),
        ("--optimizer adafactor --beta2-decay 1", "--beta2-decay: error[E1032]: --beta2-decay is a finite number of at most 0"),
        ("--epsilon1 1e-30", "--epsilon1: error[E1032]: adam has no --epsilon1: that is of adafactor"),
        ("--nesterov", "--nesterov: error[E1032]: adam has no --nesterov: that is of sgd with momentum"),
        ("--optimizer sgd --nesterov", "--nesterov: error[E1032]: sgd has no --nesterov: that is of sgd with momentum"),
        ("--optimizer sgd --beta1 0.5", "--beta1: error[E1032]: sgd has no --beta1: that is of adam or adamw"),
        ("--threshold 2", "--threshold: error[E1032]: adam has no --threshold: that is of adafactor"),
        ("--group fc1*", "--group fc1*: error[E1032]: a group is GLOB,learning-rate=NUMBER,weight-decay=NUMBER (one number or"),
        ("--group fc1*,lr=1", "--group fc1*,lr=1: error[E1032]: a group has learning-rate=NUMBER and weight-decay=NUMBER, not"),
        ("--group fc1*,learning-rate=x", "error[E1032]: learning-rate is a number, not 'x'"),
        ("--group fc1*,weight-decay=-1", "error[E1032]: weight-decay is a finite number of at least 0, not -1"),
        ("--group fc9*,weight-decay=1", "--group: error[E3505]: 'fc9*' matches no floating-point weight of the model"),
        (
            "--learning-rate-schedule cosin",
            "error[E1032]: a schedule is constant, linear, cosine or step, not 'cosin'",
        ),
        ("--learning-rate-schedule cosine", "error[E1032]: steps is at least 1, not 0"),
        ("--loss-scale 8", "--loss-scale 8: error[E1032]: a loss scale is dynamic, or init=NUMBER, growth=NUMBER"),
        ("--schedule 2bw --dtype f16", "--dtype f16: error[E1032]: --dtype f16 needs the gradients of all stages of a step"),
        ("--schedule 2bw --loss-scale dynamic", "--loss-scale: error[E1032]: --loss-scale needs the gradients of all stages"),
        ("--schedule 2bw --clip-norm 1", "--clip-norm: error[E1032]: --clip-norm needs the gradients of all stages of a step"),
    ],
)
def test_wrong_values(arguments: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", *MLP, "-q", "-o", str(tmp_path / "build"), *arguments.split()]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "build").exists()


def test_options_of_training_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", *MLP[:3], "-o", str(tmp_path / "build"), "--clip-norm", "1", "--no-decay"]) == 2
    assert "--clip-norm, --no-decay: only with --objective training" in capsys.readouterr().err


def test_the_plan_tells_of_its_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And counts the bytes of averages, and of gradients that are read and written once more."""
    options = ("--clip-norm", "1", "--ema", "0.9", "--no-decay", "--learning-rate-schedule", "linear,steps=9", "--plan-only")
    options += ("--loss-scale", "init=1024")
    assert main(["compile", *MLP, "-o", str(tmp_path / "build"), *options]) == 0
    told = (
        "  update: adam, norm of gradients clipped to 1, learning rate linear,steps=9, moving averages of decay 0.9, scale of "
    )
    assert f"{told}the loss init=1024.0, 2 of 4" in capsys.readouterr().out
    keywords = {"loss": "mse:y", "objective": "training", "stages": 1, "replicas": 1, "mesh": "none"}
    plain, more = (
        dnnc.plan(MLP[0], machines="preset:cpu-2", **keywords, **options)  # type: ignore[arg-type]
        for options in ({}, {"clip_norm": 1.0, "ema": 0.9, "group": "fc1*,learning-rate=0.1"})
    )
    assert more.stages[0].memory > plain.stages[0].memory
    assert more.value > plain.value
