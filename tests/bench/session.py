"""What the Python door costs: ``python -m tests.bench.session [--model SPEC] [--microbatches 200] [--rounds 5]``.

One build, stages on two one-core workers. In each round, in turn: ``dnnc run``'s own pipeline (pace, and latency with one
microbatch under way), then a session: ``run`` one after the other (latency) and ``map`` (pace), and the same from four threads.
Printed are medians of the rounds and their ratios or differences.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import dnnc
from dnnc.build.build import Build
from dnnc.data.generate import RandomMicrobatches
from dnnc.engines.onnxruntime import Pipeline
from tests.bench.machine import header


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:mlp,layers=6,hidden=1024,batch=16")
    parser.add_argument("--microbatches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(header(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        built = dnnc.plan(arguments.model, machines="preset:cpu-2", stages=2).write(Path(name, "build"))
        build = Build.open(built.folder)
        batches = list(RandomMicrobatches(build, arguments.microbatches, seed=0))
        figures: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for what, seconds in (*of_pipeline(build, batches), *of_session(built, batches)):
                figures.setdefault(what, []).append(seconds)
    median = {what: statistics.median(seconds) for what, seconds in figures.items()}
    for what, seconds in median.items():
        print(f"{what:45} {seconds * 1e3:8.3f} ms")
    print(f"session.run - run, latency: {(median['session.run, latency'] - median['dnnc run, latency']) * 1e3:.3f} ms")
    print(f"session.map / run, pace: {median['session.map, per microbatch'] / median['dnnc run, per microbatch']:.3f}")


def of_pipeline(build: Build, batches: list[dict[str, Any]]) -> list[tuple[str, float]]:
    with Pipeline(build) as pipeline:
        pipeline.run(batches)
        whole = pipeline.run(batches, events=False).seconds / len(batches)
        alone = statistics.median(pipeline.run([one]).seconds for one in batches)
    return [("dnnc run, per microbatch", whole), ("dnnc run, latency", alone)]


def of_session(build: dnnc.Build, batches: list[dict[str, Any]]) -> list[tuple[str, float]]:
    with build.start() as session:
        list(session.map(batches))
        began = time.perf_counter()
        list(session.map(batches))
        mapped = time.perf_counter() - began
        times = []
        for one in batches:
            began = time.perf_counter()
            session.run(None, one)
            times.append(time.perf_counter() - began)

        def client() -> None:
            for one in batches:
                session.run(None, one)

        threads = [threading.Thread(target=client) for _ in range(4)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        four = time.perf_counter() - began
    return [
        ("session.map, per microbatch", mapped / len(batches)),
        ("session.run, latency", statistics.median(times)),
        ("session.run from 4 threads, per microbatch", four / 4 / len(batches)),
    ]


if __name__ == "__main__":
    main()
