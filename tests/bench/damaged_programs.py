"""Damages builds of inference and of training at random places: does ``dnnc check --prove`` refute all that changes what they
compute? ``python -m tests.bench.damaged_programs [--trials 2000] [--trained 200] [--seconds 3600] [--seed 0]``.

``damage`` has the kinds for inference, ``damaged_training`` those for training. Models are in float64 where onnxruntime has
their kernels, so that a small difference is not taken for one of rounding. Each damaged build is opened, proven, and run beside
the model: inference on 20 random inputs, training for two steps. Printed are for each kind: ``verifier``: builds that are
refused when they are opened; ``proof``: those of the others that it refutes or does not prove; ``check``: those of the others
whose runs differ or fail; ``harmless``: proven, and equal; ``missed``: proven, though runs differ.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dnnc.build.build import Build
from dnnc.check.check import CheckOptions, check_build
from dnnc.check.proof import prove, prove_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import RuntimeFailure
from ir.core.diagnostics import DnncError, InvalidInput
from tests.bench import damaged_training
from tests.bench.damage import KINDS, Outcome
from tests.bench.machine import header

_MLP = "zoo:mlp,layers=4,hidden=16,batch=6,dtype=f64"
BUILDS: dict[str, dict[str, object]] = {
    "pipeline": {
        "model": _MLP,
        "machines": "preset:cpu-2",
        "mesh": "none",
        "stages": 2,
    },
    "megatron": {
        "model": _MLP,
        "machines": "preset:cpu-2",
        "mesh": "2",
        "strategy": "megatron",
    },
    "uneven": {
        "model": "zoo:mlp,layers=3,hidden=10,batch=5,dtype=f64",
        "machines": "preset:cpu-3",
        "mesh": "3",
    },
    "two axes": {
        "model": "zoo:gpt2,layers=1,hidden=16,heads=4,vocab=32,positions=16,seq=8,batch=2,dtype=f64",
        "machines": "preset:cpu-4",
        "mesh": "2x2",
        "strategy": "megatron",
    },
    "channels": {
        "model": "zoo:t5-base,layers=1,hidden=16,heads=2,vocab=32,dtype=f64",
        "machines": "preset:cpu-2",
        "mesh": "none",
        "stages": 2,
    },
    "meshes": {"model": _MLP, "machines": "preset:cpu-4", "mesh": "2", "stages": 2},
    "attention": {
        "model": "zoo:gpt2,layers=1,hidden=16,heads=2,vocab=32,positions=16,seq=8,dtype=f64",
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
    "replicas": {"model": _MLP, "machines": "preset:cpu-4", "stages": 2, "replicas": 2},
    "data": {"model": _MLP, **_CPU2, "mesh": "2", "strategy": "data"},
    "a file for each stage": {
        "model": _MLP, **_CPU2, "mesh": "none", "stages": 2, "weights": "per-stage"
    },
    "convolutions": {"model": "zoo:resnet50,batch=2,image=32,width=4,classes=10", **_CPU2, "mesh": "2"},
    "convolutions in stages": {
        "model": "zoo:resnet50,batch=2,image=32,width=4,classes=10", **_CPU2, "mesh": "none", "stages": 2
    },
    "patches": {"model": "zoo:vit-base,layers=1,hidden=16,heads=2,image=32,patch=16,classes=8,batch=2", **_CPU2, "mesh": "2"},
    "grouped heads": {
        "model": f"zoo:llama-70b,{_SMALL},kv_heads=2,dtype=f64", **_CPU2, "mesh": "2", "strategy": "megatron"
    },
    "experts": {"model": f"zoo:mixtral-8x7b,{_SMALL},dtype=f64", **_CPU2, "mesh": "2"},
    "encoder": {"model": f"zoo:bert-base,{_SMALL},batch=4", "machines": "preset:cpu-4", "mesh": "2x2"},
    "attention in two stages of meshes": {
        "model": "zoo:gpt2,layers=2,hidden=16,heads=2,vocab=32,positions=16,seq=8,dtype=f64", "machines": "preset:cpu-4",
        "mesh": "2", "stages": 2,
    },
    "decoder on a mesh": {"model": "zoo:t5-base,layers=1,hidden=16,heads=2,vocab=32,dtype=f64", **_CPU2, "mesh": "2"},
    "unequal parts": {"model": "zoo:mlp,layers=3,hidden=16,batch=8,dtype=f64", **_CPU2, "mesh": "2", "shares": "3,1"},
}  # fmt: skip
"""More of them, for the table. onnxruntime has no Conv and no Erf in float64."""

_COLUMNS = ("verifier", "proof", "check", "harmless", "missed")
_SAME = 1e-11
"""Difference of an output in float64, over its range, that is one of rounding at least."""


def branching(path: Path, width: int = 4) -> Path:
    """A model whose branch reads values from around it, in a pipeline of matrices of ``width`` columns."""
    then = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["t"]), helper.make_node("Mul", ["t", "b"], ["then_y"])],
        "then",
        [],
        [helper.make_tensor_value_info("then_y", TensorProto.DOUBLE, [4, width])],
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["a", "b"], ["e"]), helper.make_node("Tanh", ["e"], ["else_y"])],
        "else",
        [],
        [helper.make_tensor_value_info("else_y", TensorProto.DOUBLE, [4, width])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "a"),
        helper.make_node("Sigmoid", ["a"], ["b"], "b"),
        helper.make_node("ReduceSum", ["b"], ["s"], "s", keepdims=0),
        helper.make_node("Greater", ["s", "limit"], ["c"], "c"),
        helper.make_node("If", ["c"], ["i"], "if", then_branch=then, else_branch=other),
        helper.make_node("MatMul", ["i", "w"], ["y"], "y"),
    ]
    weight = np.linspace(-1, 1, width * width, dtype=np.float64).reshape(width, width)
    graph = helper.make_graph(
        nodes,
        "branching",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [4, width])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [4, width])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array(8, np.float64), "limit")],
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


@cache
def rounding(build: Path) -> float | None:
    """The largest difference of a whole build that is one of rounding: ten times its own, since some ops of a model in float64
    work in float32. None for a model in float32: what ``dnnc check`` allows."""
    whole = Build.open(build)
    if any(output.dtype != "float64" for output in whole.outputs):
        return None
    compared = check_build(whole, CheckOptions(seed=1, samples=20)).comparisons
    return max(_SAME, 10 * max(max(one.alone or 0.0, one.chained or 0.0) for one in compared))


def outcome(folder: Path, whole: Path, samples: int, *, always: bool) -> Outcome:
    """What the proof says of a damaged copy of the build ``whole``, and what a comparison on so many random inputs does: of
    copies that are proven, or ``always``."""
    try:
        build = Build.open(folder)
        report = prove_build(build)
        proof, message = report.verdict, "" if report.proven else str(report.failures[0][1].message)
    except InvalidInput as error:
        return Outcome("refused", "refused", str(error).splitlines()[0])
    if not report.proven and not always:
        return Outcome(proof, "not run", message)
    try:
        options = CheckOptions(seed=1, samples=samples, tolerance=rounding(whole))
        runs = "equal" if check_build(build, options).passed else "differ"
    except (DnncError, RuntimeFailure):
        runs = "fail"
    return Outcome(proof, runs, message)


def damaged(build: Path, kind: str, seed: int, folder: Path, samples: int = 2, *, always: bool = False) -> Outcome | None:
    """The outcome of a damage to a copy of ``build`` in the empty ``folder``; None where there is no place for it."""
    copy = folder / "build"
    shutil.copytree(build, copy)
    return outcome(copy, build, samples, always=always) if KINDS[kind](copy, random.Random(f"{kind} {seed}")) else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Damages builds, and counts what the proof says of them.")
    parser.add_argument("--trials", type=int, default=2000, help="of inference")
    parser.add_argument("--trained", type=int, default=200, help="of training")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no trial begins later")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, begun = random.Random(arguments.seed), time.monotonic()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        builds = [compiled(name, Path(scratch) / name) for name in (*BUILDS, *MORE)]
        trained = [damaged_training.compiled(name, Path(scratch) / f"trained {name}") for name in damaged_training.BUILDS]
        for build in (*builds, *trained):
            if not (report := prove(build)).proven:
                raise SystemExit(f"{build.name}: {report.failures}")
        left, seed = {True: arguments.trained, False: arguments.trials}, arguments.seed
        while any(left.values()) and time.monotonic() - begun < arguments.seconds:
            seed += 1
            training = rng.random() * sum(left.values()) < left[True]
            build = rng.choice(trained if training else builds)
            kind = rng.choice(damaged_training.KINDS if training else list(KINDS))
            with tempfile.TemporaryDirectory() as folder:
                if training:
                    copy = shutil.copytree(build, Path(folder) / "build")
                    found = damaged_training.damaged(copy, kind, random.Random(f"{kind} {seed}"))
                else:
                    found = damaged(build, kind, seed, Path(folder), samples=20, always=True)
            if found is None:  # no place for it
                continue
            left[training] -= 1
            counts.setdefault(f"{'training' if training else 'inference'}: {kind}", Counter()).update(_columns(found))
            if found.missed:
                print(f"MISSED: {kind} of {build.name}, seed {seed}: {found}", flush=True)
    print(header())
    _print_table(counts)
    print(f"{len(builds)} builds of inference, {len(trained)} of training; {time.monotonic() - begun:.0f} s")


def _columns(found: Outcome) -> Iterator[str]:
    """The columns in which an outcome counts."""
    if found.proof == "refused":
        yield "verifier"
        return
    if found.runs != "equal":
        yield "check"
    yield "proof" if found.proof != "proven" else "missed" if found.missed else "harmless"


def _print_table(counts: dict[str, Counter[str]]) -> None:
    print(f"{'kind':36}", *(f"{column:>9}" for column in ("trials", *_COLUMNS)))
    totals = {
        f"all of {what}": sum((found for kind, found in counts.items() if kind.startswith(what)), Counter[str]())
        for what in ("inference", "training")
    }
    for kind, found in [*sorted(counts.items()), *totals.items()]:
        trials = found["verifier"] + found["proof"] + found["harmless"] + found["missed"]
        print(f"{kind:36}", *(f"{count:9d}" for count in (trials, *(found[column] for column in _COLUMNS))))


__all__ = ["BUILDS", "KINDS", "branching", "compiled", "damaged"]

if __name__ == "__main__":
    main()
