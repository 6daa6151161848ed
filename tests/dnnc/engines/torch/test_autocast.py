"""``--dtype bf16`` and ``f16`` train as PyTorch does under ``torch.autocast`` on CPUs, ``f16`` with its ``GradScaler``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dnnc
from dnnc.build.build import Snapshot, read_program
from dnnc.check.proof import prove
from dnnc.cli import main
from ir.core.module import Stage
from ir.core.types import DType, without_layout
from passes.prepare.autocast import NARROW, WIDE
from tests.dnnc.engines.torch.training_builds import compiled, weights
from tests.dnnc.sealing import refresh

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

MACHINES = """version = 1
hosts = [{name = "h", cores = 2}]
devices = [{name = "c0", type = "core", host = "h"}, {name = "c1", type = "core", host = "h"}]
links = [{ends = ["c0", "c1"], bandwidth = "5 GB/s", latency = "5 us"}]
[types.core]
rates = {f32 = "50 GFLOP/s", bf16 = "100 GFLOP/s", f16 = "100 GFLOP/s"}
memory_bandwidth = "10 GB/s"
memory = "4 GiB"
cores = 1
"""
ONE = ("--stages", "1", "--replicas", "1", "--mesh", "none")
PLANS = {
    "stages": ("--stages", "2", "--replicas", "1", "--mesh", "none"),
    "mesh": ("--mesh", "2"),
    "replicas": ("--stages", "1", "--replicas", "2", "--mesh", "none"),
}


class Block(nn.Module):
    """A layer of a transformer between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(50, 32), nn.Parameter(torch.randn(8, 32) * 0.1)
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        h = self.embedding(x) + self.places
        q, k, v = (one.reshape(-1, 8, 4, 8).transpose(1, 2) for one in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 8, 32))
        return self.head(h + self.wide(h))


def convolutional() -> Any:
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8, 10))


