"""Topologies: presets and golden files as TOML text and as JSON trees with changed values, shown and compiled for."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from dnnc.machines.presets import find_preset
from tests.fuzz.harness import Surface
from tests.fuzz.mutate import mutate_bytes, mutate_text, mutate_tree, nested, number_text
from tests.golden import ROOT

PRESETS = ("cpu-2,cores=2,memory=8GiB", "cpu-3,cores=1,memory=1GiB", "h100x2", "a100x4", "2xl4x2", "3xv100x2")
MODELS = (
    "zoo:mlp,layers=3,hidden=8,inputs=8,batch=2",
    "zoo:mlp,layers=4,hidden=4,inputs=4",
    "zoo:bert-base,layers=1,hidden=8,heads=2,seq=4,vocab=16,positions=8,batch=2",
)


MACHINE = """\
version = 1
name = "t"
[types.c]
kind = "cpu"
rates = { f32 = "1 TFLOP/s" }
memory_bandwidth = "1 GB/s"
memory = "1 GiB"
overhead = "2 us"
[[hosts]]
name = "h"
cores = 2
memory = "2 GiB"
[[devices]]
name = "d{0..1}"
type = "c"
[[links]]
name = "l"
ends = ["h", "devices of h"]
bandwidth = "1 GB/s"
latency = "1 us"
"""
"""Two devices on one host."""


@cache
def seeds() -> tuple[str, ...]:
    """Topologies as TOML."""
    golden = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "topology").glob("*.toml"))]
    return (*(find_preset(name).text for name in PRESETS), *golden)


@cache
def trees() -> tuple[dict[str, Any], ...]:
    found = []
    for text in seeds():
        try:
            found.append(tomllib.loads(text))
        except tomllib.TOMLDecodeError:
            continue
    return tuple(found)


def mutated(rng: Random, folder: Path, base: Path) -> list[str]:
    if rng.random() < 0.6:
        name, text = "t.json", json.dumps(mutate_tree(rng, rng.choice(trees())))
    else:
        name, text = "t.toml", mutate_text(rng, rng.choice(seeds()), seeds())
    data = text.encode("utf-8", "surrogatepass")
    (folder / name).write_bytes(mutate_bytes(rng, data) if rng.random() < 0.03 else data)
    return command(rng, name)


def command(rng: Random, name: str) -> list[str]:
    match rng.randrange(4):
        case 0:
            return ["topology", "show", name, *rng.choice(([], ["--ir"], ["--toml"], ["--json"]))]
        case 1:
            return ["topology", "validate", name]
    shape = rng.choice(
        (
            [],
            [],
            ["--mesh", "2"],
            ["--mesh", "auto"],
            ["--objective", "latency", "--pieces", "2"],
            ["--replicas", "2"],
            ["--split", "any", "--time-limit", "5"],
        )
    )
    return ["compile", rng.choice(MODELS), "-t", name, "-o", "out", *shape, *rng.choice(([], ["--plan-only"]))]


def numbers(rng: Random, folder: Path, base: Path) -> list[str]:
    """One quantity of a small machine replaced by a number that no machine has."""
    lines = MACHINE.split("\n")
    at = rng.choice([i for i, line in enumerate(lines) if re.search(r"= .*\d", line) and "{0" not in line])
    key, _, value = lines[at].partition(" = ")
    unit = value.strip('"{} ').rpartition(" ")[2] if value.strip('"{} ').count(" ") else ""
    number = number_text(rng)
    lines[at] = (
        f"{key} = {number}"
        if not unit
        else f'{key} = {{ f32 = "{number} {unit}" }}'
        if at == 4
        else f'{key} = "{number} {unit}"'
    )
    (folder / "t.toml").write_text("\n".join(lines), encoding="utf-8")
    return command(rng, "t.toml")


def many_devices(rng: Random, folder: Path, base: Path) -> list[str]:
    """Patterns that stand for very many devices, on one bus or on links of their own."""
    count = rng.choice((4096, 65536, 10**7, 10**18))
    text = find_preset("cpu-2,cores=2,memory=8GiB").text.replace("cpu{0..1}", f"cpu{{0..{count}}}")
    (folder / "t.toml").write_text(text.replace('latency = "10 us"', 'latency = "10 us"\nshared = true'), encoding="utf-8")
    return [
        *rng.choice((["topology", "show", "t.toml"], ["compile", MODELS[0], "-t", "t.toml", "-o", "out", "--time-limit", "2"]))
    ]


def patterns(rng: Random, folder: Path, base: Path) -> list[str]:
    """Ranges inside ranges: what they stand for is their product."""
    text = find_preset("cpu-2,cores=2,memory=8GiB").text.replace("cpu{0..1}", "cpu" + "{0..9}" * rng.choice((4, 9, 300)))
    (folder / "t.toml").write_text(text, encoding="utf-8")
    return ["topology", "validate", "t.toml"]


def deep(rng: Random, folder: Path, base: Path) -> list[str]:
    depth = rng.choice((500, 100_000))
    if rng.random() < 0.5:
        tree = dict(trees()[0]) | {rng.choice(("links", "hosts", "types")): "x"}
        text = json.dumps(tree).replace('"x"', "[" * depth + "]" * depth)
        (folder / "t.json").write_text(text, encoding="utf-8")
        return ["topology", "validate", "t.json"]
    (folder / "t.toml").write_text(f"version = 1\nname = {'[' * depth}{']' * depth}\n", encoding="utf-8")
    return ["topology", "validate", "t.toml"]


def keys(rng: Random, folder: Path, base: Path) -> list[str]:
    """A chain of types, each like another; a key of many parts."""
    count = rng.choice((900, 3000))
    chain = "\n".join(f'[types.t{i}]\nlike = "t{i + 1}"' for i in range(count))
    text = rng.choice((f"{seeds()[0]}\n{chain}", f"{seeds()[0]}\n[{'.'.join('a' * count)}]\nx = 1\n"))
    (folder / "t.toml").write_text(text, encoding="utf-8")
    return ["topology", "validate", "t.toml"]


def nested_value(rng: Random, folder: Path, base: Path) -> list[str]:
    tree = dict(rng.choice(trees()))
    tree[rng.choice(sorted(tree))] = nested(900, 1)
    (folder / "t.json").write_text(json.dumps(tree), encoding="utf-8")
    return ["topology", "show", "t.json"]


SURFACE = Surface(
    "topology",
    mutated,
    (*[numbers] * 8, many_devices, many_devices, patterns, patterns, deep, deep, keys, nested_value),
    quick=3,
)
