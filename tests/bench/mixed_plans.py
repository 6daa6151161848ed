"""Plans with replicas of a stage beside a mesh, beside the best plan of each kind alone.

``python -m tests.bench.mixed_plans``: VGG-19, one image at a time, on small machines on an Ethernet of 1 Gbit/s. Its first
product has 411 MB of weights, for which no device has room; the convolutions before it have 80 MB and most of the work. Of
each machine the plan of ``dnnc compile`` without options, its gap, and how many times as long the best plans take of stages on
devices and replicas (``--mesh none``), on one mesh, and in stages on meshes (``--mesh auto --stages 0``). Ends with 1 where a
plan has no replicas beside a mesh, or is not over 3 % faster than all of these.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

from dnnc.compile.driver import CompileOptions, compile_model
from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Plan
from tests.bench.machine import header

MODEL = "zoo:vgg19,batch=1,weights=declared"
BOARD = """
[types.board]
kind = "cpu"
rates = { f32 = "40 GFLOP/s" }
memory = "400 MiB"
memory_bandwidth = "8 GB/s"
overhead = "10 us"
"""
ACCELERATOR = """
[types.accelerator]
kind = "npu"
rates = { f32 = "200 GFLOP/s" }
memory = "128 MiB"
memory_bandwidth = "20 GB/s"
overhead = "20 us"
"""
CASES = {"4 boards": {"board": 4}, "5 boards": {"board": 5}, "2 accelerators, 2 boards": {"accelerator": 2, "board": 2}}
KINDS = {"devices": {"mesh": "none"}, "one mesh": {"mesh": "auto"}, "meshes": {"mesh": "auto", "stages": 0}}


def machines(counts: dict[str, int]) -> str:
    devices = [f'[[devices]]\nname = "{type_}"\ncount = {count}\ntype = "{type_}"\n' for type_, count in counts.items()]
    ends = ", ".join(f'"{type_}*"' for type_ in counts)
    link = f'[[links]]\nmesh = [{ends}]\nbandwidth = "1 Gbit/s"\nlatency = "100 us"\n'
    return "\n".join(["version = 1", BOARD, *([ACCELERATOR] if "accelerator" in counts else []), *devices, link])


def planned(topology: Path, **options: object) -> Plan | None:
    asked = CompileOptions(MODEL, str(topology), topology.with_suffix(".plan"), plan_only=True, **options)  # type: ignore[arg-type]
    try:
        return compile_model(asked, sink=DiagnosticSink()).plan
    except Infeasible:
        return None


def main() -> int:
    print(header())
    print(f"{'machine':26}{'plan':>34}{'ms':>8}{'gap %':>7}" + "".join(f"{f'x {kind}':>12}" for kind in KINDS))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, counts in CASES.items():
            file = Path(folder) / "machines.toml"
            file.write_text(machines(counts), encoding="utf-8")
            found = planned(file)
            assert found is not None
            forms = [
                f"mesh of {len(stage.devices)}" if stage.mesh else f"{stage.replicas} replica{'s' * (stage.replicas > 1)}"
                for stage in found.stages
            ]
            others = [planned(file, **options) for options in KINDS.values()]
            times = [other.value / found.value if other else math.inf for other in others]
            cells = "".join(f"{factor:>12.3f}" for factor in times)
            print(f"{name:26}{', '.join(forms):>34}{1000 * found.value:>8.1f}{100 * found.gap:>7.1f}{cells}", flush=True)
            mixed = found.on_meshes and any(stage.replicas > 1 for stage in found.stages)
            failed += not mixed or min(times) <= 1.03
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
