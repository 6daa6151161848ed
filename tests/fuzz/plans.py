"""plan.json: plans of small models with changed values, replayed with ``compile --plan``."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tests.fuzz.harness import Surface
from tests.fuzz.mutate import mutate_bytes, mutate_text, mutate_tree

MLP = "zoo:mlp,layers=3,hidden=8,inputs=8,batch=2"
BERT = "zoo:bert-base,layers=1,hidden=8,heads=2,seq=4,vocab=16,positions=8,batch=2"
PLANS: tuple[tuple[str, ...], ...] = (
    (MLP, "-t", "preset:cpu-2", "--stages", "2"),
    (MLP, "-t", "preset:cpu-2", "--mesh", "2"),
    (MLP, "-t", "preset:cpu-3", "--replicas", "2"),
    (MLP, "-t", "preset:cpu-2", "--objective", "latency", "--pieces", "2"),
    (MLP, "-t", "preset:cpu-2", "--split", "any"),
    (BERT, "-t", "preset:cpu-3", "--stages", "3"),
    (BERT, "-t", "preset:h100x4", "--mesh", "2x2"),
    (BERT, "-t", "preset:cpu-4", "--mesh", "2", "--stages", "2"),
    (BERT, "-t", "preset:h100x4", "--mesh", "2", "--stages", "2", "--objective", "training"),
)
"""What the seeds are compiled with."""


def prepare(base: Path) -> None:
    from dnnc.cli import main

    for number, (model, *options) in enumerate(PLANS):
        code = main(["compile", model, *options, "--plan-only", "-q", "-o", str(base / f"{number}")])
        if code not in (0, 4):
            raise SystemExit(f"plan {number} cannot be made: exit {code}")


def mutated(rng: Random, folder: Path, base: Path) -> list[str]:
    paths = sorted(base.glob("*/plan.json"))
    path = rng.choice(paths)
    text = path.read_text(encoding="utf-8")
    if rng.random() < 0.75:
        text = json.dumps(mutate_tree(rng, json.loads(text)), ensure_ascii=rng.random() < 0.5, indent=1)
    else:
        text = mutate_text(rng, text, [other.read_text(encoding="utf-8") for other in paths])
    data = text.encode("utf-8", "surrogatepass")
    (folder / "p.json").write_bytes(mutate_bytes(rng, data) if rng.random() < 0.03 else data)
    model, _, topology, *options = PLANS[int(path.parent.name) if rng.random() < 0.95 else rng.randrange(len(PLANS))]
    kept = [o for o in options if "training" in options and o in ("--objective", "training")]
    only = ["--plan-only"] if kept or rng.random() < 0.6 else []
    return [
        "compile",
        model,
        "-t",
        topology,
        "--plan",
        "p.json",
        "-o",
        "out",
        *kept,
        *only,
        *rng.choice(([], [], ["--explain"], ["--json"])),
    ]


def deep(rng: Random, folder: Path, base: Path) -> list[str]:
    depth = rng.choice((900, 100_000))
    (folder / "p.json").write_text(
        "[" * depth + "]" * depth if rng.random() < 0.5 else '{"stages":' * depth + "1" + "}" * depth
    )
    return ["compile", MLP, "-t", "preset:cpu-2", "--plan", "p.json", "-o", "out"]


def numbers(rng: Random, folder: Path, base: Path) -> list[str]:
    """Every number of a plan is the same strange one."""
    path = rng.choice(sorted(base.glob("*/plan.json")))
    strange = rng.choice((-1, 0, 2**31, 2**63, 10**400, float("nan"), float("inf"), "x", None, [], True))

    def changed(tree: object) -> object:
        if isinstance(tree, dict):
            return {key: changed(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [changed(value) for value in tree]
        return strange if isinstance(tree, int | float) and rng.random() < 0.4 else tree

    (folder / "p.json").write_text(json.dumps(changed(json.loads(path.read_text(encoding="utf-8")))))
    model, _, topology, *_ = PLANS[int(path.parent.name)]
    return ["compile", model, "-t", topology, "--plan", "p.json", "-o", "out", "--plan-only"]


SURFACE = Surface("plan", mutated, (deep, deep, deep, *[numbers] * 6), prepare, quick=2)
