"""``--samples``: a training step of so many samples, in as many microbatches as are best."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.samples import NOTE
from dnnc.report.plan import plan_headline
from ir.core.diagnostics import DnncError
from ir.core.module import Plan
from passes.costs.learning import samples_of

TWO = """
version = 1
[types.core]
kind = "cpu"
rates = {{ f32 = "10 GFLOP/s" }}
memory_bandwidth = "10 GB/s"
memory = "{memory} MB"
overhead = "{overhead} us"
[[devices]]
name = "d{{0..1}}"
type = "core"
[[links]]
mesh = "d*"
bandwidth = "{bandwidth} MB/s"
latency = "1 us"
"""


def machines(folder: Path, bandwidth: int = 1000, memory: int = 1000, overhead: int = 0) -> str:
    path = folder / "two.toml"
    path.write_text(TWO.format(bandwidth=bandwidth, memory=memory, overhead=overhead))
    return str(path)


def model(folder: Path, batch: int | str = "N") -> str:
    """Two layers of 64 units, of any number of samples or of one."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.normal(size=(64, 64)).astype(np.float32), f"w{i}") for i in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    path = folder / f"{batch}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return str(path)


def asked(folder: Path, spec: str, machine: str = "", **options: object) -> CompileOptions:
    kept = {"out": folder / "b", "objective": "training", "plan_only": True, **options}
    return CompileOptions(spec, machine or machines(folder), **kept)  # type: ignore[arg-type]


def planned(options: CompileOptions) -> tuple[Plan, int]:
    """The plan, and the samples of a microbatch."""
    found = compile_model(options)
    return found.plan, samples_of(found.module.entry)


@pytest.mark.parametrize("bandwidth", [1, 100, 10000])
@pytest.mark.parametrize("overhead", [0, 50])
def test_the_number_of_microbatches_is_the_best(tmp_path: Path, bandwidth: int, overhead: int) -> None:
    """On quick links few are split over both devices; each op costs its overhead once a microbatch."""
    options = asked(tmp_path, model(tmp_path), machines(tmp_path, bandwidth, overhead=overhead))
    plan, each = planned(replace(options, samples=24))
    assert plan.microbatches * each == 24
    every = {number: planned(replace(options, microbatches=number, dims={"N": 24 // number}))[0] for number in (1, 2, 4, 8, 24)}
    assert plan.value == pytest.approx(min(one.value for one in every.values()), rel=1e-3)
    assert plan.value == pytest.approx(every[plan.microbatches].value, rel=1e-3)
    told = dict(plan.certificate)[NOTE]
    assert told.startswith(f"24 samples in {plan.microbatches} microbatch")
    assert [int(part.partition(":")[0]) for part in told.partition("; ")[2].split(", ")] == [
        number for number in every if number != plan.microbatches
    ]
    assert f"  {told}" in plan_headline(plan).splitlines()


def test_smaller_microbatches_fit_where_the_whole_batch_does_not(tmp_path: Path) -> None:
    options = asked(tmp_path, "zoo:mlp,inputs=64,hidden=64,outputs=64", machines(tmp_path, memory=3), samples=1 << 14)
    plan, each = planned(options)
    assert plan.microbatches * each == 1 << 14
    assert "1: none fits" in dict(plan.certificate)[NOTE]


@pytest.mark.parametrize(
    ("spec", "options", "microbatches"),
    [
        ("zoo:mlp,hidden=16", {"microbatches": 3}, 3),
        ("zoo:mlp,hidden=16,batch=4", {}, 3),
        (4, {}, 3),
        ("N", {"microbatches": 6}, 6),
        ("N", {"dims": {"N": 2}}, 6),
    ],
)
def test_a_number_that_is_stated_is_kept(
    tmp_path: Path, spec: str | int, options: dict[str, object], microbatches: int
) -> None:
    path = str(spec) if str(spec).startswith("zoo:") else model(tmp_path, spec)
    plan, each = planned(asked(tmp_path, path, samples=12, **options))
    assert (plan.microbatches, each) == (microbatches, 12 // microbatches)


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("zoo:mlp,hidden=16", {"microbatches": 5}, "a step of 12 samples cannot be divided into 5 microbatches"),
        ("zoo:mlp,hidden=16,batch=5", {}, "a step of 12 samples cannot be divided into microbatches of 5 samples"),
        (4, {"microbatches": 4}, "cannot be divided into microbatches of 4 samples, which the model has"),
        ("zoo:mlp", {"objective": ""}, "--samples: only with --objective training"),
        ("zoo:mlp", {"search": "tag"}, "--search tag cannot go with --samples"),
        ("zoo:mlp", {"plan": Path("plan.json")}, "so --samples cannot go with it"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, spec: str | int, options: dict[str, object], words: str) -> None:
    path = str(spec) if str(spec).startswith("zoo:") else model(tmp_path, spec)
    with pytest.raises(DnncError) as error:
        planned(asked(tmp_path, path, samples=12, **options))
    assert words in str(error.value)
    assert not (tmp_path / "b").exists()


def test_arrays_bind_the_samples_of_a_microbatch(tmp_path: Path) -> None:
    arrays = tmp_path / "x.npz"
    np.savez(arrays, x=np.zeros((4, 64), np.float32))
    plan, each = planned(asked(tmp_path, model(tmp_path), samples=12, inputs=arrays))
    assert (plan.microbatches, each) == (3, 4)


def test_faults_of_a_model_are_those_of_what_was_written(tmp_path: Path) -> None:
    with pytest.raises(DnncError) as error:
        planned(asked(tmp_path, "zoo:mlp,wide=3", samples=12))
    assert "samples" not in str(error.value)
    assert "batch=12" not in str(error.value)


def test_an_interrupt_ends_it_with_the_best_so_far(tmp_path: Path) -> None:
    """Not the search for one number alone."""
    tried = list[int]()

    def progress(label: str, fraction: float | None) -> None:
        if label == "load the model":
            tried.append(len(tried))
        elif len(tried) == 2:
            raise KeyboardInterrupt

    options = replace(asked(tmp_path, model(tmp_path)), samples=24)
    plan = compile_model(options, progress=progress).plan
    assert len(tried) == 2
    assert dict(plan.certificate)[NOTE].startswith("24 samples in 1 microbatch of 24; 2: ")


def test_a_profile_and_a_scalar_have_no_samples(tmp_path: Path) -> None:
    scalar = onnx.load(model(tmp_path))
    for end in (scalar.graph.input[0], scalar.graph.output[0]):
        end.type.tensor_type.shape.Clear()
    scalar.graph.node[0].op_type = scalar.graph.node[2].op_type = "Mul"
    onnx.save(scalar, tmp_path / "scalar.onnx")
    with pytest.raises(DnncError, match="the first input has no dimension for samples"):
        planned(asked(tmp_path, str(tmp_path / "scalar.onnx"), samples=12))
    profile = tmp_path / "profile.txt"
    profile.write_text(
        "node1 -- a -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4.0, parameter_size=8.0\n"
    )
    with pytest.raises(DnncError, match="a profiled workload has no tensors, so --samples cannot go with it"):
        planned(asked(tmp_path, str(profile), samples=12))


@pytest.mark.slow
def test_what_was_chosen_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As if its options had been given."""
    build = str(tmp_path / "b")
    arguments = ["compile", model(tmp_path), "-t", machines(tmp_path), "-o", build, "--objective", "training"]
    assert main([*arguments, "--loss", "mse:y", "--samples", "8"]) == 0
    assert "8 samples in" in capsys.readouterr().out
    assert main(["train", build, "--steps", "2", "--check"]) == 0
    assert "passed" in capsys.readouterr().out
