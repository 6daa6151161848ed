"""Runs a module's entry function through ONNX Runtime, op by op: the numbers that a pass must not change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
from numpy.typing import NDArray

from dnnc.engines.onnxruntime.write.export import export_func, reading_tensors
from ir.core.module import Module

Arrays = Mapping[str, NDArray[Any]]


def run(module: Module, inputs: Arrays, folder: Path | None = None) -> dict[str, NDArray[Any]]:
    """Outputs by their ONNX names, with every optimisation of the runtime off: what the ops say, nothing else."""
    model = export_func(module, module.entry, tensors=reading_tensors(folder or Path()))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data = onnx_ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    known = {given.name for given in session.get_inputs()}
    found = session.run(names, {name: array for name, array in inputs.items() if name in known})
    return dict(zip(names, found, strict=True))


def assert_same_bits(expected: Arrays, found: Arrays) -> None:
    """The same names, types, shapes and bytes; any NaN equals any other."""
    assert list(expected) == list(found)
    for name, left in expected.items():
        right = found[name]
        assert (left.dtype, left.shape) == (right.dtype, right.shape), name
        if left.dtype.kind == "f":
            same = np.isnan(left) == np.isnan(right)
            assert same.all(), name
            left, right = (
                np.nan_to_num(left, posinf=np.inf, neginf=-np.inf),
                np.nan_to_num(right, posinf=np.inf, neginf=-np.inf),
            )
        assert left.tobytes() == right.tobytes(), f"{name}: {left} became {right}"