def settled() -> Any:
    """A batch normalisation whose averages do not move."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8).eval(), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10))


MODULES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "dense": (
        lambda: nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 10)),
        lambda: torch.randn(8, 16),
    ),
    "convolutional": (convolutional, lambda: torch.randn(8, 3, 12, 12)),
    "settled": (settled, lambda: torch.randn(8, 3, 12, 12)),
    "transformer": (Block, lambda: torch.randint(0, 50, (4, 8))),
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "MatMul": lambda x: x @ x,
    "Gemm": lambda x: functional.linear(x, x, x[0]),
    "Conv": lambda x: functional.conv2d(x[None, None], x[None, None, :3, :3]),
    "ConvTranspose": lambda x: functional.conv_transpose2d(x[None, None], x[None, None, :3, :3]),
    "Einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "Attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "SoftmaxCrossEntropyLoss": lambda x: functional.cross_entropy(x, torch.zeros(8, dtype=torch.long)),
    "NegativeLogLikelihoodLoss": lambda x: functional.nll_loss(x, torch.zeros(8, dtype=torch.long)),
    "ReduceProd": lambda x: x.prod(-1),
    "DFT": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "GridSample": lambda x: functional.grid_sample(x[None, None], x[None, :, :2, None].transpose(2, 3), align_corners=False),
    "Softmax": lambda x: x.softmax(-1),
    "LayerNormalization": lambda x: functional.layer_norm(x, (8,), x[0].float(), x[0].float()),
    "BatchNormalization": lambda x: functional.batch_norm(
        x, x[0].float(), x[1].float(), x[0].float(), x[0].float(), training=True
    ),
    "Pow": lambda x: x**2,
    "ReduceMean": lambda x: x.mean(-1),
    "Add": lambda x: x + x.float(),
    "Mul": lambda x: x * torch.tensor(0.5),
}
"""Operators as PyTorch calls them."""
WIDENED = ("Add",)


@pytest.mark.parametrize("name", list(CALLS))
def test_operators_have_the_type_that_autocast_gives_them(name: str) -> None:
    """Those of the two lists whatever they read; others the widest of what they read, beside scalars and later operands."""
    full = f"onnx.{name}"
    for narrow, dtype in itertools.product((torch.bfloat16, torch.float16), (torch.float32, None)):
        dtype = dtype or narrow
        with torch.autocast("cpu", dtype=narrow):
            found = CALLS[name](torch.rand(8, 8).to(dtype)).dtype
        expected = narrow if full in NARROW else torch.float32 if full in WIDE or name in WIDENED else dtype
        assert found == expected


def exported(name: str, folder: Path, microbatches: int = 1) -> tuple[Path, str, Any, Any]:
    """The model file of a module with samples of a step beside it; its loss, and the arguments of all microbatches."""
    torch.manual_seed(0)
    module, x = MODULES[name][0](), torch.cat([MODULES[name][1]() for _ in range(microbatches)])
    labels = torch.randint(0, 10, (*((x.shape[0],) if name != "transformer" else x.shape),))
    dnnc.from_torch(module, (x.chunk(microbatches)[0],), folder / "m.onnx")
    graph = onnx.load(folder / "m.onnx").graph
    np.savez(folder / "data.npz", **{graph.input[0].name: x.numpy(), "labels": labels.numpy()})
    (folder / "machines.toml").write_text(MACHINES)
    return folder / "m.onnx", f"cross-entropy:{graph.output[0].name}", x, labels


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODULES))
def test_steps_are_those_of_autocast(name: str, tmp_path: Path) -> None:
    """Five steps: each loss within 0.2 %, each weight within 2 % of what it moved by (a bf16 number has 8 bits)."""
    model, loss, x, labels = exported(name, tmp_path)
    asked = ["compile", str(model), "-t", str(tmp_path / "machines.toml"), "--objective", "training", "--loss", loss, "-q"]
    asked += ["--microbatches", "1", *ONE, "--optimizer", "sgd", "--learning-rate", "0.05", "--dtype", "bf16"]
    assert main([*asked, "-o", str(tmp_path / "build")]) == 0
    train = ["train", str(tmp_path / "build"), "--steps", "5", "--data", str(tmp_path / "data.npz"), "-q"]
    assert main([*train, "--checkpoint", str(tmp_path / "out")]) == 0
    torch.manual_seed(0)
    module = MODULES[name][0]()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    optimizer, losses = torch.optim.SGD(module.parameters(), 0.05), []
    for _ in range(5):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = functional.cross_entropy(module(x).reshape(-1, 10), labels.reshape(-1))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    found = [one["loss"] for one in json.loads((tmp_path / "out/losses.json").read_text())]
    assert found == pytest.approx(losses, rel=2e-3)
    trained = weights(tmp_path / "out/step5")
    for key, value in module.named_parameters():
        moved = float((value.detach() - before[key]).norm())
        assert float((trained[key] - value.detach()).norm()) <= 0.02 * moved + 2e-5, (
            key
        )  # a bias before a normalisation hardly moves


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_steps_in_half_precision_are_those_of_a_grad_scaler(plan: str, tmp_path: Path) -> None:
    """Of a loop of PyTorch with a clipped norm, four microbatches a step. The first steps overflow: they change nothing, on all
    ranks alike, and the scale falls; it grows again behind two that do not, and a step overflows once more. Weights within 2 %
    of what they moved by. Scales are so far apart that sums overflow on a member of the mesh, too, where they do whole."""
    steps, microbatches, numbers = 6, 4, (2.0**23, 4.0, 0.25, 2)
    scale = dict(zip(("init", "growth", "backoff", "interval"), numbers, strict=True))
    options = ("--clip-norm", "0.5", "--loss-scale", ",".join(f"{key}={value}" for key, value in scale.items()))
    model, loss, x, labels = exported("transformer", tmp_path, microbatches)
    asked = ["compile", str(model), "-t", str(tmp_path / "machines.toml"), "--objective", "training", "--loss", loss, "-q"]
    asked += [
        "--microbatches",
        str(microbatches),
        *PLANS[plan],
        "--optimizer",
        "momentum",
        "--learning-rate",
        "0.05",
        "--dtype",
        "f16",
    ]
    assert main([*asked, *options, "-o", str(tmp_path / "build")]) == 0
    assert prove(tmp_path / "build").proven
    parts = [*zip(x.chunk(microbatches), labels.chunk(microbatches), strict=True)]
    name = onnx.load(model).graph.input[0].name
    data = ({name: part.numpy(), "labels": wanted.numpy()} for _ in range(steps) for part, wanted in parts)
    dnnc.Build(tmp_path / "build").train(data, steps=steps, checkpoint=tmp_path / "out", out=tmp_path / "out")
    torch.manual_seed(0)
    module = MODULES["transformer"][0]()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    optimizer, scaler = torch.optim.SGD(module.parameters(), 0.05, 0.9), torch.amp.GradScaler("cpu", *numbers)
    expected, skipped = [], 0
    for _ in range(steps):
        optimizer.zero_grad()
        total, before_step = 0.0, scaler.get_scale()
        for part, wanted in parts:
            with torch.autocast("cpu", dtype=torch.float16):
                value = functional.cross_entropy(module(part).reshape(-1, 10), wanted.reshape(-1)) / microbatches
            scaler.scale(value).backward()
            total += value.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before_step
        expected.append((total, scaler.get_scale(), skipped))
    found = json.loads((tmp_path / "out/losses.json").read_text())
    assert [(one["loss_scale"], one["skipped"]) for one in found] == [one[1:] for one in expected]
    assert skipped == 3
    assert [one["loss"] for one in found] == pytest.approx([one[0] for one in expected], rel=1e-3)
    trained = weights(tmp_path / f"out/step{steps}")
    assert (trained["loss_scale"], trained["loss_scale.skipped"]) == expected[-1][1:]
    for key, value in module.named_parameters():
        moved = float((value.detach() - before[key]).norm())
        assert float((trained[key] - value.detach()).norm()) <= 0.02 * moved + 2e-5, key
    train = ("train", str(tmp_path / "build"), "--steps", str(steps), "--data", str(tmp_path / "data.npz"))
    assert main([*train, "--check", "-q"]) == 0


@pytest.mark.slow
def test_the_scale_goes_on_from_a_checkpoint_by_any_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of another type too: then it is left out, or begins anew. The steps and the log tell of it."""
    (tmp_path / "machines.toml").write_text(MACHINES)
    machines, scale = str(tmp_path / "machines.toml"), ("--loss-scale", "init=1099511627776")
    narrow = ("--dtype", "f16", *scale)
    builds = {
        "stages": compiled(tmp_path / "stages", *PLANS["stages"], *narrow, topology=machines),
        "mesh": compiled(tmp_path / "mesh", *PLANS["mesh"], *narrow, topology=machines),
        "wide": compiled(tmp_path / "wide", *ONE, topology=machines),
    }
    save = ("--checkpoint", str(tmp_path))
    assert main(["train", str(builds["stages"]), "--steps", "4", *save, "-q"]) == 0
    whole = weights(tmp_path / "step4")
    assert main(["train", str(builds["stages"]), "--steps", "2", *save, "-q"]) == 0
    assert weights(tmp_path / "step2")["loss_scale"] == 2.0**38
    log = tmp_path / "log.csv"
    assert (
        main(["train", str(builds["mesh"]), "--steps", "2", "--resume", str(tmp_path / "step2"), *save, "--log", str(log)]) == 0
    )
    told = capsys.readouterr().out
    assert "samples/s  loss scale 1.37439e+11, 3 skipped" in told
    rows = log.read_text().splitlines()
    assert rows[0].split(",")[4:6] == ["loss_scale", "skipped"]
    assert [row.split(",")[5] for row in rows[1:]] == ["3", "4"]
    again = weights(tmp_path / "step4")
    assert (again.keys(), again["loss_scale"]) == (whole.keys(), whole["loss_scale"])
    assert main(["train", str(builds["wide"]), "--steps", "1", "--resume", str(tmp_path / "step4"), *save, "-q"]) == 0
    assert "loss_scale" not in weights(tmp_path / "step5")
    assert main(["train", str(builds["mesh"]), "--steps", "1", "--resume", str(tmp_path / "step5"), *save, "-q"]) == 0
    assert weights(tmp_path / "step6")["loss_scale"] == 2.0**39


