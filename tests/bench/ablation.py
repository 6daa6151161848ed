"""What each phase and bound of the searches for a partition is worth: every one switched off in turn.

Run: ``python -m tests.bench.ablation [PHASE..] [--search NAME..] [--instances WORD..] [--seconds S] [--json FILE]``. Per phase
and instance: value, bound, gap and seconds with the phase and without it. The instance speaks *for* the phase where the search
without it ends at a gap or a value worse by more than ``NEAR``, or proves the same optimum in ``SLOWER`` times the seconds;
*against* it where the search without it is better by as much. A phase that no instance speaks for is to be deleted.

Phases are switched off by patches in this file: the product has no options for them. Searches end by counted work
(``passes.solvers.work``), workloads by a clock; the seconds told are the processor's.

What it said (4 to 6 s a search unless told, two shared cores, gaps with the phase and without it, instances in all):

    stream      beam over minimum cuts   none of 17; against: T5 8.4 % 1.7 %, NASNet 16 17.2 % 13.8 %, encoder-decoders: deleted
    pipedream   beam over minimum cuts   none of 7, also in 30 s  deleted
    pipedream   profile reductions       none of 6  deleted
    training    training reductions      none of 6 in 12 s (one of 6 in 4 s, where every phase changes the gap)  deleted
    both        coarse plans             none of 16 in 12 s; against: NASNet 8, T5  deleted
    any         race of two processes    none of 4 in 8 s, of 2 in 60 s  deleted
    stream      single nodes             NASNet 16 7.9 % 8.9 %; in training encoder-decoder tight 0 3.8 %
    stream      contractions             encoder-decoder tight 1.5 % 2.5 %; in training experts on two kinds 0 69 %
    stream      sorted branches          NASNet 16 7.9 % 8.9 %; in training experts on two kinds 0 69 %
    stream      linked branches          in training experts on two kinds 0 57 %
    stream      bytes charged in cuts    experts tight 0.004 % 0.65 %
    stream      intervals                NASNet 8 3.2 % 25.8 %, T5 2.4 % 6.6 %, series-parallel 1.5 % 2.7 %
    both        rounded pieces of paths  none of 23  deleted
    both        unused intervals         none of 23  deleted
    groups      matrices along an order  none of 8: the programme over groups along it has the same plans, NASNet 6.4 % for
                                         12.8 %: deleted
    stream      nodes that give way      Whisper 0 0.3 %; in training experts on two kinds 0.8 % 2.7 %
    stream      few ideals first         encoder-decoder two kinds 0.3 % 0.6 %
    stream      cuts of stages           T5 1.6 % 5.6 %, series-parallel 1.5 % 2.7 %
    stream      split by nodes           series-parallel 1.5 % 2.1 %
    training    windows with transfers   encoder-decoder two kinds 16 % 114 %
    pipedream   rising trials            Inception on 16 machines in 0.29 s 0.65 s
    both        thin order           NASNet 16 13.0 % 15.5 %
    both        late order           none of 13 small ones in 3 s, nor of T5, NASNet 16, experts on two kinds, trained or not,
                                     and ResNet-50 trained in 4 s; none of 12 in 2 s: deleted but for segments
    both        first trials         none of these; bench.solve tests 1.3 to 30 times as many pairs without them
    stream      small lattice first  none of 11 large ones; op-resnet50_inference is proven in 5.1 ms, 14.4 ms without
    training    windows by kinds     experts on two kinds 0 1.9 %
    pipedream   intervals            NASNet straight 16, in place of the first stages, with the cuts of boundaries: 8.7 % where
                                     these prove the plan: not built
    stream      parts                    experts tight 0 4.4 %, NASNet 8 3.2 % 3.9 %
    stream      bands                    NASNet 16 7.9 % 9.4 %, series-parallel 1.5 % 1.8 %
    stream      cut plans before, after  NASNet 16 7.9 % 13.8 %, 11.5 %; in PipeDream's straight line 8.7 % 24.1 %
    pipedream   windows of ideals        Inception 16 0 1.5 %, NASNet 16 0.05 % 0.19 %
    pipedream   first stages             NASNet straight 16 in 30 s 0 8.7 %
    pipedream   reach of ideals          none of 28 (24 profiles proven with 0.2 % more pairs): deleted
    groups      along the order          Inception 16.5 % 43.2 %
    groups      groups exact             ResNet-50 0 56 %, Inception 16.5 % 43.2 %
    groups      groups                   ResNet-50 0 15.3 %, replicated 0 19.8 %
    latency     latency groups           BERT of 3 layers 0 56 %
    latency     nodes left out           encoder-decoder 6.0 % 17.9 %
    latency     latency bands            ResNet-50, two pieces 8.0 % 17.4 %
    latency     order of the best plan   none of 15 in 5 s  deleted
    latency     accelerators in order    ResNet-50, two pieces 47.2 % 50.8 %
    latency     times when all can start ResNet-50, two pieces 47.2 % 50.6 %
    latency     followers in a group     BERT of 3 layers 0 2.2 %
    latency     one piece first          BERT of 3 layers, two pieces 2.6 % 2.7 %
    latency     labels of relaxations    none of 12 in 3 s, nor of 6 in 12 s: deleted
    latency     smallest relaxation      none of 12 in 3 s, nor of 6 in 12 s: deleted
    latency     latency programme        none of 16; 1,500 random problems are closed without free sources: deleted
    latency     tolls on memory          none of 13 in 3 to 5 s; none of 500 random problems is left open without them: deleted
    latency     free sinks               none of 13 in 3 to 5 s: deleted
    latency     free sources             BERT of 3 layers 0 56 %
    latency     search without them      none of 20 in 3 s; small random problems of little memory stay open without it
    any         first annealing          BERT of 24 layers, GPipe, in 5 s 0.2 % 0.4 %; against: of 6 layers in 6 s 6.3 % 5.3 %
    any         annealing from the best  none of 4 in 8 s  deleted
    any         annealing                BERT of 6 layers in 30 s 1.3 % 6.0 % (28.33 28.56); against: of 3 layers 1.4 s 0.3 s
    any         restriction              none of 5 in 6 s; against: BERT of 6 layers 6.2 % 5.3 %, ResNet-50 49 % 28 %  deleted
    any         moves of clusters, swaps BERT of 3 layers 21.9 28.0; ResNet-50 33.4 33.7 (values of the baseline in 3 s)
    any         near trials              BERT of 6 layers in 8 s 6.3 % 6.6 %
    any         exact reductions         BERT of 6 layers in 8 s 6.6 % 9.6 %
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from dnnc.compile.context import pass_context, with_topology
from dnnc.compile.load import load_model
from dnnc.data.workloads import Machines
from dnnc.machines.topology import load_topology
from dnnc.workloads.solve import SolveOptions, solve_file
from ir.core.diagnostics import DiagnosticSink
from passes.costs.network import network
from passes.framework.pipeline import parse_pipeline
from passes.partition.lattice.bounds import interval_bounds, intervals, subproblems, symmetry
from passes.partition.lattice.bounds.policy import POLICY
from passes.partition.lattice.groups import solver as groups
from passes.partition.lattice.objective import Budget
from passes.partition.lattice.search import search
from passes.partition.lattice.search.throughput import solve
from passes.reference.assignment import solver as assignment
from passes.reference.latency import LatencyBudget, solve_latency
from passes.reference.latency import reduce as latency_reduce
from passes.reference.latency import solver as latency
from passes.reference.pipedream import solver as pipedream
from passes.solvers.work import within
from passes.stages.colocation import colocation
from passes.stages.from_ir import problem_of
from passes.stages.lattice import states, tables
from passes.stages.problem import Problem
from passes.stages.reduce import ordered, quotient, reduce
from tests.bench import latency as latency_bench
from tests.bench import shard_phases
from tests.bench.any_split import read_any
from tests.bench.machine import header
from tests.conftest import shared_folder
from tests.passes.partition import lattices
from tests.passes.partition.instances import Layers, series_parallel

NEAR = 1e-3
"""Difference of gaps, and relative one of values, below which two searches are equally good."""
SLOWER, LEAST_SECONDS = 1.3, 0.2
"""Ratio and difference of seconds from which on one of two searches that prove the same optimum is slower."""


@dataclass(frozen=True)
class Outcome:
    value: float
    bound: float
    seconds: float

    @property
    def gap(self) -> float:
        return self.value / self.bound - 1 if self.bound > 0 else math.inf

    def better_than(self, other: Outcome) -> bool:
        if self.value < other.value * (1 - NEAR) or self.gap < other.gap - NEAR:
            return True
        slower = other.seconds > max(SLOWER * self.seconds, self.seconds + LEAST_SECONDS)
        return slower and self.gap <= other.gap + NEAR and self.value <= other.value * (1 + NEAR)


# Instances ------------------------------------------------------------------------------------------------------------


def zoo(spec: str, topology: str = "preset:h100x8") -> Problem:
    """The problem of a zoo model's ops, classes that share a device as one."""
    sink = DiagnosticSink()
    module = with_topology(load_model(spec, {}, sink).module, machines := load_topology(topology, sink))
    context = pass_context(sink)
    for step in parse_pipeline("canonicalize,cost"):
        module = step.run(module, context)
    fine = problem_of(module, machines, network(machines))
    joined = quotient(fine, ordered(fine, colocation(module)))
    return quotient(joined, reduce(joined))


