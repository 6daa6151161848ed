"""Small plans of each kind, for tests of the page."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.training import TrainingOptions
from ir.core.module import Module

GPT = "zoo:gpt2,layers={layers},hidden=128,heads=4,vocab=512,seq=64"
DECODER = "zoo:gpt2,cache=concat,layers=2,hidden=32,heads=4,vocab=50"
MLP = "zoo:mlp,layers=4,hidden=32,batch=4"


@cache
def planned(kind: str) -> Module:
    """The module of a plan: ``stages``, ``mesh``, ``training``, ``replicas``, ``latency``, ``tokens``; ``layers N``, a mesh."""
    name, _, layers = kind.partition(" ")
    options = {
        "stages": CompileOptions(MLP, "preset:cpu-2,cores=2", Path(), replicas=1, mesh="none", stages=2),
        "replicas": CompileOptions(MLP.replace("32", "1024"), "preset:cpu-2,cores=2", Path()),
        "mesh": CompileOptions(GPT.format(layers=4), "preset:cpu-4,cores=4", Path(), mesh="2x2"),
        "layers": CompileOptions(GPT.format(layers=layers), "preset:cpu-4,cores=4", Path(), mesh="2x2", plan_only=True),
        "latency": CompileOptions(MLP, "preset:cpu-2,cores=2", Path(), objective="latency"),
        "tokens": CompileOptions(DECODER, "preset:cpu-2,cores=2", Path(), objective="tokens", context=16, batch=2, groups=2),
        "training": CompileOptions(
            MLP, "preset:cpu-2,cores=2", Path(), objective="training", stages=2, training=TrainingOptions(loss="mse:y")
        ),
    }[name]
    with TemporaryDirectory() as folder:
        written = replace(
            options, out=Path(folder) / "out", plan_only=name not in ("mesh", "stages"), report=False, weights="none"
        )
        return compile_model(written).module
