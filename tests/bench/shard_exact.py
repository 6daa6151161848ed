"""The folded search against the full integer programme: ``python -m tests.bench.shard_exact [FAMILY ..] [--layers 1,2]``.

One row per family, depth, mesh and mode: the plan's cost with the gap that the search proves by itself, the programme's value
and bound (HiGHS, one thread, on the whole problem), and the CPU seconds of each. ``ratio`` is the plan over the programme's
value; where that was not solved in time, its bound is given. Targets: ratio 1, and a gap of at most 0.1 % anywhere.
"""

from __future__ import annotations

import argparse
import time

from passes.meshes.mesh import read_shape
from passes.partition.layouts import solve
from tests.bench.machine import header
from tests.passes.partition.layouts.exact import integer_programme
from tests.passes.partition.layouts.families import FAMILIES, MESHES, layers_of, spec_of
from tests.passes.partition.layouts.models import problem_of


def row(family: str, layers: int, sizes: tuple[int, ...], training: bool, seconds: float) -> str:
    given = problem_of(spec_of(family, layers), sizes, training=training)
    start = time.process_time()
    plan = solve(given.problem, seconds=seconds)
    searched = time.process_time() - start
    start = time.process_time()
    value, bound, _ = integer_programme(given.problem, seconds=seconds, scale=1000.0 / plan.value)
    programmed = time.process_time() - start
    solved = value <= bound * (1 + 1e-6)
    reference = value if solved else bound
    verdict = "ok" if plan.gap <= 1e-3 and (not solved or plan.value <= value * (1 + 1e-6)) else "MISSED"
    return (
        f"{family:10} {layers:6d} {'x'.join(map(str, sizes)):>5} {'train' if training else 'infer'} {given.problem.size:6d} "
        f"{plan.value * 1e6:10.4f} us {plan.gap:9.5%} {searched:7.2f} s   {reference * 1e6:10.4f} us "
        f"{'value' if solved else 'bound'} {programmed:7.2f} s   {plan.value / reference if reference else 0:9.6f} {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--layers", default="1,2,3,4")
    parser.add_argument("--mesh", default=",".join("x".join(map(str, sizes)) for sizes in MESHES))
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of each search and of each programme")
    given = parser.parse_args()
    depths = tuple(map(int, given.layers.split(",")))
    print(header())
    titles = "layers  mesh mode   nodes       search          gap      time      programme               time       ratio"
    print(f"{'family':10} {titles}")
    for family in given.families:
        for layers in layers_of(family, depths):
            for text in given.mesh.split(","):
                for training in (False, True):
                    print(row(family, layers, read_shape(text, 1 << 16), training, given.seconds), flush=True)


if __name__ == "__main__":
    main()
