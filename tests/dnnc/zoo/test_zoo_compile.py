"""Models of the zoo through the compiler: split in two they compute the same; those without data get a plan and say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.cli import main
from tests.dnnc.onnx.test_models import compile_and_check
from tests.dnnc.zoo.zoo_models import SMALL
from tests.slow_cases import slow_but

FAMILIES = ("gpt3-175b", "llama-70b", "mixtral-8x7b", "by capacity", "t5-large", "vit-base")


@pytest.mark.parametrize("name", slow_but(FAMILIES, "by capacity"))
def test_two_stages_compute_the_same(name: str, tmp_path: Path) -> None:
    compile_and_check(f"zoo:{SMALL[name]}", 2, tmp_path / "build")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt3-175b", "llama-7b", "llama-70b", "by capacity", "t5-base", "t5-large", "vit-base"])
def test_three_stages_of_halves_compute_the_same(name: str, tmp_path: Path) -> None:
    """onnxruntime has no bf16 kernels on the CPU for most operators."""
    compile_and_check(f"zoo:{SMALL[name]},batch=2,dtype=f16", 3, tmp_path / "build")


def test_a_model_without_data_is_planned_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs included, small weights too; what needs the data is refused by its exit code."""
    out = tmp_path / "build"
    spec = f"zoo:{SMALL['t5-base']},weights=declared"
    assert main(["compile", spec, "-t", "preset:cpu-2", "--stages", "2", "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "the weights are only declared" in printed.err
    assert "add ,weights=random" in printed.err
    assert "without weights, which the model only declares" in printed.out
    assert not list(out.rglob("*.data"))
    for command in ("run", "check"):
        assert main([command, str(out)]) == 3
        assert "written without weights" in capsys.readouterr().err


def test_the_largest_model_gets_a_plan(tmp_path: Path) -> None:
    """One H200 holds 141 GB, and GPT-3 in half precision has 349 GB of weights."""
    command = ["compile", "zoo:gpt3-175b,dtype=f16,layers=24", "-t", "preset:h200x2", "-o", str(tmp_path / "out"), "-q"]
    assert main([*command, "--plan-only", "--time-limit", "2"]) == 0


def test_a_model_without_data_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "export", "zoo:llama-70b", "-o", str(tmp_path / "llama.onnx")]) == 2
    assert "the weights (257.0 GiB) are only declared" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
