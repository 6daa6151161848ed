"""What is run to measure a device: products of matrices by element type, ops of models of the zoo, quantised convolutions,
products by weights of 4 bits, a stream, a chain of ops.

Each is a small ONNX model with the facts of its ops, as the pass ``cost`` derives them, so that what is measured and what is
predicted are of one op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ir
from dnnc.engines.onnxruntime.write.labelled import labelled_model
from dnnc.onnx import DIALECTS
from ir.core.facets import Cost
from ir.core.module import Func, Module
from ir.core.ops import Op
from passes.costs.op_time import epilogues
from passes.framework.base import PassContext
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.cost import CostPass
from passes.training import TrainingPass

ZOO = ("zoo:resnet50", "zoo:bert-base,layers=1", "zoo:gpt2,layers=1")
"""The models whose ops stand for those of their class."""
MOST = 8
"""Ops of a class that are measured: those of most arithmetic."""
FLOPS = (1e5, 1e9)
"""Of an op whose rate is measured: below, its time is all overhead; above, it takes too long."""
SIDES = (512,)
"""Of the square matrices whose product is measured, by element type."""
QUANTISED = ((64, 56), (256, 14))
"""Channels and side of the images of the quantised convolutions that are measured."""
PACKED_ROWS, PACKED_SIDE = (8, 64), 1024
"""Rows of the products by weights of 4 bits that are measured, as of a step and of a chunk of a prompt; the weight's rows and
columns."""
CHAIN = 200
"""Ops of the chain whose time per op is the overhead."""
CACHED = 1 << 16
"""Elements of a tensor that stays in a core's own cache."""
STREAM = 1 << 25
"""Weights of a product that come from main memory: 128 MiB of f32, as many as those of a model. On a Xeon with 300 MiB of
shared cache, 32 MiB on each of two cores came at 24 GB/s, 128 MiB at 11, as those of models do."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A model to run; ``op``: the one of it that is measured, with its facts; ``module``: whose op it is."""

    op: Op
    model: bytes
    module: Module

    @property
    def cost(self) -> Cost:
        return self.op.facet(Cost, Cost())

    def copies(self, count: int) -> bytes:
        """A model that runs the op so many times, each time on the same inputs and into outputs of its own."""
        alone = _alone(self.module, self.op)
        ops = [
            replace(self.op, results=tuple(replace(value, name=f"{value.name}_{n}") for value in self.op.results))
            for n in range(count)
        ]
        results = tuple(value for op in ops for value in op.results if value.name)
        return _model(self.module, replace(alone, results=results, ops=tuple(ops)))


def products(dtype: str, sides: Sequence[int] = ()) -> Iterator[Workload]:
    """Products of square matrices of one element type."""
    for side in sides or SIDES:
        yield product(dtype, side)


def product(dtype: str, side: int) -> Workload:
    """A product of square matrices, the second a weight; of ``i8`` into 32 bits, as in quantised models."""
    square = f"{side}x{side}x{dtype}"
    if dtype == "i8":
        made = f"%y = onnx.MatMulInteger(%x, @w) : tensor<{side}x{side}xi32>"
        return _one(made, f"{side}x{side}xu8", square, "splat(3)")
    return _one(f"%y = onnx.MatMul(%x, @w) : tensor<{square}>", square, square)


def elementwise(elements: int) -> Workload:
    """What moves a tensor of f32 and does next to nothing with it."""
    module = _with_costs(
        _parsed(
            f"func @main(%x : tensor<{elements}xf32>) -> (%y : tensor<{elements}xf32>) {{\n"
            f"%y = onnx.Neg(%x) : tensor<{elements}xf32>\n}}"
        )
    )
    return Workload(module.entry.ops[0], _model(module), module)


def quantised() -> Iterator[Workload]:
    """Convolutions of 8 bits, with layers of ResNet-50 as their sizes."""
    for channels, side in QUANTISED:
        scales = "".join(
            f"resource @{name} : tensor<f32> = splat({value})\n" for name, value in (("a", 0.02), ("b", 0.01), ("c", 0.1))
        )
        zeros = "resource @z : tensor<u8> = splat(128)\nresource @n : tensor<i8> = splat(0)\n"
        weight = f"resource @w : tensor<{channels}x{channels}x3x3xi8> = splat(3)\n"
        values = f"1x{channels}x{side}x{side}xu8"
        conv = f"onnx.QLinearConv(%x, @a, @z, @w, @b, @n, @c, @z) {{pads = [1, 1, 1, 1]}} : tensor<{values}>"
        yield _workload(scales + zeros + weight, values, f"%y = {conv}")


def packed() -> Iterator[Workload]:
    """Products by weights of 4 bits in blocks of 32 with a scale each, by rows that are rounded to 8 bits."""
    side, blocks = PACKED_SIDE, PACKED_SIDE // 32
    for rows in PACKED_ROWS:
        scales = f"resource @s : tensor<{side}x{blocks}xf32> = random(normal, seed = 2, scale = 0.1)\n"
        weight = f"resource @w : tensor<{side}x{blocks}x16xu8> = random(uniform, seed = 1, scale = 128.0, mean = 127.5)\n"
        sizes = f"K = {side}, N = {side}, bits = 4, block_size = 32, accuracy_level = 4"
        op = f"%y = onnx.com.microsoft.MatMulNBits(%x, @w, @s) {{{sizes}}} : tensor<{rows}x{side}xf32>"
        yield _workload(scales + weight, f"{rows}x{side}xf32", op)


