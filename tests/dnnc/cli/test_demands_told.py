"""What is asked of a compile or a run and cannot be had is told by its name, with what became of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from dnnc.cli import main
from tests.dnnc.onnx.models import model, save

TEXT = """g (float[8, 16] x, float[16, 16] w) => (float[8, 16] y) {
  a = MatMul(x, w)
  b = Identity(a)
  sizes = Shape(b)
  r = Reshape(b, sizes)
  c = Relu(r)
  d = Sigmoid(a)
  e = Identity(x)
  f = MatMul(e, w)
  y = Sum(c, d, f)
}"""
CHAIN = "g (float[8, 16] x) => (float[8, 16] y) { a = Relu(x)\n b = Sigmoid(a)\n c = Tanh(b)\n d = Neg(c)\n y = Exp(d) }"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A model whose input ``w`` has a default."""
    proto = model(TEXT)
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(16, dtype=np.float32), "w"))
    proto.graph.node[1].name = "same"
    return str(save(proto, tmp_path))


def test_an_input_with_a_default_became_a_constant(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, out = str(tmp_path / "in.npz"), str(tmp_path / "out")
    np.savez(arrays, x=np.ones((8, 16), np.float32), w=np.ones((16, 16), np.float32))
    assert main(["compile", path, "-t", "preset:cpu-1", "-o", out]) == 0
    for command in (
        ["run", out, "--inputs", arrays],
        ["check", out, "--inputs", arrays],
    ):
        assert main(command) == 3
        told = capsys.readouterr().err
        assert f"{arrays}: error[E0414]: 'w' became a constant" in told
        assert "no input" not in told


@pytest.mark.parametrize(
    ("demand", "said", "hint"),
    [
        (["--cut", "b"], "--cut b: error[E3225]: 'b' was folded away: %a stands for it", "hint: --cut a\n"),
        (["--cut", "r"], "--cut r: error[E3225]: 'r' was folded away: %a stands for it", "hint: --cut a\n"),
        (["--cut", "sizes"], "--cut sizes: error[E3225]: 'sizes' was folded away: it is a constant", "holds it"),
        (
            ["--pin", "same=cpu1"],
            "--pin same=cpu1: error[E3225]: 'same' was folded away: %a stands for it",
            "hint: --pin a=cpu1\n",
        ),
        (
            ["--cut", "e"],
            "--cut e: error[E3225]: 'e' was folded away: the input %x stands for it",
            "hint: inputs reach any stage\n",
        ),
        (
            ["--pin", "e=cpu1"],
            "--pin e=cpu1: error[E3225]: 'e' was folded away: the input %x stands",
            "hint: inputs reach any stage\n",
        ),
        (["--cut", "aa"], "--cut aa: error[E3226]: no op makes a tensor called 'aa'", "did you mean %a"),
    ],
)
def test_what_was_folded_away_is_told(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], demand: list[str], said: str, hint: str
) -> None:
    assert main(["compile", path, "-t", "preset:cpu-2", "-o", str(tmp_path / "out"), *demand]) == 3
    told = capsys.readouterr().err
    assert said in told
    assert hint in told


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (("a=cpu0", "b=cpu1", "d=cpu0"), "%a=cpu0 -> %b=cpu1; %b=cpu1 -> %c -> %d=cpu0"),
        (("a=cpu0", "b=cpu1", "c=cpu2", "y=cpu0"), "%a=cpu0 -> %b=cpu1; %b=cpu1 -> %c=cpu2 -> %d -> %y=cpu0"),
    ],
)
def test_pins_that_close_a_cycle_are_named_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pins: tuple[str, ...], said: str
) -> None:
    path, asked = str(save(model(CHAIN), tmp_path)), [word for pin in pins for word in ("--pin", pin)]
    assert main(["compile", path, "-t", "preset:cpu-4", "-o", str(tmp_path / "out"), *asked]) == 4
    told = capsys.readouterr().err
    assert f"--pin: error[E3222]: these pins close a cycle of devices, which run a stage each: {said}" in told
    anyhow = ["--split", "any", "--plan-only"]
    assert main(["compile", path, "-t", "preset:cpu-4", "-o", str(tmp_path / "out"), *anyhow, *asked]) == 0


@pytest.mark.parametrize(
    ("options", "way"),
    [
        (("--cut", "a", "--pin", "a=cpu0", "--pin", "b=cpu0"), "%a=cpu0 -> %b=cpu0"),
        (("--cut", "b", "--pin", "a=cpu0", "--pin", "d=cpu0"), "%a=cpu0 -> %b -> %c -> %d=cpu0"),
        (("--cut", "b", "--pin", "b=cpu0", "--pin", "c=cpu0", "--split", "any"), "%b=cpu0 -> %c=cpu0"),
    ],
)
def test_a_cut_between_ops_of_one_device_is_named_with_their_pins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], way: str
) -> None:
    path = str(save(model(CHAIN), tmp_path))
    assert main(["compile", path, "-t", "preset:cpu-4", "-o", str(tmp_path / "out"), "--plan-only", *options]) == 4
    told = capsys.readouterr().err
    said = "error[E3223]: this cut parts ops that --pin puts on cpu0, which runs one stage:"
    assert f"--cut %{options[1]}: {said} {way}\n" in told


def test_pins_in_the_order_of_the_data_close_none(tmp_path: Path) -> None:
    path = str(save(model(CHAIN), tmp_path))
    asked = ["--pin", "a=cpu1", "--pin", "b=cpu1", "--pin", "d=cpu0"]
    assert main(["compile", path, "-t", "preset:cpu-2", "-o", str(tmp_path / "out"), "--plan-only", *asked]) == 0
