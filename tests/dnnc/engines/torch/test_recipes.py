"""``dnnc train`` with the options of an update, as real processes: on any plan its steps are those of torch.optim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dnnc
from dnnc.check.proof import prove
from dnnc.cli import main
from tests.dnnc.engines.onnxruntime.processes import nothing_left
from tests.dnnc.engines.torch.training_builds import TWO_STAGES, compiled, weights

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions, doubts  # noqa: E402

GPT2 = "zoo:gpt2,layers=2,hidden=32,heads=4,vocab=64,positions=16,seq=8,batch=4"
MLP = "zoo:mlp,layers=3,hidden=32,batch=4"
PLANS = {
    "stages": TWO_STAGES,
    "replicas": ("--stages", "1", "--replicas", "2", "--mesh", "none"),
    "mesh": ("--mesh", "2", "--strategy", "megatron"),
    "parts": ("--mesh", "2", "--strategy", "data", "--sync", "reduce_scatter"),
}
MESHES = ("-t", "preset:cpu-4", "--stages", "2", "--mesh", "2", "--strategy", "megatron")
WARM = ("--learning-rate-schedule", "cosine,steps=6,warmup=2,start=0.5,end=0.1")
RECIPES = {
    "adamw": ("--optimizer", "adamw", "--clip-norm", "0.3", *WARM, "--ema", "0.8", "--no-decay", "--weight-decay", "0.2"),
    "nesterov": (
        "--optimizer",
        "sgd",
        "--momentum",
        "0.8",
        "--nesterov",
        "--clip-norm",
        "0.3",
        "--group",
        "*bias,learning-rate=0.1",
    ),
    "adafactor": ("--optimizer", "adafactor", "--clip-norm", "0.3", *WARM),
}


def checked(build: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with nothing_left():
        assert main(["train", str(build), "--steps", "4", "--check", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "plan"),
    [
        ("adamw", "parts"),
        ("nesterov", "stages"),
        ("adafactor", "replicas"),
        ("adafactor", "mesh"),
    ],
)
def test_steps_are_those_of_torch(plan: str, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the programs are proven to do them. In GPT-2 a weight is tied. Adafactor alone has numbers of several elements."""
    model, loss = (GPT2, "cross-entropy:logits") if recipe == "adamw" else (MLP, "mse:y")
    build = compiled(tmp_path / "build", *PLANS[plan], *RECIPES[recipe], model=model, loss=loss)
    report = prove(build)
    assert report.proven, report.failures
    found = checked(build, capsys)
    assert (found["steps"], found["not_compared"]) == (4, [])
    assert model == GPT2 or found["worst"]["difference"] < 1e-5  # of attention, biases of keys follow rounding alone


@pytest.mark.slow
def test_a_tied_weight_of_two_meshes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second mesh keeps other parts of it than the resource has, so it assigns to what no checkpoint holds."""
    build = compiled(tmp_path / "build", *MESHES, "--optimizer", "adafactor", model=GPT2, loss="cross-entropy:logits")
    report = prove(build)
    assert report.proven, report.failures
    assert checked(build, capsys)["weights"] > 24


@pytest.mark.slow
def test_averages_and_rates_go_on_from_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By another plan too; ``into_torch`` takes the averages."""
    one = compiled(tmp_path / "one", *PLANS["stages"], *RECIPES["adamw"])
    other = compiled(tmp_path / "other", *PLANS["parts"], *RECIPES["adamw"])
    train = ("--checkpoint", str(tmp_path), "-q")
    assert main(["train", str(one), "--steps", "4", *train]) == 0
    whole = weights(tmp_path / "step4")
    assert main(["train", str(one), "--steps", "2", *train]) == 0
    assert main(["train", str(other), "--steps", "2", "--resume", str(tmp_path / "step2"), *train]) == 0
    again = weights(tmp_path / "step4")
    assert whole.keys() == again.keys()
    assert "fc1.weight.ema" in whole
    for name, value in whole.items():
        torch.testing.assert_close(again[name], value, rtol=1e-5, atol=1e-6)
    assert capsys.readouterr().err == ""
    module = torch.nn.Module()
    for layer, shape in (("fc1", (784, 32)), ("fc2", (32, 32)), ("fc3", (32, 10))):
        module.add_module(layer, torch.nn.Linear(*shape))
    dnnc.into_torch(module, tmp_path / "step4", ema=True)
    assert torch.equal(module.fc1.weight, again["fc1.weight.ema"])


