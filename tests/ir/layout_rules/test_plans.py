"""Whole models run by shards, every op by a strategy picked at random: the outputs are those of the model run whole.

What the members hold is joined and placed anew between ops, as conversions between layouts would. So the forms that exporters
give ops, their odd attributes and constants, meet the rules and ``localise`` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dnnc.engines.onnxruntime.write.export import read_tensor
from dnnc.onnx.arrays import numpy_dtype
from ir.core.module import Module, Resource
from ir.core.ops import Op
from ir.core.types import TensorType, Type
from ir.layout_rules import Constants, Cut, LayoutRule, localise, resource_numbers, rules
from ir.ops.opdefs import module_opsets
from tests.ir.layout_rules.harness import Array, Runs, cuts_of, joined, placed, type_of
from tests.ir.layout_rules.test_models import SHARED, ZOO, canonical, imported
from tests.passes.running import run

MEMBERS = 2


@pytest.mark.parametrize("name", ZOO[:3])
def test_zoo_by_random_strategies(name: str) -> None:
    compare(imported(f"zoo:{name}"), Path())


@pytest.mark.parametrize("name", SHARED[:2])  # all of them at length below
def test_shared_models_by_random_strategies(name: str, shared_dir: Path) -> None:
    compare(imported(str(shared_dir / "models" / f"{name}.onnx")), shared_dir / "models")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_exported_graphs_by_random_strategies(name: str, shared_dir: Path) -> None:
    """Before constants are folded: shapes computed by ops, masks made of ranges."""
    module = imported(str(shared_dir / "models" / f"{name}.onnx"))
    for seed in range(2):
        check(module, shared_dir / "models", seed)


def compare(module: Module, folder: Path) -> None:
    check(canonical(module), folder, 0)


def check(module: Module, folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    inputs = {arg.name: drawn(arg.type, random) for arg in module.entry.args}
    expected = run(module, {name[1:]: array for name, array in inputs.items()}, folder)
    found = by_shards(module, inputs, folder, random)
    for result in module.entry.results:
        np.testing.assert_allclose(found[result.name], expected[result.name[1:]], rtol=2e-3, atol=2e-4, err_msg=result.name)


def drawn(type_: Type, random: np.random.Generator) -> Array:
    """A random input: token numbers, flags or pixels."""
    assert isinstance(type_, TensorType)
    assert type_.shape is not None
    shape = [dim for dim in type_.shape if isinstance(dim, int)]
    dtype = numpy_dtype(type_.dtype)
    return random.uniform(-1, 1, shape).astype(dtype) if type_.dtype.is_float else random.integers(0, 2, shape).astype(dtype)


def by_shards(module: Module, inputs: Mapping[str, Array], folder: Path, random: np.random.Generator) -> dict[str, Array]:
    """Every value of the entry, whole, each op run by shards."""
    arrays = dict(inputs)
    constants = {name: resource_numbers(resource) for name, resource in module.resources.items()}
    opset = module_opsets(module)["onnx"]
    for op, rule in rules(module):
        assert rule is not None
        for name in op.operands:
            if name.startswith("@") and name not in arrays:
                arrays[name] = weight(module.resources[name], folder)
        numbers = [constants.get(name) for name in op.operands]
        operands = [arrays[name] if name else None for name in op.operands]
        results = run_op(op, rule, operands, numbers, opset, random)
        arrays.update(zip((value.name for value in op.results), results, strict=True))
    return arrays


def weight(resource: Resource, folder: Path) -> Array:
    return read_tensor(resource, folder).numpy()


def run_op(
    op: Op, rule: LayoutRule, operands: list[Array | None], numbers: Constants, opset: int, random: np.random.Generator
) -> list[Array]:
    """The results of one op, whole, by a strategy picked at random."""
    strategies = rule.strategies(MEMBERS)
    strategy = strategies[random.integers(min(1, len(strategies) - 1), len(strategies))]
    cuts: list[Cut] = cuts_of(strategy.factor, MEMBERS, random) if strategy.factor else []
    held = [
        [None] * MEMBERS if array is None else placed(array, placement, cuts, MEMBERS, random)
        for array, placement in zip(operands, strategy.operands, strict=True)
    ]
    types: list[Type | None] = [None if array is None else type_of(array) for array in operands]
    runs = Runs(opset)
    plain = [f"%x{i}" if name else "" for i, name in enumerate(op.operands)]
    local = Op(op.name, tuple(plain), op.results, op.attributes)
    members = []
    for member in range(MEMBERS):
        ops = localise(local, types, cuts[member : member + 1], numbers)
        members.append(runs.add(ops, [parts[member] for parts in held], [value.name for value in op.results]))
    runs.run()
    outputs = [member() for member in members]
    return [joined([output[i] for output in outputs], placement) for i, placement in enumerate(strategy.results)]
