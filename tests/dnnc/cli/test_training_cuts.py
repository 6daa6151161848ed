"""Training steps of small graphs, cut anywhere, have programs: also of stages that have no op of a phase, or no weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dnnc.cli import main

SHAPES = {"scalar": "", "row": "2x", "matrix": "4x2x"}
SUMS = """module @m {opset.onnx = 20} {
  resource @w : tensor<2x2xf32> = random(normal, seed = 1)
  resource @a : tensor<4x2xf32> = random(normal, seed = 2)
  resource @val_1 : tensor<f32> = splat(0.5)
  func @main(%x : tensor<4x2xf32>) -> (%y : tensor<4x2xf32>) {
    %h = onnx.MatMul(%x, @w) : tensor<4x2xf32>
    %s = onnx.Add(%h, @ADDED) : tensor<4x2xf32>
    %t = onnx.Add(%s, @val_1) : tensor<4x2xf32>
    %y = onnx.Mul(%t, %t) : tensor<4x2xf32>
  }
}
"""


def step(model: str, folder: Path, *options: str) -> int:
    """The exit code of its compilation."""
    (folder / "model.ir").write_text(model)
    asked = ["compile", str(folder / "model.ir"), "-t", "preset:cpu-4,cores=8", "--objective", "training", "-q"]
    return main([*asked, "--microbatches", "2", "-o", str(folder / "build"), *options])


@pytest.mark.parametrize("added", ["val_1", "a"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "pipedream"])
def test_a_stage_that_only_adds_has_programs(added: str, schedule: str, tmp_path: Path) -> None:
    """The gradient of a weight that is added is that of the sum, which a later stage makes; that of a scalar is frozen here."""
    cuts = ("--cut", "h", "--cut", "s", "--frozen", "val_1")
    assert step(SUMS.replace("ADDED", added), tmp_path, "--loss", "mse:y", *cuts, "--schedule", schedule) == 0


@pytest.mark.slow
def test_a_weight_that_is_added_trains_in_a_stage_of_its_own(tmp_path: Path) -> None:
    options = ("--loss", "mse:y", "--cut", "h", "--cut", "s", "--frozen", "val_1", "--replicas", "1")
    assert step(SUMS.replace("ADDED", "a"), tmp_path, *options) == 0
    assert main(["train", str(tmp_path / "build"), "--steps", "2", "--check", "-q"]) == 0


def test_a_last_stage_without_a_gradient_has_programs(tmp_path: Path) -> None:
    """The mean of one number has a gradient that is a constant: nothing crosses back."""
    model = SUMS.replace("ADDED", "a").replace("-> (%y : tensor<4x2xf32>)", "-> (%y : tensor<f32>)")
    model = model.replace("%y = onnx.Mul(%t, %t) : tensor<4x2xf32>", "%y = onnx.ReduceMean(%t) {keepdims = 0} : tensor<f32>")
    assert step(model, tmp_path, "--loss", "mse:y", "--mesh", "2", "--stages", "2") == 0
    assert step(model, tmp_path, "--loss", "mse:y", "--cut", "loss.squares") == 0


def test_a_gradient_that_is_a_constant_has_programs(tmp_path: Path) -> None:
    """It is made by no op that counts: what is added to the loss has the gradient 1."""
    model = """
