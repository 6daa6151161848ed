"""The segments of members of a mesh, as models."""

from __future__ import annotations

from pathlib import Path

import onnx

from dnnc.compile.driver import CompileOptions, compile_model


def test_what_depends_on_weights_alone_crosses_no_collective(tmp_path: Path) -> None:
    """Shapes of local reshapes and the terms of biases stand where they are read: a constant that leaves a model is work for
    every microbatch, and OpenVINO does not take such a model."""
    compile_model(
        CompileOptions(
            "zoo:gpt2,layers=1,hidden=64,seq=8,vocab=128,positions=16", "preset:cpu-2", tmp_path, mesh="2", strategy="megatron"
        )
    )
    models = sorted((tmp_path / "stages").glob("*.onnx"))
    assert len(models) > 2
    for path in models:
        graph = onnx.load(path, load_external_data=False).graph
        computed = {value.name for value in graph.input}
        for node in graph.node:
            if not computed.isdisjoint(node.input):
                computed.update(node.output)
        assert {value.name for value in graph.output} <= computed, path.name
