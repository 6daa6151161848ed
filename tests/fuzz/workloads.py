"""Profiled workloads (device-placement JSON, PipeDream text) and splits of them: solved, compared and verified."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.dnnc.workloads.workload_files import PROFILE, chain, random_placement, random_training, text_of
from tests.fuzz.harness import Surface
from tests.fuzz.mutate import mutate_bytes, mutate_text, mutate_tree, number_text

TRAINING = 5
"""Placement files from this number on have backward nodes."""


@cache
def placements() -> tuple[dict[str, Any], ...]:
    return (
        chain([1.0, 2.0, 3.0]),
        *(random_placement(seed) for seed in range(1, TRAINING)),
        *(random_training(seed) for seed in range(4)),
    )


def prepare(base: Path) -> None:
    """Workloads and what ``solve`` says of them."""
    from dnnc.cli import main

    for number, data in enumerate(placements()):
        (base / f"w{number}.json").write_text(text_of(data), encoding="utf-8")
    (base / "w.txt").write_text(PROFILE, encoding="utf-8")
    for path in sorted(base.glob("w*")):
        options = ["-k", "2"] if path.suffix == ".txt" else []
        main(["solve", str(path), *options, "-q", "-o", str(base / f"split.{path.stem}.json")])


def mutated(rng: Random, folder: Path, base: Path) -> list[str]:
    """A workload changed, or a split of it."""
    profile = rng.random() < 0.3
    number = rng.randrange(len(placements()))
    stem, suffix = ("w", ".txt") if profile else (f"w{number}", ".json")
    text = (base / f"{stem}{suffix}").read_text(encoding="utf-8")
    split = base / f"split.{stem}.json"
    told = split.read_text(encoding="utf-8") if split.is_file() else "{}"
    if rng.random() < 0.65:
        text = changed(rng, text, profile)
    else:
        told = changed(rng, told, False)
    name = "w" + (suffix if rng.random() < 0.95 else rng.choice((".txt", ".json", "")))
    write(rng, folder / name, text)
    write(rng, folder / "s.json", told)
    return command(rng, name, profile)


def changed(rng: Random, text: str, profile: bool) -> str:
    if profile or rng.random() < 0.25:
        return mutate_text(rng, text, [PROFILE, text])
    return json.dumps(mutate_tree(rng, json.loads(text)), ensure_ascii=rng.random() < 0.5)


def write(rng: Random, path: Path, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    path.write_bytes(mutate_bytes(rng, data) if rng.random() < 0.03 else data)


def command(rng: Random, name: str, profile: bool) -> list[str]:
    machines = (
        rng.choice((["-k", "2"], ["-k", "3", "--memory", "1GiB"], ["-k", "2", "--bandwidth", "1GB/s"]))
        if profile or rng.random() < 0.2
        else []
    )
    objective = rng.choice(([], [], [], ["--objective", rng.choice(("throughput", "training", "latency", "pipedream"))]))
    match rng.randrange(6):
        case 0 | 1:
            return ["verify-plan", name, "s.json", *machines, *objective, *rng.choice(([], ["--json"]))]
        case 2:
            return ["solve", name, "--method", "expert", "--expert", "s.json", *machines, *objective]
        case 3:
            return [rng.choice(("import", "inspect")), name]
    more = rng.choice(
        (
            [],
            [],
            ["--split", "any", "--time-limit", "5"],
            ["--replicas", "2"],
            ["--compare"],
            ["--json"],
            ["--forward"],
            ["--method", "greedy"],
            ["--method", "metis"],
        )
    )
    return ["solve", name, *machines, *objective, *more, "-o", "out.json"]


def long_profile(rng: Random, folder: Path, base: Path) -> list[str]:
    """Lines that a pattern with two ways to match would try for ever."""
    pieces = (
        "node1 -- " * 6000,
        "node1" + " " * 60000 + "x",
        "node1 -- " + "(" * 60000,
        "node1 -- a -- " + "x=" * 30000,
        "node1 -- " + "[8.0; " * 9000,
        "\t" * 60000,
    )
    (folder / "w.txt").write_text(PROFILE + rng.choice(pieces) + "\n", encoding="utf-8")
    return ["solve", "w.txt", "-k", "2"]


def numbers(rng: Random, folder: Path, base: Path) -> list[str]:
    """Every cost of a workload is a strange number."""
    text = rng.choice((text_of(placements()[rng.randrange(TRAINING)]), PROFILE))
    for _ in range(rng.choice((1, 3))):
        at = rng.choice([i for i, char in enumerate(text) if char.isdigit()])
        text = text[:at] + number_text(rng).lstrip("-") + text[at + 1 :]
    name = "w.json" if text.startswith("{") else "w.txt"
    (folder / name).write_text(text, encoding="utf-8")
    return command(rng, name, name == "w.txt")


def machines(rng: Random, folder: Path, base: Path) -> list[str]:
    """More machines than there are."""
    strange = rng.choice((-1, 65537, 10**9, 10**30, 1e300, 2.5, "2", None, True, [], float("nan")))
    data = chain([1.0, 2.0, 3.0]) | {rng.choice(("maxFPGAs", "maxCPUs", "maxSizePerFPGA")): strange}
    (folder / "w.json").write_text(text_of(data), encoding="utf-8")
    return [
        "solve",
        "w.json",
        *rng.choice(([], ["--objective", "latency"], ["--split", "any", "--time-limit", "5"], ["--replicas", "1024"])),
    ]


def deep(rng: Random, folder: Path, base: Path) -> list[str]:
    (folder / "w.json").write_text('{"nodes":' * 100_000, encoding="utf-8")
    return ["solve", "w.json"]


def long_chain(rng: Random, folder: Path, base: Path) -> list[str]:
    """What is recursive over nodes overflows."""
    (folder / "w.json").write_text(text_of(chain([1.0] * 2500)), encoding="utf-8")
    return rng.choice((["inspect", "w.json"], ["solve", "w.json", "--method", "greedy"]))


SURFACE = Surface(
    "workload", mutated, (*[long_profile] * 6, *[numbers] * 6, *[machines] * 6, deep, long_chain), prepare, quick=3
)