def cached_decoder(layers: int = 16, devices: int = 8) -> Problem:
    """A decoder that reads the keys and values of earlier tokens, and hands both on longer by one token: side branches that
    nothing else reads."""
    build = Layers()
    x = build.op(0.1, 4)
    for _ in range(layers):
        key, value = (build.op(0.3, 32, build.op(0.02, 32), build.op(1, 4, x)) for _ in range(2))
        for grown in (key, value):
            build.op(0.02, 1, grown)
        scores = build.op(0.4, 8, build.op(1, 4, x), key)
        mixed = build.op(0.4, 4, build.op(0.05, 8, scores), value)
        x = build.feed(build.op(0.02, 4, x, build.op(1, 4, mixed)))
    build.op(8, 4, x)
    return build.problem(devices, rate=0.05)


def streamed(problem: Callable[[], Problem], seconds: float) -> Outcome:
    found = solve(problem(), Budget(seconds=seconds))
    return Outcome(found.value, found.bound, 0.0)


def workload(options: Callable[[], SolveOptions], seconds: float) -> Outcome:
    """``seconds`` of counted work, not of a clock: other processes make no difference."""
    chosen = options()
    with patch("dnnc.workloads.solve.within", lambda limit: within(None)):
        found = solve_file(SolveOptions(**{**_fields(chosen), "time_limit": seconds}), sink=DiagnosticSink())
    return Outcome(found.objective, found.bound, 0.0)


