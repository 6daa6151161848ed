"""Are predictions true at first sight? ``python -m tests.bench.truth [--machines preset:local,devices=2] [--rounds 5]
[--training]``.

Models of the zoo (the README's example, ResNet-50, BERT, ViT, GPT-2) and an int8 model (dynamically quantised by onnxruntime)
are planned for two one-core workers in four forms: whole on one device, in two stages, as two replicas, on a mesh of two. Each
build runs; printed are the predicted seconds per microbatch, the measured ones (median of the rounds, and their spread), and
the error, predicted / measured - 1; then the median and the worst of the absolute errors, and of each form. With
``--training``, steps of ``dnnc train`` in place of inference.

The machine is measured first, as ``preset:local`` does. A busy machine measures nothing: the header tells the load.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import dnnc
from dnnc.build.build import Build
from dnnc.data.generate import RandomMicrobatches
from dnnc.engines.onnxruntime import Pipeline
from tests.bench.machine import header

MODELS = {
    "mlp": "zoo:mlp,layers=6,hidden=2048,batch=32",
    "resnet50": "zoo:resnet50",
    "bert": "zoo:bert-base,layers=4",
    "vit": "zoo:vit-b16,layers=4",
    "gpt2": "zoo:gpt2,layers=4,seq=64,vocab=8000",
    "int8": "zoo:bert-base,layers=4,vocab=2000",
}
TRAINED = {
    "mlp": "zoo:mlp,layers=4,hidden=1024,batch=32",
    "resnet50": "zoo:resnet50,batch=2",
    "bert": "zoo:bert-base,layers=2,vocab=2000,head=words",
    "vit": "zoo:vit-b16,layers=2",
    "gpt2": "zoo:gpt2,layers=2,seq=64,vocab=2000",
}
FORMS: dict[str, dict[str, Any]] = {
    "whole": {"stages": 1, "replicas": 1, "mesh": "none"},
    "2 stages": {"stages": 2, "replicas": 1, "mesh": "none"},
    "replicas": {"stages": 1, "replicas": 2, "mesh": "none"},
    "mesh": {"mesh": "2"},
}
TARGETS = 0.10, 0.25
"""Median and worst absolute error that are aimed at, on a quiet machine."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default="preset:local,devices=2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--models", default="", help="names, separated by commas")
    parser.add_argument("--training", action="store_true")
    arguments = parser.parse_args()
    print(header(), flush=True)
    models = TRAINED if arguments.training else MODELS
    names = arguments.models.split(",") if arguments.models else list(models)
    errors: dict[str, list[float]] = {form: [] for form in FORMS}
    print(f"{'model':10} {'form':9} {'predicted':>10} {'measured':>10} {'spread':>7} {'error':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        for name, (form, options) in itertools.product(names, FORMS.items()):
            spec = int8(models[name], Path(scratch)) if name == "int8" else models[name]
            try:
                rows = trained if arguments.training else inferred
                predicted, seconds = rows(spec, arguments, options, Path(scratch, "build"))
            except dnnc.DnncError as error:
                print(f"{name:10} {form:9} {error.diagnostics[0].message[:90]}", flush=True)
                continue
            measured = statistics.median(seconds)
            spread = (max(seconds) - min(seconds)) / measured
            errors[form].append(predicted / measured - 1)
            print(
                f"{name:10} {form:9} {predicted * 1e3:7.2f} ms {measured * 1e3:7.2f} ms {spread:6.0%} {errors[form][-1]:+8.1%}",
                flush=True,
            )
    every = [abs(error) for of_form in errors.values() for error in of_form]
    for form, of_form in errors.items():
        if of_form:
            print(f"{form:9} median error {statistics.median(of_form):+.1%}, worst {max(of_form, key=abs):+.1%}")
    median, worst = TARGETS
    print(
        f"absolute errors: median {statistics.median(every):.1%} (aim {median:.0%}), worst {max(every):.1%} (aim {worst:.0%})"
    )


def inferred(spec: str, arguments: argparse.Namespace, options: dict[str, Any], out: Path) -> tuple[float, list[float]]:
    """Predicted seconds per microbatch of a plan, and those of each round."""
    plan = dnnc.plan(spec, machines=arguments.machines, report=False, **options)
    build = Build.open(plan.write(out).folder)
    batches = list(RandomMicrobatches(build, arguments.microbatches, seed=0))
    with Pipeline(build) as pipeline:
        pipeline.run(batches, events=False)
        return plan.value, [1 / pipeline.run(batches).throughput for _ in range(arguments.rounds)]


def trained(spec: str, arguments: argparse.Namespace, options: dict[str, Any], out: Path) -> tuple[float, list[float]]:
    """Predicted seconds of a step, and those of each step but the first."""
    plan = dnnc.plan(spec, machines=arguments.machines, objective="training", microbatches=4, report=False, **options)
    build = plan.write(out)
    steps: list[float] = []
    build.train(steps=arguments.rounds + 1, on_step=lambda done: steps.append(done.seconds))
    return plan.value, steps[1:]


def int8(spec: str, scratch: Path) -> str:
    """The model with its products quantised dynamically, as a file."""
    target = scratch / "int8.onnx"
    if not target.exists():
        from onnxruntime.quantization import quantize_dynamic

        plan = dnnc.plan(spec, machines="preset:cpu-1", weights="shared", report=False)
        plan.write(scratch / "float")
        quantize_dynamic(scratch / "float" / "annotated.onnx", target)
    return str(target)


if __name__ == "__main__":
    main()
