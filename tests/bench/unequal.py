"""What unequal parts gain on unequal devices: ``python -m tests.bench.unequal``.

Models of the zoo on two H100 and two A100 behind one switch, as one axis of four and as two of two. Modelled seconds with equal
parts, with the best shares that the search tried, and their quotient; processor seconds of both compilations. Ends with 1 where
unequal parts are worse than equal ones.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dnnc.compile.driver import CompileOptions, compile_model
from tests.bench.machine import header

MODELS = ("bert-base,batch=1", "bert-base,batch=24", "gpt2,batch=1", "gpt2,batch=8", "resnet50,batch=1", "resnet50,batch=24")
MESHES = ("4", "2x2")
TOPOLOGY = """
version = 1
[types]
h100 = "preset:h100"
a100 = "preset:a100"
[[devices]]
name = "h{0..1}"
type = "h100"
[[devices]]
name = "a{0..1}"
type = "a100"
[[links]]
each = "devices of host"
to = "host"
bandwidth = "300 GB/s"
latency = "1 us"
"""


@dataclass(frozen=True, slots=True)
class Found:
    """Modelled and processor seconds, and what the certificate says of shares."""

    value: float
    cpu: float
    shares: str


def compiled(model: str, mesh: str, shares: str, folder: Path) -> Found:
    topology = folder / "mixed.toml"
    topology.write_text(TOPOLOGY, encoding="utf-8")
    options = CompileOptions(
        f"zoo:{model},weights=declared", str(topology), folder / "plan", mesh=mesh, shares=shares, plan_only=True
    )
    began = time.process_time()
    plan = compile_model(options).plan
    told = dict(plan.certificate).get("shares", "equal").partition(",")[0]
    return Found(plan.value, time.process_time() - began, told)


def main() -> int:
    print(header())
    print(f"{'model':20} {'mesh':>5} {'equal':>10} {'unequal':>10} {'gain':>6}  {'shares':12} {'cpu s':>6} {'cpu s':>6}")
    worse = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for model in MODELS:
            for mesh in MESHES:
                equal, unequal = (compiled(model, mesh, shares, folder) for shares in ("equal", ""))
                gain = equal.value / unequal.value
                worse += gain < 1 - 1e-9
                print(
                    f"{model:20} {mesh:>5} {equal.value * 1e3:7.3f} ms {unequal.value * 1e3:7.3f} ms {gain:5.2f}x"
                    f"  {unequal.shares:12} {equal.cpu:6.2f} {unequal.cpu:6.2f}",
                    flush=True,
                )
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
