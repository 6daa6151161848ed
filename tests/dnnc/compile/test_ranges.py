"""``--dim NAME=LEAST..MOST``: one build takes any size in the range, and computes what the model computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import dnnc
from dnnc.build.build import Build
from dnnc.cli import main
from dnnc.data.generate import random_inputs
from ir.core.module import Stage
from tests.dnnc.onnx.models import model

ATTENDS = """g (int64[B, S] ids, float[B, S, 8] mixed) => (float[B, S, 8] y, float[B, T, 1] sums) {
  shape = Shape(ids)
  zero = Constant <value = int64 {0}> ()
  one = Constant <value = int64 {1}> ()
  last = Constant <value_ints = [-1]> ()
  batch = Shape <start = 0, end = 1> (ids)
  length = Gather(shape, one)
  places = Range(zero, length, one)
  lengths = Unsqueeze(length, first)
  seen = Gather(table, ids)
  where = Gather(table, places)
  h = Add(seen, where)
  k = MatMul(h, w)
  apart = Concat <axis = 0> (batch, lengths, heads)
  split = Reshape(k, apart)
  keys = Transpose <perm = [0, 2, 3, 1]> (split)
  values = Transpose <perm = [0, 2, 1, 3]> (split)
  scores = MatMul(values, keys)
  column = Unsqueeze(places, last)
  later = Greater(places, column)
  low = Constant <value = float {-10000.0}> ()
  masked = Where(later, low, scores)
  weights = Softmax <axis = -1> (masked)
  found = MatMul(weights, values)
  back = Transpose <perm = [0, 2, 1, 3]> (found)
  shape2 = Shape(mixed)
  joined = Reshape(back, shape2)
  next = MatMul(joined, w)
  again = Add(next, mixed)
  wide = MatMul(again, w)
  y = Gelu(wide)
  sums = ReduceSum(y, last)
}"""


def saved(folder: Path) -> str:
    proto = model(ATTENDS)
    generator = np.random.default_rng(0)
    for name, value in {
        "w": generator.standard_normal((8, 8), np.float32),
        "table": generator.standard_normal((32, 8), np.float32),
        "heads": np.array([2, 4], np.int64),
        "first": np.array([0], np.int64),
    }.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(proto, folder / "attends.onnx")
    return str(folder / "attends.onnx")


def fed(batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, 32, (batch, length))
    return {"ids": ids, "mixed": generator.standard_normal((batch, length, 8), np.float32)}


def compiled(folder: Path, *options: str) -> str:
    path = saved(folder)
    assert main(["compile", path, "-t", "preset:cpu-3", "-o", str(folder / "build"), "--dim", "T=S", *options]) == 0
    return path


BOTH = ("--dim", "B=1..4", "--dim", "S=0..12")


@pytest.mark.parametrize(
    "options",
    [
        (*BOTH, "--stages", "3"),
        *(
            pytest.param(more, marks=pytest.mark.slow)
            for more in (BOTH, ("--dim", "B=2", "--dim", "ids.1=1..12", "--stages", "2"))
        ),
    ],
    ids=" ".join,
)
def test_each_size_gives_the_outputs_of_the_model(options: tuple[str, ...], tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(compiled(tmp_path, *options))
    sizes = [(2, 12), (2, 1), (2, 5)] if "B=2" in options else [(4, 12), (1, 1), (3, 7), (2, 0), (4, 2)]
    with dnnc.load(tmp_path / "build").start() as build:
        for number, (batch, length) in enumerate(sizes):
            feeds = fed(batch, length, number)
            for found, expected in zip(build.run(None, feeds), session.run(None, feeds), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert main(["check", str(tmp_path / "build")]) == 0


def test_what_sizes_alone_decide_travels_nowhere(tmp_path: Path) -> None:
    """Positions, masks and shapes are computed in each stage, of arguments: only the model's values cross."""
    compiled(tmp_path, *BOTH, "--stages", "3")
    build = Build.open(tmp_path / "build")
    known = {value.name for stage in build.program().of_type(Stage) for value in stage.args}
    assert known == {"%ids", "%mixed"}
    assert {channel.dtype for channel in build.channels} == {"float32"}
    assert not [channel.tensor for channel in build.channels if channel.tensor in ("later", "places", "column", "shape")]


