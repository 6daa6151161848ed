"""Damages the programs of builds at random places: does ``dnnc check --prove`` refute all that changes what they compute?
``python -m tests.bench.damaged_programs [--trials 1300] [--steps 700] [--seed 0]``.

``damage`` has the kinds for inference, ``damage_training`` those for training. A damage that a comparison on 20 random inputs
notices must be refused by what opens a build, or not be proven. Printed are for each kind: trials; how many the verifier
refused; of the others, how many the proof refuted or did not prove, and how many of these changed outputs (which is what
``dnnc check`` finds); how many were proven and equal; and how many were proven though outputs changed (missed). Steps of
training are not run: a damaged one that is proven is printed, for a person to judge.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dnnc.build.build import Build
from dnnc.build.snapshot import Snapshot
from dnnc.build.training import Step
from dnnc.check.check import CheckOptions, check_build
from dnnc.check.proof import prove_build
from dnnc.check.proof.training import prove_step
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.training import TrainingOptions
from dnnc.engines.onnxruntime import RuntimeFailure
from dnnc.engines.torch.files import read_step
from dnnc.onnx import DIALECTS
from ir import verify
from ir.core.diagnostics import DnncError, InvalidInput
from tests.bench.damage import KINDS
from tests.bench.damage_training import KINDS as STEP_KINDS
from tests.bench.damage_training import damaged_step
from tests.bench.machine import header

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
_CPU2 = {"machines": "preset:cpu-2"}
_SMALL = "layers=1,hidden=16,heads=2,vocab=32,seq=8"
MORE: dict[str, dict[str, object]] = {
    "replicas": {"model": "zoo:mlp,layers=4,hidden=16,batch=6", "machines": "preset:cpu-4", "stages": 2, "replicas": 2},
    "data": {"model": "zoo:mlp,layers=4,hidden=16,batch=6", **_CPU2, "mesh": "2", "strategy": "data"},
    "a file for each stage": {
        "model": "zoo:mlp,layers=4,hidden=16,batch=6", **_CPU2, "mesh": "none", "stages": 2, "weights": "per-stage"
    },
    "convolutions": {"model": "zoo:resnet50,batch=2,image=32,width=4,classes=10", **_CPU2, "mesh": "2"},
    "convolutions in stages": {
        "model": "zoo:resnet50,batch=2,image=32,width=4,classes=10", **_CPU2, "mesh": "none", "stages": 2
    },
    "patches": {"model": "zoo:vit-base,layers=1,hidden=16,heads=2,image=32,patch=16,classes=8,batch=2", **_CPU2, "mesh": "2"},
    "grouped heads": {
        "model": f"zoo:llama-70b,{_SMALL},kv_heads=2", **_CPU2, "mesh": "2", "strategy": "megatron"
    },
    "experts": {"model": f"zoo:mixtral-8x7b,{_SMALL}", **_CPU2, "mesh": "2"},
    "encoder": {"model": f"zoo:bert-base,{_SMALL},batch=4", "machines": "preset:cpu-4", "mesh": "2x2"},
    "attention in two stages of meshes": {
        "model": "zoo:gpt2,layers=2,hidden=16,heads=2,vocab=32,positions=16,seq=8", "machines": "preset:cpu-4",
        "mesh": "2", "stages": 2,
    },
    "decoder on a mesh": {"model": "zoo:t5-base,layers=1,hidden=16,heads=2,vocab=32", **_CPU2, "mesh": "2"},
    "unequal parts": {"model": "zoo:mlp,layers=3,hidden=16,batch=8", **_CPU2, "mesh": "2", "shares": "3,1"},
}  # fmt: skip
"""More of them, for the table."""
TRAINED: dict[str, dict[str, object]] = {
    "pipeline": {"machines": "preset:cpu-2", "mesh": "none", "stages": 2, "microbatches": 4},
    "replicas": {"machines": "preset:cpu-4", "mesh": "none", "stages": 2, "replicas": 2, "microbatches": 4},
    "data": {"machines": "preset:cpu-2", "mesh": "2", "strategy": "data", "microbatches": 2},
    "megatron": {"machines": "preset:cpu-4", "mesh": "2x2", "strategy": "megatron", "microbatches": 2},
    "meshes": {"machines": "preset:cpu-4", "mesh": "2", "stages": 2, "microbatches": 4},
}
"""Training builds of an MLP."""


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
    options = dict(BUILDS[name] if name in BUILDS else MORE[name])
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


def outcome(folder: Path, samples: int = 2) -> Outcome:
    """What the proof says of a damaged build, and what a comparison on so many random inputs does."""
    try:
        build = Build.open(folder)
        report = prove_build(build)
        proof, message = report.verdict, "" if report.proven else str(report.failures[0][1].message)
    except InvalidInput as error:
        return Outcome("refused", "refused", str(error).splitlines()[0])
    try:
        outputs = "equal" if check_build(build, CheckOptions(seed=1, samples=samples)).passed else "differ"
    except (DnncError, RuntimeFailure):
        outputs = "fail"
    return Outcome(proof, outputs, message)


def damaged(build: Path, kind: str, seed: int, folder: Path, samples: int = 2) -> Outcome | None:
    """The outcome of a damage to a copy of ``build`` in the empty ``folder``; None where there is no place for it."""
    copy = folder / "build"
    shutil.copytree(build, copy)
    return outcome(copy, samples) if KINDS[kind](copy, random.Random(f"{kind} {seed}")) else None


def steps(trials: int, seed: int, scratch: Path) -> dict[str, Counter[str]]:
    """By kind, what the verifier and the proof say of damaged steps of training."""
    every = []
    for name, options in TRAINED.items():
        out, machines = scratch / f"trained {name}", str(options["machines"])
        more: dict[str, object] = {key: value for key, value in options.items() if key != "machines"}
        spec, training = "zoo:mlp,layers=4,hidden=16,batch=8", TrainingOptions(optimizer="momentum", learning_rate=0.1)
        compile_model(CompileOptions(spec, machines, out, objective="training", training=training, **more))  # type: ignore[arg-type]
        every.append((name, read_step(Snapshot.open(out)).module))
    rng, counts = random.Random(seed), {f"training: {kind}": Counter[str]() for kind in STEP_KINDS}
    trial = placed = 0
    while placed < trials:
        trial += 1
        (name, module), kind = rng.choice(every), rng.choice(STEP_KINDS)
        changed = damaged_step(module, kind, random.Random(f"{kind} {seed + trial}"))
        if changed is None:
            continue
        placed += 1
        verdict = "refused" if verify(changed, dialects=DIALECTS) else prove_step(Step(changed)).verdict
        counts[f"training: {kind}"][f"{verdict}, not run"] += 1
        if verdict == "proven":
            print(f"PROVEN: {kind} of {name}, seed {seed + trial}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Damages builds, and counts what the proof says of them.")
    parser.add_argument("--trials", type=int, default=1300)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, begun = random.Random(arguments.seed), time.monotonic()
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        builds = [compiled(name, Path(scratch) / name) for name in (*BUILDS, *MORE)]
        for build in builds:
            if not (report := prove_build(Build.open(build))).proven:
                raise SystemExit(f"{build.name}: {report.failures}")
        trial = placed = 0
        while placed < arguments.trials:
            build, kind = rng.choice(builds), rng.choice(list(KINDS))
            with tempfile.TemporaryDirectory() as folder:
                found = damaged(build, kind, arguments.seed + trial, Path(folder), samples=20)
            if found is not None:
                placed += 1
                counts[kind][f"{found.proof}, {found.outputs}"] += 1
                if found.missed:
                    print(f"MISSED: {kind} of {build.name}, seed {arguments.seed + trial}: {found}", flush=True)
            trial += 1
        counts |= steps(arguments.steps, arguments.seed, Path(scratch))
    print(header())
    _print_table(counts)
    print(f"{len(builds)} builds for inference, {len(TRAINED)} for training; {time.monotonic() - begun:.0f} s")


def _print_table(counts: dict[str, Counter[str]]) -> None:
    columns = ("trials", "refused", "refuted", "not proven", "of these differ", "proven, equal", "missed")
    print(f"{'kind':36}", *(f"{column:>15}" for column in columns))
    total = Counter[str]()
    for kind, found in counts.items():
        row = Counter[str]()
        for what, count in found.items():
            proof, _, outputs = what.partition(", ")
            row["trials"] += count
            row[proof] += count * (proof != "proven")
            row["of these differ"] += count * (proof in ("refuted", "not proven") and outputs in ("differ", "fail"))
            row["proven, equal"] += count * (proof == "proven" and outputs in ("equal", "not run"))
            row["missed"] += count * (proof == "proven" and outputs in ("differ", "fail"))
        total += row
        print(f"{kind:36}", *(f"{row[column]:15d}" for column in columns))
    print(f"{'all':36}", *(f"{total[column]:15d}" for column in columns))


__all__ = ["BUILDS", "KINDS", "branching", "compiled", "damaged"]

if __name__ == "__main__":
    main()
