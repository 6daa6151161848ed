"""Pipeline only, one mesh only, and both jointly: ``python -m tests.bench.stages [MODEL ...]``. CPU seconds of one thread.

For each model on 8 and on 64 devices, in inference (seconds per sample of a stream) and in training (seconds of a step of
``MICROBATCHES``): the joint search ``partition{mesh=auto}`` with its value, bound, gap, stages and CPU seconds, and under the
same model the best plan in stages of one device each (``pipeline``) and the best on one mesh of all devices, of any shape
(``mesh``); ``-`` where none fits. ``ratio``: to the better of these two, both of which joint search could choose: above 1 is a
defect.
Targets of CPU seconds: gpt3 on 64 devices 20 in inference, t5-large on 8 in 5.
"""

from __future__ import annotations

import math
import sys
import time

from dnnc.compile.context import pass_context
from dnnc.machines.topology.read import load_topology
from ir.core.diagnostics import DiagnosticSink, DnncError
from ir.core.module import Module, Plan
from ir.core.topology import Topology
from passes.costs.network import network
from passes.graph.folding import folding
from passes.graph.symbols import insert_symbols
from passes.meshes.mesh import shapes
from passes.partition.chain.bounding import Bounding
from passes.partition.chain.stages import StageSearch
from passes.partition.chain.submeshes import submeshes
from passes.solvers.anytime import Limits
from tests.bench.machine import header
from tests.passes.partition.layouts.models import prepared
from tests.passes.partition.on_meshes import on_meshes

MODELS = ("zoo:bert-base,layers=24,hidden=1024,heads=16", "zoo:t5-large", "zoo:llama-70b", "zoo:gpt3-175b,dtype=f16")
TOPOLOGIES = {8: "preset:h200x8", 64: "preset:8xh200x8"}
TARGETS = {("zoo:t5-large", 8, False): 5.0, ("zoo:gpt3-175b,dtype=f16", 64, False): 20.0}
LIMIT = 60.0
SHORT = 10.0
"""Seconds of a search that others are compared with."""
MICROBATCHES = 8


def joint(module: Module, training: bool) -> tuple[Plan | None, float]:
    """The plan of the joint search, None where nothing fits, and CPU seconds."""
    context = pass_context(DiagnosticSink())
    start = time.process_time()
    try:
        made = on_meshes(stages=0, time_limit=LIMIT, training=training, microbatches=MICROBATCHES).run(module, context)
    except DnncError:
        return None, time.process_time() - start
    return made.first(Plan), time.process_time() - start


def alone(module: Module, sizes: tuple[int, ...], stages: int, training: bool) -> float:
    """Seconds of the best plan on meshes of one shape; inf where none fits. ``stages``: as many as that, 0 for any."""
    topology = module.first(Topology)
    assert topology is not None
    net = network(topology)
    bounding = Bounding(
        module,
        topology,
        net,
        folding(module.entry, module),
        submeshes(topology, net, sizes, training=training),
        training=training,
        microbatches=MICROBATCHES if training else 1,
    )
    plan = StageSearch(bounding, Limits(seconds=SHORT, gap=1e-2)).run(stages)
    return plan.value if plan is not None else math.inf


def told(seconds: float) -> str:
    return f"{seconds * 1e3:10.4f}" if math.isfinite(seconds) else f"{'-':>10}"


def main() -> None:
    print(header())
    columns = f"{'value':>10} {'bound':>10} {'gap':>7} {'stages':>6} {'CPU':>8} {'pipeline':>10} {'mesh':>10} {'ratio':>6}"
    print(f"{'model':44} {'devices':>7} {'':9} {columns}   (ms)")
    for spec in sys.argv[1:] or MODELS:
        for devices, topology in TOPOLOGIES.items():
            module = insert_symbols(prepared(spec)[0], (load_topology(topology, DiagnosticSink()),))
            for training in (False, True):
                plan, seconds = joint(module, training)
                row = f"{spec:44} {devices:7d} {'training' if training else 'inference':9}"
                if plan is None:
                    print(f"{row} does not fit")
                    continue
                pipeline = alone(module, (1,), 0, training)
                mesh = min(alone(module, shape, 1, training) for shape in shapes(devices))
                best = min(pipeline, mesh)
                ratio = plan.value / best if math.isfinite(best) else math.nan
                target = TARGETS.get((spec, devices, training))
                verdict = "" if target is None else "  ok" if seconds <= target else f"  ABOVE {target:.0f} s"
                print(
                    f"{row} {told(plan.value)} {told(plan.bound)} {plan.gap:7.2%} {len(plan.stages):6d} {seconds:7.2f}s "
                    f"{told(pipeline)} {told(mesh)} {ratio:6.3f}{verdict}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
