"""Damages training builds at random places: does ``dnnc check --prove`` refute all that changes what a step computes?

``damage_training`` has the kinds; here each edits the stages of ``plan.ir``, or its rows, and ``stages/*.py`` are written anew
of what then follows. Such a build is what a fault of the compiler would make. What ``dnnc train --check`` notices in two steps
must be refused by what opens a build, or not be proven.
``python -m tests.bench.damaged_training --trials 40`` prints a table by kind.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
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
from passes.model.folding import expand
from tests.bench.damage_training import PROGRAMS, ROWS, damaged_rows, in_order
from tests.dnnc.sealing import change, entry

MODEL = "zoo:mlp,layers=4,hidden=16,batch=8"
BUILDS: dict[str, tuple[str, ...]] = {
    "pipeline": (MODEL, "-t", "preset:cpu-2", "--stages", "2", "--mesh", "none", "--replicas", "1"),
    "2bw": (MODEL, "-t", "preset:cpu-2", "--stages", "2", "--mesh", "none", "--replicas", "1", "--schedule", "2bw"),
    "data": (MODEL, "-t", "preset:cpu-2", "--mesh", "2", "--strategy", "data"),
    "megatron": (MODEL, "-t", "preset:cpu-2", "--mesh", "2", "--strategy", "megatron"),
    "reduce_scatter": (MODEL, "-t", "preset:cpu-2", "--mesh", "2", "--strategy", "data", "--sync", "reduce_scatter"),
}
"""Builds to damage: options of ``compile``."""
KINDS = (*PROGRAMS, *(f"row {name}" for name in ROWS))
_PATIENCE = 90
"""Seconds after which a training that waits for a message that nobody sends is ended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``proof``: refused, refuted, not proven or proven; ``steps``: refused, fail, differ or equal."""

    proof: str
    steps: str
    message: str

    @property
    def missed(self) -> bool:
        """Whether the proof holds for a build that computes something else."""
        return self.proof == "proven" and self.steps != "equal"


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
    arguments = ["train", str(folder), "--check", "--steps", "2", "-q", "--timeout", "20"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dnnc", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "fail"
    return {0: "equal", 5: "differ"}.get(code, "fail")


def main() -> None:
    parser = argparse.ArgumentParser(description="Damages training builds, and counts what the proof says of them.")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        builds = [compiled(name, Path(scratch) / name) for name in BUILDS]
        for build in builds:
            if not (report := prove(build)).proven:
                raise SystemExit(f"{build.name}: {report.failures}")
        for trial in range(arguments.trials):
            build, kind = rng.choice(builds), rng.choice(KINDS)
            with tempfile.TemporaryDirectory() as folder:
                copy = shutil.copytree(build, Path(folder) / "build")
                found = damaged(copy, kind, random.Random(f"{kind} {arguments.seed} {trial}"))
            if found is not None:
                counts[kind][f"{found.proof}, {found.steps}"] += 1
                if found.missed or found.steps == "equal":
                    print(
                        f"{'MISSED' if found.missed else 'equal'}: {kind} of {build.name}, trial {trial}: {found}", flush=True
                    )
    for kind, of_kind in counts.items():
        if of_kind:
            print(f"{kind:22}", "; ".join(f"{count} {what}" for what, count in of_kind.most_common()))


__all__ = ["BUILDS", "KINDS", "compiled", "damaged"]

if __name__ == "__main__":
    main()
