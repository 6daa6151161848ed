"""What it costs to hand a tensor to another process: ``python -m tests.bench.transport``.

The first of two stages fills a tensor of 4 KB, 1 MB or 16 MB where the second finds it, and the second reads one element.
Printed are the latency of one microbatch alone, from the start of the first stage to the output in the hands of the starter,
and the seconds per microbatch in a stream; both hold three hand-overs and the filling.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from dnnc.engines.onnxruntime import Pipeline
from tests.bench.machine import header
from tests.dnnc.engines.onnxruntime.builds import make_build

SIZES = {"4 KB": 1 << 10, "1 MB": 1 << 18, "16 MB": 1 << 22}


def main() -> None:
    print(header())
    print("tensor   alone (latency)   in a stream (per microbatch)")
    for title, elements in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="dnnc-bench-") as folder:
            build = make_build(
                Path(folder),
                f"g (float[1] x) => (float[{elements}] h) {{ n = Constant <value_ints = [{elements}]> () h = Expand(x, n) }}",
                f"g (float[{elements}] h) => (float[1] y) {{ a = Constant <value_ints = [0]> () "
                "b = Constant <value_ints = [1]> () y = Slice(h, a, b) }",
            )
            x = {"x": np.ones(1, np.float32)}
            with Pipeline(build) as pipeline:
                pipeline.run([x] * 20)
                alone = min(pipeline.run([x]).latency for _ in range(20))
                stream = pipeline.run([x] * 200)
            print(f"{title:6} {alone * 1e6:14.0f} us {1e6 / stream.throughput:20.0f} us")


if __name__ == "__main__":
    main()
