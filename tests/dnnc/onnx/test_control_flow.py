"""What inference says of the shapes behind branches and loops holds in every run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir
import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import run_build
from dnnc.engines.onnxruntime.write.branches import forget_shapes
from dnnc.engines.onnxruntime.write.export import export_func
from dnnc.onnx import DIALECTS
from dnnc.onnx.importer.evaluate import OnnxEvaluator
from ir.core.diagnostics import Infeasible
from passes.framework.base import PassContext
from passes.prepare.canonicalize import CanonicalizePass
from tests.dnnc.onnx.control_flow import equal, feeds, random_model, unoptimised
from tests.dnnc.onnx.models import load, save


def _agree(seed: int, folder: Path) -> bool:
    """Asserts that the simplified model computes what the model does, wherever that runs; whether it did."""
    model = random_model(seed)
    original = model.SerializeToString()
    cases = [(arrays, right) for arrays in feeds(seed) if (right := unoptimised(original, arrays)) is not None]
    if not cases:
        return False
    module = CanonicalizePass().run(load(model, folder), PassContext(evaluate=OnnxEvaluator(), dialects=DIALECTS))
    written = onnx_ir.to_proto(export_func(module, module.entry))
    forget_shapes(written)
    for arrays, right in cases:
        found = unoptimised(written.SerializeToString(), arrays)
        assert found is not None
        assert equal(found, right), f"seed {seed}: {arrays}"
    return True


def test_random_control_flow_keeps_its_numbers(tmp_path: Path) -> None:
    assert sum(_agree(seed, tmp_path) for seed in range(4)) > 1


@pytest.mark.slow
def test_much_random_control_flow_keeps_its_numbers(tmp_path: Path) -> None:
    assert sum(_agree(seed, tmp_path) for seed in range(9, 26)) > 2


@pytest.mark.slow
def test_random_control_flow_runs_in_stages(tmp_path: Path) -> None:
    """Compiled, cut in two and run by processes."""
    ran = 0
    for seed in range(3):
        original = random_model(seed)
        cases = [(arrays, right) for arrays in feeds(seed) if (right := unoptimised(original.SerializeToString(), arrays))]
        if not cases:
            continue
        out = tmp_path / f"build{seed}"
        options = CompileOptions(str(save(original, tmp_path)), "preset:cpu-2", out, stages=2)
        try:
            compile_model(options)
        except Infeasible:  # nothing is left to be cut
            compile_model(replace(options, stages=None))
        for arrays, right in cases:
            results = run_build(out, [arrays]).outputs[0]
            ran += 1
            assert equal({name: np.asarray(value) for name, value in results.items()}, right), f"seed {seed}: {arrays}"
    assert ran > 2
