"""Seconds of the partition search: public workloads, zoo models and lattices too large to walk. Run as
``python -m tests.bench.partition``; prints one row each, the median of five searches after the JIT cache is filled."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from dnnc.compile.context import pass_context, with_topology
from dnnc.compile.load import load_model
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink
from passes.costs.network import network
from passes.framework.pipeline import parse_pipeline
from passes.partition.lattice.search.throughput import solve
from passes.stages.colocation import colocation
from passes.stages.from_ir import problem_of
from passes.stages.problem import Problem
from passes.stages.reduce import ordered, quotient, reduce
from tests.passes.partition.instances import encoder_decoder, experts, series_parallel
from tests.passes.partition.lattice.search.test_workloads import FOLDER, OPTIMA, read


def problems() -> Iterator[tuple[str, Problem]]:
    """Problems by name, before reduction."""
    if FOLDER.is_dir():
        for name in sorted(OPTIMA):
            yield name, read(FOLDER / f"{name}.json")
    for spec in ("zoo:gpt2", "zoo:bert-base", "zoo:resnet50"):
        for topology in ("preset:cpu-4", "preset:h100x8"):
            sink = DiagnosticSink()
            module = with_topology(load_model(spec, {}, sink).module, machines := load_topology(topology, sink))
            context = pass_context(sink)
            for step in parse_pipeline("canonicalize,cost"):
                module = step.run(module, context)
            fine = problem_of(module, machines, network(machines))
            yield f"{spec} {topology}", quotient(fine, ordered(fine, colocation(module)))
    for layers in (6, 12, 24):
        yield f"encoder-decoder {layers}+{layers}", encoder_decoder(layers)
    yield "1 x 64 experts", experts(64, layers=1)
    yield "2 x 64 experts", experts(64)
    for seed in range(6):
        yield f"series-parallel {seed}", series_parallel(seed)


def main() -> None:
    print(f"{'problem':36} {'nodes':>5} {'ideals':>8} {'pairs':>10} {'seconds':>8} {'gap':>7}")
    for name, problem in problems():
        solve(quotient(problem, reduce(problem)))
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            solution = solve(quotient(problem, reduce(problem)))
            seconds.append(time.perf_counter() - start)
            if seconds[-1] > 1:
                break
        counts = solution.statistics
        bound = solution.bound
        gap = solution.value / bound - 1
        print(
            f"{name:36} {problem.size:5} {counts.ideals:8} {counts.transitions:10} {statistics.median(seconds):8.4f} {gap:7.2%}"
        )


if __name__ == "__main__":
    main()