def test_random_inputs_have_the_largest_sizes(tmp_path: Path) -> None:
    compiled(tmp_path, *BOTH)
    assert {name: value.shape for name, value in random_inputs(Build.open(tmp_path / "build")).items()} == {
        "ids": (4, 12),
        "mixed": (4, 12, 8),
    }


@pytest.fixture(scope="module")
def one_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranges")
    compiled(folder, *BOTH, "--stages", "2")
    return folder


def test_any_size(one_build: Path) -> None:
    session = onnxruntime.InferenceSession(str(one_build / "attends.onnx"))
    with dnnc.load(one_build / "build").start() as build:

        @given(batch=st.integers(1, 4), length=st.integers(0, 12), seed=st.integers(0, 9))
        @settings(max_examples=8, deadline=None)
        def same(batch: int, length: int, seed: int) -> None:
            feeds = fed(batch, length, seed)
            for found, expected in zip(build.run(["y", "sums"], feeds), session.run(["y", "sums"], feeds), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

        same()


def test_sizes_out_of_range_are_refused(one_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feeds = fed(4, 13)
    np.savez(one_build / "long.npz", **feeds)
    np.savez(one_build / "unlike.npz", ids=feeds["ids"][:, :5], mixed=feeds["mixed"][:, :6])
    assert main(["run", str(one_build / "build"), "--inputs", str(one_build / "long.npz")]) == 3
    told = capsys.readouterr().err
    assert "dimension 1 of input 'ids' is 13, and the build takes S from 0 to 12" in told
    assert main(["run", str(one_build / "build"), "--inputs", str(one_build / "unlike.npz")]) == 3
    assert "dimension 1 of input 'mixed' is 6, and S is 5 in input 'ids'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dim", "S=5..1"], "found '5..1' for S, expected LEAST..MOST"),
        (["--dim", "S=4.."], "found '4..' for S, expected LEAST..MOST, such as 1..512"),
        (["--dim", "S=..4"], "found '..4' for S, expected LEAST..MOST, such as 1..512"),
        (["--dim", "S=1..x"], "found '1..x' for S, expected LEAST..MOST, such as 1..512"),
        (["--dim", "S=1..12", "--mesh", "2"], "without meshes and measured inputs, and there is --mesh"),
        (["--dim", "S=1..12", "--objective", "training", "--loss", "output:sums"], "and there is training"),
        (["--dim", "Q=1..12"], "Q"),
    ],
)
def test_what_has_no_range(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = saved(tmp_path), str(tmp_path / "build")
    assert main(["compile", path, "-t", "preset:cpu-2", "-o", out, "--dim", "B=2", "--dim", "T=S", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not Path(out).exists()


def test_other_commands_take_one_size(one_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(one_build / "attends.onnx"), "--dim", "S=1..12"]) == 2
    assert "this command takes one size" in capsys.readouterr().err
    assert main(["verify-plan", str(one_build / "build")]) == 3
    assert "the sizes of this build are open (B from 1 to 4)" in capsys.readouterr().err


def test_from_python(tmp_path: Path) -> None:
    path = saved(tmp_path)
    plan = dnnc.plan(path, machines="preset:cpu-2", dims={"B": 2, "S": range(1, 13), "T": "S"}, stages=2)
    build = plan.write(tmp_path / "build")
    assert [argument.shape for argument in build.inputs] == [[2, "S"], [2, "S", 8]]
    with build.start() as session, pytest.raises(dnnc.InvalidInput, match="takes S from 1 to 12"):
        session.run(None, fed(2, 13))


def test_a_model_of_the_largest_size_alone_has_no_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "g (float[n, 8] x) => (float[17, 8] y) { k = Constant <value_ints = [17, 8]> () h = Relu(x) y = Reshape(h, k) }"
    path, out = tmp_path / "m.onnx", str(tmp_path / "build")
    onnx.save(model(text), path)
    assert main(["compile", str(path), "-t", "preset:cpu-2", "-o", out, "--dim", "n=1..17"]) == 2
    assert f"{path}: --dim n=1: error[E1711]: no input of this size passes through the model" in capsys.readouterr().err
    assert not Path(out).exists()
    assert main(["compile", str(path), "-t", "preset:cpu-2", "-o", out, "--dim", "n=17..17"]) == 0
