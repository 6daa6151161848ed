"""A step's loss is that of its whole batch: labels of -100 weigh nothing, in whichever microbatch or member they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.cli import main
from tests.dnnc.engines.torch.training_builds import TWO_STAGES, compiled, weights
from tests.dnnc.sealing import refresh

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
safetensors: Any = pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

import ir  # noqa: E402
from dnnc.build.snapshot import Snapshot  # noqa: E402
from dnnc.data.samples import open_data  # noqa: E402
from dnnc.engines.torch.check.oracle import Oracle  # noqa: E402
from dnnc.engines.torch.files import TrainingFiles  # noqa: E402
from dnnc.engines.torch.statements.run import run_function  # noqa: E402
from dnnc.onnx import DIALECTS  # noqa: E402
from passes.framework.base import PassContext  # noqa: E402
from passes.training import TrainingPass  # noqa: E402

LINEAR = """module @m {opset.onnx = 20} {
  resource @W : tensor<2x2xf32> = splat(0.0)
  func @main(%x : tensor<4x2xf32>) -> (%y : tensor<4x2xf32>) {
    %y = onnx.MatMul(%x, @W) : tensor<4x2xf32>
  }
}
"""
WIDTH, CLASSES, ROWS, MICROBATCHES = 6, 4, 6, 3
LAYERS = f"""module @m {{opset.onnx = 20}} {{
  resource @a : tensor<{WIDTH}x{WIDTH}xf32> = random(normal, seed = 1)
  resource @b : tensor<{WIDTH}x{CLASSES}xf32> = random(normal, seed = 2)
  func @main(%x : tensor<{ROWS}x{WIDTH}xf32>) -> (%y : tensor<{ROWS}x{CLASSES}xf32>) {{
    %h = onnx.MatMul(%x, @a) : tensor<{ROWS}x{WIDTH}xf32>
    %r = onnx.Relu(%h) : tensor<{ROWS}x{WIDTH}xf32>
    %y = onnx.MatMul(%r, @b) : tensor<{ROWS}x{CLASSES}xf32>
  }}
}}
"""
SOURCE = """
import numpy as np

def example(seed):
    for labels in ([0, -100, -100, -100], [1, 1, 1, 1]):
        yield {"x": np.tile(np.float32([[1, 0]]), (4, 1)), "labels": np.array(labels)}

def nothing_counts(seed):
    while True:
        yield {"x": np.ones((4, 2), np.float32), "labels": np.full(4, -100)}

def unseeded(seed):
    return padded(None)

def unseeded_later(seed):
    first = padded(seed)
    yield from (next(first) for _ in range(2))
    yield from padded(None)

def padded(seed):
    numbers = np.random.default_rng(seed)
    while True:
        labels = numbers.integers(0, %d, %d)
        labels[numbers.random(%d) < numbers.random()] = -100
        yield {"x": numbers.normal(size=(%d, %d)).astype(np.float32), "labels": labels}
"""
UNEQUAL = """version = 1
types.fast = "preset:cpu-1"
types.slow = {like = "fast", rates = {f32 = "20 GFLOP/s"}}
devices = [{name = "a", type = "fast"}, {name = "b", type = "slow"}]
links = [{ends = ["a", "b"], bandwidth = "20 GB/s", latency = "1 us"}]
"""
PLANS = {
    "one stage": ("--stages", "1", "--replicas", "1", "--mesh", "none"),
    "two stages": TWO_STAGES,
    "replicas, one of which has more microbatches": ("--stages", "1", "--replicas", "2", "--mesh", "none"),
    "mesh by data": ("--mesh", "2", "--strategy", "data"),
    "mesh as found": ("--mesh", "2"),
    "mesh by tensors": ("--mesh", "2", "--strategy", "megatron"),
    "uneven shares": ("--mesh", "2"),
    "parts are updated": ("--mesh", "2", "--strategy", "data", "--sync", "reduce_scatter"),
    "factors are gathered": ("--mesh", "2", "--strategy", "data", "--sync", "sfb"),
    "one member sums": ("--mesh", "2", "--strategy", "data", "--sync", "ps"),
    "gradients of weights later": (*TWO_STAGES, "--schedule", "zb-h1"),
    "two stages each": ("--schedule", "zb-v", "--replicas", "1", "--mesh", "none"),
    "made again": (*TWO_STAGES, "--recompute", "stage"),
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module ``labelled`` can be imported, by ranks too."""
    (tmp_path / "labelled.py").write_text(SOURCE % (CLASSES, ROWS, ROWS, ROWS, WIDTH))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))


def built(folder: Path, model: str, microbatches: int, *options: str, topology: str = "preset:cpu-2") -> str:
    (folder / "model.ir").write_text(model)
    step = ("--optimizer", "sgd", "--learning-rate", "1", "--microbatches", str(microbatches))
    loss = "cross-entropy:y"
    return str(compiled(folder / "build", *step, *options, model=str(folder / "model.ir"), loss=loss, topology=topology))


