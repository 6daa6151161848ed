"""Training on unequal machines, beside what people do today.

``python -m tests.bench.unequal_machines [--topologies N] [--seed S] [MODEL ...]``: TAG's testbed and ``N`` topologies drawn as
TAG drew them (Zhang et al., TPDS 2023): up to 4 hosts, each of 2 to 8 P100, GTX 1080 Ti or V100, 8 or 20 GB/s inside a host,
2.81 or 5 GB/s between hosts. Of each model and topology, in samples a second:

- found: the plan of ``dnnc compile --objective training`` without further options, its gap, and processor seconds;
- data parallel on all devices, samples dealt evenly, with sums of gradients beside the backward pass (``all``) and behind it
  (``plain``);
- the same on the best set of whole hosts (``subset``); on one device, the best (``one``).

All take the same batch in the same microbatches. Ends with 1 where a plan is slower than one of the others.

``python -m tests.bench.unequal_machines --streams [--topologies N] [--seed S] [MODEL ...]``: inference on the same
topologies, whose unlike devices may take turns. Of each milliseconds a microbatch, bound and gap, processor seconds; beside
them the best plan on the devices of one type (``type``), the best without replicas and meshes (``pipeline``), and the best
device alone (``one``). Ends with 1 where a plan is slower than one of these.

``python -m tests.bench.unequal_machines --decoders [LAYERS,DEVICES,TYPES,OBJECTIVE ...]``: decoders in f16 (llama-7b's layers;
llama-70b of 80) with a context of 1,024 on h100, a100, l4 and t4, up to 8 in a host, whose links differ by type. Of each, worst
first by experience: processor seconds of the compilation, seconds a token, bound and gap; beside them the best of one device
alone (``one``), and a pipeline of equal stages of one device each (``equal``), at the best batch of a few, with one group for
each stage. Ends with 1 where a plan is slower than one of these.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dnnc.compile.decoding import of_tokens, with_states
from dnnc.compile.decoding.step_of_batch import StepOfBatch
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.options import build_pipeline, with_programs
from dnnc.machines.topology.read import load_topology
from dnnc.machines.topology.writer import topology_to_toml
from dnnc.search_tag.cases import drawn
from dnnc.study.subsets import restricted
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput
from ir.core.module import Plan
from ir.core.objectives import TOKEN_LATENCY, TOKENS, TRAINING
from ir.core.topology import Topology
from passes.costs.network import network
from passes.partition.decoding import SharedStage, asked_of
from passes.partition.decoding.problem import shared
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
STREAMS = ("resnet101,batch=4", "transformer-base,batch=4", "bert-large,batch=4", "bert-small,batch=4", "gpt2,batch=2")
TESTBED = "preset:tag-testbed"
DECODERS = tuple(
    f"{layers},{devices},{types},{objective}"
    for layers in (32, 80, 8, 2)
    for devices, types in ((48, 4), (24, 4), (8, 2), (6, 3), (2, 2), (1, 1))
    for objective in (TOKENS.name, TOKEN_LATENCY.name)
)
LINKS = {"h100": (300, 12.5), "a100": (200, 5), "l4": (16, 1.25), "t4": (8, 1.25)}
"""By type GB/s of a device to its host, and of a host to the network, which its devices share."""
BATCHES = (1, 4, 16, 64)
"""Of the pipeline of equal stages."""


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


def machines(devices: int, types: int) -> str:
    """So many devices of so many types, as a file of a topology."""
    lines = ["version = 1", 'switches = ["network"]', "[types]"]
    lines += [f'{name} = "preset:{name}"' for name in (*LINKS,)[:types]]
    for number, (name, (inside, outside)) in enumerate((*LINKS.items(),)[:types]):
        left = devices // types + (number < devices % types)
        for host in range(math.ceil(left / 8)):
            whole, some = f"{name}h{host}", min(left - 8 * host, 8)
            lines += ["[[hosts]]", f'name = "{whole}"', "[[devices]]", f'name = "{whole}-{{0..{some - 1}}}"']
            lines += [f'type = "{name}"', f'host = "{whole}"']
            lines += ["[[links]]", f'each = "devices of {whole}"', f'to = "{whole}"']
            lines += [f'bandwidth = "{inside} GB/s"', 'latency = "3 us"']
            lines += ["[[links]]", f'each = "{whole}"', 'to = "network"', f'bandwidth = "{outside} GB/s"']
            lines += ['latency = "10 us"', "shared = true"]
    return "\n".join(lines) + "\n"


def decoder(layers: int, file: Path, objective: str) -> CompileOptions:
    """What is compiled."""
    model = f"zoo:llama-{'70b' if layers == 80 else '7b'},layers={layers},dtype=f16,cache=inplace,weights=declared"
    return CompileOptions(model, str(file), file.parent / "plan", objective=objective, context=1024, plan_only=True)


def alone(layers: int, topology: Topology, objective: str, folder: Path) -> float:
    """Seconds a token on the best single device; infinite where none holds all."""
    found = [math.inf]
    for name in {device.type: device.name for device in topology.devices}.values():
        file = folder / "one.toml"
        file.write_text(topology_to_toml(restricted(topology, (name,))), encoding="utf-8")
        with suppress(Infeasible):
            found.append(compile_model(decoder(layers, file, objective), sink=DiagnosticSink()).plan.value)
    return min(found)


def equally(layers: int, topology: Topology, objective: str, folder: Path) -> float:
    """Seconds a token of the pipeline of equal stages, by the costs of the search."""
    file = folder / "every.toml"
    file.write_text(topology_to_toml(topology), encoding="utf-8")
    options = of_tokens(replace(decoder(layers, file, objective), batch=1, groups=1))
    step = StepOfBatch(options, with_states(with_programs(build_pipeline(options)), options), topology)
    sizes = BATCHES if objective == TOKENS.name else (1,)
    stages = min(len(topology.devices), layers)
    asked = asked_of({size: step.at(size, 1) for size in sizes}, topology, network(topology), (1, stages))
    units, left, found = asked.on_links.units, list(asked.on_links.counts), list[SharedStage]()
    for number in range(stages):
        kind = next(kind for kind, count in enumerate(left) if count)
        left[kind] -= 1
        run = number * units // stages, (number + 1) * units // stages
        found.append(SharedStage(*run, tuple(int(kind == other) for other in range(len(left)))))
    groups = stages if objective == TOKENS.name else 1
    plans = [shared(asked.on_links, found, number, groups) for number in range(len(sizes))]
    return min((1 / plan.tokens_per_second for plan in plans if plan is not None), default=math.inf)


def streamed(model: str, topology: Topology, folder: Path, **options: object) -> Plan | None:
    """The plan of inference; None where none fits."""
    file = folder / "stream.toml"
    file.write_text(topology_to_toml(topology), encoding="utf-8")
    asked = CompileOptions(f"zoo:{model},weights=declared", str(file), folder / "plan", plan_only=True, **options)  # type: ignore[arg-type]
    try:
        return compile_model(asked, sink=DiagnosticSink()).plan
    except Infeasible:
        return None


def streams(files: Mapping[str, str], models: Sequence[str], folder: Path) -> int:
    """Rows of ``--streams``; how many plans are slower than one of the others."""
    names = ("type", "pipeline", "one")
    heads = "".join(f"{f'x {name}':>11}" for name in names)
    print(f"{'model':24} {'topology':34} {'ms':>9}{heads} {'gap %':>6} {'cpu s':>6}")
    slower, gaps, factors = 0, list[float](), list[float]()
    for (told, file), model in itertools.product(files.items(), models):
        topology = load_topology(file, DiagnosticSink())
        began = time.process_time()
        plan = streamed(model, topology, folder)
        cpu = time.process_time() - began
        if plan is None:
            continue
        of_type: dict[str, list[str]] = {}
        for device in topology.devices:
            of_type.setdefault(device.type, []).append(device.name)
        others: list[Sequence[Plan | None]] = [
            [streamed(model, restricted(topology, tuple(own)), folder) for own in of_type.values()],
            [streamed(model, topology, folder, replicas=1, mesh="none")],
            [streamed(model, restricted(topology, (own[0],)), folder) for own in of_type.values()],
        ]
        row = [min((one.value for one in some if one is not None), default=math.inf) / plan.value for some in others]
        gaps.append(plan.value / plan.bound - 1 if plan.bound else math.inf)
        factors.append(min(row))
        slower += min(row) < 1 - 1e-9
        cells = "".join(f"{factor:>11.2f}" for factor in row)
        print(f"{model:24} {told:34.34} {1e3 * plan.value:>9.4g}{cells} {100 * gaps[-1]:>6.2f} {cpu:>6.1f}", flush=True)
    if gaps:
        print(f"{slower} of {len(gaps)} slower; gap mean {100 * sum(gaps) / len(gaps):.2f} %, worst {100 * max(gaps):.2f} %;")
        print(f"beside the best of the others {math.prod(factors) ** (1 / len(factors)):.2f} times as fast (geometric mean)")
    return slower


def decoders(asked: Sequence[str]) -> int:
    """Rows of ``--decoders``; how many plans are slower than one of the others."""
    print(f"{'decoder':28} {'cpu s':>6} {'us/token':>9} {'bound':>9} {'gap %':>6} {'x one':>6} {'x equal':>7}")
    slower, gaps = 0, list[float]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for told in asked:
            layers, devices, types, objective = told.split(",")
            file = folder / "machines.toml"
            file.write_text(machines(int(devices), int(types)), encoding="utf-8")
            topology = load_topology(str(file), DiagnosticSink())
            began = time.process_time()
            try:
                plan = compile_model(decoder(int(layers), file, objective), sink=DiagnosticSink()).plan
            except Infeasible as error:
                print(f"{told:28} no plan fits: {error.diagnostics[0].message[:60]}..", flush=True)
                continue
            cpu = time.process_time() - began
            others = [of(int(layers), topology, objective, folder) / plan.value for of in (alone, equally)]
            gaps.append(plan.value / plan.bound - 1 if plan.bound else math.inf)
            slower += min(others) < 1 - 1e-9
            cells = f"{cpu:>6.1f} {1e6 * plan.value:>9.4g} {1e6 * plan.bound:>9.4g} {100 * gaps[-1]:>6.1f}"
            print(f"{told:28} {cells} {others[0]:>6.2f} {others[1]:>7.2f}", flush=True)
    if gaps:
        print(f"{slower} of {len(gaps)} slower; gap mean {100 * sum(gaps) / len(gaps):.1f} %, worst {100 * max(gaps):.1f} %")
    return slower


def main() -> int:
    parser = argparse.ArgumentParser(description="training on unequal machines beside data parallel")
    parser.add_argument("--topologies", type=int, default=3, help="drawn at random, beside TAG's testbed")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them; the next have the next numbers")
    parser.add_argument("--streams", action="store_true", help="inference, on the same topologies")
    parser.add_argument("--decoders", action="store_true", help="plans of tokens, of LAYERS,DEVICES,TYPES,OBJECTIVE")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    given = parser.parse_args()
    print(header())
    if given.decoders:
        return int(decoders(given.models or DECODERS) > 0)
    names = ("all", "plain", "subset", "one")
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
        if given.streams:
            return int(streams(files, given.models or STREAMS, folder) > 0)
        heads = "".join(f"{f'x {name}':>9}" for name in names)
        print(f"{'model':24} {'topology':34} {'samples/s':>9}{heads} {'gap %':>6} {'search s':>8} {'cpu s':>6}")
        for (told, file), model in itertools.product(files.items(), given.models or MODELS):
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
