"""Training on unequal machines, beside what people do today.

``python -m tests.bench.unequal_machines [--topologies N] [--seed S] [MODEL ...]``: TAG's testbed and ``N`` topologies drawn as
TAG drew them (Zhang et al., TPDS 2023): up to 4 hosts, each of 2 to 8 P100, GTX 1080 Ti or V100, 8 or 20 GB/s inside a host,
2.81 or 5 GB/s between hosts. Of each model and topology, in samples a second:

- found: the plan of ``dnnc compile --objective training`` without further options, its gap, and processor seconds;
- data parallel on all devices, samples dealt evenly, with sums of gradients beside the backward pass (``all``) and behind it
  (``plain``);
- the same on the best set of whole hosts (``subset``); on one device, the best (``one``).

All take the same batch in the same microbatches. Ends with 1 where a plan is slower than one of the others.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.machines.topology.read import load_topology
from dnnc.machines.topology.writer import topology_to_toml
from dnnc.search_tag.cases import drawn
from dnnc.study.subsets import restricted
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput
from ir.core.module import Plan
from ir.core.objectives import TRAINING
from ir.core.topology import Topology
from passes.partition.options import MICROBATCHES
from tests.bench.machine import header

MODELS = (
    "vgg19,batch=96",
    "resnet101,batch=96",
    "inception-v3,batch=96",
    "transformer-base,batch=96",
    "bert-large,batch=48",
    "bert-small,batch=96",
)
TESTBED = "preset:tag-testbed"


@dataclass(frozen=True, slots=True)
class Row:
    """Samples a second of the plan found, its relative gap, processor seconds of the compilation, wall seconds of its search,
    and samples a second of what people do, by name."""

    found: float
    gap: float
    cpu: float
    search: float
    others: dict[str, float]


def compiled(model: str, topology: str, folder: Path, **options: object) -> tuple[Plan, float]:
    """The plan, and the wall seconds of its search."""
    result = compile_model(
        CompileOptions(
            f"zoo:{model},weights=declared",
            topology,
            folder / "plan",
            objective=TRAINING.name,
            microbatches=MICROBATCHES,
            plan_only=True,
            **options,  # type: ignore[arg-type]
        ),
        sink=DiagnosticSink(),
    )
    return result.plan, result.seconds["search"]


def data_parallel(model: str, topology: Topology, part: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Seconds of a step on these devices, samples dealt evenly, with sums beside the backward pass and behind it; infinite
    where nothing fits."""
    file = folder / "part.toml"
    file.write_text(topology_to_toml(restricted(topology, part)), encoding="utf-8")
    try:
        if len(part) == 1:
            plan, _ = compiled(model, str(file), folder, mesh="none")
        else:
            plan, _ = compiled(model, str(file), folder, mesh=str(len(part)), strategy="data")
    except (Infeasible, InvalidInput):
        return math.inf, math.inf
    return plan.value, plan.value + math.fsum(stage.hidden for stage in plan.stages)


def subsets(topology: Topology) -> Iterator[tuple[str, ...]]:
    """Every set of whole hosts but all of them."""
    hosts: dict[str, list[str]] = {device.host: [] for device in topology.devices}
    for device in topology.devices:
        hosts[device.host].append(device.name)
    for count in range(1, len(hosts)):
        for chosen in itertools.combinations(hosts.values(), count):
            yield tuple(itertools.chain(*chosen))


def row(model: str, file: str, folder: Path) -> Row:
    """Of one model on one topology."""
    batch = int(model.rpartition("=")[2]) * MICROBATCHES
    topology = load_topology(file, DiagnosticSink())
    began = time.process_time()
    plan, search = compiled(model, file, folder)
    cpu = time.process_time() - began
    every = tuple(device.name for device in topology.devices)
    overlapped, plain = data_parallel(model, topology, every, folder)
    alone = {device.type: device.name for device in topology.devices}
    one = min(data_parallel(model, topology, (name,), folder)[0] for name in alone.values())
    some = min((data_parallel(model, topology, part, folder)[0] for part in subsets(topology)), default=math.inf)
    others = {"all": overlapped, "plain": plain, "subset": some, "one": one}
    gap = plan.value / plan.bound - 1 if plan.bound else math.inf
    return Row(batch / plan.value, gap, cpu, search, {name: batch / seconds for name, seconds in others.items()})


def main() -> int:
    parser = argparse.ArgumentParser(description="training on unequal machines beside data parallel")
    parser.add_argument("--topologies", type=int, default=3, help="drawn at random, beside TAG's testbed")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them; the next have the next numbers")
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    given = parser.parse_args()
    print(header())
    names = ("all", "plain", "subset", "one")
    heads = "".join(f"{f'x {name}':>9}" for name in names)
    print(f"{'model':24} {'topology':34} {'samples/s':>9}{heads} {'gap %':>6} {'search s':>8} {'cpu s':>6}")
    slower, rows = 0, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {"TAG's testbed": TESTBED}
        for seed in range(given.seed, given.seed + given.topologies):
            file = folder / f"{seed}.toml"
            file.write_text(drawn(seed), encoding="utf-8")
            topology = load_topology(str(file), DiagnosticSink())
            hosts = itertools.groupby(device.name.rpartition("-")[0].partition("-")[2] for device in topology.devices)
            files[f"{seed}: " + " ".join(f"{len(list(some))} {name}" for name, some in hosts)] = str(file)
        for (told, file), model in itertools.product(files.items(), given.models):
            try:
                found = row(model, file, folder)
            except Infeasible as error:
                print(f"{model:24} {told:34.34} no plan fits: {error.diagnostics[0].message[:60]}..", flush=True)
                continue
            rows.append(found)
            factors = {name: found.found / found.others[name] if found.others[name] else math.inf for name in names}
            worse = [name for name in names if factors[name] < 1 - 1e-9]
            slower += bool(worse)
            cells = "".join(f"{factors[name]:>9.2f}" for name in names)
            spent = f"{100 * found.gap:>6.1f} {found.search:>8.1f} {found.cpu:>6.1f}"
            note = f"  slower than {', '.join(worse)}" if worse else ""
            print(f"{model:24} {told:34.34} {found.found:>9.1f}{cells} {spent}{note}", flush=True)
    if not rows:
        return 0
    gaps = [100 * one.gap for one in rows]
    print(f"{slower} of {len(rows)} slower; gap mean {sum(gaps) / len(gaps):.1f} %, worst {max(gaps):.1f} %")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
