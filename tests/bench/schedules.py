"""Training steps predicted from PipeDream's public profiles at 10 GB/s, and the bubbles of the families of schedules.

Run: ``python -m tests.bench.schedules``. A step is synchronous: 128 microbatches, each the minibatch of the profile, then the
update; stages are those of PipeDream's programme (``passes.reference.pipedream``), with its replicas or one machine each, and
transfers have lanes beside compute. Every number is of the simulated step: how many times as fast as one machine; of
``pipedream``, which has no flush and no replicas, of the time from a step to the next. *ideal*: what the slowest stage would
allow. Beside them what Ju et al. 2024 measured of theirs, on machines of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from passes.reference.pipedream import Machines, Profile, solve_pipedream
from passes.reference.pipedream.problem import cut_bytes
from passes.timeline.families import ASYNCHRONOUS, FAMILIES, step
from passes.timeline.workload import Wire, Workload
from tests.bench.machine import header
from tests.passes.reference.pipedream.test_pipedream import FOLDER, read
from tests.passes.timeline.test_families import peaks, placed, spans

BANDWIDTH = 10e9
MICROBATCHES = 128
PROFILES = ("resnet50", "vgg16", "inception_v3", "alexnet")
FAMILIES_OF_CHAINS = ("1f1b", "gpipe", "auto")
MEASURED: Mapping[str, float] = {"vgg16": 3.4, "inception_v3": 3.76}
"""By Ju et al. 2024."""


def forward_seconds(path: Path, profile: Profile) -> np.ndarray:
    """Of each node of a profile, the part of its seconds that is of the forward pass."""
    found = {}
    for line in path.read_text().splitlines():
        if not line.startswith("\t"):
            name, _, facts = line.split(" -- ")[:3]
            found[name] = float(dict(fact.split("=") for fact in facts.split(", "))["forward_compute_time"]) / 1000
    return np.array([found[name] for name in profile.names])


def planned(path: Path, count: int, *, straight: bool) -> tuple[Workload, float]:
    """PipeDream's plan of a profile on so many machines, and by how much its slowest stage is faster than one machine."""
    profile = read(path)
    forward = forward_seconds(path, profile)
    solution = solve_pipedream(profile, Machines(count, BANDWIDTH, straight))
    assert solution.stages is not None
    stages = [list(nodes) for _, nodes in solution.stages]
    names = iter(f"machine{number}" for number in range(count))
    before: set[int] = set()
    wires, back = [], []
    for stage, nodes in enumerate(stages[:-1]):
        before.update(nodes)
        seconds = cut_bytes(profile, before) / BANDWIDTH
        wires.append(Wire(stage, stage + 1, seconds, 0.0))
        back.append(Wire(stage + 1, stage, seconds, 0.0, made="I", read="I"))
    sizes = [sum(int(profile.weights[v]) for v in nodes) for nodes in stages]
    load = Workload(
        compute=tuple(float(forward[nodes].sum()) for nodes in stages),
        replicas=tuple(tuple(next(names) for _ in range(replicas)) for replicas in solution.replicas),
        wires=(*wires, *back),
        comm="duplex",
        backward=tuple(float((profile.seconds - forward)[nodes].sum()) for nodes in stages),
        sync=tuple(2 * (r - 1) * size / r / BANDWIDTH for r, size in zip(solution.replicas, sizes, strict=True)),
        weights=(0.0,) * len(stages),  # a profile does not tell the two parts of a backward pass apart
    )
    return load, float(profile.seconds.sum()) / solution.value


def predicted() -> None:
    families = (*FAMILIES_OF_CHAINS, *ASYNCHRONOUS[:1])
    shown = " ".join(f"{family:>9}" for family in families)
    print(f"{'profile':14} {'machines':>8} {'plan':12} {'replicas':18} {'ideal':>8} {shown} {'Ju et al.':>9}")
    for name in PROFILES:
        for count in (4, 8):
            for straight in (True, False):
                load, ideal = planned(FOLDER / f"{name}.txt", count, straight=straight)
                alone = MICROBATCHES * sum(f + b for f, b in zip(load.compute, load.backward, strict=True))
                possible = families if straight else FAMILIES_OF_CHAINS
                times = " ".join(f"{alone / step(load, MICROBATCHES, family).period:9.3f}" for family in possible)
                told = f"{MEASURED[name]:9.2f}" if name in MEASURED else ""
                plan = "straight" if straight else "replicated"
                replicas = "-".join(str(len(on)) for on in load.replicas)
                print(f"{name:14} {count:8} {plan:12} {replicas:18} {ideal:8.3f} {times:{len(shown)}} {told}")


def bubbles(devices: int = 8, microbatches: int = 32) -> None:
    """Of equal stages, F = I = W and no transfers: the share of a step, and of a device's own span, that it waits."""
    print(f"{devices} devices, {microbatches} microbatches, F = I = W")
    print(f"{'family':14} {'of the step':>12} {'of the span':>12} {'most in flight':>15}")
    for family in FAMILIES:
        if family in ASYNCHRONOUS:  # they wait for nothing
            continue
        load = placed(family, devices)
        schedule = step(load, microbatches, family)
        work = 3.0 * microbatches
        most = max(peaks(dict(schedule.rows))) / (len(load.compute) // devices)
        print(f"{family:14} {1 - work / schedule.period:12.1%} {1 - work / max(spans(load, schedule)):12.1%} {most:15.1f}")


if __name__ == "__main__":
    print(header())
    bubbles()
    predicted()
