"""Are predictions true at first sight? ``python -m tests.bench.truth [--machines preset:local,devices=2] [--rounds 5]
[--objective training]``.

Models of the zoo (the README's example, ResNet-50, BERT, ViT, GPT-2) and an int8 model (dynamically quantised by onnxruntime)
are planned for two one-core workers in four forms: whole on one device, in two stages, as two replicas, on a mesh of two. The
builds of a model take turns, a round each; printed are the predicted seconds per microbatch, the measured ones (median of the
rounds, and their spread), and the error, predicted / measured - 1; then the same of the seconds over those of the whole model
in the same round, which hold where the clock of the cores has changed since they were measured; then the median and the worst
of the absolute errors, and of each form. ``product``: what one product of matrices takes in the same rounds, over what it took
when the machine was measured, less 1: how far the clock has changed. With ``--objective training``, steps of ``dnnc train`` in
place of inference, one build after another.

The machine is measured first, as ``preset:local`` does, anew for each model. Where anything else had more than a twentieth of
the cores, a measurement, a round, or a training is made again, up to ``TRIES`` times in all for each that counts; ``quiet``: of
the rounds that count, how many were quiet so (of a training, the part of the cores that nothing else had). Where too few were
quiet, the quietest of the others count too, and the row is marked with ``busy``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dnnc
from dnnc.build.build import Build
from dnnc.data.generate import RandomMicrobatches
from dnnc.engines.onnxruntime import Pipeline
from dnnc.engines.torch.launch.training import Progressed
from dnnc.machines import machines_of
from dnnc.machines.probes import probes
from dnnc.machines.samples import product
from ir.core.diagnostics import DiagnosticSink, Severity
from ir.core.topology import Topology
from tests.bench.machine import Quiet, header

MODELS = {
    "mlp": "zoo:mlp,layers=6,hidden=2048,batch=32",
    "resnet50": "zoo:resnet50",
    "bert": "zoo:bert-base,layers=4",
    "vit": "zoo:vit-base,layers=4",
    "gpt2": "zoo:gpt2,layers=4,seq=64,vocab=8000",
    "int8": "zoo:bert-base,layers=4,vocab=2000",
}
TRAINED = {
    "mlp": "zoo:mlp,layers=4,hidden=1024,batch=32",
    "resnet50": "zoo:resnet50,batch=2",
    "bert": "zoo:bert-base,layers=2,vocab=2000,head=words",
    "vit": "zoo:vit-base,layers=2",
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
QUIET, TRIES = 0.95, 4
"""Part of the cores that nothing else has while it is quiet, and how often what was not is tried."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default="preset:local,devices=2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--models", default="", help="names, separated by commas")
    parser.add_argument("--objective", choices=("throughput", "training"), default="throughput")
    arguments = parser.parse_args()
    print(header(), flush=True)
    training = arguments.objective == "training"
    models = TRAINED if training else MODELS
    names = arguments.models.split(",") if arguments.models else list(models)
    errors: dict[str, list[float]] = {form: [] for form in FORMS}
    beside: dict[str, list[float]] = {form: [] for form in list(FORMS)[1:]}
    busy = 0
    over = "over whole: predicted, measured, error"
    print(f"{'model':10} {'form':9} {'predicted':>10} {'measured':>10} {'spread':>7} {'error':>8} {over:>40} quiet product")
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            spec = int8(models[name], Path(scratch)) if name == "int8" else models[name]
            with product_seconds() as clock:
                machines = machines_now(arguments.machines, training)
                before = clock()
                rows = (trained if training else inferred)(spec, machines, arguments, Path(scratch, name), clock)
            whole = rows.get("whole")
            for form, row in rows.items():
                measured = statistics.median(row.seconds)
                spread = (max(row.seconds) - min(row.seconds)) / measured
                errors[form].append(row.predicted / measured - 1)
                text = f"{name:10} {form:9} {row.predicted * 1e3:7.2f} ms {measured * 1e3:7.2f} ms {spread:6.0%}"
                text += f" {errors[form][-1]:+8.1%}"
                if whole is not None and form != "whole":
                    predicted = row.predicted / whole.predicted
                    ratio = statistics.median(one / other for one, other in zip(row.seconds, whole.seconds, strict=True))
                    beside[form].append(predicted / ratio - 1)
                    text += f" {predicted:24.2f} {ratio:6.2f} {beside[form][-1]:+8.1%}"
                busy += row.busy
                print(f"{text:104} {row.quiet:>5} {row.product / before - 1:+8.1%}{'  busy' * row.busy}", flush=True)
    for title, found in (("absolute", errors), ("over whole", beside)):
        print(title)
        every = [abs(error) for of_form in found.values() for error in of_form]
        for form, of_form in found.items():
            if of_form:
                print(f"  {form:9} median error {statistics.median(of_form):+.1%}, worst {max(of_form, key=abs):+.1%}")
        if every:
            median, worst = statistics.median(every), max(every)
            print(f"  of absolute errors: median {median:.1%} (aim {TARGETS[0]:.0%}), worst {worst:.1%} (aim {TARGETS[1]:.0%})")
    if busy:
        print(f"{busy} rows are marked as busy: something else had cores in some of their rounds, and the medians include them")


