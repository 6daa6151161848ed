"""Messages in Python's terms: each flag that has a keyword is told as that keyword."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnnc
from dnnc.api.options import PlanOptions, compile_options
from dnnc.api.terms import in_python
from dnnc.build.faults import OTHER_FOLDER, REBUILD
from dnnc.check.faults import StageDiverges
from dnnc.compile.flags import CompileOptions
from dnnc.compile.training import TrainingOptions
from ir.core.diagnostics import UsageError
from tests.dnnc.api.models import lookup


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("bind it with --dim batch=8", 'bind it with dims={"batch": 8}'),
        ("--dim x.0=other", 'dims={"x.0": "other"}'),
        ("for example: --dim n=1 --dim side=128", 'for example: dims={"n": 1, "side": 128}'),
        ("add --mesh auto, or a shape such as --mesh 8", 'add mesh="auto", or a shape such as mesh=8'),
        ("--mesh 2x4 --stages 2", 'mesh="2x4" stages=2'),
        ("leave --mesh out", "leave mesh out"),
        ("--mesh splits every op", "mesh splits every op"),
        ("only with --objective training", 'only with objective="training"'),
        ("add --loss, such as --loss mse:OUTPUT", 'add loss, such as loss="mse:OUTPUT"'),
        ("--time-limit 0.5", "time_limit=0.5"),
        ("--cut /layer/Add_output_0 stands twice", 'cuts=["/layer/Add_output_0"] stands twice'),
        ("--pin MatMul_0=cpu1", 'pins={"MatMul_0": "cpu1"}'),
        ("--nesterov, or --plan-only for the plan alone", "nesterov=True, or plan_only=True for the plan alone"),
        ("-t TOPOLOGY", "machines=TOPOLOGY"),
        ("--learning-rate 1e-3", "learning_rate=1e-3"),
        ("--beta1 0.5 and --beta2-decay -0.3", "beta1=0.5 and beta2_decay -0.3"),
        ("--no-load-test writes them", "load_test=False writes them"),
        ("dnnc inspect --short DIR", "dnnc inspect --short DIR"),
        ("a--b --", "a--b --"),
        (OTHER_FOLDER, "choose another folder"),
        (
            StageDiverges.hint,
            "if the model bears such a difference, tolerance allows it; else it is a fault of the build: report.comparisons of "
            "the result has every tensor",
        ),
        (f"{REBUILD}.", "make it again with dnnc.plan(model, machines=...).write(folder)."),
        (
            "make it with 'dnnc compile MODEL -t T --mesh 2', or --mesh 2",
            "make it with 'dnnc compile MODEL -t T --mesh 2', or mesh=2",
        ),
    ],
)
def test_flags_become_keywords(command: str, python: str) -> None:
    assert in_python(command) == python


def test_every_option_of_a_compilation_is_a_keyword() -> None:
    elsewhere = {"model", "topology", "out", "dims", "limits", "pipeline", "training", "stated"}
    elsewhere |= {"explain", "search", "prior", "iterations"}  # of the command alone
    known = {one.name for one in (*fields(CompileOptions), *fields(TrainingOptions))} - elsewhere
    assert set(PlanOptions.__annotations__) - {"passes"} == known


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": "three"}, "stages is 'three'; expected int or 'auto'"),
        ({"stages": 2.5}, "stages is 2.5; expected int or 'auto'"),
        ({"replicas": True}, "replicas is True; expected int"),
        ({"time_limit": "5"}, "time_limit is '5'; expected float"),
        ({"pins": "MatMul=cpu1"}, "pins is 'MatMul=cpu1'; expected a mapping of str to str"),
        ({"cuts": 3}, "cuts is 3; expected a sequence of str"),
        ({"inputs": 3}, "inputs is 3; expected str or PathLike"),
        ({"profile": [3]}, "expected str or PathLike or a sequence of (str or PathLike)"),
        ({"weights": "all"}, "weights is 'all'; expected 'shared' or 'per-stage' or 'none'"),
        ({"no_decay": "x"}, "no_decay is 'x'; expected bool"),
    ],
)
def test_an_option_of_another_type_is_refused(options: Any, words: str) -> None:
    with pytest.raises(UsageError, match="E1414") as error:
        compile_options("m.onnx", None, options)
    assert words in str(error.value)


@pytest.mark.parametrize("size", ["4", "-3", "2.5"])
def test_a_number_as_text_is_no_name_of_a_dimension(size: str) -> None:
    with pytest.raises(UsageError, match=rf"E1414.*dims\['B'\] is '{size}'; expected int or range, or the name of another"):
        compile_options("m.onnx", {"B": size}, {})
    with pytest.raises(UsageError, match="E1414"):
        dnnc.export("checkpoint", "m.onnx", "out.onnx", dims={"B": size})


def test_sizes_of_dimensions_are_numbers_or_names() -> None:
    with pytest.raises(UsageError, match=r"dims is \{'batch': 8\.5\}; expected a mapping of str to int or str"):
        compile_options("m.onnx", {"batch": 8.5}, {})  # type: ignore[dict-item]
    one: Any = {"time_limit": np.float32(2), "stages": np.int64(2), "mesh": 2, "profile": Path("p.json")}
    options = compile_options("m.onnx", {"batch": np.int64(8)}, one)  # type: ignore[dict-item]
    assert (options.time_limit, options.stages, options.mesh, options.profile) == (2.0, 2, "2", (Path("p.json"),))
    assert [type(one) for one in (options.time_limit, options.stages, options.dims["batch"])] == [float, int, int]


@pytest.mark.parametrize("sizes", [range(5, 1), range(3, 3), range(1, 9, 2), range(9, 1, -1), range(-1, 4)])
def test_sizes_of_a_range_are_all_from_its_least_to_its_largest(sizes: range) -> None:
    with pytest.raises(UsageError, match="E1416") as error:
        compile_options("m.onnx", {"batch": sizes}, {})
    assert f"the sizes of dimension 'batch' are {sizes}; expected" in str(error.value)
    assert compile_options("m.onnx", {"batch": range(0, 1)}, {}).dims == {"batch": range(0, 1)}


def test_numbers_of_numpy_make_a_plan() -> None:
    options: Any = {
        "machines": "preset:cpu-2",
        "time_limit": np.float32(3),
        "stages": np.int64(2),
        "dims": {"batch": np.int64(2)},
    }
    assert len(dnnc.plan(lookup(), **options).stages) == 2


def test_options_are_those_of_the_command() -> None:
    options = compile_options("m.onnx", {"batch": 2}, {"stages": "auto", "mesh": "auto", "loss": "mse:y", "cuts": "h"})
    assert options == CompileOptions(
        "m.onnx", dims={"batch": 2}, stages=0, mesh="auto", cuts=("h",), training=TrainingOptions(loss="mse:y")
    )
    assert compile_options("m.onnx", None, {"stages": "auto", "objective": None}).stages is None
