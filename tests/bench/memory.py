"""How many bytes the processes of a build hold: ``python -m tests.bench.memory [MODEL@OPTIONS ...]``.

Each model is compiled for local workers and run; per process, its peak resident memory (VmHWM) above that of a process that
runs next to nothing (the baseline of the same run) beside what the plan says of its device: weights, activations, buffers; and
what it holds at the end in memory of its own (RssAnon), without the pages of weight files, which the system may take back.
A plan counts the tensors of a program, as a device that holds each of them once would; onnxruntime on a CPU also packs the
weights of products and convolutions anew, and each member keeps what passes between its segments.
Options: ``mesh=2x2``, ``stages=2``, joined by ``;``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from dnnc.build.build import Build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline, RunOptions
from tests.bench.machine import header

CASES = (
    "zoo:bert-base,layers=4,batch=8@stages=2",
    "zoo:bert-base,layers=4,batch=8@mesh=2",
    "zoo:bert-base,layers=4,batch=8@mesh=2;stages=2",
    "zoo:gpt2,layers=4,batch=4@mesh=2",
    "zoo:llama-7b,layers=4,hidden=1024,seq=128,batch=4@mesh=2x2",
    "zoo:resnet50,batch=8@mesh=2",
    "zoo:resnet50,batch=8@stages=2",
)
BASELINE = "zoo:mlp,layers=2,hidden=8,inputs=8,outputs=8@stages=2"
MIB = 2.0**20
MICROBATCHES = 6


def held(pipeline: Pipeline, field: str) -> list[float]:
    """MiB of each process of a pipeline, as Linux calls them."""
    found = []
    for process in pipeline.processes:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        found.append(next(float(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024)
    return found


def measured(case: str, folder: Path) -> tuple[Build, list[float], list[float]]:
    """The build of a case, and of each of its processes, stage by stage, member by member, the peak and what is its own."""
    model, _, text = case.partition("@")
    options = dict(pair.split("=") for pair in text.split(";"))
    target = folder / str(len(list(folder.iterdir())))
    compile_model(
        CompileOptions(model, "preset:cpu-4", target, stages=int(options.get("stages", "1")), mesh=options.get("mesh", ""))
    )
    build = Build.open(target)
    with Pipeline(build, RunOptions(threads=1)) as pipeline:
        pipeline.run([random_inputs(build, seed=seed) for seed in range(MICROBATCHES)])
        return build, held(pipeline, "VmHWM"), held(pipeline, "RssAnon")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    arguments = parser.parse_args()
    print(header())
    with tempfile.TemporaryDirectory(prefix="dnnc-bench-") as folder:
        _, peaks, owned = measured(BASELINE, Path(folder))
        empty, bare = max(peaks), max(owned)
        print(f"baseline: a process that runs next to nothing holds {empty:.0f} MiB, {bare:.0f} of its own\n")
        titles = f"{'weights':>8} {'activ.':>8} {'buffers':>8} {'planned':>8} {'peak':>8} {'ratio':>6} {'own':>8} {'ratio':>6}"
        print(f"{'build':58} {'stage':>5} {titles}")
        for case in arguments.cases:
            build, peaks, owned = measured(case, Path(folder))
            places = [row for row in build.plan.stages for _ in row.devices]
            for row, peak, own in zip(places, peaks, owned, strict=True):
                planned = (row.weights + row.workspace + row.buffers) / MIB
                parts = f"{row.weights / MIB:8.1f} {row.workspace / MIB:8.1f} {row.buffers / MIB:8.1f} {planned:8.1f}"
                ratios = f"{peak - empty:8.1f} {(peak - empty) / planned:6.2f} {own - bare:8.1f} {(own - bare) / planned:6.2f}"
                print(f"{case:58} {row.index:5} {parts} {ratios}", flush=True)


if __name__ == "__main__":
    main()
