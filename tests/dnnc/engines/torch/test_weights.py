"""What a rank begins with: the weights of the build, or of a checkpoint of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dnnc.build.training import Step
from dnnc.onnx import DIALECTS
from ir import parse_module
from ir.core.diagnostics import InvalidInput
from passes.framework.base import PassContext
from passes.programs.localize import LocalizePass
from tests.dnnc.engines.torch.training_builds import write_checkpoint
from tests.golden import ROOT

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from dnnc.engines.torch.checkpoint import INITIAL, Checkpoint, Position  # noqa: E402
from dnnc.engines.torch.rank import load_weights  # noqa: E402

ROWS = torch.arange(32.0).reshape(8, 4)
OTHER = "hint: is it of another model? A plan that trains other weights cannot go on from it either"


@pytest.fixture(scope="module")
def step() -> Step:
    """Momentum on a mesh of two, each of which holds all of ``@w`` and half the rows of its momentum."""
    path = ROOT / "passes/differentiate/sharded_update.out.ir"
    module = parse_module(path.read_text(encoding="utf-8"), path.name)
    return Step(LocalizePass().run(module, PassContext(dialects=DIALECTS)))


@pytest.fixture
def initial(tmp_path: Path) -> Path:
    path = tmp_path / INITIAL
    write_checkpoint(path, {"w": ROWS}, Position())
    return path


def resumed(step: Step, initial: Path, rank: int = 0, **stored: Any) -> dict[str, Any]:
    """What a rank holds that goes on from a checkpoint of these tensors."""
    path = initial.with_name("step3.safetensors")
    write_checkpoint(path, {name.replace("__", "."): tensor.clone() for name, tensor in stored.items()}, Position(3))
    return load_weights(step, rank, Checkpoint.open(initial), Checkpoint.open(path))


def test_without_a_checkpoint_optimizer_state_begins_as_the_plan_says(step: Step, initial: Path) -> None:
    found = load_weights(step, 1, Checkpoint.open(initial), None)
    assert found.keys() == {"w", "w.momentum", "const.f32.1.0"}
    assert torch.equal(found["w"], ROWS)
    assert torch.equal(found["w.momentum"], torch.zeros(4, 4))
    assert torch.equal(found["const.f32.1.0"], torch.tensor(1.0))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_takes_its_part_of_a_checkpoint_and_what_that_lacks_of_the_build(rank: int, step: Step, initial: Path) -> None:
    found = resumed(step, initial, rank, w=ROWS + 1, w__momentum=ROWS + 2)
    assert torch.equal(found["w"], ROWS + 1)
    assert torch.equal(found["w.momentum"], (ROWS + 2)[4 * rank : 4 * rank + 4])
    assert torch.equal(found["const.f32.1.0"], torch.tensor(1.0))


def test_the_state_of_another_optimizer_is_left(step: Step, initial: Path) -> None:
    found = resumed(step, initial, w=ROWS + 1, w__exp_avg=ROWS, w__exp_avg_sq=ROWS)
    assert torch.equal(found["w"], ROWS + 1)
    assert torch.equal(found["w.momentum"], torch.zeros(4, 4))


@pytest.mark.parametrize(
    ("stored", "code", "told"),
    [
        ({}, "E0734", f"it holds no weight 'w', which the plan trains\n  {OTHER}"),
        ({"w__momentum": ROWS}, "E0734", f"it holds no weight 'w', which the plan trains\n  {OTHER}"),
        ({"w": ROWS, "v": ROWS}, "E0735", f"it holds a weight 'v', which the plan lacks\n  {OTHER}"),
        ({"w": ROWS, "v__momentum": ROWS}, "E0735", f"it holds a weight 'v.momentum', which the plan lacks\n  {OTHER}"),
        ({"w": ROWS[:4]}, "E0733", "its weight 'w' is float32[4, 4]; expected float32[8, 4]\n  hint: is it of another model?"),
        (
            {"w": ROWS, "w__momentum": ROWS[4:]},
            "E0733",
            "its weight 'w.momentum' is float32[4, 4]; expected float32[8, 4]\n  hint: is it of another model?",
        ),
        (
            {"w": ROWS.half()},
            "E0733",
            "its weight 'w' is float16[8, 4]; expected float32[8, 4]\n  hint: is it of another model?",
        ),
    ],
)
def test_a_checkpoint_of_another_model(stored: dict[str, Any], code: str, told: str, step: Step, initial: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        resumed(step, initial, **stored)
    assert str(caught.value) == f"{initial.with_name('step3.safetensors')}: error[{code}]: {told}"


def test_a_build_that_lacks_a_weight(step: Step, initial: Path) -> None:
    write_checkpoint(initial, {"v": ROWS}, Position())
    with pytest.raises(InvalidInput) as caught:
        load_weights(step, 0, Checkpoint.open(initial), None)
    assert str(caught.value).startswith(f"{initial}: error[E0732]: it holds no weight 'w'")
