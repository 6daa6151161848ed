"""What it costs to bring parts together: ``python -m tests.bench.collectives [--model MODEL] [--mesh SHAPE]``.

Seconds of each collective of a float32 tensor of 1 MiB or 16 MiB (the whole one) over 2 and 4 processes, the median over the
members' slowest, against copying that tensor once in one process (``memcpy``). Operands lie where onnxruntime writes them; the
result lies where it reads them. More members than cores take turns.

Then a sharded model as processes: seconds per sample that its plan predicts, and measured, of compute and of collectives, which
hold the waiting of a member for the others.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from dnnc.build.build import Build
from dnnc.build.collective import Collective
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline
from dnnc.engines.onnxruntime.transport.collectives import TURNS, Exchange
from dnnc.report import seconds_text
from ir.ops.opdefs import COLLECTIVES
from tests.bench.machine import header
from tests.dnnc.engines.onnxruntime.members import members, shared_array, statuses

SIZES = {"1 MiB": 1 << 20, "16 MiB": 1 << 24}
ROUNDS = 30
COLUMNS = 1024


def collective(kind: str, nbytes: int, count: int) -> Collective:
    """One of a tensor of ``nbytes`` in all, ``COLUMNS`` wide: gathered and scattered by rows, exchanged rows for columns."""
    rows = nbytes // 4 // COLUMNS
    whole, by_rows, by_columns = (rows, COLUMNS), (rows // count, COLUMNS), (rows, COLUMNS // count)
    operand, result, split, join = {
        "all_reduce": (whole, whole, -1, -1),
        "all_gather": (by_rows, whole, -1, 0),
        "reduce_scatter": (whole, by_rows, 0, -1),
        "all_to_all": (by_rows, by_columns, 1, 0),
    }[kind]
    groups = (tuple(range(count)),)
    reduction = "sum" if "reduce" in kind else ""
    return Collective(kind, 0, 0, "x", "y", 1, groups, (operand,) * count, (result,) * count, reduction, split, join)


def seconds_of(one: Collective, count: int) -> float:
    """Median over rounds of the time until the slowest member is done, from when the last one began."""
    begun, ended = (shared_array((ROUNDS, count), "float64") for _ in range(2))

    def job(exchange: Exchange) -> None:
        for turn in range(TURNS):
            exchange.operand(0, turn).data[...] = 1
        for number in range(-4, ROUNDS):
            turn = number % TURNS
            exchange.barrier(range(count))
            start = time.monotonic()
            exchange.run(0, turn)
            if number >= 0:
                begun[number, exchange.member], ended[number, exchange.member] = start, time.monotonic()

    with members([one], count, job) as processes:
        assert statuses(processes) == [0] * count
    return statistics.median((ended.max(1) - begun.max(1)).tolist())


def memcpy(nbytes: int) -> float:
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    found = []
    for _ in range(ROUNDS):
        start = time.monotonic()
        np.copyto(target, source)
        found.append(time.monotonic() - start)
    return statistics.median(found)


def running(model: str, mesh: str, strategy: str) -> None:
    """Predicted and measured pace of a sharded model."""
    devices = int(np.prod([int(size) for size in mesh.split("x")]))
    with tempfile.TemporaryDirectory(prefix="dnnc-bench-") as folder:
        options = CompileOptions(model, f"preset:cpu-{devices}", Path(folder) / "build", mesh=mesh, strategy=strategy)
        compile_model(options)
        build = Build.open(options.out)
        samples = [random_inputs(build, seed=seed) for seed in range(4)]
        with Pipeline(build) as pipeline:
            pipeline.run(samples)
            result = pipeline.run(samples * 5)
        plan = build.plan.stages[0]
        count = len(build.stages[0].collectives)
        print(f"{model} on mesh {mesh}, {strategy or 'best'}: {count} collectives")
        for title, predicted, measured in (
            ("compute", plan.compute, result.stage_seconds[0]),
            ("collectives", plan.collectives, result.collective_seconds[0]),
            ("sample", build.plan.value, 1 / result.throughput),
        ):
            print(f"  {title:12} predicted {seconds_text(predicted):>8}  measured {seconds_text(measured):>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:bert-base,layers=4,batch=1")
    parser.add_argument("--mesh", default="2")
    parser.add_argument("--strategy", default="megatron")
    given = parser.parse_args()
    print(header())
    print("collective      tensor  members   seconds   over memcpy")
    for size, nbytes in SIZES.items():
        copy = memcpy(nbytes)
        for kind in COLLECTIVES:
            for count in (2, 4):
                taken = seconds_of(collective(kind, nbytes, count), count)
                print(f"{kind:14}  {size:>6}  {count:7}  {seconds_text(taken):>8}  {taken / copy:10.2f}x")
        print(f"{'memcpy':14}  {size:>6}  {1:7}  {seconds_text(copy):>8}")
    running(given.model, given.mesh, given.strategy)


if __name__ == "__main__":
    main()