@pytest.mark.slow
def test_an_overflow_that_no_scale_explains_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss of a value beyond half precision is no number at any scale: the op is named as without a scale."""
    (tmp_path / "machines.toml").write_text(MACHINES)
    build = compiled(tmp_path / "build", *ONE, "--dtype", "f16", topology=str(tmp_path / "machines.toml"))
    x, target = np.full((8, 4, 784), 1e5, np.float32), np.zeros((8, 4, 10), np.float32)
    np.savez(tmp_path / "data.npz", x=x.reshape(-1, 784), target=target.reshape(-1, 10))
    assert main(["train", str(build), "--steps", "1", "--data", str(tmp_path / "data.npz"), "-q"]) == 3
    assert "infinity" in capsys.readouterr().err


class Rooted(nn.Module):
    """Adds the square root of a weight that is 0: the loss is finite, and the gradient of the weight is not at any scale. Wide
    layers on both sides put the weight in the middle one of three stages."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.root = nn.Sequential(nn.Linear(8, 400), nn.Linear(400, 16)), nn.Parameter(torch.zeros(16))
        self.after = nn.Sequential(nn.Linear(16, 400), nn.Tanh(), nn.Linear(400, 4))

    def forward(self, x: Any) -> Any:
        return self.after(torch.tanh(self.before(x)) + torch.sqrt(self.root))


