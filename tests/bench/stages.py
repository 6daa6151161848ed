"""Pipeline only, tensors only, and both jointly: ``python -m tests.bench.stages [MODEL ...]``. CPU seconds of one thread.

For each model on 8 and on 64 devices: stages of one device each (``shard{mesh=1, stages=0}``), one mesh over all devices
(``shard``), and ``shard{stages=0}``; seconds per sample of a stream, bound, gap and seconds of the search. ``ratio``: to the
better of the first two, which joint search can both choose. Target: gpt3 on 64 devices in 20 s, t5-large on 8 in 5 s.
``partition`` stands beside them for its own sake: it cuts anywhere and prices what runtimes fuse, which sharding does not.
"""

from __future__ import annotations

import math
import sys
import time

from dnnc.driver import pass_context
from dnnc.frontends.topology import load_topology
from ir.diagnostics import DiagnosticSink, DnncError
from ir.module import Module, Plan
from passes.base import Pass
from passes.contract import ContractPass
from passes.lower import insert_symbols
from passes.partition import PartitionPass
from passes.place import PlacePass
from passes.shard import ShardPass
from tests.bench.machine import header
from tests.passes.shard.models import prepared

MODELS = ("zoo:bert-base,layers=24,hidden=1024,heads=16", "zoo:t5-large", "zoo:llama-70b", "zoo:gpt3-175b,dtype=f16")
TOPOLOGIES = {8: "preset:h200x8", 64: "preset:8xh200x8"}
TARGETS = {("zoo:t5-large", 8): 5.0, ("zoo:gpt3-175b,dtype=f16", 64): 20.0}
LIMIT = 60.0
WAYS: dict[str, tuple[Pass, ...]] = {
    "partition": (ContractPass(), PartitionPass(time_limit=LIMIT / 4), PlacePass()),
    "pipeline": (ShardPass(mesh="1", stages=0, time_limit=LIMIT),),
    "tensors": (ShardPass(time_limit=LIMIT),),
    "joint": (ShardPass(stages=0, time_limit=LIMIT),),
}


def planned(module: Module, passes: tuple[Pass, ...]) -> tuple[Plan | None, float]:
    """The plan, None where nothing fits, and CPU seconds."""
    context = pass_context(DiagnosticSink())
    start = time.process_time()
    try:
        for one in passes:
            module = one.run(module, context)
    except DnncError:
        return None, time.process_time() - start
    return module.first(Plan), time.process_time() - start


def main() -> None:
    print(header())
    print(f"{'model':44} {'devices':>7} {'way':9} {'ms':>9} {'bound':>9} {'gap':>7} {'ratio':>6} {'stages':>6} {'search':>8}")
    for spec in sys.argv[1:] or MODELS:
        for devices, topology in TOPOLOGIES.items():
            module = insert_symbols(prepared(spec)[0], (load_topology(topology, DiagnosticSink()),))
            best = math.inf
            for way, passes in WAYS.items():
                plan, seconds = planned(module, passes)
                if plan is None:
                    print(f"{spec:44} {devices:7d} {way:9} does not fit{'':36} {seconds:7.2f}s")
                    continue
                ratio = plan.value / best if way == "joint" and math.isfinite(best) else 1.0
                if way != "partition":
                    best = min(best, plan.value)
                target = TARGETS.get((spec, devices)) if way == "joint" else None
                verdict = "" if target is None else "  ok" if seconds <= target else f"  ABOVE {target:.0f} s"
                print(
                    f"{spec:44} {devices:7d} {way:9} {plan.value * 1e3:9.4f} {plan.bound * 1e3:9.4f} {plan.gap:7.2%} "
                    f"{ratio:6.3f} {len(plan.stages):6d} {seconds:7.2f}s{verdict}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
