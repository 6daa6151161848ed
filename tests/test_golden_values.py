"""Runs what golden cases of passes keep: a module and what its passes make of it compute the same on random inputs.

The reference is the entry function of the case, run by onnxruntime without optimisations. Beside it run the entry function of
the output, and, where its ops have stages, the members of all stages together (lowered first, where the case does not). The
gradients of a training step are compared with those of torch's autograd through the same forward ops; its members do not run
here.

Each case runs, ends in an error, or stands in ``NOT_RUN`` with its reason; one that stands there and runs all the
same fails.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from dnnc.onnx.model import free_symbols
from dnnc.onnx.weights import read_resource
from ir import parse_module
from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.facets import OptimizerState, Phase, StageSet
from ir.core.module import Declared, External, Module, Random, Resource, Stage, State
from ir.core.ops import Op, Value
from ir.core.types import type_bytes
from ir.ops.opdefs import module_opsets
from passes.meshes.reshard_ops import without_reshards
from passes.prepare.canonicalize.bind import bind_types
from passes.programs.lower import LowerPass
from tests import golden
from tests.golden import Case
from tests.passes.meshes.interpreter import run_lowered
from tests.passes.meshes.planning import inputs_of, through
from tests.passes.running import run

Arrays = Mapping[str, NDArray[Any]]


class Reason(Enum):
    """Why a case does not run."""

    NO_VALUES = "an op has no values: it is opaque work, or not of any runtime"
    TYPES = "an op does not take operands of its types or shapes: the case states bytes and seconds only"
    NARROW = "onnxruntime has no kernel for an element type on CPUs"
    ELEMENTS = "inputs have no type of numpy"
    FUNCTION = "it calls a function of the user, which the export to ONNX does not have"
    STEPS = "its inputs become states: a step reads what the one before wrote"
    TRAINS = "an op computes something else in training: dropout, statistics of the batch"
    LOOPS = "a training step has a loop, which dnnc cannot write as PyTorch"


NOT_RUN: dict[str, Reason] = {
    "passes/autocast/types": Reason.NARROW,
    "passes/canonicalize/cast_like": Reason.ELEMENTS,
    "passes/canonicalize/sequences": Reason.TYPES,
    "passes/canonicalize/sequences_kept": Reason.TYPES,
    "passes/cost/default": Reason.NO_VALUES,
    "passes/differentiate/recompute_loop": Reason.LOOPS,
    "passes/expand/copies": Reason.FUNCTION,
    "passes/fold/nested": Reason.TYPES,
    "passes/partition/memory": Reason.TYPES,
    "passes/partition/tokens_shared": Reason.TYPES,
    "passes/partition/workload": Reason.NO_VALUES,
    "passes/place/shared_bus": Reason.TYPES,
    "passes/reference/training_stages": Reason.NO_VALUES,
    "passes/states/concat": Reason.STEPS,
    "passes/states/given": Reason.STEPS,
    "passes/states/recurrent": Reason.STEPS,
    "passes/training/batchnorm_dropout": Reason.TRAINS,
    "passes/training/dropout": Reason.TRAINS,
    "passes/unfuse/packed": Reason.TYPES,
}

NO_MEMBERS = {"passes/expand/variants", "passes/fold/variants", "passes/schedule/training_step"}
"""Cases whose decisions are not all there: the entry runs, its members cannot."""

SHAPES = {"passes/canonicalize/merged_transpose": {"t": (8, 6, 16), "u": (2, 4, 16, 6)}}
"""Arguments that are shapes, by case and name."""

SLOW = {"passes/cost/gather"}
"""Cases with large weights."""

CASES = tuple(case for case in golden.cases() if case.name.startswith(("passes/", "pipelines/")))
RUN = tuple(case for case in CASES if not case.fails and case.name not in NOT_RUN)
UNABLE = (
    InvalidInput,
    KeyError,
    AssertionError,
    ort.Fail,
    ort.InvalidArgument,
    ort.InvalidGraph,
    ort.NotImplemented,
    ValueError,
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=pytest.mark.slow if case.name in SLOW else ()) for case in RUN]
)
def test_passes_keep_the_values(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


def test_every_case_runs_or_has_a_reason(tmp_path: Path) -> None:
    names = {case.name for case in CASES if not case.fails}
    assert names >= NOT_RUN.keys(), "a case that is not there, or ends in an error"
    assert {case.name for case in RUN} >= NO_MEMBERS | SLOW | SHAPES.keys(), "a case that is not there, or does not run"
    assert len(RUN) >= 100
    for case in CASES:
        if case.name in NOT_RUN:
            with pytest.raises(UNABLE):
                compare(case, tmp_path)


def compare(case: Case, folder: Path) -> None:
    """Runs ``case``, with its files of weights in ``folder``. Raises AssertionError where its output computes something else,
    one of ``UNABLE`` where it cannot run."""
    before, after = modules_of(case)
    write_files(before, folder)
    inputs = inputs_of(after) | {name: np.array(shape) for name, shape in SHAPES.get(case.name, {}).items()}
    expected = run(forward(before), inputs, folder)
    found = run(forward(after, before.entry.results), inputs, folder)
    common = [name for name in expected if name in found]
    assert common, "nothing that both compute"
    if common != list(expected):
        assert "loss" in dict(after.entry.attributes), "only training drops outputs"
    for name in common:
        assert_close(name, expected[name], found[name])
    staged = any(op.facet(StageSet) for op in after.entry.ops)
    if staged and case.name not in NO_MEMBERS and not is_training(after):
        members = run_lowered(after if after.first(Stage) else through(after, LowerPass()), inputs, folder)
        for value in after.entry.results:
            assert_close(value.name, found[value.name[1:]], members[value.name])
    if is_training(after):
        compare_gradients(after, inputs, folder)


def modules_of(case: Case) -> tuple[Module, Module]:
    """What the case gives to its passes, and what is kept of them; states, and weights without data, are random by name."""
    kept = golden.kept_outputs(case)
    first = case.path if case.path.suffix == ".ir" else kept[0]
    before, after = (with_weights(parse_module(path.read_text(encoding="utf-8"), path.name)) for path in (first, kept[-1]))
    return before, bind_types(after, dict.fromkeys(free_symbols(after.entry), 2))


def with_weights(module: Module) -> Module:
    """The module with data for each weight, and an opset where it states none."""
    if "onnx" not in module_opsets(module):
        module = replace(module, attributes=(*module.attributes, *attributes({"opset.onnx": 20})))
    return replace(module, symbols=tuple(_with_data(s) if isinstance(s, Resource) else s for s in module.symbols))


def _with_data(resource: Resource) -> Resource:
    if not isinstance(resource.data, Declared | State):
        return resource
    return replace(resource, data=Random("normal", zlib.crc32(resource.name.encode()), 0.5))


def write_files(module: Module, folder: Path) -> None:
    """Random numbers in each file that the weights of ``module`` lie in."""
    sizes: dict[str, int] = {}
    for resource in module.of_type(Resource):
        if isinstance(data := resource.data, External):
            sizes[data.file] = max(sizes.get(data.file, 0), data.offset + (type_bytes(resource.type) or 0))
    for file, size in sizes.items():
        numbers = np.random.default_rng(size).normal(size=size // 4 + 1)
        (folder / file).write_bytes(numbers.astype(np.float32).tobytes())


def is_training(module: Module) -> bool:
    return any(op.facet(Phase) for op in module.entry.ops)


def forward(module: Module, others: tuple[Value, ...] = ()) -> Module:
    """The module whose entry has only the ops of the forward pass, and gives those of ``others`` too that it computes."""
    entry = module.entry
    ops = tuple(op for op in entry.ops if not op.facet(Phase) and op.results)
    made = {value.name for op in ops for value in op.results} - {value.name for value in entry.results}
    results = (*entry.results, *(value for value in others if value.name in made))
    return module.replace(entry, replace(entry, ops=ops, results=results))


def compare_gradients(module: Module, inputs: Arrays, folder: Path) -> None:
    """The gradient of each weight that the entry accumulates, by its ops and by autograd through those of the forward pass.
    A loss that is scaled is that of a microbatch's part of the step."""
    torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
    from dnnc.engines.torch.statements.run import run_function

    entry = without_reshards(module.entry).func
    ops = tuple(op for op in entry.ops if op.facet(Phase, Phase("F")).phase != "U" and op.results)
    types = {value.name: value.type for op in ops for value in op.results}
    gradients = gradients_of(module)
    assert gradients, "nothing is updated"
    assert all(gradients.values()), "each weight that is updated has a gradient"
    terms = sorted({name for names in gradients.values() for name in names})
    values = {resource.name: torch.from_numpy(read_resource(resource, folder).copy()) for resource in module.of_type(Resource)}
    values |= {f"%{name}": torch.from_numpy(array) for name, array in inputs.items()}
    step = replace(entry, ops=ops, results=(*entry.results[:1], *(Value(name, types[name]) for name in terms)))
    _, *arrays = run_function(step, module.replace(module.entry, step), values)
    found = dict(zip(terms, arrays, strict=True))
    loss_only = replace(forward(module).entry, results=entry.results[:1])
    loss_only = without_reshards(loss_only).func
    leaves = {name: values[name].clone().requires_grad_() for name in gradients}
    (loss,) = run_function(loss_only, module.replace(module.entry, loss_only), {**values, **leaves})
    if "@loss_scale" in values:
        (microbatches,) = {op.get("microbatches") for op in entry.ops if op.name == "grad.accumulate"}
        loss = loss * values["@loss_scale"] / microbatches
    wanted = torch.autograd.grad(loss, list(leaves.values()))
    for (name, parts), expected in zip(gradients.items(), wanted, strict=True):
        assert_close(name, expected.numpy(), np.asarray(sum(found[part].numpy() for part in parts)), 1.0)


def gradients_of(module: Module) -> dict[str, list[str]]:
    """By weight the values of I and W whose sum its update takes for its gradient."""
    ops = without_reshards(module.entry).func.ops
    makers = {value.name: op for op in ops for value in op.results}
    trained = {
        resource.name for resource in module.of_type(Resource) if any(isinstance(f, OptimizerState) for f in resource.facets)
    }
    assigned = {op.operands[0]: op.operands[1] for op in ops if op.name == "grad.assign" and op.operands[0] in trained}
    return {weight: _terms(makers, makers[value].operands[1]) for weight, value in assigned.items()}


def _terms(makers: Mapping[str, Op], name: str) -> list[str]:
    op = makers.get(name)
    if op is None:
        return []
    if op.facet(Phase, Phase("F")).phase != "U":
        return [name]
    return [term for operand in op.operands for term in _terms(makers, operand)]


def assert_close(name: str, expected: NDArray[Any], found: NDArray[Any], least: float = 1e-6) -> None:
    """Equal but for rounding, relative to the largest element; ``least``: what that counts as where all are smaller."""
    assert (expected.shape, expected.dtype) == (found.shape, found.dtype), name
    if expected.dtype.kind == "f":
        scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=least))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale, err_msg=name)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=name)