def trained(build: str, data: str, steps: int, out: Path) -> tuple[dict[str, Any], list[float]]:
    """The weights after so many steps, and the losses."""
    assert main(["train", build, "--data", data, "--steps", str(steps), "--checkpoint", str(out), "-q"]) == 0
    return weights(out / f"step{steps}"), [step["loss"] for step in json.loads((out / "losses.json").read_text())]


@pytest.mark.slow
def test_a_microbatch_with_one_label_weighs_a_fourth_of_one_with_four(source: None, tmp_path: Path) -> None:
    build = built(tmp_path, LINEAR, 2, *PLANS["replicas, one of which has more microbatches"])
    weights, _ = trained(build, "labelled:example", 1, tmp_path / "out")
    np.testing.assert_allclose(weights["W"], [[-0.3, 0.3], [0, 0]], rtol=1e-6)


@pytest.mark.slow
def test_a_batch_without_a_label_that_counts_changes_nothing(source: None, tmp_path: Path) -> None:
    build = built(tmp_path, LINEAR, 2, *PLANS["one stage"])
    weights, losses = trained(build, "labelled:nothing_counts", 2, tmp_path / "out")
    assert losses == [0.0, 0.0]
    assert not weights["W"].any()


@pytest.fixture(scope="module")
def labelled_step() -> Any:
    """The module of ``LAYERS`` with its loss."""
    return TrainingPass(loss="cross-entropy:y").run(ir.load_module(LAYERS, dialects=DIALECTS), PassContext(dialects=DIALECTS))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_losses_and_gradients_of_microbatches_are_those_of_the_batch(
    data: Any, labelled_step: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of the inputs that ranks get: of two steps, with any labels left out."""
    count = data.draw(st.integers(1, 4))
    labels = data.draw(
        st.lists(st.sampled_from([-100, -100, 0, 1, 2, 3]), min_size=2 * count * ROWS, max_size=2 * count * ROWS)
    )
    after = labelled_step
    file = tmp_path_factory.mktemp("samples") / "samples.npz"
    numbers = np.random.default_rng(0)
    np.savez(file, x=numbers.normal(size=(len(labels), WIDTH)).astype(np.float32), labels=np.array(labels))
    microbatches = open_data(str(file), after, 0, count)
    a = torch.tensor(numbers.normal(size=(WIDTH, WIDTH)), dtype=torch.float32, requires_grad=True)
    b = torch.tensor(numbers.normal(size=(WIDTH, CLASSES)), dtype=torch.float32, requires_grad=True)
    for step in range(2):
        parts = [microbatches.microbatch(step * count + place) for place in range(count)]
        given = [{f"%{name}": torch.tensor(array) for name, array in part.items()} for part in parts]
        mean = sum(run_function(after.entry, after, {"@a": a, "@b": b, **one})[0] for one in given) / count
        x, y = (torch.cat([one[name] for one in given]) for name in ("%x", "%labels"))
        whole = torch.nn.functional.cross_entropy(torch.relu(x @ a) @ b, y)
        found = torch.autograd.grad(mean, (a, b))
        if (y == -100).all():
            assert mean == 0
            assert not any(gradient.any() for gradient in found)
            continue
        torch.testing.assert_close(mean, whole)
        torch.testing.assert_close(found, torch.autograd.grad(whole, (a, b)), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_steps_of_any_plan_are_torchs_of_the_batch(plan: str, source: None, tmp_path: Path) -> None:
    """With labels left out at random, more of them in some microbatches."""
    import labelled

    (tmp_path / "machines.toml").write_text(UNEQUAL)
    topology = str(tmp_path / "machines.toml") if plan == "uneven shares" else "preset:cpu-2"
    build = built(tmp_path, LAYERS, MICROBATCHES, *PLANS[plan], topology=topology)
    initial = safetensors.load_file(Path(build) / "weights.safetensors")
    found, losses = trained(build, "labelled:padded", 3, tmp_path / "out")
    a, b = (initial[name].clone().requires_grad_() for name in "ab")
    optimizer = torch.optim.SGD([a, b], lr=1.0)
    microbatches = labelled.padded(0)
    for loss in losses:
        parts = [next(microbatches) for _ in range(MICROBATCHES)]
        x, y = (torch.tensor(np.concatenate([part[name] for part in parts])) for name in ("x", "labels"))
        whole = torch.nn.functional.cross_entropy(torch.relu(x @ a) @ b, y)
        optimizer.zero_grad()
        whole.backward()
        optimizer.step()
        assert loss == pytest.approx(float(whole), rel=1e-4)
    for name, weight in (("a", a), ("b", b)):
        torch.testing.assert_close(found[name], weight.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_check_compares_with_the_batch_in_one_piece(source: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So it sees a program that divides by the labels of its own microbatch."""
    build = built(tmp_path, LINEAR, 2, *PLANS["one stage"])
    checked = ["train", build, "--data", "labelled:example", "--steps", "1", "--check", "--json"]
    assert main(checked) == 0
    assert json.loads(capsys.readouterr().out)["batch"] == {"in_one_piece": True, "reason": ""}
    (file,) = Path(build, "stages").glob("*.py")
    text = file.read_text()
    assert text.count("inputs['loss.counted']") == 1
    file.write_text(text.replace("inputs['loss.counted']", "(labels != -100).sum()"))
    refresh(Path(build), f"stages/{file.name}")
    assert main(checked) == 5
    assert "weight 'W' differs from the unsplit model's after step 1: 0.5 of its range" in capsys.readouterr().err


@pytest.mark.slow
def test_check_finds_that_one_rank_drew_other_samples_than_the_unsplit_model(
    source: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = built(tmp_path, LAYERS, 2, *PLANS["one stage"])
    for name, step in (("unseeded", 1), ("unseeded_later", 2)):
        assert main(["train", build, "--data", f"labelled:{name}", "--steps", "3", "--check"]) == 3
        told = f"labelled:{name}: error[E0449]: in step {step} ranks were given other samples than the unsplit model"
        assert told in capsys.readouterr().err
    assert main(["train", build, "--data", "labelled:padded", "--steps", "2", "--check"]) == 0


ALONE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "samples of a batch depend on each other": (
        "%mean = onnx.ReduceMean(%x, @axes) {keepdims = 1} : tensor<1x2xf32>\n %m = onnx.Sub(%x, %mean) : tensor<4x2xf32>",
        (),
        "the model computes other losses of the samples of a batch in one piece",
    ),
    "a number for each sample": (
        "%m = onnx.Add(%x, @each) : tensor<4x2xf32>",
        (),
        "the model does not run on a batch of another size: The size of tensor a (8) must match",
    ),
    "sizes are written into a shape": (
        "%n = onnx.Reshape(%x, @narrow) : tensor<8x1xf32>\n %m = onnx.Reshape(%n, @wide) : tensor<4x2xf32>",
        (),
        "",
    ),
    "batch normalisation": (
        "%m = onnx.BatchNormalization(%x, @two, @two, @two, @two) : tensor<4x2xf32>",
        (),
        "batch normalisation takes the statistics of each microbatch",
    ),
    "dropout": (
        "%m = onnx.Dropout(%x) : tensor<4x2xf32>",
        ("--dropout", "on"),
        "dropout and noise draw other numbers for each microbatch",
    ),
    "a loss of its own": (
        "%m = onnx.Identity(%x) : tensor<4x2xf32>",
        ("--loss", "output:z"),
        "the loss is the model's own: of a step it is the mean over the microbatches",
    ),
    "no flush": (
        "%m = onnx.Identity(%x) : tensor<4x2xf32>",
        ("--schedule", "2bw"),
        "weights change while the microbatches of a step are under way",
    ),
}


@pytest.mark.parametrize("model", ALONE)
def test_microbatches_are_taken_one_by_one_where_they_make_no_batch(model: str, tmp_path: Path) -> None:
    ops, options, reason = ALONE[model]
    text = f"""module @m {{opset.onnx = 20}} {{
      resource @W : tensor<2x2xf32> = random(normal, seed = 1)
      resource @two : tensor<2xf32> = splat(1.0)
      resource @each : tensor<4x1xf32> = inline([1.0, 2.0, 3.0, 4.0])
      resource @axes : tensor<1xi64> = inline([0])
      resource @narrow : tensor<2xi64> = inline([8, 1])
      resource @wide : tensor<2xi64> = inline([4, 2])
      func @main(%x : tensor<4x2xf32>) -> (%y : tensor<4x2xf32>, %z : tensor<f32>) {{
        {ops}
        %y = onnx.MatMul(%m, @W) : tensor<4x2xf32>
        %z = onnx.ReduceMean(%y) {{keepdims = 0}} : tensor<f32>
      }}
    }}"""
    files = TrainingFiles(Snapshot.open(built(tmp_path, text, 2, *PLANS["one stage"], *options)))
    step = files.step
    oracle = Oracle(step, files.initial, open_data("synthetic", step.module, 0, step.microbatches))
    assert oracle.apart.startswith(reason)
    assert bool(oracle.apart) == bool(reason)
    assert oracle.advance() == pytest.approx(Apart(step, files.initial, open_data("synthetic", step.module, 0, 2)).advance())


class Apart(Oracle):
    """The unsplit step without a batch in one piece."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.batch = None


@pytest.mark.parametrize("oracle", [Oracle, Apart])
def test_check_counts_labels_itself(
    oracle: type[Oracle], source: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It believes no number that ranks divide by."""
    files = TrainingFiles(Snapshot.open(built(tmp_path, LINEAR, 2, *PLANS["one stage"])))
    data = open_data("labelled:example", files.step.module, 0, 2)
    counted = data.microbatch
    monkeypatch.setattr(data, "microbatch", lambda number: {**counted(number), "loss.counted": np.float32(17)})
    unsplit = oracle(files.step, files.initial, data)
    assert unsplit.advance() == pytest.approx(np.log(2))
    np.testing.assert_allclose(unsplit.weights["@W"].detach(), [[-0.3, 0.3], [0, 0]], rtol=1e-6)
