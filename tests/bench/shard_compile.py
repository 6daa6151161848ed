"""From an ONNX file to a sharded plan on the disk: ``python -m tests.bench.shard_compile``.

The files hold models of the zoo without their weights, which a plan does not read. Warm: a first compilation has imported
everything and compiled the kernels. Wall clock and processor seconds of the middle one of ``--runs`` compilations, each step's,
and the whole as a multiple of reading the file with the onnx library. Ends with 1 when a target is missed on the processor.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import onnx

from dnnc.compile.driver import CompileOptions, CompileResult, compile_model
from dnnc.engines.onnxruntime.write.export import export_func
from dnnc.engines.onnxruntime.write.weights_file import layout, moved
from dnnc.zoo import build_model
from ir.core.diagnostics import DiagnosticSink
from tests.bench.machine import header


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a mesh; ``target`` seconds for all of it, ``search`` for the search alone (0: none)."""

    model: str
    topology: str
    mesh: str
    target: float
    search: float = 0.0


CASES = (
    Case("t5-large", "preset:h100x8", "8", 5.0, 0.3),
    Case("gpt3-175b", "preset:8xh100x8", "8x8", 6.0),
    Case("gpt3-175b,dtype=f16", "preset:8xh100x8", "8x8", 6.0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of the wall clock and of the processor."""

    wall: float
    cpu: float
    result: CompileResult


def onnx_file(model: str, folder: Path) -> Path:
    """The model as an ONNX file that names its weights in a file that is not there."""
    import onnx_ir

    module = build_model(f"{model},weights=declared").module
    path = folder / f"{model.replace(',', '_')}.onnx"
    module = moved(module, layout(module.resources.values(), f"{path.name}.data"))
    onnx.save_model(onnx_ir.to_proto(export_func(module, module.entry)), str(path))
    return path


def compiled(case: Case, path: Path, out: Path) -> Run:
    options = CompileOptions(str(path), case.topology, out, mesh=case.mesh, plan_only=True)
    wall, cpu = time.perf_counter(), time.process_time()
    result = compile_model(options, sink=DiagnosticSink())
    return Run(time.perf_counter() - wall, time.process_time() - cpu, result)


def measured(case: Case, runs: int, folder: Path) -> bool:
    """Prints a case; whether its targets are met."""
    path = onnx_file(case.model, folder)
    start = time.process_time()
    onnx.load(str(path), load_external_data=False)
    baseline = time.process_time() - start
    compiled(case, path, folder / "plan")
    taken = sorted((compiled(case, path, folder / "plan") for _ in range(runs)), key=lambda run: run.cpu)[runs // 2]
    search = float(taken.result.seconds["search"])
    met = taken.cpu < case.target and (not case.search or search < case.search)
    ops = len(taken.result.module.entry.ops)
    print(
        f"\n{case.model} on {case.mesh} ({ops} ops): {taken.cpu:.2f} s of the processor, {taken.wall:.2f} s by the clock, ",
        end="",
    )
    print(f"{taken.cpu / baseline:.0f} times reading the file; target < {case.target:g} s   {'ok' if met else 'MISSED'}")
    steps = {name: seconds for name, seconds in taken.result.seconds.items() if name != "total"}
    print("  by the clock: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in steps.items()))
    if case.search:
        print(f"  search {search:.3f} s, target < {case.search:g} s")
    plan = taken.result.plan
    print(f"  plan {plan.value:.6g} s, {plan.status}, gap {plan.gap:.2%}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    print(header())
    with tempfile.TemporaryDirectory() as folder:
        return 0 if all([measured(case, runs, Path(folder)) for case in CASES]) else 1


if __name__ == "__main__":
    sys.exit(main())
