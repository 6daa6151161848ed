"""``dnnc.optimizer_options``: a plan updates weights as an optimizer of PyTorch does, or says what it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
pytestmark = pytest.mark.slow  # the exporter of PyTorch takes seconds to load

import onnx  # noqa: E402
from torch import nn  # noqa: E402

import dnnc  # noqa: E402


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.hidden = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, ids: Any) -> Any:
        return self.head(self.norm(torch.tanh(self.hidden(self.table(ids)))))


def groups_of(module: Tied) -> list[dict[str, Any]]:
    rest = [*module.table.parameters(), *module.unused.parameters()]
    return [
        {"params": rest, "lr": 0.01},
        {"params": [*module.hidden.parameters()]},
        {"params": [module.norm.weight], "weight_decay": 0.0},
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tied, Path]:
    torch.manual_seed(0)
    module = Tied()
    return module, dnnc.from_torch(module, (torch.randint(0, 11, (4, 5)),), tmp_path_factory.mktemp("m") / "m.onnx")


def names_of(path: Path) -> set[str]:
    return {one.name for one in onnx.load(path).graph.initializer}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0}),
        (
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True, weight_decay=0.2),
            {"optimizer": "momentum", "momentum": 0.8, "nesterov": True, "learning_rate": 0.1, "weight_decay": 0.2},
        ),
        (
            lambda p: torch.optim.AdamW(p, 1e-4, betas=(0.8, 0.95), eps=1e-6),
            {"optimizer": "adamw", "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "learning_rate": 1e-4, "weight_decay": 0.01},
        ),
        (
            lambda p: torch.optim.Adafactor(p, d=2.0, eps=(1e-5, 1e-2)),
            {
                **{"optimizer": "adafactor", "threshold": 2.0, "beta2_decay": -0.8, "epsilon1": 1e-5, "epsilon2": 1e-2},
                **{"learning_rate": 0.01, "weight_decay": 0.0},
            },
        ),
    ],
)
def test_rules_and_numbers(make: Any, options: dict[str, Any], exported: tuple[Tied, Path]) -> None:
    module, path = exported
    assert dnnc.optimizer_options(make(module.parameters()), module, path) == options


def test_a_scheduler_does_not_change_the_rate_that_is_taken(exported: tuple[Tied, Path]) -> None:
    module, path = exported
    optimizer = torch.optim.Adam(module.parameters(), 0.5)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 0.01)
    assert dnnc.optimizer_options(optimizer, module, path)["learning_rate"] == 0.5


def test_groups_of_the_weights_that_the_model_has(exported: tuple[Tied, Path]) -> None:
    """The tied weight is called as in the model, one that the model lacks is left out, one in no group is frozen."""
    module, path = exported
    options = dnnc.optimizer_options(torch.optim.AdamW(groups_of(module), 0.1), module, path)
    (tied,) = {"table.weight", "head.weight"} & names_of(path)
    assert options["learning_rate"] == 0.1
    assert options["weight_decay"] == 0.01
    assert options["group"] == [
        f"{tied},learning-rate=0.01,weight-decay=0.01",
        "norm.weight,learning-rate=0.1,weight-decay=0.0",
    ]
    assert options["frozen"] == ["norm.bias"]


def stepped(parameters: Any) -> Any:
    optimizer = torch.optim.Adam(parameters)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (torch.optim.RMSprop, "RMSprop is none of SGD, Adam, AdamW, Adafactor"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "it has amsgrad=True, which no rule of dnnc has"),
        (lambda p: torch.optim.SGD(p, 0.1, maximize=True), "it has maximize=True, which no rule of dnnc has"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1), "it has a dampening of momentum"),
        (
            lambda p: torch.optim.Adam([{"params": p[:1]}, {"params": [p[1], nn.Parameter(torch.ones(2, 3))]}]),
            "parameter 1 of its group 1, [2, 3], is not of the module",
        ),
        (lambda p: torch.optim.Adam([{"params": [q], "eps": 10.0**-n} for n, q in enumerate(p)]), "its groups differ in eps"),
        (stepped, "it has made steps, and training begins without its state"),
    ],
)
def test_what_no_plan_does_is_refused(make: Any, told: str, exported: tuple[Tied, Path]) -> None:
    module, path = exported
    with pytest.raises(dnnc.UsageError) as caught:
        dnnc.optimizer_options(make(list(module.parameters())), module, path)
    assert str(caught.value).startswith(f"optimizer: error[E1517]: {told}")


@pytest.mark.slow
def test_steps_are_those_of_the_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module, trained = Tied(), Tied()
    trained.load_state_dict(module.state_dict())
    given, labels = torch.randint(0, 11, (2, 8, 5)), torch.randint(0, 11, (2, 8, 5))
    path = dnnc.from_torch(module, (given[0][:4],), tmp_path / "m.onnx")
    options: Any = dnnc.optimizer_options(torch.optim.AdamW(groups_of(module), 0.02, betas=(0.5, 0.9)), module, path)
    (output,) = (value.name for value in onnx.load(path).graph.output)
    asked = {"objective": "training", "loss": f"cross-entropy:{output}", "microbatches": 2, "stages": 2, "mesh": "none"}
    build = dnnc.plan(path, machines="preset:cpu-2", **asked, **options).write(tmp_path / "build")
    build.train([{"ids": x, "labels": y} for x, y in zip(given, labels, strict=True)], steps=2, checkpoint=tmp_path / "c")
    optimizer = torch.optim.AdamW(groups_of(trained), 0.02, betas=(0.5, 0.9))
    for x, y in zip(given, labels, strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
    dnnc.into_torch(module, tmp_path / "c" / "step2")
    for name, value in trained.named_parameters():
        assert torch.allclose(module.get_parameter(name), value, atol=1e-5), name
