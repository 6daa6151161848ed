"""The table "as PyTorch": modules of many kinds, trained for 5 steps by processes, are as far as rounding from what PyTorch
makes of them (``python -m tests.dnnc.engines.torch.pytorch_modules`` prints how far, of each plan)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
modules: Any = pytest.importorskip("tests.dnnc.engines.torch.pytorch_modules", reason="the extra 'train' is not installed")

pytestmark = pytest.mark.slow
CLOSE = 4e-6
"""A unit in the last place of a float is 1.2e-7 of it; 5 steps of sums in another order make some of these."""
GROUPS = 5
"""Groups of modules that are exported together, since exporting and planning take longer than training."""


def test_the_table_has_forty_modules_and_more() -> None:
    assert len(modules.CASES) >= 40
    assert len(modules.WHOLE) >= 30


@pytest.mark.parametrize("number", range(GROUPS))
def test_steps_are_pytorchs(number: int, tmp_path: Path) -> None:
    """On a mesh, where a rule of its own splits each operator. Other plans leave operators whole: the whole models below run
    on these."""
    case = modules.together([*modules.CASES.values()][number::GROUPS])
    assert modules.Trial(case, tmp_path).difference("mesh") < CLOSE


@pytest.mark.parametrize("number", range(len(modules.WHOLE)))
def test_steps_of_whole_models_are_pytorchs(number: int, tmp_path: Path) -> None:
    """Each on one of the plans, in turn; the table has all."""
    name, plan = [*modules.WHOLE][number], [*modules.PLANS][number % len(modules.PLANS)]
    assert modules.Trial(modules.WHOLE[name], tmp_path).difference(plan) < CLOSE