def _fields(options: SolveOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__slots__}


@cache
def document(name: str, machines: lattices.Machines, trains: bool) -> str:
    """The file of a large lattice in the device-placement format."""
    build = {"encoder-decoder": partial(lattices.encoder_decoder, 12), "experts": partial(lattices.experts, 64)}[name]()
    folder = Path(tempfile.mkdtemp(prefix="dnnc-ablation-"))
    path = folder / f"{name}.json"
    lattices.write(build.document(machines, trains), path)
    return str(path)


def one_sample(path: Path, pieces: int, machines: Machines, seconds: float) -> Outcome:
    found = solve_latency(latency_bench.read(path, pieces, machines), LatencyBudget(seconds=seconds))
    return Outcome(found.value, found.bound, 0.0)


def assigned(path: Path, seconds: float) -> Outcome:
    found = assignment.solve_any(read_any(path), Budget(seconds=seconds))
    return Outcome(found.value, found.bound, 0.0)


Instance = Callable[[float], Any]
"""Has ``value`` and ``bound``."""


def instances() -> dict[str, dict[str, Instance]]:
    """By search and name."""
    shared = shared_folder()
    files = shared / "workloads" if shared is not None else None
    stream: dict[str, Instance] = {}
    for spec in ("t5-base", "whisper-base", "inception-v3", "mixtral-8x7b,layers=4,weights=declared", "gpt2"):
        stream[spec.partition(",")[0]] = partial(streamed, cache(partial(zoo, f"zoo:{spec}")))
    stream["transformer-base cpu-4"] = partial(streamed, cache(partial(zoo, "zoo:transformer-base", "preset:cpu-4")))
    stream["cached decoder"] = partial(streamed, cached_decoder)
    stream["series-parallel"] = partial(streamed, partial(series_parallel, 3))
    found: dict[str, dict[str, Instance]] = {"stream": stream, "training": {}, "pipedream": {}, "latency": {}, "any": {}}
    found |= {"groups": {}, **shard_phases.instances()}
    tight, two = lattices.Machines(8, 0, 25e9, 1.3), lattices.Machines(6, 1, 10e9)
    for name in ("encoder-decoder", "experts"):
        for words, machines in (("tight", tight), ("two kinds", two)):
            for search_, trains in (("stream", False), ("training", True)):
                made = partial(lambda *asked: SolveOptions(document(*asked)), name, machines, trains)
                found[search_][f"{name} {words}"] = partial(workload, made)
        alone = partial(lambda *asked: SolveOptions(document(*asked), objective="latency"), name, two, False)
        found["latency"][name] = partial(workload, alone)
    if files is None:
        return found
    pipe, placement = files / "pipedream", files / "device-placement"

    def profile(name: str, **asked: Any) -> Instance:
        return partial(workload, lambda: SolveOptions(str(pipe / f"{name}.txt"), bandwidth=10e9, **asked))

    for count in (8, 16):
        stream[f"nasnet {count}"] = profile("nasnetamobile", accelerators=count, objective="throughput", forward=True)
        for words, straight in (("straight", True), ("replicated", False)):
            found["pipedream"][f"nasnet {words} {count}"] = profile("nasnetamobile", accelerators=count, straight=straight)
    found["pipedream"]["inception 16"] = profile("inception_v3", accelerators=16)
    found["pipedream"]["resnet50 straight 8"] = profile("resnet50", accelerators=8, straight=True)
    for name in ("op-bert_l-3_inference", "op-bert_l-6_inference", "layer-gnmt_inference"):
        path = placement / "throughput" / f"{name}.json"
        stream[name] = partial(workload, partial(SolveOptions, str(path)))
        found["any"][name] = partial(assigned, path)
    found["any"]["layer-bert24_training"] = partial(assigned, placement / "throughput" / "layer-bert24_training.json")
    for name in ("op-bert_l-3_training", "layer-resnet50_training"):
        path = placement / "throughput" / f"{name}.json"
        found["training"][name] = partial(workload, partial(SolveOptions, str(path)))
    for name, path, machines in latency_bench.inputs():
        if any(word in name for word in ("bert24", "bert_l-3", "bert_l-6", "gnmt", "resnet50")):
            for pieces in (1, 2):
                found["latency"][f"{name} q{pieces}"] = partial(one_sample, path, pieces, machines)
    for name in ("resnet50", "inception_v3", "nasnetamobile"):
        grouped_ = {"hierarchy": (2, 4), "inner_bandwidth": 100e9, "accelerators": 8, "objective": "throughput"}
        found["groups"][name] = profile(name, forward=True, **grouped_)
        found["groups"][f"{name} replicated"] = profile(name, forward=True, replicas=4, **grouped_)
    return found


