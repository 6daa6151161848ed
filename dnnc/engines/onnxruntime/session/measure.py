"""Measures one run of an unsplit model: shapes that depend on values, and how often each op in loops and branches runs.

onnxruntime runs the model with one thread and without optimisations, so that each op is a node. Its profile has an event for
each run of a node, also in branches and loops, with the shapes of the outputs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dnnc.engines.onnxruntime.faults import InputsNotAccepted
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.engines.onnxruntime.write.labelled import labelled_model
from dnnc.onnx.ort import plain_words
from dnnc.onnx.protobuf.places import locations
from dnnc.onnx.weights import WeightFiles
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.types import TensorType
from ir.system.scratch import scratch_folder
from passes.framework.base import Measurements

_SUFFIX = "_kernel_time"


def measure(module: Module, files: WeightFiles, feeds: Mapping[str, Any], where: str) -> Measurements:
    """The measurements of the entry function of ``module`` on ``feeds`` (input name to value). ``files``: its weights;
    ``where``: the name of the inputs in messages. Raises InvalidInput where weights are missing or the run fails."""
    model, ops = labelled_model(module, files)
    weights = {name: files.open(name, where) for name in locations(model)}
    with scratch_folder() as scratch:
        try:
            settings = Settings(optimize=False, profile=f"{scratch}/profile")
            program = Program(model, (), settings, {name: file.descriptor for name, file in weights.items()})
            program.run_all(feeds)
        except Exception as error:  # onnxruntime has a dozen classes of errors, without a common base
            raise InvalidInput(InputsNotAccepted(plain_words(str(error)) or type(error).__name__), where=where) from None
        files.confirm()
        events = json.loads(Path(program.session.end_profiling()).read_text(encoding="utf-8"))
    return _measurements(events, ops)


def _measurements(events: Iterable[Mapping[str, Any]], ops: Mapping[str, Op]) -> Measurements:
    """What the events of a profile say. ``ops``: by node name. The shape of a value in a loop is that of its last run."""
    shapes: dict[str, str] = {}
    runs: Counter[str] = Counter()
    for event in events:
        name = str(event.get("name", ""))
        op = ops.get(name.removesuffix(_SUFFIX)) if event.get("cat") == "Node" and name.endswith(_SUFFIX) else None
        if op is None:
            continue
        runs[op.id] += 1
        results = [value for value in op.results if value.name]
        entries = event["args"].get("output_type_shape", [])
        if len(entries) == len(results):  # else some results are no tensors, which onnxruntime does not list
            for value, entry in zip(results, entries, strict=True):
                if isinstance(value.type, TensorType):
                    shapes[value.name] = "x".join(map(str, next(iter(entry.values()))))
    return Measurements(shapes, runs)
