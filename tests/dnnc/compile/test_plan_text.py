"""The text of a plan is the whole plan: what devices run follows from ``plan.ir`` alone, in another process, to the byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import ir
from dnnc.cli import main
from tests.dnnc.onnx.test_models import SHARED_DIMS

PLANS = {
    "mesh 2": ("--mesh", "2"),
    "mesh 2x2": ("--mesh", "2x2"),
    "stages on meshes": ("--mesh", "2", "--stages", "2"),
}
SMALL = "zoo:gpt2,layers=2,hidden=32,heads=4,vocab=64,seq=8,batch=4"
MACHINE = "preset:cpu-4"


def dnnc(*words: str | Path) -> None:
    """Runs the command here."""
    assert main([*map(str, words)]) == 0


def apart(*words: str | Path) -> None:
    """Runs the command in a process of its own, with other hashes of strings."""
    done = subprocess.run([sys.executable, "-m", "dnnc", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_text(
    model: str, options: tuple[str, ...], folder: Path, dims: Mapping[str, int | str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs from the text are those of the compilation, as IR and as ONNX, and a build of the text passes its check."""
    dumps, first, again = folder / "dumps", folder / "first", folder / "again"
    bound = [word for name, size in dims.items() for word in ("--dim", f"{name}={size}")]
    dnnc("compile", model, "-t", MACHINE, *bound, *options, "-o", first, "--print-folder", dumps, "--quiet")
    made = (dumps / max(path.name for path in dumps.iterdir())).read_text(encoding="utf-8")
    apart("compile", model, "-t", MACHINE, *bound, "--plan", first / "plan.ir", "-o", again, "--quiet")
    assert files(again / "stages") == files(first / "stages")
    capsys.readouterr()
    dnnc("inspect", first / "plan.ir", "--programs")
    assert programs(made) == programs(capsys.readouterr().out)
    dnnc("check", again)
    assert "passed" in capsys.readouterr().out


def programs(text: str) -> list[ir.Program]:
    found = list(ir.parse_module(text).of_type(ir.Program))
    assert found
    return found


@pytest.mark.slow
def test_programs_follow_from_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_text(SMALL, PLANS["stages on meshes"], tmp_path, {}, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("llama", "mesh 2"),
        ("resnet", "mesh 2x2"),
        ("vit", "stages on meshes"),
    ],
)
def test_programs_of_a_real_model_follow_from_the_text(
    model: str, plan: str, tmp_path: Path, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_text(str(shared_dir / "models" / f"{model}.onnx"), PLANS[plan], tmp_path, SHARED_DIMS[model], capsys)
