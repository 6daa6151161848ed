"""Damages the programs of builds at random places: does ``dnnc check --prove`` refute all that changes what they compute?

``damage`` has the kinds. A damage that a comparison on random inputs notices must be refused by what opens a build, or not be
proven.
``python -m tests.bench.damaged_programs --trials 200`` prints a table by kind.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dnnc.build.build import Build
from dnnc.check.check import CheckOptions, check_build
from dnnc.check.proof import prove_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import RuntimeFailure
from ir.core.diagnostics import DnncError, InvalidInput
from tests.bench.damage import KINDS

BUILDS: dict[str, dict[str, object]] = {
    "pipeline": {"model": "zoo:mlp,layers=4,hidden=16,batch=6", "machines": "preset:cpu-2", "mesh": "none", "stages": 2},
    "megatron": {
        "model": "zoo:mlp,layers=4,hidden=16,batch=6",
        "machines": "preset:cpu-2",
        "mesh": "2",
        "strategy": "megatron",
    },
    "uneven": {"model": "zoo:mlp,layers=3,hidden=10,batch=5", "machines": "preset:cpu-3", "mesh": "3", "uneven": True},
    "two axes": {
        "model": "zoo:gpt2,layers=1,hidden=16,heads=4,vocab=32,positions=16,seq=8,batch=2",
        "machines": "preset:cpu-4",
        "mesh": "2x2",
        "strategy": "megatron",
    },
    "channels": {
        "model": "zoo:t5-base,layers=1,hidden=16,heads=2,vocab=32",
        "machines": "preset:cpu-2",
        "mesh": "none",
        "stages": 2,
    },
    "meshes": {"model": "zoo:mlp,layers=4,hidden=16,batch=6", "machines": "preset:cpu-4", "mesh": "2", "stages": 2},
    "attention": {
        "model": "zoo:gpt2,layers=1,hidden=16,heads=2,vocab=32,positions=16,seq=8",
        "machines": "preset:cpu-2",
        "mesh": "2",
        "strategy": "megatron",
    },
    "branches": {"model": "branching", "machines": "preset:cpu-2", "mesh": "none", "stages": 2},
}
"""Builds to damage: options of ``compile``."""


def branching(path: Path, width: int = 4) -> Path:
    """A model whose branch reads values from around it, in a pipeline of matrices of ``width`` columns."""
    then = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["t"]), helper.make_node("Mul", ["t", "b"], ["then_y"])],
        "then",
        [],
        [helper.make_tensor_value_info("then_y", TensorProto.FLOAT, [4, width])],
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["a", "b"], ["e"]), helper.make_node("Tanh", ["e"], ["else_y"])],
        "else",
        [],
        [helper.make_tensor_value_info("else_y", TensorProto.FLOAT, [4, width])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "a"),
        helper.make_node("Sigmoid", ["a"], ["b"], "b"),
        helper.make_node("ReduceSum", ["b"], ["s"], "s", keepdims=0),
        helper.make_node("Greater", ["s", "limit"], ["c"], "c"),
        helper.make_node("If", ["c"], ["i"], "if", then_branch=then, else_branch=other),
        helper.make_node("MatMul", ["i", "w"], ["y"], "y"),
    ]
    weight = np.linspace(-1, 1, width * width, dtype=np.float32).reshape(width, width)
    graph = helper.make_graph(
        nodes,
        "branching",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, width])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array(8, np.float32), "limit")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path


def compiled(name: str, out: Path) -> Path:
    """The build of this name, in the folder ``out``."""
    options = dict(BUILDS[name])
    model, machines = str(options.pop("model")), str(options.pop("machines"))
    if model == "branching":
        model = str(branching(out.with_name("branching.onnx")))
    compile_model(CompileOptions(model, machines, out, time_limit=5.0, **options))  # type: ignore[arg-type]
    return out


@dataclass(frozen=True, slots=True)
class Outcome:
    """``proof``: refused, refuted, not proven or proven; ``outputs``: refused, fail, differ or equal."""

    proof: str
    outputs: str
    message: str

    @property
    def missed(self) -> bool:
        """Whether the proof holds for a build that computes something else."""
        return self.proof == "proven" and self.outputs != "equal"


def outcome(folder: Path) -> Outcome:
    """What the proof says of a damaged build, and what a comparison on random inputs does."""
    try:
        build = Build.open(folder)
        report = prove_build(build)
        proof, message = report.verdict, "" if report.proven else str(report.failures[0][1].message)
    except InvalidInput as error:
        return Outcome("refused", "refused", str(error).splitlines()[0])
    try:
        outputs = "equal" if check_build(build, CheckOptions(seed=1, samples=2)).passed else "differ"
    except (DnncError, RuntimeFailure):
        outputs = "fail"
    return Outcome(proof, outputs, message)


def damaged(build: Path, kind: str, seed: int, folder: Path) -> Outcome | None:
    """The outcome of a damage to a copy of ``build`` in the empty ``folder``; None where there is no place for it."""
    copy = folder / "build"
    shutil.copytree(build, copy)
    return outcome(copy) if KINDS[kind](copy, random.Random(f"{kind} {seed}")) else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Damages builds, and counts what the proof says of them.")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        builds = [compiled(name, Path(scratch) / name) for name in BUILDS]
        for build in builds:
            if not (report := prove_build(Build.open(build))).proven:
                raise SystemExit(f"{build.name}: {report.failures}")
        for trial in range(arguments.trials):
            build, kind = rng.choice(builds), rng.choice(list(KINDS))
            with tempfile.TemporaryDirectory() as folder:
                found = damaged(build, kind, arguments.seed + trial, Path(folder))
            if found is not None:
                counts[kind][f"{found.proof}, {found.outputs}"] += 1
                if found.missed:
                    print(f"MISSED: {kind} of {build.name}, seed {arguments.seed + trial}: {found}")
    for kind, of_kind in counts.items():
        print(f"{kind:22}", "; ".join(f"{count} {what}" for what, count in of_kind.most_common()))


__all__ = ["BUILDS", "KINDS", "branching", "compiled", "damaged"]

if __name__ == "__main__":
    main()