# Phases ---------------------------------------------------------------------------------------------------------------

Patch = tuple[Any, str, Any]


def policy(**changes: Any) -> Patch:
    """The numbers of the shared search, changed."""
    return search, "POLICY", replace(POLICY, **changes)


def nothing(*arguments: Any, **options: Any) -> None:
    """In place of a phase."""


def same_bound(problem: Any, bound: float) -> tuple[float, str]:
    return bound, ""


def kept_start(self: Any, tables: Any, bound: float, value: float, max_visits: int, keep_on: Any) -> float:
    return bound


def unless(method: str, phase: str, *, done: bool) -> Patch:
    """A method of the search left out before a phase has run, or after."""
    original = getattr(search.Search, method)

    def chosen(self: Any) -> None:
        if (phase in self.statistics.seconds) != done:
            original(self)

    return search.Search, method, chosen


def alone(problem: Any, *rest: Any, **options: Any) -> Any:
    return tuple((v,) for v in range(problem.size))


def unpriced(self: Any, price: Any, seconds: Any, transfer: Any) -> Any:
    """``Tables._support`` without what a tensor that is cut adds to a boundary."""
    weight, ahead, behind = SUPPORT(self, price, seconds, transfer)
    return weight, 0 * ahead, 0 * behind


def one_support(kinds: Any, present: Any) -> Any:
    """``states._supports`` with all kinds on either side of every boundary."""
    return (tuple(kinds),), [np.zeros(len(rows), np.int64) for rows in present]


