"""IR text: the golden files with changed tokens and lines, under the commands and passes that read them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.harness import Surface
from tests.fuzz.mutate import STRINGS, mutate_bytes, mutate_text, number_text
from tests.golden import ROOT

PIPELINES = (
    "", "canonicalize", "cost", "canonicalize,cost,fold", "expand", "canonicalize,unfuse,cost",
    "canonicalize,cost,partition", "default-inference", "cost,partition{mesh=auto},place",
    "assign", "replay", "place", "schedule", "lower", "place,schedule,lower",
    "partition{objective=latency,pieces=2},place,schedule", "partition{stages=2}", "cost{",
)  # fmt: skip
TOPOLOGIES = ("preset:cpu-2", "preset:cpu-2", "preset:cpu-3", "preset:h100x4", "preset:2xa100x2")


@cache
def seeds() -> tuple[str, ...]:
    """Every IR text of the golden files."""
    return tuple(path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.ir")))


def mutated(rng: Random, folder: Path, base: Path) -> list[str]:
    text = mutate_text(rng, rng.choice(seeds()), seeds())
    data = text.encode("utf-8", "surrogatepass")
    (folder / "m.ir").write_bytes(mutate_bytes(rng, data) if rng.random() < 0.05 else data)
    return command(rng)


def command(rng: Random) -> list[str]:
    """A command on ``m.ir``."""
    machines = ["-t", rng.choice(TOPOLOGIES)] if rng.random() < 0.6 else []
    match rng.randrange(8):
        case 0:
            return ["inspect", "m.ir", *rng.choice(([], ["--json"]))]
        case 1:
            return ["import", "m.ir", "--passes", rng.choice(PIPELINES)]
        case 2:
            shape = rng.choice(
                ([], ["--mesh", "2"], ["--objective", "latency", "--pieces", "2"], ["--split", "any", "--time-limit", "5"])
            )
            return ["compile", "m.ir", "-t", "preset:cpu-2", *shape, "--plan-only", "-o", "out"]
        case 3:
            return ["opt", "m.ir", *machines]
        case 4:
            return ["compile", "m.ir", "-t", "preset:cpu-2", "-o", "out", *rng.choice(([], ["--mesh", "2"]))]
    return ["opt", "m.ir", "--passes", rng.choice(PIPELINES), *machines]


def deep(rng: Random, folder: Path, base: Path) -> list[str]:
    """Types, attributes and regions inside each other."""
    depth = rng.choice((200, 5000, 200_000))
    inside = rng.choice(
        (
            f"%y = onnx.Relu(%x) : {'seq<' * depth}tensor<4xf32>{'>' * depth}",
            f"%y = onnx.Relu(%x) {{a = {'[' * depth}1{']' * depth}}} : tensor<4xf32>",
            f"%y = onnx.If(%x) {'{then_branch: (' * depth} : tensor<4xf32>",
            f"%y = onnx.Relu({'(' * depth}%x) : tensor<4xf32>",
            f"%y = onnx.Relu(%x) : tensor<{'(' * depth}n{')' * depth}xf32>",
        )
    )
    return module(folder, inside)


def long_chain(rng: Random, folder: Path, base: Path) -> list[str]:
    """Many ops one after another: what is recursive over ops overflows."""
    count = rng.choice((500, 3000))
    ops = [f"%v{i + 1} = onnx.Relu(%v{i}) : tensor<4xf32>" for i in range(count)]
    return module(
        folder, "\n    ".join(["%v0 = onnx.Neg(%x) : tensor<4xf32>", *ops, f"%y = onnx.Abs(%v{count}) : tensor<4xf32>"])
    )


def huge_sizes(rng: Random, folder: Path, base: Path) -> list[str]:
    """Dimensions, counts and costs that no machine holds."""
    number = number_text(rng)
    facets = (
        "cost<flops = {}>",
        "cost<flops = 1, read = {}, write = 1, weight = 0>",
        "time<@cpu = {}>",
        "stage<{}>",
        "color<{}>",
        "group<{}>",
    )
    return module(folder, f"%y = onnx.Relu(%x) : tensor<{number}x4xf32> {rng.choice(facets).format(number_text(rng))}")


def names(rng: Random, folder: Path, base: Path) -> list[str]:
    """Names with what a terminal obeys."""
    name = rng.choice(STRINGS).encode("unicode_escape").decode().replace('"', '\\"')
    return module(
        folder,
        f'%"{name}" = onnx."{name}"(%x) {{"{name}" = "{name}"}} : tensor<4xf32>\n    %y = onnx.Abs(%"{name}") : tensor<4xf32>',
    )


def module(folder: Path, ops: str) -> list[str]:
    text = f"module @m {{opset = 20}} {{\n  func @main(%x : tensor<4xf32>) -> (%y : tensor<4xf32>) {{\n    {ops}\n  }}\n}}\n"
    (folder / "m.ir").write_text(text, encoding="utf-8")
    return ["compile", "m.ir", "-t", "preset:cpu-2", "--plan-only", "-o", "out"]


def run_lines(rng: Random, folder: Path, base: Path) -> list[str]:
    """RUN lines that no shell would take."""
    line = rng.choice(
        (
            "dnnc opt %s --passes 'cost",
            'dnnc opt "',
            "dnnc opt %s --passes cost{",
            "dnnc opt %s --passes",
            "dnnc opt \\",
            "rm -rf /",
        )
    )
    (folder / "m.ir").write_text(f"// RUN: {line}\n" + rng.choice(seeds()), encoding="utf-8")
    return ["opt", "m.ir"]


SURFACE = Surface("ir", mutated, (deep, deep, deep, long_chain, huge_sizes, names, run_lines), quick=3)
