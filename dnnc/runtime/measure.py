"""One run of an unsplit model on given inputs: the sizes and seconds that its types do not tell.

onnxruntime runs the model without its optimisations, so that every op stays what it is, on one core, and writes down for each
node, those in branches and loops too, the shapes that it made and how long it took. The first run warms up, the second counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dnnc.backend.labelled import labelled_model
from dnnc.ort import plain_words
from dnnc.runtime.program import Program
from dnnc.runtime.session import Settings
from ir.diagnostics import InvalidInput
from ir.module import Module
from ir.ops import Op
from ir.scratch import scratch_folder
from ir.types import TensorType
from passes.framework.base import Measurements

_SUFFIX = "_kernel_time"
_DIGITS = 3
"""Of seconds: what is behind them changes from run to run."""
_LOOPS = ("onnx.Loop", "onnx.Scan")


def measure(module: Module, folder: Path, feeds: Mapping[str, Any], where: str) -> Measurements:
    """What the entry function of ``module`` does on ``feeds`` (input name to value). ``folder``: where its weights lie;
    ``where``: how messages call the inputs. Raises InvalidInput where the weights are not there, or the run fails."""
    model, ops = labelled_model(module, folder)
    with scratch_folder() as scratch:
        try:
            settings = Settings(optimize=False, folder=str(folder.absolute()), profile=f"{scratch}/profile")
            program = Program(model, (), settings)
            for _ in range(2):
                program.run_all(feeds)
        except Exception as error:  # onnxruntime has a dozen classes of its own, of no common base
            message = f"the model does not run on these inputs: {plain_words(str(error)) or type(error).__name__}"
            raise InvalidInput(message, where=where, hint="give inputs that the model accepts") from None
        events = json.loads(Path(program.session.end_profiling()).read_text(encoding="utf-8"))
    return _measurements(list(_last_run(events)), ops)


def _last_run(events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The node events of the last run in a profile."""
    run: list[Mapping[str, Any]] = []
    last: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_SUFFIX):
            run.append(event)
        elif event.get("name") == "model_run":
            run, last = [], run
    return iter(last)


def _measurements(events: Iterable[Mapping[str, Any]], ops: Mapping[str, Op]) -> Measurements:
    shapes: dict[str, str] = {}
    seconds: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for event in events:
        op = ops.get(str(event["name"]).removesuffix(_SUFFIX))
        if op is None:
            continue
        times[op.id] += 1
        seconds[op.id] += int(event["dur"])
        made = [value for value in op.results if value.name]
        found = event["args"].get("output_type_shape", [])
        if len(found) == len(made):  # what is no tensor is left out there
            for value, entry in zip(made, found, strict=True):
                if isinstance(value.type, TensorType):
                    shapes[value.name] = "x".join(map(str, next(iter(entry.values()))))
    return Measurements(
        shapes,
        {op.id: _runs(op, times) for op in ops.values() if op.id in times},
        {name: float(f"{microseconds / 1e6:.{_DIGITS}g}") for name, microseconds in seconds.items()},
    )


def _runs(op: Op, times: Mapping[str, int]) -> int:
    """How often the body of a loop ran, each time that the loop did; 1 for every other op."""
    inside = [inner.id for _, region in op.regions for inner in region.ops] if op.name in _LOOPS else []
    return round(max(times[name] for name in inside) / times[op.id]) if inside else 1


__all__ = ["measure"]