@pytest.mark.slow
@pytest.mark.parametrize(("options", "stage"), [({"stages": 1, "replicas": 2}, 0), ({"stages": 3}, 1)])
def test_a_gradient_that_is_not_finite_at_any_scale_is_named(options: dict[str, Any], stage: int, tmp_path: Path) -> None:
    """In the first step with a scale below 2^-14, also where a rank sums gradients with others or does not hold the scale, and
    behind a checkpoint."""
    torch.manual_seed(0)
    dnnc.from_torch(Rooted(), (torch.randn(4, 8),), tmp_path / "m.onnx")
    third = MACHINES.replace('{name = "c1"', '{name = "c2", type = "core", host = "h"}, {name = "c1"')
    (tmp_path / "machines.toml").write_text(third.replace('["c0", "c1"]', '["h", "devices of h"]'))
    loss = f"cross-entropy:{onnx.load(tmp_path / 'm.onnx').graph.output[0].name}"
    asked = {"objective": "training", "loss": loss, "microbatches": 2, "mesh": "none", "loss_scale": "init=0.001"}
    plan = dnnc.plan(tmp_path / "m.onnx", machines=tmp_path / "machines.toml", dtype="f16", **asked, **options)  # type: ignore[arg-type]
    build = plan.write(tmp_path / "build")
    build.train(steps=3, checkpoint=tmp_path / "out")
    told = rf"^step 6: error\[E0746\]: onnx\.Div made (?:infinity|NaN) of finite numbers: '%root\.grad' of stage {stage}, "
    with pytest.raises(dnnc.InvalidInput, match=told):
        build.train(steps=5, resume=tmp_path / "out/step3")