def streamed() -> Iterator[Workload]:
    """What waits for main memory: the weights of a product with one row."""
    side = 1 << (STREAM.bit_length() - 1) // 2
    other = STREAM // side
    yield _one(f"%y = onnx.MatMul(%x, @w) : tensor<1x{other}xf32>", f"1x{side}xf32", f"{side}x{other}xf32")


def scalars() -> Iterator[Workload]:
    """Ops that go element by element: running sums, single elements of a table, products without vector code."""
    table, wide = f"{CACHED}xf32", f"64x{CACHED // 64}"
    yield _one(f"%y = onnx.CumSum(%x, @w) : tensor<{wide}xf32>", f"{wide}xf32", "i64", "splat(1)")
    yield _one(f"%y = onnx.Gather(@w, %x) : tensor<{table}>", f"{CACHED}xi64", table)
    yield _one("%y = onnx.ReduceProd(%x, @w) : tensor<64x1xf32>", f"{wide}xf32", "1xi64", "splat(1)")


def chain(length: int) -> bytes:
    """A model of so many ops that compute nearly nothing."""
    return _model(chained(length))


def chained(length: int) -> Module:
    """The module of ``chain``."""
    ops = "\n".join(
        f"%v{n} = onnx.{'Neg' if n % 2 else 'Abs'}(%{f'v{n - 1}' if n else 'x'}) : tensor<4xf32>" for n in range(length)
    )
    return _parsed(f"func @main(%x : tensor<4xf32>) -> (%v{length - 1} : tensor<4xf32>) {{\n{ops}\n}}")


def training_step(spec: str) -> Module:
    """A model of the zoo with a loss and the facts of its ops, as in a plan for training."""
    from dnnc.zoo import build

    module, context = build(spec), PassContext(dialects=DIALECTS)
    for step in (TrainingPass(loss=f"mse:{module.entry.results[0].name[1:]}"), CanonicalizePass(), CostPass()):
        module = step.run(module, context)
    return module


def zoo_ops(batch: int = 1) -> list[Workload]:
    """Distinct ops of the zoo's models, with ``batch`` samples, that do arithmetic and are not fused into another: the ``MOST``
    largest of a class."""
    from dnnc.zoo import build

    found: dict[object, tuple[Op, Module]] = {}
    for spec in ZOO:
        module = _with_costs(build(spec if batch == 1 else f"{spec},batch={batch}"))
        func = module.entry
        fused = epilogues(func.ops)
        types = {value.name: value.type for value in (*func.args, *(value for op in func.ops for value in op.results))}
        types |= {name: resource.type for name, resource in module.resources.items()}
        for index, op in enumerate(func.ops):
            cost = op.facet(Cost, Cost())
            if (
                index not in fused
                and batch * FLOPS[0] <= cost.flops <= batch * FLOPS[1]
                and any(name.startswith("%") for name in op.operands)
            ):
                found.setdefault((op.name, op.attributes, *(types.get(name) for name in op.operands)), (op, module))
    by_class: dict[str, list[tuple[Op, Module]]] = {}
    for op, module in sorted(found.values(), key=lambda pair: -pair[0].facet(Cost, Cost()).flops):
        by_class.setdefault(op.facet(Cost, Cost()).kind, []).append((op, module))
    return [Workload(op, _model(module, _alone(module, op)), module) for ops in by_class.values() for op, module in ops[:MOST]]


def _alone(module: Module, op: Op) -> Func:
    types = {value.name: value for value in (*module.entry.args, *(v for each in module.entry.ops for v in each.results))}
    return Func("@main", tuple(types[name] for name in dict.fromkeys(op.operands) if name.startswith("%")), op.results, (op,))


def _one(op: str, given: str, weight: str, data: str = "random(normal, seed = 1, scale = 0.1)") -> Workload:
    return _workload(f"resource @w : tensor<{weight}> = {data}\n", given, op)


def _workload(resources: str, given: str, op: str) -> Workload:
    """A model of one op."""
    result = op.rpartition(" : ")[2]
    module = _parsed(f"{resources}func @main(%x : tensor<{given}>) -> (%y : {result}) {{\n{op}\n}}")
    module = _with_costs(module)
    return Workload(module.entry.ops[0], _model(module), module)


def _with_costs(module: Module) -> Module:
    return CostPass().run(module, PassContext(dialects=DIALECTS))


def _parsed(text: str) -> Module:
    return ir.parse_module(f"module @probe {{ir_version = 10, opset.com.microsoft = 1, opset.onnx = 20}} {{\n{text}\n}}")


def _model(module: Module, func: Func | None = None) -> bytes:
    """The entry function, or another in its place, as an ONNX model."""
    return labelled_model(module if func is None else module.replace(module.entry, func), Path())[0]
