"""Damages training builds at random places, for ``damaged_programs``: does ``dnnc check --prove`` refute all that changes what
a step computes?

``damage_training`` has the kinds; here each edits the stages of ``plan.ir`` (``step`` kinds: the entry function too), or its
rows, and ``stages/*.py`` are written anew of what then follows. Such a build is what a fault of the compiler would make. It is
trained for two steps beside the model, both in float64, so that a difference is none of rounding.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from dnnc.build.build import read_program
from dnnc.build.snapshot import Snapshot
from dnnc.build.training import Step, file_name
from dnnc.check.proof import prove
from dnnc.cli import main as command
from dnnc.engines.torch.write.stage_file import program_source, title_of
from dnnc.onnx import DIALECTS
from ir import print_module
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module, Program, Stage
from passes.graph.folding import expand
from tests.bench.damage import Outcome
from tests.bench.damage_training import PROGRAMS, ROWS, STEPS, damaged_rows, in_order, in_step
from tests.dnnc.sealing import change, entry

MODEL = "zoo:mlp,layers=4,hidden=16,batch=8,dtype=f64"
BUILDS: dict[str, tuple[str, ...]] = {
    "pipeline": (MODEL, "-t", "preset:cpu-2", "--stages", "2", "--mesh", "none", "--replicas", "1"),
    "2bw": (MODEL, "-t", "preset:cpu-2", "--stages", "2", "--mesh", "none", "--replicas", "1", "--schedule", "2bw"),
    "data": (MODEL, "-t", "preset:cpu-2", "--mesh", "2", "--strategy", "data"),
    "megatron": (MODEL, "-t", "preset:cpu-2", "--mesh", "2", "--strategy", "megatron"),
    "reduce_scatter": (MODEL, "-t", "preset:cpu-2", "--mesh", "2", "--strategy", "data", "--sync", "reduce_scatter"),
}
"""Builds to damage: options of ``compile``."""
KINDS = (*PROGRAMS, *(f"step {name}" for name in STEPS), *(f"row {name}" for name in ROWS))
_SAME = 1e-11
"""Difference of a weight over its range, or of a loss, that is one of rounding."""
_PATIENCE = 90
"""Seconds after which a training that waits for a message that nobody sends is ended."""


def compiled(name: str, out: Path) -> Path:
    """The build of this name, in the folder ``out``. It learns fast enough for a wrong gradient to show."""
    model, *options = BUILDS[name]
    step = ("--objective", "training", "--microbatches", "4", "--optimizer", "momentum", "--learning-rate", "0.1")
    if command(["compile", model, *step, *options, "-q", "-o", str(out)]):
        raise SystemExit(f"{name} does not compile")
    return out


def damaged(folder: Path, kind: str, rng: random.Random) -> Outcome | None:
    """The outcome of a damage to the build in ``folder``; None where there is no place for it."""
    files = Snapshot.open(folder)
    module = _edited(expand(read_program(files)), kind, rng)
    if module is None:
        return None
    try:
        step = Step.of(module, DIALECTS)
        sources = {
            file_name(step, stage, program): program_source(step.module, program, title_of(stage, program))
            for stage in step.stages
            for program in step.module.of_type(Program)
            if program.stage == stage.name
        }
    except Exception as error:  # no compiler could have made it: it does not localize, or is no PyTorch
        return Outcome("refused", "refused", f"{type(error).__name__}: {error}")
    shutil.rmtree(folder / "stages")
    (folder / "stages").mkdir()
    written = {"plan.ir": print_module(module), **sources}
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    kept = {name: entry(folder / name) for name in (*written, *(n for n in files.manifest["files"] if n[:7] != "stages/"))}
    change(folder, lambda manifest: manifest.update(files=kept))
    try:
        report = prove(folder)
    except InvalidInput as error:
        return Outcome("refused", "refused", str(error).splitlines()[0])
    message = "" if report.proven else str(report.failures[0][1].message)
    return Outcome(report.verdict, _steps(folder), message)


def _edited(module: Module, kind: str, rng: random.Random) -> Module | None:
    if kind.startswith("step "):
        return in_step(module, rng, STEPS[kind.removeprefix("step ")])
    if kind.startswith("row "):
        return damaged_rows(module, kind.removeprefix("row "), rng)
    stages = list(module.of_type(Stage))
    for stage in rng.sample(stages, len(stages)):
        ops = in_order(PROGRAMS[kind](stage.ops, rng))
        if ops is not None and ops != stage.ops:
            return module.replace(stage, replace(stage, ops=ops))
    return None


def _steps(folder: Path) -> str:
    """What ``dnnc train --check`` says of two steps."""
    arguments = ["train", str(folder), "--check", "--steps", "2", "--json", "--timeout", "20"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dnnc", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        told, _ = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "fail"
    if process.returncode:
        return "differ" if process.returncode == 5 else "fail"
    verdict = json.loads(told)
    worst = max(verdict["worst"]["difference"], verdict["loss_difference"])
    return "equal" if worst <= _SAME else "differ"
