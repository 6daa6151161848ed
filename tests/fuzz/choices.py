"""Plans of random models on random machines, each compared with plans of fewer choices, in this process.

More choices never make a plan worse: a plan of fewer stages, replicas or forms is one that the search of more might have found.
So no plan may be over ``NEAR`` slower than one of fewer choices, no bound above the value of either, and none may be missing
where fewer choices have one.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from dnnc.onnx import DIALECTS
from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module, Plan
from ir.core.topology import Topology
from passes.framework.base import PassContext, needed
from passes.partition.bridge.lattice_search import LatticeSearch
from passes.partition.bridge.total_memory import least_held
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from passes.reference.reference_pass import ReferencePass
from tests.passes.partition.bridge.test_on_links import random_module

NEAR = 1e-2
"""Relative: how much worse a plan may be than one of fewer choices."""
EXACT = 1e-9
"""Relative: how far rounding may put a bound above a value."""
ROOM = (0.8, 1.2, 1.5, 2.5, 4)
"""Memory of all devices together, in what every plan holds."""


@dataclass(frozen=True)
class Case:
    """A module, the search of most choices, and those of fewer."""

    module: Module
    every: LatticeSearch
    fewer: tuple[LatticeSearch, ...]


def case_of(seed: int) -> Case:
    """The case of a seed: a training step, inference, or one sample alone; memory binds in two of five."""
    rng = Random(seed)
    training = rng.random() < 0.5
    module = random_module(rng.randrange(1 << 30), training=training)
    if rng.random() < 0.4:
        module = tight(module, rng, training=training)
    if not training and rng.random() < 0.3:
        alone = ReferencePass(objective="latency", pieces=rng.choice((2, 3)))
        return Case(module, alone, (replace(alone, pieces=1),))
    options: dict[str, Any] = {"mesh": "none", "replicas": 0}
    if training:
        options |= {"objective": "training", "microbatches": rng.choice((1, 2, 4, 8))}
    elif rng.random() < 0.4:
        options["comm"] = rng.choice(("overlap", "duplex"))
    search = PartitionPass(**options)
    fewer = tuple(replace(search, **one) for one in ({"replicas": 1}, {"replicas": 2}, {"stages": 1}, {"stages": 2}))
    if "comm" not in options and rng.random() < 0.3:
        return Case(module, replace(search, mesh="any"), (search, *fewer))
    return Case(module, search, fewer)


def tight(module: Module, rng: Random, *, training: bool) -> Module:
    """The module on devices whose memory together is near what every plan holds."""
    topology = needed(module, Topology)
    each = least_held(module, 4 if training else 0) * rng.choice(ROOM) / len(topology.devices)
    devices = [replace(device, memory=int(each * rng.choice((1, 1, 2))) + 20_000) for device in topology.devices]
    return module.replace(topology, replace(topology, devices=tuple(devices)))


def planned(module: Module, search: LatticeSearch) -> Plan | None:
    """The plan on its devices; None where none fits."""
    context = PassContext(dialects=DIALECTS, sink=DiagnosticSink())
    try:
        return needed(PlacePass().run(search.run(module, context), context), Plan)
    except Infeasible:
        return None


def faults_of(case: Case) -> Iterator[str]:
    """What is wrong with the plans of a case, in words."""
    best = planned(case.module, case.every)
    if best is not None and best.bound > best.value * (1 + EXACT):
        yield f"bound {best.bound:.6g} above its value {best.value:.6g}"
    for search in case.fewer:
        other = planned(case.module, search)
        if other is None:
            continue
        told = f"{told_of(search)}: {other.value:.6g} s"
        if other.bound > other.value * (1 + EXACT):
            yield f"{told}: bound {other.bound:.6g} above it"
        if best is None:
            yield f"{told}, of more choices none"
        elif best.bound > other.value * (1 + EXACT):
            yield f"{told}, bound of more choices {best.bound:.6g}"
        elif best.value > other.value * (1 + NEAR):
            yield f"{told}, of more choices {best.value:.6g} ({best.value / other.value - 1:.1%} more)"


def told_of(search: LatticeSearch) -> str:
    """The options of a search that are not their defaults."""
    default = type(search)()
    return f"{search.name} " + " ".join(f"{k}={v}" for k, v in vars(search).items() if v != getattr(default, k))


def failures(seeds: Sequence[int]) -> Iterator[str]:
    """What is wrong in the cases of the seeds, a line each; a crash is one."""
    for seed in seeds:
        case = case_of(seed)
        try:
            yield from (f"seed {seed}: {told_of(case.every)}: {fault}" for fault in faults_of(case))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            yield f"seed {seed}: {told_of(case.every)}: {type(error).__name__} in {where.name}: {error}"


def main(argv: Sequence[str]) -> int:
    """The exit code: 1 when something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz choices", description=__doc__)
    parser.add_argument("--executions", type=int, default=100, help="random cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    options = parser.parse_args(argv)
    failed = False
    for fault in failures(range(options.seed, options.seed + options.executions)):
        print(fault, flush=True)
        failed = True
    print(f"choices (seed {options.seed}): {options.executions} cases" + (": FAILED" if failed else ""))
    return int(failed)
