"""TAG's search beside dnnc's own: ``python -m tests.bench.search_tag [--topologies N] [--seed S] [--iterations N] [--prior
FILE] [MODEL ...]``.

On TAG's testbed and ``N`` topologies drawn as TAG drew them, of a step of one batch, or of ``--microbatches``:

- ``uniform``, ``trained``: what TAG's search finds with each prior, as speed-up over its baseline (data parallel on all
  devices, sums of gradients beside the backward pass) by TAG's simulator, with SFB where that is faster; ``its``: iterations
  until the best strategy was found; ``s``: seconds of the search. ``trained`` needs ``--prior``, a file of ``dnnc tag train``;
- ``bridged``: seconds of the better strategy's plan by dnnc's model; ``default``: those of ``dnnc compile --objective
  training`` with as many microbatches, with its seconds of search; ``x``: how many times as fast the default is.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from pathlib import Path

from dnnc.compile.context import pass_context
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.load import load_model
from dnnc.machines.topology.read import load_topology
from dnnc.search_tag.bridge import expressed
from dnnc.search_tag.cases import MODELS, Cases, drawn
from dnnc.search_tag.device_groups import Machines
from dnnc.search_tag.network import Network, read_prior
from dnnc.search_tag.op_groups import Workload
from dnnc.search_tag.simulator import Simulator
from dnnc.search_tag.tree_search import ITERATIONS, Found, TreeSearch
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput
from ir.core.module import Module, Plan
from ir.core.objectives import TRAINING
from passes.framework.manager import PassManager
from tests.bench.machine import header

TESTBED = "preset:tag-testbed"


def searched(simulator: Simulator, prior: Network | None, iterations: int) -> tuple[Found, float, int]:
    """What the search finds, its seconds, and the iteration that found it."""
    began = time.perf_counter()
    found = TreeSearch(simulator, prior).run(iterations)
    seconds = time.perf_counter() - began
    return found, seconds, 1 + next(n for n, value in enumerate(found.curve) if value == found.curve[-1])


def bridged(simulator: Simulator, found: Found, module: Module) -> float:
    """Seconds of the strategy's plan by dnnc's model; infinite where none is one."""
    best = math.inf
    for candidate in expressed(simulator, found.strategy):
        try:
            made = PassManager((candidate.replay,), expanded=True).run(module, pass_context(DiagnosticSink()), load_model)
        except (Infeasible, InvalidInput):
            continue
        plan = made.first(Plan)
        assert plan is not None
        best = min(best, plan.value)
    return best


def default(model: str, topology: str, folder: Path, microbatches: int) -> tuple[float, float]:
    """Seconds of the default plan's step, and of its search."""
    options = CompileOptions(
        f"{model},weights=declared",
        topology,
        folder / "plan",
        objective=TRAINING.name,
        microbatches=microbatches,
        plan_only=True,
    )
    result = compile_model(options, sink=DiagnosticSink())
    return result.plan.value, result.seconds["search"]


def main() -> int:
    parser = argparse.ArgumentParser(description="TAG's search beside dnnc's own")
    parser.add_argument("--topologies", type=int, default=2, help="drawn at random, beside TAG's testbed")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them; the next have the next numbers")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--microbatches", type=int, default=1, help="of a step, one after another; TAG's has one")
    parser.add_argument("--prior", type=Path, help="a file of 'dnnc tag train'")
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    given = parser.parse_args()
    prior = read_prior(given.prior) if given.prior is not None else None
    cases = Cases(given.models, 1, 0, pass_context(DiagnosticSink()), load_model)
    print(header())
    print(
        f"{'model':30} {'topology':9} {'uniform':>8} {'its':>5} {'s':>5} {'trained':>8} {'its':>5} {'s':>5} {'simulated':>10} "
        f"{'bridged':>9} {'default':>9} {'s':>5} {'x':>5}"
    )
    rows: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {"testbed": TESTBED}
        for seed in range(given.seed, given.seed + given.topologies):
            file = folder / f"{seed}.toml"
            file.write_text(drawn(seed), encoding="utf-8")
            files[str(seed)] = str(file)
        for (name, file), model in itertools.product(files.items(), given.models):
            topology = load_topology(file, DiagnosticSink())
            module = cases.module(model).extend([topology])
            simulator = Simulator(Workload(module, topology), Machines(topology), given.microbatches)
            found, seconds, its = searched(simulator, None, given.iterations)
            cells, best, speedups = f"{found.speedup:8.2f} {its:5} {seconds:5.1f}", found, [found.speedup, math.nan]
            if prior is not None:
                trained, seconds, its = searched(simulator, prior, given.iterations)
                speedups[1] = trained.speedup
                cells += f" {trained.speedup:8.2f} {its:5} {seconds:5.1f}"
                best = max(found, trained, key=lambda one: one.speedup)
            else:
                cells += f" {'-':>8} {'-':>5} {'-':>5}"
            value = bridged(simulator, best, module)
            own, search = default(model, file, folder, given.microbatches)
            rows.append((speedups[0], speedups[1], value / own))
            simulated = best.baseline.seconds / best.speedup
            cells += "".join(f" {1e3 * number:{width}.1f} ms" for number, width in ((simulated, 7), (value, 6), (own, 6)))
            print(f"{model:30} {name:9} {cells} {search:5.1f} {value / own:5.2f}", flush=True)
    means = [math.exp(math.fsum(math.log(row[column]) for row in rows) / len(rows)) for column in range(3)]
    print(f"geometric means: uniform {means[0]:.3f}, trained {means[1]:.3f}, default over bridged {means[2]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
