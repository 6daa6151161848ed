"""The segments of members of a mesh, as models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from dnnc.build.build import Build
from dnnc.compile.driver import CompileOptions, compile_model
from tests.dnnc.sealing import older

MODEL = "zoo:gpt2,layers=1,hidden=64,seq=8,vocab=128,positions=16"


@pytest.mark.slow
def test_members_of_an_older_build_are_cut_again_as_they_were(tmp_path: Path) -> None:
    """Stages on meshes, between which parts cross, from a plan.ir without programs."""
    compile_model(CompileOptions(MODEL, "preset:cpu-4,cores=4", tmp_path, mesh="2", stages=2, strategy="megatron"))
    before = Build.open(tmp_path)
    assert [len(stage.members) for stage in before.stages] == [2, 2]
    assert any(stage.collectives for stage in before.stages)
    assert replace(Build.open(older(tmp_path)), files=before.files) == before


def test_what_depends_on_weights_alone_crosses_no_collective(tmp_path: Path) -> None:
    """Shapes of local reshapes and the terms of biases stand where they are read: a constant that leaves a model is work for
    every microbatch, and OpenVINO does not take such a model."""
    compile_model(CompileOptions(MODEL, "preset:cpu-2", tmp_path, mesh="2", strategy="megatron"))
    models = sorted((tmp_path / "stages").glob("*.onnx"))
    assert len(models) > 2
    for path in models:
        graph = onnx.load(path, load_external_data=False).graph
        computed = {value.name for value in graph.input}
        for node in graph.node:
            if not computed.isdisjoint(node.input):
                computed.update(node.output)
        assert {value.name for value in graph.output} <= computed, path.name