@dataclass(frozen=True)
class Row:
    """Predicted seconds, those of each round that counts, how many of these were quiet, in words and whether too few, and the
    seconds of a product of matrices in these rounds."""

    predicted: float
    seconds: list[float]
    quiet: str
    busy: bool
    product: float


def machines_now(spec: str, training: bool) -> Topology:
    """The machines; ``preset:local`` measured now."""
    for _ in range(TRIES):
        sink = DiagnosticSink()
        with tempfile.TemporaryDirectory() as cache:
            before, os.environ["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME"), cache
            try:
                topology = machines_of(spec, sink, training=training)
            finally:
                os.environ.pop("XDG_CACHE_HOME")
                os.environ.update({} if before is None else {"XDG_CACHE_HOME": before})
        if not any(one.severity is Severity.WARNING for one in sink.diagnostics):
            return topology
    print("no quiet measurement of the machine: it was busy each time", flush=True)
    return topology


def planned(name: Path, form: str, plan: Callable[..., dnnc.Plan]) -> tuple[dnnc.Plan, dnnc.Build] | None:
    """A form's plan and build; None, after saying why, where there is none."""
    try:
        made = plan(report=False, **FORMS[form])
        return made, made.write(name.with_name(f"{name.name}-{form.replace(' ', '-')}"))
    except dnnc.DnncError as error:
        print(f"{name.name:10} {form:9} {error.diagnostics[0].message[:90]}", flush=True)
        return None


def inferred(
    spec: str, machines: Topology, arguments: argparse.Namespace, out: Path, clock: Callable[[], float]
) -> dict[str, Row]:
    """Of each form the seconds per microbatch, in rounds that take turns."""
    with ExitStack() as stack:
        running = {}
        for form in FORMS:
            if (made := planned(out, form, partial(dnnc.plan, spec, machines=machines))) is not None:
                build = Build.open(made[1].folder)
                batches = list(RandomMicrobatches(build, arguments.microbatches, seed=0))
                pipeline = stack.enter_context(Pipeline(build))
                pipeline.run(batches, events=False)
                running[form] = made[0].value, pipeline, batches
        rounds: list[tuple[float, dict[str, float], float]] = []
        quiet = Quiet()
        while sum(part >= QUIET for part, _, _ in rounds) < arguments.rounds and len(rounds) < TRIES * arguments.rounds:
            quiet.part()
            taken = {form: 1 / pipeline.run(batches).throughput for form, (_, pipeline, batches) in running.items()}
            product = clock()
            rounds.append((quiet.part(), taken, product))
    rounds = sorted(rounds, key=lambda one: -one[0])[: arguments.rounds]
    told, busy = quiet_rounds([part for part, _, _ in rounds])
    clocked = statistics.median(product for _, _, product in rounds)
    paces = {form: [of_form[form] for _, of_form, _ in rounds] for form in running}
    return {form: Row(value, paces[form], told, busy, clocked) for form, (value, *_) in running.items()}


def quiet_rounds(parts: Sequence[float]) -> tuple[str, bool]:
    """How many rounds were quiet, from the part of the cores that nothing else had in each, and whether some were not."""
    quiet = sum(part >= QUIET for part in parts)
    return f"{quiet}/{len(parts)}", quiet < len(parts)


@contextmanager
def product_seconds() -> Iterator[Callable[[], float]]:
    """What tells the seconds of a product of matrices, on two cores at once, now."""
    cores = [[core] for core in sorted(os.sched_getaffinity(0))[:2]]
    with tempfile.TemporaryDirectory() as scratch, probes(cores, Path(scratch), 0) as running:
        order = {"do": "kernels", "model": str(running.model(product("f32", 512).model))}

        def seconds() -> float:
            answers = running.ask(order, range(len(cores)), rounds=20)
            return statistics.median(seconds for own in answers.values() for seconds in own)

        yield seconds


def trained(
    spec: str, machines: Topology, arguments: argparse.Namespace, out: Path, clock: Callable[[], float]
) -> dict[str, Row]:
    """Of each form the seconds of each step but the first."""
    rows = {}
    for form in FORMS:
        plan = partial(dnnc.plan, spec, machines=machines, objective="training", microbatches=4)
        if (made := planned(out, form, plan)) is not None:
            tried = [_steps(made[1], arguments.rounds)]
            while tried[-1][0] < QUIET and len(tried) < TRIES:
                tried.append(_steps(made[1], arguments.rounds))
            part, seconds = max(tried, key=lambda one: one[0])
            rows[form] = Row(made[0].value, seconds, f"{part:.0%}", part < QUIET, clock())
    return rows


def _steps(build: dnnc.Build, count: int) -> tuple[float, list[float]]:
    """For which part of the cores it was quiet, and the seconds of so many steps behind the first."""
    steps: list[Progressed] = []
    quiet = Quiet()

    def took(step: Progressed) -> None:
        if not steps:
            quiet.part()
        steps.append(step)

    build.train(steps=count + 1, on_step=took)
    return quiet.part(), [step.seconds for step in steps[1:]]


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