@pytest.mark.slow
def test_averages_that_a_checkpoint_lacks_begin_as_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = compiled(tmp_path / "plain", *PLANS["stages"], "--optimizer", "sgd")
    averaging = compiled(tmp_path / "averaging", *PLANS["parts"], "--optimizer", "sgd", "--ema", "0.5")
    assert main(["train", str(plain), "--steps", "2", "--checkpoint", str(tmp_path), "-q"]) == 0
    before = weights(tmp_path / "step2")
    resume = ("--resume", str(tmp_path / "step2"))
    assert main(["train", str(averaging), "--steps", "1", *resume, "--checkpoint", str(tmp_path)]) == 0
    assert "it holds no moving averages: they begin as its weights" in capsys.readouterr().err
    after = weights(tmp_path / "step3")
    for name, value in before.items():
        torch.testing.assert_close(after[f"{name}.ema"], (value + after[name]) / 2)
    with pytest.raises(dnnc.InvalidInput, match="holds no moving averages"):
        dnnc.into_torch(torch.nn.Linear(1, 1), tmp_path / "step2", ema=True)


def test_a_schedule_that_ends_before_the_training_is_doubted(tmp_path: Path) -> None:
    """Where it ends at 0; a table is in the programs as any schedule is."""
    ending, staying, table = (
        TrainingBuild.open(compiled(tmp_path / str(number), *PLANS["replicas"], "--learning-rate-schedule", schedule))
        for number, schedule in enumerate(("linear,steps=3", "linear,steps=3,end=0.1", "operator:neg,steps=1"))
    )
    told = "--steps 4: warning[W0778]: the learning rate is 0 from step 4 on, behind its schedule: steps to 4 change no weight"
    assert str(doubts(ending, TrainOptions(steps=4)).diagnostics[0]).startswith(told)
    assert not doubts(ending, TrainOptions(steps=3)).diagnostics
    assert not doubts(staying, TrainOptions(steps=9)).diagnostics
    assert doubts(table, TrainOptions(steps=2)).diagnostics


PYTHON_PLANS: dict[str, dict[str, Any]] = {
    "one device": {"stages": 1, "replicas": 1, "mesh": "none"},
    "stages": {"stages": 2, "replicas": 1, "mesh": "none"},
    "replicas": {"stages": 1, "replicas": 2, "mesh": "none"},
    "mesh": {"mesh": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", PYTHON_PLANS)
def test_a_module_trains_as_in_a_loop_of_pytorch(plan: str, tmp_path: Path) -> None:
    """Written without dnnc, with groups, a clipped norm, a schedule and averages; a tied weight counts once."""
    nn, steps, microbatches = torch.nn, 5, 2
    torch.manual_seed(0)

    class Tied(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 64)
            self.norm = nn.LayerNorm(64)
            self.middle = nn.Linear(64, 64)
            self.head = nn.Linear(64, 11, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: Any) -> Any:
            return self.head(self.norm(torch.tanh(self.middle(self.words(tokens)))))

    module = Tied()
    tokens, labels = torch.randint(0, 11, (2, steps * microbatches, 4, 6))
    dnnc.from_torch(module, (tokens[0],), tmp_path / "tied.onnx")
    made = dnnc.plan(
        tmp_path / "tied.onnx", machines="preset:cpu-2", objective="training", microbatches=microbatches,
        loss="cross-entropy:linear_1", optimizer="adamw", learning_rate=0.05, weight_decay=0.1, no_decay=True, clip_norm=0.2,
        learning_rate_schedule="linear,steps=5,warmup=2,start=0.25", ema=0.7, group="middle.*,learning-rate=0.1",
        **PYTHON_PLANS[plan],
    )  # fmt: skip
    build = made.write(tmp_path / "build")
    data = ({"tokens": one.numpy(), "labels": other.numpy()} for one, other in zip(tokens, labels, strict=True))
    losses = build.train(data, steps=steps, checkpoint=tmp_path).losses

    flat = [parameter for name, parameter in module.named_parameters() if parameter.dim() < 2 and "middle" not in name]
    groups = [
        {"params": [module.words.weight]},
        {"params": flat, "weight_decay": 0.0},
        {"params": [module.middle.weight], "lr": 0.1},
        {"params": [module.middle.bias], "lr": 0.1, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1)
    rates = torch.optim.lr_scheduler
    first, rest = rates.LinearLR(optimizer, 0.25, 1.0, 2), rates.LinearLR(optimizer, 1.0, 0.0, 3)
    scheduler = rates.SequentialLR(optimizer, [first, rest], [2])
    averaged = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.7))
    for step in range(steps):
        optimizer.zero_grad()
        mine = slice(step * microbatches, (step + 1) * microbatches)
        loss = nn.functional.cross_entropy(module(tokens[mine].flatten(0, 1)).flatten(0, 1), labels[mine].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.2)
        optimizer.step()
        scheduler.step()
        averaged.update_parameters(module)
        assert losses[step] == pytest.approx(loss.item(), rel=1e-5)
    ours, ours_averaged = Tied(), Tied()
    assert dnnc.into_torch(ours, tmp_path / f"step{steps}") == ()
    dnnc.into_torch(ours_averaged, tmp_path / f"step{steps}", ema=True)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(ours_averaged.state_dict()[name], averaged.module.state_dict()[name], rtol=1e-4, atol=2e-6)