module @m {opset.onnx = 20} {
  resource @w : tensor<f32> = random(normal, seed = 1)
  func @main(%x : tensor<4x2xf32>) -> (%y : tensor<f32>) {
    %a = onnx.ReduceMean(%x) {keepdims = 0} : tensor<f32>
    %b = onnx.ReduceMean(%a) {keepdims = 0} : tensor<f32>
    %y = onnx.Add(%b, @w) : tensor<f32>
  }
}
"""
    assert step(model, tmp_path, "--loss", "output:y", "--cut", "a", "--schedule", "1f1b") == 0


def tensor(shape: str) -> str:
    return f"tensor<{SHAPES[shape]}f32>"


class Graph:
    """A small model at random: ``values`` that may be cut, ``weights``."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.made: list[tuple[str, str]] = [("x", random.choice(["matrix", "matrix", "scalar"]))]
        self.weights: list[tuple[str, str]] = []
        self.lines: list[str] = []
        head = self.made[0]
        for number in range(random.randint(2, 8)):
            name, shape = self.made[-1] if random.random() < 0.8 else random.choice(self.made)
            op, shape = random.choice([self.with_weight, self.with_weight, self.with_value, self.alone])(name, shape, number)
            self.lines.append(f"%v{number} = {op} : {tensor(shape)}")
            self.made.append((f"v{number}", shape))
        resources = [f"resource @{name} : {tensor(shape)} = random(normal, seed = 1)" for name, shape in self.weights]
        (result, shape), body = self.made[-1], "\n".join(self.lines)
        signature = f"func @main(%x : {tensor(head[1])}) -> (%{result} : {tensor(shape)})"
        self.text = "\n".join(["module @m {opset.onnx = 20} {", *resources, f"{signature} {{\n{body}\n}}\n}}\n"])

    def wider(self, one: str, other: str) -> str:
        return max(one, other, key=list(SHAPES).index)

    def with_weight(self, name: str, shape: str, number: int) -> tuple[str, str]:
        """With a new weight or one that another op has read, which may then be of two stages."""
        if not self.weights or self.random.random() < 0.8:
            self.weights.append((self.random.choice([f"w{number}", f"val_{number}"]), self.random.choice(list(SHAPES))))
        weight, other = self.random.choice(self.weights[-2:])
        operands = self.random.choice([f"%{name}, @{weight}", f"@{weight}, %{name}"])
        return f"onnx.{self.random.choice(['Add', 'Add', 'Mul', 'Sub'])}({operands})", self.wider(shape, other)

    def with_value(self, name: str, shape: str, number: int) -> tuple[str, str]:
        other, wide = self.random.choice(self.made)
        return f"onnx.{self.random.choice(['Add', 'Mul', 'Sum'])}(%{name}, %{other})", self.wider(shape, wide)

    def alone(self, name: str, shape: str, number: int) -> tuple[str, str]:
        if self.random.random() < 0.2:
            return f"onnx.ReduceMean(%{name}) {{keepdims = 0}}", "scalar"
        return f"onnx.{self.random.choice(['Relu', 'Neg', 'Identity', 'Tanh'])}(%{name})", shape

    def options(self) -> list[str]:
        random, (result, shape) = self.random, self.made[-1]
        loss = random.choice(["mse", "output"] if shape == "scalar" else ["mse", "cross-entropy"])
        asked = ["--loss", f"{loss}:{result}"]
        if random.random() < 0.75:
            names = [name for name, _ in self.made[1:-1]]
            asked += [part for name in random.sample(names, random.randint(1, min(3, len(names)))) for part in ("--cut", name)]
            asked += random.choice([[], ["--replicas", "1"]])
        else:
            asked += ["--mesh", random.choice(["2", "auto", "none"]), "--stages", random.choice(["1", "2", "auto"])]
        asked += ["--schedule", random.choice(["1f1b", "gpipe", "zb-h1", "zb-h2", "auto", "pipedream", "2bw", "interleaved"])]
        asked += random.choice([[], [], ["--recompute", "stage"]])
        return asked + [part for name, _ in self.weights if random.random() < 0.25 for part in ("--frozen", name)]


def tried(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@tried(8)
@given(random=st.randoms(use_true_random=False))
def test_cuts_of_small_graphs_are_compiled_or_refused(random: Random, tmp_path: Path) -> None:
    compiled_or_refused(random, tmp_path)


@pytest.mark.slow
@tried(40)
@given(random=st.randoms(use_true_random=False))
def test_cuts_of_many_small_graphs_are_compiled_or_refused(random: Random, tmp_path: Path) -> None:
    compiled_or_refused(random, tmp_path)


def compiled_or_refused(random: Random, folder: Path) -> None:
    graph = Graph(random)
    options = graph.options()
    assert step(graph.text, folder, *options) in (0, 2, 3, 4), (graph.text, options)
