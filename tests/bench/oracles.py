"""Searches on random problems against brute force: how many of their claims are wrong.

Run: ``python -m tests.bench.oracles [--cases N] [--seed S] [--only NAME;..]``. For each search so many random cases (1000) are
drawn from seeds S, S + 1, .. (0), by what the tests of the search draw from. Printed: claims, those of problems with a plan,
those that are not proven, the wrong ones by kind (``tests.passes.claims``), the seconds of all, with those of brute force, and
of the longest case. Of ``compile`` brute force is a sample of plans. Exit 1 where a claim is wrong; its seed is told.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from passes.stages.load import COMM
from tests.bench.machine import header
from tests.dnnc.compile import test_whole_space
from tests.passes.claims import KINDS, Claim
from tests.passes.partition.instances import random_problem
from tests.passes.partition.lattice.groups import test_along_order, test_groups
from tests.passes.partition.lattice.search import test_exact, test_replicas
from tests.passes.partition.layouts import test_search, test_stages
from tests.passes.partition.layouts.problems import random_graph
from tests.passes.reference import test_dp_milp_brute as stopped
from tests.passes.reference.any_brute import dear_transfers
from tests.passes.reference.assignment import test_sides, test_solver
from tests.passes.reference.latency import test_latency
from tests.passes.reference.pipedream import test_pipedream
from tests.passes.reference.training import test_training


def throughput(seed: int) -> Iterable[Claim]:
    comm = COMM[seed % 3]
    yield test_exact.claimed(dear_transfers(seed, comm) if seed % 2 else random_problem(seed, nodes=6, comm=comm))


def any_split(seed: int) -> Iterable[Claim]:
    comm = COMM[seed % 3]
    yield test_solver.claimed(dear_transfers(seed, comm) if seed % 2 else random_problem(seed, nodes=5, comm=comm))


def replicas(seed: int) -> Iterable[Claim]:
    yield test_replicas.claimed(random_problem(seed, nodes=5, comm=COMM[seed % 3]), 1 + seed % 4)


def latency(seed: int) -> Iterable[Claim]:
    yield test_latency.claimed(test_latency.random_case(seed, test_latency.SHAPES[seed % 7], seed % 2 == 0))


def pipedream(seed: int) -> Iterable[Claim]:
    rng = random.Random(seed)
    yield test_pipedream.claimed(test_pipedream.random_profile(rng), test_pipedream.random_machines(rng))


def training(seed: int) -> Iterable[Claim]:
    return test_training.claimed(test_training.random_graph(random.Random(seed)))


def training_with_replicas(seed: int) -> Iterable[Claim]:
    rng = random.Random(seed)
    return test_replicas.claimed_in_training(seed, rng.choice((None, 2, 8)), rng.choice((0.5, 4.0, 100.0)), rng.randint(1, 3))


def training_of_any_split(seed: int) -> Iterable[Claim]:
    yield test_sides.claimed(test_training.random_graph(random.Random(seed), 3), ("sum", "split")[seed % 2])


def small_budgets(seed: int) -> Iterable[Claim]:
    """Of contiguous stages, of any split, of training and of PipeDream's objective."""
    yield from (stopped.claimed_when_stopped(seed, COMM[seed % 3], contiguous, 0.02) for contiguous in (True, False))
    yield from test_training.claimed_when_stopped(seed)
    yield test_pipedream.claimed_when_stopped(seed)


def stages_on_meshes(mode: str, seed: int) -> Iterable[Claim]:
    with suppress(test_stages.TooMany):
        yield test_stages.claimed_of_chain(seed, mode)


def compiled(seed: int) -> Iterable[Claim]:
    with tempfile.TemporaryDirectory() as folder:
        return test_whole_space.claimed(seed, Path(folder), forced=1, placed=12, meshed=6).values()


SEARCHES: dict[str, Callable[[int], Iterable[Claim]]] = {
    "throughput": throughput,
    "throughput, any split": any_split,
    "throughput, replicas": replicas,
    "latency": latency,
    "pipedream": pipedream,
    "pipedream, groups": lambda seed: [test_along_order.claimed(seed)],
    "groups of devices": lambda seed: test_groups.claimed(seed, COMM[seed % 3]),
    "training": training,
    "training, any split": training_of_any_split,
    "training, replicas": training_with_replicas,
    "small budgets": small_budgets,
    "meshes": lambda seed: [test_search.claimed(random_graph(seed, 2 + seed % 6))],
    "meshes, memory": test_search.claimed_with_memory,
    **{f"stages on meshes, {mode}": partial(stages_on_meshes, mode) for mode in test_stages.MODES},
    "compile": compiled,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--only", metavar="NAME;..", help=f"of {'; '.join(SEARCHES)}")
    asked = parser.parse_args()
    print(header())
    kinds = "".join(f"{kind:>11}" for kind in KINDS)
    print(f"{'search':36} {'claims':>6} {'fit':>6} {'unproven':>8}  {kinds} {'seconds':>8} {'longest':>8}")
    faults = 0
    for name in asked.only.split(";") if asked.only else SEARCHES:
        claims, longest, began = list[Claim](), 0.0, time.perf_counter()
        for seed in range(asked.seed, asked.seed + asked.cases):
            start = time.perf_counter()
            for claim in SEARCHES[name](seed):
                claims.append(claim)
                if claim.wrong:
                    print(f"{name}, seed {seed}: {', '.join(claim.wrong)}: {claim}", flush=True)
            longest = max(longest, time.perf_counter() - start)
        wrong = Counter(kind for claim in claims for kind in claim.wrong)
        faults += wrong.total()
        fit, unproven = (sum(one) for one in ((c.optimum < math.inf for c in claims), (not c.proven for c in claims)))
        counts = "".join(f"{wrong[kind]:11}" for kind in KINDS)
        seconds = time.perf_counter() - began
        print(f"{name:36} {len(claims):6} {fit:6} {unproven:8}  {counts} {seconds:8.1f} {longest:8.2f}", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
