"""Times of the sharding search, and how they grow with depth: ``python -m tests.bench.shard``. CPU seconds of one thread.

``fold`` detects repeats, ``build`` draws the rules and prices the choices, ``prepare`` finds runs, ``search`` eliminates; the
first three are linear in the ops. ``solve`` is the whole of a search, its preparation and the plan written down included.
Targets: searching 1024 layers takes at most 1.5 times as long as 8; ``solve`` of t5-large on 8 devices under 0.3 s.
"""

from __future__ import annotations

import time

from ir.core.module import Module
from ir.core.topology import DeviceType
from passes.costs.exchange import Speed
from passes.graph.folding import folding
from passes.meshes.mesh import Axis, DeviceMesh
from passes.partition.layouts import ShardInput, build, solve
from passes.partition.layouts.elimination.folded import FoldedSearch
from tests.bench.machine import header
from tests.passes.partition.layouts.models import prepared

CHIP = DeviceType("chip", "gpu", (("f32", 1e13),), 1e12, None, 1e-6)
LARGE = "zoo:bert-base,layers=24,hidden=1024,heads=16"
CASES = (
    (LARGE, (8,), False),
    (LARGE, (8,), True),
    (LARGE, (2, 4), False),
    (LARGE, (2, 4), True),
    (LARGE, (8, 8), False),
    ("zoo:gpt2,layers=96", (2, 4), False),
    ("zoo:resnet50", (2, 4), False),
    ("zoo:t5-large", (8,), False),
    ("zoo:gpt3-175b", (8, 8), False),
)
TARGETS = {"zoo:t5-large": 0.3}
"""Seconds of ``solve``."""
DEPTHS = (8, 64, 1024)


def mesh(sizes: tuple[int, ...]) -> DeviceMesh:
    return DeviceMesh(tuple(Axis("xyz"[i], size, Speed(5e10, 1e-6)) for i, size in enumerate(sizes)), (), (CHIP,))


def built(module: Module, sizes: tuple[int, ...], training: bool) -> tuple[ShardInput, float, float]:
    """The problem, seconds to fold, seconds to build."""
    start = time.process_time()
    found = folding(module.entry, module)
    between = time.process_time()
    given = build(module, module.entry, mesh(sizes), found, training=training)
    return given, between - start, time.process_time() - between


def searched(given: ShardInput, times: int) -> tuple[float, float]:
    """Seconds to prepare, and of a search: the least of some, since other processes only add to it."""
    start = time.process_time()
    search = FoldedSearch(given.problem)
    prepare = time.process_time() - start
    taken = []
    for _ in range(times):
        start = time.process_time()
        search.cheapest(0.0)
        taken.append(time.process_time() - start)
    return prepare, min(taken)


def main() -> None:
    print(header())
    print(
        f"{'model':48} {'mesh':>5} {'':5} {'fold':>6} {'build':>6} {'prep.':>6} {'search':>7} {'value':>10} {'gap':>7} "
        f"{'solve':>7}"
    )
    for spec, sizes, training in CASES:
        module, _ = prepared(spec)
        given, fold, build_ = built(module, sizes, training)
        prepare, search = searched(given, 3)
        start = time.process_time()
        plan = solve(given.problem, seconds=10.0)
        solved = time.process_time() - start
        verdict = (
            "" if spec not in TARGETS else " (ok)" if solved <= TARGETS[spec] else f" (SLOWER THAN TARGET {TARGETS[spec]})"
        )
        print(
            f"{spec:48} {'x'.join(map(str, sizes)):>5} {'train' if training else '':5} {fold:6.2f} {build_:6.2f} "
            f"{prepare:6.2f} {search:7.3f} {plan.value * 1e6:7.1f} us {plan.gap:7.2%} {solved:5.2f} s{verdict}"
        )
    base = 0.0
    for layers in DEPTHS:
        module, _ = prepared(f"zoo:bert-base,layers={layers},hidden=64,heads=8,vocab=64,seq=16")
        given, fold, build_ = built(module, (8,), False)
        prepare, search = searched(given, 25)
        base = base or search
        verdict = "ok" if search <= 1.5 * base else "SLOWER THAN TARGET 1.5"
        print(
            f"{layers:5d} layers: fold {fold:6.2f} s, build {build_:6.2f} s, prepare {prepare:6.2f} s, "
            f"search {search * 1e3:7.1f} ms, {search / base:5.2f} x that of {DEPTHS[0]} layers ({verdict})"
        )


if __name__ == "__main__":
    main()
