"""How long sharded stages take to lower: ``python -m tests.bench.spmd [MODEL@TOPOLOGY@MESH ...]``.

Per plan: ops of the entry, ops and collectives of the SPMD stages; CPU seconds to write the stages (with the check of every
decision), to count their collectives, and to derive the program of one member. Target: 1 s each for gpt3-175b on 8x8. The
baseline of the same run is one verification of the lowered module, linear in its size as all of this is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ir
from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.machines.topology.read import load_topology
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module, Stage
from passes.framework.base import Pass
from passes.meshes import count
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.cost import CostPass
from passes.programs.localize import LocalizePass
from passes.programs.lower import LowerPass
from tests.bench.machine import header
from tests.passes.partition.on_meshes import on_meshes

CASES = (
    "zoo:t5-large,weights=declared@preset:h100x8@8",
    "zoo:gpt3-175b,batch=64@preset:8xh100x8@8x8",
    "zoo:gpt3-175b,batch=64,layers=384@preset:8xh100x8@8x8",
)
TARGET = 1.0
"""Seconds of each step for 96 layers."""
LAYERS = "layers=384"
"""Of the case that shows growth, to which the target does not apply."""


def planned(case: str) -> Module:
    model, topology, mesh = case.split("@")
    module = load_model(model, {}, DiagnosticSink()).module.extend([load_topology(topology, DiagnosticSink())])
    return through(module, CanonicalizePass(), CostPass(), on_meshes(mesh=mesh, memory=-1))


def through(module: Module, *passes: Pass) -> Module:
    for one in passes:
        module = one.run(module, pass_context(DiagnosticSink()))
    return module


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """The least CPU seconds of three runs, and what the function gives."""
    times = []
    result = None
    for _ in range(3):
        start = time.process_time()
        result = function()
        times.append(time.process_time() - start)
    return min(times), result


def main(cases: list[str]) -> int:
    print(header())
    print(f"target {TARGET:g} s for each of lower, count, localize; the last column is lower over one verification\n")
    titles = f"{'lower s':>8} {'count s':>8} {'local s':>9} {'verify s':>9} {'ratio':>6}"
    print(f"{'plan':58} {'ops':>6} {'lowered':>8} {'coll.':>6} {titles}")
    missed = False
    for case in cases or list(CASES):
        module = planned(case)
        lowering, lowered = seconds(partial(through, module, LowerPass()))
        stage = next(lowered.of_type(Stage))
        counting, found = seconds(partial(count, lowered))
        localizing, _ = seconds(partial(through, lowered, LocalizePass()))
        verifying, faults = seconds(partial(ir.verify, lowered))
        assert not faults, faults[:3]
        print(
            f"{case:58} {len(module.entry.ops):6} {len(stage.ops):8} {len(found):6} {lowering:8.3f} {counting:8.3f} "
            f"{localizing:9.3f} {verifying:9.3f} {lowering / verifying:6.1f}",
            flush=True,
        )
        missed = missed or (LAYERS not in case and max(lowering, counting, localizing) > TARGET)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
