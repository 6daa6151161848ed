"""What a microbatch costs besides compute where a stage hands it on: ``python -m tests.bench.handover [--rounds N]``.

Chains of stages whose ops take next to no time, 1 to 16 small tensors (1 KB) from stage to stage: seconds per microbatch in a
stream and of one alone, medians of rounds that take turns, with the same ops in one onnxruntime session beside them. What a
further stage adds to the time alone is one hand-over; a stage in a stream pays for what it receives and what it sends.
``latency`` and ``handover`` in ``dnnc/machines/presets/cpu.toml`` are read off here; ``dnnc topology measure`` measures the
latter of two stages (``dnnc/machines/handover.py``).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dnnc.engines.onnxruntime import Pipeline
from tests.bench.machine import header
from tests.dnnc.engines.onnxruntime.builds import make_build

ELEMENTS = 256


def texts(stages: int, tensors: int) -> list[str]:
    """ONNX text of each stage: every tensor through one Relu, the first stage spreading the input, the last summing up."""
    names = [f"t{i}" for i in range(tensors)]

    def typed(level: int) -> str:
        return ", ".join(f"float[{ELEMENTS}] {name}_{level}" for name in names)

    found = []
    for stage in range(stages):
        last = stage + 1 == stages
        inputs = typed(stage) if stage else f"float[{ELEMENTS}] x"
        results = f"float[{ELEMENTS}] y" if last else typed(stage + 1)
        ops = [f"{name}_{stage + 1} = Relu({f'{name}_{stage}' if stage else 'x'})" for name in names]
        ops += [f"y = Sum({', '.join(f'{name}_{stage + 1}' for name in names)})"] if last else []
        found.append(f"g ({inputs}) => ({results}) {{ {' '.join(ops)} }}")
    return found


def own(model: bytes, feeds: dict[str, NDArray[np.float32]], runs: int) -> float:
    """Median seconds of a run of the model in a session of this process."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    spent = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feeds)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(header())
    print("tensors  stages  alone  in a stream  in one session (microseconds per microbatch)")
    x = {"x": np.ones(ELEMENTS, np.float32)}
    with ExitStack() as stack:
        for tensors in (1, 4, 16):
            for stages in (1, 2, 3):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dnnc-bench-")))
                build = make_build(folder, *texts(stages, tensors))
                with Pipeline(build) as pipeline:
                    pipeline.run([x] * 50)
                    alone = statistics.median(pipeline.run([x]).latency for _ in range(10 * rounds))
                    stream = statistics.median(1 / pipeline.run([x] * 200).throughput for _ in range(rounds))
                model = build.files.contents[str(build.stages[0].model)]
                session = f"{own(model, x, 50 * rounds) * 1e6:.0f}" if stages == 1 else ""
                print(f"{tensors:7} {stages:7} {alone * 1e6:6.0f} {stream * 1e6:12.0f} {session:>14}")


if __name__ == "__main__":
    main()
