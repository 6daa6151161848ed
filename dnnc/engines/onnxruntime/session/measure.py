"""One run of an unsplit model on given inputs: sizes that types do not tell, and how often each op of a loop or branch runs.

onnxruntime runs the model without its optimisations, so that every op stays what it is, on one core, and writes down each time
that a node ran, those in branches and loops too, with the shapes that it made.
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
    """What the entry function of ``module`` does on ``feeds`` (input name to value). ``files``: of its weights;
    ``where``: how messages call the inputs. Raises InvalidInput where the weights are not there, or the run fails."""
    model, ops = labelled_model(module, files)
    held = {name: files.open(name, where) for name in locations(model)}
    with scratch_folder() as scratch:
        try:
            settings = Settings(optimize=False, profile=f"{scratch}/profile")
            program = Program(model, (), settings, {name: file.descriptor for name, file in held.items()})
            program.run_all(feeds)
        except Exception as error:  # onnxruntime has a dozen classes of its own, of no common base
            raise InvalidInput(InputsNotAccepted(plain_words(str(error)) or type(error).__name__), where=where) from None
        files.confirm()
        events = json.loads(Path(program.session.end_profiling()).read_text(encoding="utf-8"))
    return _measurements(events, ops)


def _measurements(events: Iterable[Mapping[str, Any]], ops: Mapping[str, Op]) -> Measurements:
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
        if len(entries) == len(results):  # onnxruntime lists tensors only
            for value, entry in zip(results, entries, strict=True):
                if isinstance(value.type, TensorType):
                    shapes[value.name] = "x".join(map(str, next(iter(entry.values()))))
    return Measurements(shapes, runs)


__all__ = ["measure"]