def uncut(self: Any, stage: Any) -> None:
    """``IntervalBounds._cut`` without a minimum cut of the stage's own."""
    self.has_cut[stage] = True


SUPPORT = tables.Tables._support


def ungrouped(problem: Any) -> Any:
    return latency_reduce.grouped(problem, [(v,) for v in range(problem.nodes)], ())


def efforts(chosen: Callable[[tuple[float, int]], bool]) -> Patch:
    """Contractions of the chosen efforts alone."""
    return subproblems, "POLICY", replace(POLICY, efforts=tuple(effort for effort in POLICY.efforts if chosen(effort)))


SHARED = ("stream", "training", "pipedream")
PHASES: dict[str, tuple[tuple[str, ...], tuple[Patch, ...]]] = {
    "thin order": (SHARED, ((search.orders, "thin", search.orders.given),)),
    "first trials": (SHARED, (policy(first=()),)),
    "rising trials": (SHARED, (policy(trials=()),)),
    "small lattice first": (SHARED, (policy(few=0),)),
    "first stages": (("pipedream",), ((pipedream.PipeDream, "starts", kept_start),)),
    "cut plans before": (SHARED, (unless("_cuts", "bound", done=False),)),
    "cut plans after": (SHARED, (unless("_cuts", "bound", done=True),)),
    "cut plans": (SHARED, ((search.Search, "_cuts", nothing),)),
    "single nodes": (("stream", "training"), ((search, "node_bound", same_bound),)),
    "contractions": (("stream", "training"), ((search.Search, "_contract", nothing),)),
    "sorted branches": (("stream", "training"), ((subproblems, "symmetric", nothing),)),
    "linked branches": (("stream", "training"), ((symmetry._View, "_links", lambda self, rows, colour: {}),)),
    "bytes charged in cuts": (("stream", "training"), ((interval_bounds, "POLICY", replace(POLICY, charge=0.0)),)),
    "intervals": (("stream", "training"), ((search.IntervalBounds, "run", nothing),)),
    "nodes that give way": (("stream", "training"), (efforts(lambda effort: not effort[0]),)),
    "few ideals first": (("stream", "training"), (efforts(lambda effort: effort[1] == max(POLICY.efforts)[1]),)),
    "windows with transfers": (SHARED, ((tables.Tables, "_support", unpriced),)),
    "windows by kinds": (("stream", "training"), ((states, "_supports", one_support),)),
    "cuts of stages": (("stream", "training"), ((interval_bounds.IntervalBounds, "_cut", uncut),)),
    "split by nodes": (
        ("stream", "training"),
        ((intervals.IntervalSpace, "parted", lambda space, interval, among: space.halves(interval)),),
    ),
    "parts": (SHARED, ((search.Search, "_parts", nothing),)),
    "bands": (SHARED, ((search.Search, "_band", nothing),)),
    "contiguous start": (("any",), ((assignment._Search, "_contiguous", nothing),)),
    "first annealing": (("any",), ((assignment, "POLICY", replace(assignment.POLICY, first_share=0.0)),)),
    "annealing": (("any",), ((assignment._Search, "_anneal", nothing),)),
    "near trials": (("any",), ((assignment, "POLICY", replace(assignment.POLICY, steps=())),)),
    "exact reductions": (("any",), ((assignment, "reduce_any", alone),)),
    "one piece first": (("latency",), ((latency._Search, "_accept_single", nothing),)),
    "latency bands": (("latency",), ((latency._Search, "_bands", nothing),)),
    "nodes left out": (("latency",), ((latency._Search, "_relaxed", nothing),)),
    "latency groups": (("latency",), ((latency, "reduced", ungrouped),)),
    "followers in a group": (("latency",), ((latency_reduce._Merger, "_follower", nothing),)),
    "along the order": (("groups",), ((groups, "POLICY", replace(groups.POLICY, round_seconds=0.0)),)),
    "groups exact": (("groups",), ((groups._Level, "exact", nothing),)),
    "groups": (("groups",), ((groups._Search, "run", nothing),)),
    **shard_phases.PHASES,
}
"""By name: the searches that have the phase, and the patches that switch it off."""


