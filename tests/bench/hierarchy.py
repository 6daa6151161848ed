"""Plans on hosts of eight devices each, with and without a look at the slower links between hosts: ``python -m
tests.bench.hierarchy``. Values are those on the real links, placement improved in both cases; target: never slower."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dnnc.compile.driver import CompileOptions, compile_model
from passes.framework.pipeline import parse_pipeline, pipeline_text
from passes.partition.partition_pass import PartitionPass
from tests.bench.machine import header

CASES = (
    ("zoo:bert-base", "preset:8xh100x8"),
    ("zoo:bert-base", "preset:4xh100x8"),
    ("zoo:bert-base,layers=24,hidden=1024,heads=16", "preset:8xh100x8"),
    ("zoo:resnet50", "preset:8xh100x8"),
    ("zoo:resnet50", "preset:2xh100x8"),
    ("zoo:gpt2", "preset:8xh100x8"),
)


def measured(model: str, topology: str, hosts: bool) -> tuple[float, float, int, float]:
    """Value and bound in microseconds, stages, seconds of the whole compilation."""
    steps = parse_pipeline("default-inference")
    pipeline = pipeline_text(replace(s, hosts=hosts) if isinstance(s, PartitionPass) else s for s in steps)
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        options = CompileOptions(model, topology, Path(folder) / "plan", plan_only=True, pipeline=pipeline)
        plan = compile_model(options).plan
    return plan.value * 1e6, plan.bound * 1e6, len(plan.stages), time.perf_counter() - started


def main() -> None:
    print(header())
    print(f"{'model on topology':62} {'ports':>9} {'hosts':>9} {'ratio':>6} {'bound':>8} {'stages':>9} {'seconds':>11}")
    for model, topology in CASES:
        before, bound, few, slow = measured(model, topology, False)
        after, _, many, quick = measured(model, topology, True)
        verdict = "ok" if after <= before * (1 + 1e-9) else "SLOWER"
        print(
            f"{model + ' on ' + topology:62} {before:6.1f} us {after:6.1f} us {before / after:6.2f} {bound:5.1f} us "
            f"{few:4d}/{many:<4d} {slow:5.1f}/{quick:<5.1f} {verdict}"
        )


if __name__ == "__main__":
    main()
