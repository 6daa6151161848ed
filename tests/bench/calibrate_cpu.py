"""Measures what one core reaches per class of ops, and prints it beside the ``core`` type of ``preset:cpu-N``.

    python -m tests.bench.calibrate_cpu [SPEC ...]

Each distinct op of the zoo models is run alone in ONNX Runtime on one thread; its kernel time comes from the profiler, so that
layout changes around a lone convolution do not count. Per class (``Cost.kind``) it prints the fraction of the peak rate and the
bytes per second; then, for each whole model, predicted and measured seconds. Quiet machine wanted: the median of the
kernel times is taken, but a busy neighbour shows.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from onnx_ir import serde

from dnnc.engines.onnxruntime.write.export import export_func, reading_tensors
from dnnc.machines.topology import load_topology
from dnnc.zoo import build
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import Cost
from ir.core.module import Func, Module
from ir.core.ops import Op, Value
from ir.core.types import TensorType
from passes.costs.op_time import body_seconds, epilogues, op_seconds, rate_of
from passes.framework.base import PassContext
from passes.prepare.cost import CostPass
from tests.bench.machine import header

SPECS = ("resnet50", "bert-base", "gpt2")
REPEATS = 12
_LAYOUT = ("ReorderInput", "ReorderOutput")


def session(module: Module, func: Func, profile: Path | None) -> onnxruntime.InferenceSession:
    """One thread, spinning off."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_profiling = profile is not None
    if profile is not None:
        options.profile_file_prefix = str(profile / "ops")
    model = serde.to_proto(export_func(module, func, tensors=reading_tensors(Path())))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def feeds(func: Func) -> dict[str, np.ndarray]:
    """Standard normal inputs; small integers where indices are wanted."""
    generator = np.random.default_rng(0)
    values = {}
    for arg in func.args:
        assert isinstance(arg.type, TensorType)
        shape = tuple(int(dim) for dim in arg.type.shape or ())
        drawn = generator.integers(0, 2, shape) if arg.type.dtype.is_integer else generator.standard_normal(shape).astype("f4")
        values[arg.name[1:]] = drawn
    return values


def kernel_seconds(module: Module, op: Op, types: dict[str, Value]) -> float:
    """Median seconds of the kernels of one op run alone."""
    args = tuple(types[name] for name in dict.fromkeys(op.operands) if name.startswith("%"))
    func = Func("@main", args, op.results, (op,))
    with tempfile.TemporaryDirectory() as folder:
        running = session(module, func, Path(folder))
        given = feeds(func)
        for _ in range(REPEATS):
            running.run(None, given)
        events = json.loads(Path(running.end_profiling()).read_text())
    durations = defaultdict(list)
    for event in events:
        kernel = event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
        if kernel and event["args"]["op_name"] not in _LAYOUT:
            durations[event["name"]].append(event["dur"])
    return sum(statistics.median(times[2:]) for times in durations.values()) * 1e-6


def signature(op: Op, module: Module, types: dict[str, Value]) -> tuple[object, ...]:
    """Equal for ops that do the same work."""
    resources = module.resources
    shown = [str(resources[name].type if name in resources else types[name].type) for name in op.operands if name]
    return (op.name, op.attributes, *shown)


def main(specs: list[str]) -> None:
    core = load_topology("preset:cpu-1", DiagnosticSink()).types[0]
    plain = replace(core, efficiency=())
    print(header())
    measured: dict[str, list[tuple[float, int, float, float]]] = defaultdict(list)
    wholes = []
    for spec in specs:
        module = CostPass().run(build(spec), PassContext())
        func = module.entry
        types = {arg.name: arg for arg in func.args} | {value.name: value for op in func.ops for value in op.results}
        fused = epilogues(func.ops)
        known: dict[tuple[object, ...], float] = {}
        for index, op in enumerate(func.ops):
            cost = op.facet(Cost, Cost())
            key = signature(op, module, types)
            if index in fused or key in known or cost.kind == "view" or not any(n.startswith("%") for n in op.operands):
                continue
            known[key] = seconds = kernel_seconds(module, op, types)
            rate = rate_of(op, plain)
            measured[cost.kind].append((seconds, cost.flops, cost.read + cost.write, rate))
            print(
                f"{op.name:28} {cost.kind:12} {seconds * 1e6:9.0f} us {cost.flops / seconds / 1e9:7.1f} GFLOP/s "
                f"{(cost.read + cost.write) / seconds / 1e9:6.1f} GB/s  predicted {op_seconds(op, core) * 1e6:9.0f} us  "
                f"{', '.join(map(str, key[2:]))}"
            )
        whole = session(module, func, None)
        given = feeds(func)
        whole.run(None, given)
        times = []
        for _ in range(7):
            start = time.perf_counter()
            whole.run(None, given)
            times.append(time.perf_counter() - start)
        wholes.append((spec, sum(body_seconds(func.ops, core)), statistics.median(times)))
    print("\nclass         ops  fraction of the peak   GB/s")
    for kind, rows in sorted(measured.items()):
        total = sum(max(1e-9, seconds - core.overhead) for seconds, *_ in rows)
        fraction = sum(flops / rate for _, flops, _, rate in rows) / total
        print(f"{kind:12} {len(rows):4}  {fraction:20.4f}  {sum(size for _, _, size, _ in rows) / total / 1e9:6.1f}")
    print(f"\n{'model':12} predicted  measured  ratio")
    for spec, predicted, seconds in wholes:
        print(f"{spec:12} {predicted:9.4f} {seconds:9.4f} {predicted / seconds:6.3f}")
    print(f"\nload average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(SPECS))
