"""How fast a build runs: ``python -m tests.bench.running [MODEL] [-t TOPOLOGY] [--microbatches M] [--rounds N]``.

The model (``zoo:resnet50`` unless named) is compiled for 2 one-core workers in 2 stages and run as a pipeline on 2 cores,
against one onnxruntime session on 1 core and against one session with 2 threads on both cores. All three take turns in one
process group; each is pinned; the figures are medians of the ratios of neighbouring turns, so that a change of the machine's
pace during the run hits both sides. Targets: 1.75 times one core, 0.93 times the two-thread session.

What the plan predicts is held against it: seconds of each stage and of a microbatch, medians of the rounds; and against the
processor's seconds of a stage, which a busy neighbour hardly changes. ``-t`` names another topology of two devices, such as a
file of ``dnnc topology measure``; ``--profile`` a file of ``dnnc profile``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnxruntime

from dnnc.build.build import ANNOTATED, Build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline, RunOptions
from tests.bench.machine import header

ONE_CORE, TWO_THREADS = 1.75, 0.93


def session(model: Path, cores: set[int]) -> onnxruntime.InferenceSession:
    """A session whose threads, one per core, were born on ``cores``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(cores)
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors: warnings of a model would stand between the figures
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    finally:
        os.sched_setaffinity(0, before)


def pace(one: onnxruntime.InferenceSession, cores: set[int], samples: Sequence[Mapping[str, Any]]) -> float:
    """Samples a second of a session, the calling thread on ``cores``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        start = time.perf_counter()
        for sample in samples:
            one.run(None, sample)
        return len(samples) / (time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="zoo:resnet50")
    parser.add_argument("-t", "--topology", default="preset:cpu-2")
    parser.add_argument("-p", "--profile", type=Path, action="append", default=[])
    parser.add_argument("--microbatches", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("this needs two cores")
    print(header())
    with tempfile.TemporaryDirectory(prefix="dnnc-bench-") as folder:
        compile_model(
            CompileOptions(
                arguments.model,
                arguments.topology,
                Path(folder) / "build",
                stages=2,
                mesh="none",
                profile=tuple(arguments.profile),
            )
        )
        measure(Build.open(Path(folder) / "build"), cores, arguments.microbatches, arguments.rounds)


def _against(predicted: float, measured: Sequence[float]) -> str:
    middle = statistics.median(measured)
    return f"predicted {predicted:.6f}, measured {middle:.6f} ({predicted / middle:.2f})"


def measure(build: Build, cores: Sequence[int], microbatches: int, rounds: int) -> None:
    made = [random_inputs(build, seed=seed) for seed in range(4)]
    samples = [made[i % 4] for i in range(microbatches)]
    single, double = (session(build.folder / ANNOTATED, of) for of in ({cores[0]}, set(cores)))
    against_single, against_double = [], []
    paces: list[float] = []
    stage_seconds: list[Sequence[float]] = []
    processor: list[tuple[float, ...]] = []
    os.sched_setaffinity(0, set(cores))
    with Pipeline(build, RunOptions(threads=1)) as pipeline:
        result = pipeline.run(samples)
        pace(single, {cores[0]}, samples[:2])
        pace(double, set(cores), samples[:2])
        print("round   pipeline/s   1 core/s   2 threads/s   vs 1 core   vs 2 threads")
        for turn in range(rounds):
            del result  # the next outputs lie where these lay: memory that was never used before is slow to get
            result = pipeline.run(samples)
            processor.append(result.cpu)
            paces.append(1 / result.throughput)
            stage_seconds.append(result.stage_seconds)
            one, two = pace(single, {cores[0]}, samples), pace(double, set(cores), samples)
            against_single.append(result.throughput / one)
            against_double.append(result.throughput / two)
            figures = f"{result.throughput:10.2f} {one:10.2f} {two:13.2f}"
            print(f"{turn:5}   {figures} {against_single[-1]:11.3f} {against_double[-1]:14.3f}")
    for title, found, target in (
        ("one session on 1 core", statistics.median(against_single), ONE_CORE),
        ("one session with 2 threads", statistics.median(against_double), TWO_THREADS),
    ):
        verdict = "met" if found >= target else "MISSED"
        print(f"throughput against {title}: {found:.3f}x (median of {rounds}; target {target}x: {verdict})")
    print(f"seconds per microbatch: {_against(build.plan.value, paces)}")
    for stage, planned, measured in zip(build.stages, build.plan.stages, zip(*stage_seconds, strict=True), strict=True):
        spent = [(after - before) / microbatches for before, after in pairwise(of_all[stage.index] for of_all in processor)]
        print(f"  stage {stage.index} on {stage.device}: {_against(planned.compute, measured)}")
        print(f"  stage {stage.index}, processor seconds: {_against(planned.compute, spent)}")
    print(f"latency {result.latency:.6f} s; load average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