# Runs -----------------------------------------------------------------------------------------------------------------


def measured(instance: Instance, seconds: float, patches: tuple[Patch, ...] = ()) -> Outcome:
    """What an instance comes to with these patches, and its processor seconds."""
    with ExitStack() as stack:
        for target, name, stand_in in patches:
            stack.enter_context(patch.object(target, name, stand_in))
        start = time.process_time()
        found = instance(seconds)
        return Outcome(found.value, found.bound, time.process_time() - start)


def compared(phases: list[str], searches: list[str], words: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """One row per phase and instance."""
    for search_, named in instances().items():
        if searches and search_ not in searches:
            continue
        fresh = True
        for name, instance in named.items():
            wanted = [phase for phase in phases if search_ in PHASES[phase][0]]
            if not wanted or (words and not any(word in name for word in words)):
                continue
            if fresh:
                measured(instance, seconds)  # compiles
                fresh = False
            withs = [measured(instance, seconds)]
            withouts = {phase: measured(instance, seconds, PHASES[phase][1]) for phase in wanted}
            withs.append(measured(instance, seconds))  # what the clock changes is no verdict
            for phase, without in withouts.items():
                for_ = all(with_.better_than(without) for with_ in withs)
                verdict = "for" if for_ else "against" if all(without.better_than(with_) for with_ in withs) else ""
                best = min(withs, key=lambda with_: (with_.gap, with_.seconds))
                yield {
                    "phase": phase, "search": search_, "instance": name, "verdict": verdict,
                    "on": vars(best), "off": vars(without), "gaps": (best.gap, without.gap),
                }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=f"default: all of {', '.join(PHASES)}")
    parser.add_argument("--search", nargs="+", default=[], help=f"of {', '.join(instances())}")
    parser.add_argument("--instances", nargs="+", default=[], metavar="WORD", help="those whose names hold a word")
    parser.add_argument("--seconds", type=float, default=8.0, help="limit of each search")
    parser.add_argument("--json", type=Path, help="write a line per row as well")
    arguments = parser.parse_args()
    phases = arguments.phases or list(PHASES)
    unknown = sorted(set(phases) - set(PHASES))
    if unknown:
        parser.error(f"no phase is called {', '.join(unknown)}")
    print(header())
    print(f"{'phase':20} {'instance':42} {'value':>12} {'without':>12} {'gap':>9} {'without':>9} {'s':>6} {'without':>7}")
    verdicts: dict[str, list[tuple[str, str]]] = {phase: [] for phase in phases}
    for row in compared(phases, arguments.search, arguments.instances, arguments.seconds):
        on, off, gaps = row["on"], row["off"], row["gaps"]
        print(
            f"{row['phase']:20} {row['search'] + ': ' + row['instance']:42} {on['value']:12.6g} {off['value']:12.6g} "
            f"{gaps[0]:9.3%} {gaps[1]:9.3%} {on['seconds']:6.2f} {off['seconds']:7.2f}  {row['verdict']}",
            flush=True,
        )
        verdicts[row["phase"]].append((row["verdict"], row["instance"]))
        if arguments.json is not None:
            with arguments.json.open("a") as out:
                out.write(json.dumps(row) + "\n")
    print()
    for phase, told in verdicts.items():
        for_, against = ([name for verdict, name in told if verdict == word] for word in ("for", "against"))
        print(f"{phase:20} {len(told):3} instances, for: {', '.join(for_) or 'none'}; against: {', '.join(against) or 'none'}")


if __name__ == "__main__":
    main()