@pytest.mark.slow
def test_a_norm_that_overflows_at_a_small_scale_ends_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of finite gradients, of which no op is at fault, and without narrow numbers."""
    (tmp_path / "machines.toml").write_text(MACHINES)
    scale = ("--dtype", "f32", "--loss-scale", "init=0.0001,backoff=0.5")
    build = compiled(tmp_path / "build", *PLANS["stages"], *scale, topology=str(tmp_path / "machines.toml"))
    x, target = np.full((32, 784), 1e10, np.float32), np.full((32, 10), 1e18, np.float32)
    np.savez(tmp_path / "data.npz", x=x, target=target)
    assert main(["train", str(build), "--steps", "3", "--data", str(tmp_path / "data.npz"), "-q"]) == 3
    assert "step 2: error[E0748]: the norm of all gradients is not finite" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("plan", list(PLANS))
def test_on_any_plan_steps_are_those_of_the_unsplit_model(plan: str, tmp_path: Path) -> None:
    (tmp_path / "machines.toml").write_text(MACHINES)
    build = compiled(tmp_path / "build", *PLANS[plan], "--dtype", "bf16", topology=str(tmp_path / "machines.toml"))
    assert main(["train", str(build), "--steps", "3", "--check", "-q"]) == 0
    assert prove(build).proven


GPT2 = "zoo:gpt2,layers=2,hidden=32,heads=4,vocab=64,positions=16,seq=8,batch=4"
DAMAGES = {
    "a mean of too many": (".div_(4)", ".div_(5)", "the gradient of weight"),
    "a gradient of queries": (
        "h_0_attn_q_grad = torch.matmul(",
        "h_0_attn_q_grad = 1.2 * torch.matmul(",
        "the gradient of weight",
    ),
    "a rate": ("learning_rate=0.001,", "learning_rate=0.00101,", "error[E0775]: weight"),
    "a decay of the average of squares": ("beta2=0.999", "beta2=0.998", "exp_avg_sq' differs from the unsplit model's"),
}


@pytest.mark.slow
def test_the_check_of_adam_in_16_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Right programs pass, of each weight with its gradient, and damaged ones are refused, though Adam's step is as large for a
    gradient that is rounding or too small."""
    (tmp_path / "machines.toml").write_text(MACHINES)
    options = ("--dtype", "bf16", "--microbatches", "4")
    machines, loss = str(tmp_path / "machines.toml"), "cross-entropy:logits"
    build = compiled(tmp_path / "build", *PLANS["stages"], *options, topology=machines, model=GPT2, loss=loss)
    check = ["train", str(build), "--steps", "3", "--check"]
    assert main([*check, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["weights"], found["not_compared"]) == (28, [])
    path = build / "stages/stage0.py"
    right = path.read_text()
    for damage, (before, after, told) in DAMAGES.items():
        assert before in right, damage
        path.write_text(right.replace(before, after, 1))
        refresh(build, "stages/stage0.py")
        assert main([*check, "-q"]) == 5, damage
        assert told in capsys.readouterr().err, damage


def test_what_crosses_between_stages_is_narrow_and_weights_are_not(tmp_path: Path) -> None:
    (tmp_path / "machines.toml").write_text(MACHINES)
    machines = str(tmp_path / "machines.toml")
    narrow, wide = (compiled(tmp_path / d, *PLANS["stages"], "--dtype", d, topology=machines) for d in ("bf16", "f32"))
    module = read_program(Snapshot.open(narrow))
    received = [op.results[0].type for stage in module.of_type(Stage) for op in stage.ops if op.name == "comm.recv"]
    assert {without_layout(type_).dtype for type_ in received} == {DType.BF16}  # type: ignore[union-attr]
    assert {one.type.dtype for one in module.resources.values()} <= {DType.F32, DType.I64}  # type: ignore[union-attr]
    plans = [json.loads((build / "plan.json").read_text()) for build in (narrow, wide)]
    assert plans[0]["value"] != plans[1]["value"]


def test_machines_that_state_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compile", "zoo:mlp,layers=2,hidden=8,batch=2", "-t", "preset:cpu-2", "--objective", "training", "--loss", "mse:y"]
    assert main([*asked, "--dtype", "bf16", "-o", str(tmp_path / "build")]) == 3
    assert "--dtype bf16: error[E4001]: device type 'core' states no rate of bf16" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()
