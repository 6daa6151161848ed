"""The command: measures each case, prices it, prints the table."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.engines.onnxruntime.session.measure import measure
from dnnc.engines.onnxruntime.session.session import Settings, open_session
from dnnc.machines import machines_of
from dnnc.machines.profile import COLD, evicting
from ir.core.diagnostics import DiagnosticSink, DnncError
from ir.core.module import Module
from ir.core.topology import DeviceType
from ir.system.scratch import scratch_folder
from passes.costs.op_time import body_seconds
from passes.framework.base import Measurements
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from tests.bench.machine import header
from tests.bench.operators.cases import Case, cases, nothing

OFF = 2.0
"""A prediction farther off than this factor is called wrong."""
ROUNDS, LONGEST = 30, 0.3
"""Runs of a case, of which the quickest counts, and the seconds after which there are no more."""
_LAYOUTS = ("ReorderInput", "ReorderOutput")
_SUFFIX = "_kernel_time"
_ELEMENTS = {
    "tensor(float)": 1, "tensor(uint8)": 2, "tensor(int8)": 3, "tensor(int32)": 6, "tensor(int64)": 7, "tensor(bool)": 9,
    "tensor(float16)": 10, "tensor(double)": 11,
}  # fmt: skip
"""ONNX's numbers of element types, by onnxruntime's names."""


def model_of(one: Case) -> tuple[bytes, dict[str, Any]]:
    """The case as an ONNX model, and its inputs."""
    generator = np.random.default_rng(0)
    names, inputs, weights, feeds = [], [], [], {}
    for number, operand in enumerate(one.operands):
        names.append("" if operand is None else f"x{number}")
        if operand is None:
            continue
        array = operand.array(generator)
        if operand.held:
            weights.append(numpy_helper.from_array(array, names[-1]))
        else:
            feeds[names[-1]] = array
            inputs.append(helper.make_tensor_value_info(names[-1], helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
    made = [f"y{number}" for number in range(one.results)]
    node = helper.make_node(one.op, names, made, one.op, domain=one.domain, **one.attributes)
    outputs = [helper.make_empty_tensor_value_info(name) for name in made]
    graph = helper.make_graph([node], "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", one.opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    types = {info.name: info for info in onnxruntime.InferenceSession(model.SerializeToString()).get_outputs()}
    for value in model.graph.output:
        shape = [dim if isinstance(dim, int) else None for dim in types[value.name].shape]
        value.CopyFrom(helper.make_tensor_value_info(value.name, _ELEMENTS[types[value.name].type], shape))
    return bytes(model.SerializeToString()), feeds


def measured(model: bytes, feeds: Mapping[str, Any], scratch: Path) -> float:
    """Processor seconds of a run: the least of ``ROUNDS``."""
    session = open_session(model, Settings())
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for info in session.get_outputs():
        binding.bind_output(info.name, "cpu")
    weights = sum(len(tensor.raw_data) for tensor in onnx.load_from_string(model).graph.initializer)
    filler = np.zeros(evicting(1) if weights >= COLD else 0, np.uint8)
    other = open_session(model, Settings()) if filler.size else None
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < ROUNDS and (len(seconds) < 4 or time.perf_counter() - begun < LONGEST):
        if other is not None:
            filler += 1
            other.run(None, feeds)  # whose weights are others, so that code and inputs alone come back into the caches
        start = time.process_time()
        session.run_with_iobinding(binding)
        seconds.append(time.process_time() - start)
    alone = kernel_seconds(model, feeds, scratch) if b"Conv" in model or b"Pool" in model else 0.0
    return alone or min(seconds)


def kernel_seconds(model: bytes, feeds: Mapping[str, Any], scratch: Path) -> float:
    """Seconds of the kernels beside those that change the memory layout around a single operator: in a whole model its
    neighbours have the same layout. 0 where no kernel changes it."""
    session = open_session(model, Settings(profile=str(scratch / "profile")))
    for _ in range(ROUNDS):
        session.run(None, feeds)
    path = Path(session.end_profiling())
    durations: dict[tuple[bool, str], list[float]] = defaultdict(list)
    for event in json.loads(path.read_text()):
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            durations[event["args"]["op_name"] in _LAYOUTS, event["name"]].append(event["dur"] * 1e-6)
    path.unlink()
    changed = any(layout for layout, _ in durations)
    return sum(min(times) for (layout, _), times in durations.items() if not layout) if changed else 0.0


def predicted(model: bytes, feeds: Mapping[str, Any], device_type: DeviceType, scratch: Path) -> float:
    """Seconds of the case by its formula."""
    path = scratch / "case.onnx"
    path.write_bytes(model)
    sink = DiagnosticSink()
    imported = load_model(str(path), {}, sink)

    def sizes(module: Module) -> Measurements:
        return measure(module, imported.files, feeds, "inputs")

    context = pass_context(sink)
    context.measure = sizes
    module = PassManager(parse_pipeline("canonicalize,cost")).run(imported.module, context)
    return sum(body_seconds(module.entry.ops, device_type))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.operators", description=__doc__)
    parser.add_argument("operators", nargs="*", metavar="NAME", help="only cases whose names begin so")
    parser.add_argument("--machines", default="preset:local,devices=2")
    parser.add_argument("--seconds", type=Path, help="a JSON file of measured seconds: read where it has a case, else written")
    arguments = parser.parse_args()
    print(header(), flush=True)
    device_type = next(t for t in machines_of(arguments.machines, DiagnosticSink()).types if t.kind == "cpu")
    known: dict[str, float] = {}
    if arguments.seconds and arguments.seconds.exists():
        known = json.loads(arguments.seconds.read_text())
    rows = []
    with scratch_folder() as folder:
        scratch = Path(folder)
        call = measured(*model_of(nothing()), scratch)
        for one in cases():
            if arguments.operators and not one.name.startswith(tuple(arguments.operators)):
                continue
            try:
                model, feeds = model_of(one)
                if one.name not in known:
                    known[one.name] = max(0.0, measured(model, feeds, scratch) - call)
                rows.append((one.name, predicted(model, feeds, device_type, scratch), known[one.name] + device_type.overhead))
            except DnncError as error:
                print(f"{one.name}: {error.diagnostics[0].message}", flush=True)
    if arguments.seconds:
        arguments.seconds.write_text(json.dumps(known, indent=1) + "\n")
    _print(rows)


def _print(rows: list[tuple[str, float, float]]) -> None:
    print(f"\n{'predicted':>12} {'measured':>12} {'ratio':>7}  case")
    for name, guess, seconds in sorted(rows, key=lambda row: -max(row[1] / row[2], row[2] / row[1])):
        print(f"{guess * 1e6:9.1f} us {seconds * 1e6:9.1f} us {guess / seconds:7.2f}  {name}")
    ratios = [guess / seconds for _, guess, seconds in rows]
    wrong = sum(not 1 / OFF <= ratio <= OFF for ratio in ratios)
    median = statistics.median(ratios)
    print(f"\n{wrong} of {len(rows)} cases off by over {OFF:g} ({wrong / len(rows):.0%}); median ratio {median:.2f}")


if __name__ == "__main__":
    main()
