"""Unequal devices, for real: parts in proportion to shares are computed, exchanged and checked by processes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import ir
from dnnc.build.build import Build
from dnnc.check.check import CheckOptions, check_build
from dnnc.cli import main
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline
from dnnc.onnx import DIALECTS
from ir.core.module import Mesh, Program, Stage
from ir.ops.opdefs import is_collective
from tests.passes.meshes.members import local_programs

BERT = "zoo:bert-base,layers=1,hidden=64,heads=4,vocab=128,seq=16,batch=1"
TYPES = """
version = 1
[types.quick]
rates = { f32 = "60 MFLOP/s" }
memory_bandwidth = "12 MB/s"
[types.slow]
rates = { f32 = "20 MFLOP/s" }
memory_bandwidth = "4 MB/s"
"""
DEVICE = """
[[devices]]
name = "{name}"
type = "{type}"
"""
LINK = """
[[links]]
each = "devices of host"
to = "host"
bandwidth = "4 GB/s"
latency = "1 us"
"""


def machine(folder: Path, types: list[str]) -> Path:
    path = folder / "unequal.toml"
    devices = [DEVICE.format(name=f"d{i}", type=type_) for i, type_ in enumerate(types)]
    path.write_text(TYPES + "".join(devices) + LINK, encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("types", "options", "shares"),
    [
        (["quick", "slow"], ("--mesh", "2"), ((3, 1),)),
        (["slow", "quick"], ("--mesh", "2", "--shares", "1,2"), ((1, 2),)),
        (["quick", "quick", "slow", "slow"], ("--mesh", "2x2", "--shares", "3,1x1,1"), ((3, 1), (1, 1))),
    ],
)
def test_unequal_parts_run_and_check(
    types: list[str],
    options: tuple[str, ...],
    shares: tuple[tuple[int, ...], ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "build"
    assert main(["compile", BERT, "-t", str(machine(tmp_path, types)), *options, "-o", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["stages"]
    assert row["shares"] == [list(along) for along in shares]
    assert "warning[W1029]: ONNX cannot state unequal parts" in err
    module = ir.load_module((folder / "plan.ir").read_text(encoding="utf-8"), dialects=DIALECTS)
    (mesh,), (stage,) = module.of_type(Mesh), module.of_type(Stage)
    assert mesh.shares == shares
    programs = local_programs(module.without(Program), stage)  # those of plan.ir hold no weights
    assert len({tuple(part.box for part in program.parts) for program in programs}) == len(programs), "tensors are split"
    assert any(is_collective(op) for program in programs for op in program.ops)
    build = Build.open(folder)
    report = check_build(build, CheckOptions(samples=2))
    assert report.passed, report.error()
    with Pipeline(build) as pipeline:
        assert len(pipeline.run([random_inputs(build, seed=seed) for seed in range(2)]).outputs) == 2


def test_what_onnx_cannot_say_is_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value cut in unequal parts has no spec, whole ones have theirs."""
    folder = tmp_path / "build"
    options = ["--mesh", "2", "--shares", "3,1", "-o", str(folder)]
    assert main(["compile", BERT, "-t", str(machine(tmp_path, ["quick", "slow"])), *options]) == 0
    assert "stage 0 splits in unequal parts: d0 3, d1 1" in capsys.readouterr().out
    told = {True: 0, False: 0}
    for node in onnx.load(folder / "annotated.onnx", load_external_data=False).graph.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        (configuration,) = node.device_configurations
        for spec in configuration.sharding_spec:
            assert not spec.sharded_dim, spec
            told[False] += 1
        if "dnnc.shares" in metadata:
            assert metadata["dnnc.shares"].endswith(" by 3:1")
            assert "S(" in metadata["dnnc.shares"]
            told[True] += 1
    assert min(told.values()) > 3


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--shares", "3,1"), 2, ("--shares", "--mesh")),
        (("--mesh", "2", "--shares", "3,1,1"), 2, ("shares 3,1,1 are for a mesh of 3, and the mesh is 2",)),
        (("--mesh", "2", "--shares", "three"), 2, ("'equal'", "3,1x1,1")),
        (("--mesh", "auto", "--shares", "1,1,1"), 4, ("mesh 3 has 3 places", "2 devices")),
        (("--mesh", "1", "--stages", "2", "--shares", "3,1"), 2, ("shares is for one mesh", "stages")),
    ],
)
def test_shares_that_cannot_be(
    options: tuple[str, ...], code: int, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compile", BERT, "-t", str(machine(tmp_path, ["quick", "slow"])), *options, "-o", str(tmp_path / "b")]
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
