"""Small random functions with every form that lowering must treat: terms, lookups in a split table, reductions, several
results, unused results, absent operands, operands read twice, regions that capture, results that are arguments or weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ir.core.attributes import attributes
from ir.core.module import Func, Inline, Module, Random, Resource
from ir.core.ops import Op, Region, Value
from ir.core.types import DType, TensorType
from ir.text.dense import dense_data
from passes.prepare.cost import CostPass
from tests.passes.meshes.planning import through

BATCH = 8


class Graph:
    """Values of known shape, and ops drawn over them."""

    def __init__(self, seed: int, uneven: bool) -> None:
        self.random = np.random.default_rng(seed)
        self.sizes = (5, 6, 9) if uneven else (8, 16)
        self.rows = 7 if uneven else BATCH
        self.ops: list[Op] = []
        self.resources: list[Resource] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.args: list[Value] = []
        self.made = 0
        self.argument("x", DType.F32, (self.rows, self.size()))
        self.argument("ids", DType.I64, (self.rows,))

    def module(self, count: int) -> Module:
        makers: list[Callable[[], None]] = [
            self.unary, self.binary, self.product, self.product, self.bias, self.transpose, self.reshape, self.softmax,
            self.norm, self.reduce, self.concat, self.split, self.lookup, self.clip, self.branch, self.stack,
        ]  # fmt: skip
        while len(self.ops) < count:
            makers[int(self.random.integers(len(makers)))]()
        return self.finish()

    def finish(self) -> Module:
        """What nobody reads is a result, and a little of the rest."""
        names = [value.name for op in self.ops for value in op.results if value.name in self.shapes]
        read = {name for op in self.ops for name in op.operands}
        results = [name for name in names if name not in read or self.random.random() < 0.1]
        results += ["%x"] * (self.random.random() < 0.2)
        results += [self.resources[0].name] if self.resources and self.random.random() < 0.2 else []
        known = {value.name: value for op in self.ops for value in op.results} | {arg.name: arg for arg in self.args}
        known |= {resource.name: Value(resource.name, resource.type) for resource in self.resources}
        func = Func("@main", tuple(self.args), tuple(known[name] for name in results), tuple(self.ops))
        module = Module("@m", (*self.resources, func), attributes({"opset.onnx": 20}))
        return through(module, CostPass())

    # -- parts ---------------------------------------------------------------------------------------------------------

    def size(self) -> int:
        return int(self.random.choice(self.sizes))

    def argument(self, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        self.args.append(Value(f"%{name}", TensorType(dtype, shape)))
        if dtype is DType.F32:
            self.shapes[f"%{name}"] = shape

    def value(self, rank: int = 0) -> tuple[str, tuple[int, ...]]:
        """A float value, late ones more often."""
        found = [(name, shape) for name, shape in self.shapes.items() if not rank or len(shape) == rank]
        return found[int(len(found) * self.random.random() ** 0.5)]

    def weight(self, *shape: int) -> str:
        name = f"@w{len(self.resources)}"
        self.resources.append(Resource(name, TensorType(DType.F32, shape), Random("normal", len(self.resources), 0.5)))
        return name

    def integers(self, *values: int) -> str:
        name = f"@c{len(self.resources)}"
        type_ = TensorType(DType.I64, (len(values),))
        self.resources.append(Resource(name, type_, Inline(dense_data(DType.I64, list(map(str, values))))))
        return name

    def add(self, name: str, operands: tuple[str, ...], *shapes: tuple[int, ...], unused: int = -1, **fields: object) -> None:
        results = []
        for i, shape in enumerate(shapes):
            result = f"%v{self.made}"
            self.made += 1
            if i != unused:
                self.shapes[result] = shape
            results.append(Value(result, TensorType(DType.F32, shape)))
        self.ops.append(Op(f"onnx.{name}", operands, tuple(results), attributes(fields)))

    # -- ops -----------------------------------------------------------------------------------------------------------

    def unary(self) -> None:
        name, shape = self.value()
        self.add(str(self.random.choice(["Relu", "Neg", "Tanh", "Identity"])), (name,), shape)

    def binary(self) -> None:
        name, shape = self.value()
        others = [other for other, its in self.shapes.items() if its == shape]
        self.add(str(self.random.choice(["Add", "Sub", "Mul"])), (name, str(self.random.choice(others))), shape)

    def product(self) -> None:
        name, shape = self.value()
        size = self.size()
        self.add("MatMul", (name, self.weight(shape[-1], size)), (*shape[:-1], size))

    def bias(self) -> None:
        name, shape = self.value()
        self.add("Add", (name, self.weight(*(shape if self.random.random() < 0.5 else shape[-1:]))), shape)

    def transpose(self) -> None:
        name, shape = self.value()
        perm = [int(i) for i in self.random.permutation(len(shape))]
        self.add("Transpose", (name,), tuple(shape[i] for i in perm), perm=perm)

    def reshape(self) -> None:
        name, shape = self.value()
        new = (shape[0] * shape[1], *shape[2:]) if len(shape) > 2 else (shape[0], 2, shape[1] // 2)
        if np.prod(new) == np.prod(shape):
            self.add("Reshape", (name, self.integers(*new)), new)

    def softmax(self) -> None:
        name, shape = self.value()
        self.add("Softmax", (name,), shape, axis=-1)

    def norm(self) -> None:
        name, shape = self.value()
        operands = (name, self.weight(shape[-1]))
        self.add("LayerNormalization", (*operands, self.weight(shape[-1])) if self.random.random() < 0.5 else operands, shape)

    def reduce(self) -> None:
        name, shape = self.value()
        axis = int(self.random.integers(len(shape)))
        kind = str(self.random.choice(["ReduceSum", "ReduceMax", "ReduceMean"]))
        self.add(kind, (name, self.integers(axis)), (*shape[:axis], 1, *shape[axis + 1 :]), keepdims=1)

    def concat(self) -> None:
        name, shape = self.value()
        if shape[-1] <= 16:
            self.add("Concat", (name, name), (*shape[:-1], 2 * shape[-1]), axis=len(shape) - 1)

    def split(self) -> None:
        name, shape = self.value()
        if shape[-1] % 2 == 0:
            half = (*shape[:-1], shape[-1] // 2)
            self.add("Split", (name,), half, half, unused=int(self.random.integers(2)), axis=-1, num_outputs=2)

    def lookup(self) -> None:
        size = self.size()
        self.add("Gather", (self.weight(10, size), "%ids"), (self.rows, size), axis=0)

    def clip(self) -> None:
        name, shape = self.value()
        limit = f"@l{len(self.resources)}"
        self.resources.append(Resource(limit, TensorType(DType.F32, ()), Inline(dense_data(DType.F32, ["0.5"]))))
        self.add("Clip", (name, "", limit), shape)

    def branch(self) -> None:
        """Captures a value, a weight and an argument."""
        name, shape = self.value()
        weight = self.weight(shape[-1])
        condition = f"@l{len(self.resources)}"
        self.resources.append(Resource(condition, TensorType(DType.BOOL, ()), Inline(b"\1")))
        regions = []
        for key, op in (("then_branch", "Add"), ("else_branch", "Mul")):
            result = Value(f"%v{self.made}", TensorType(DType.F32, shape))
            self.made += 1
            regions.append((key, Region((), (Op(f"onnx.{op}", (name, weight), (result,)),), (result.name,))))
        self.add("If", (condition,), shape)
        self.ops[-1] = Op("onnx.If", (condition,), self.ops[-1].results, (), tuple(sorted(regions)))

    def stack(self) -> None:
        """A product of two values: attention scores."""
        name, shape = self.value()
        turned = f"%v{self.made}"
        rank = len(shape)
        perm = [*range(rank - 2), rank - 1, rank - 2]
        self.add("Transpose", (name,), tuple(shape[i] for i in perm), perm=perm)
        self.add("MatMul", (name, turned), (*shape[:-1], shape[-2]))


class Chains(Graph):
    """Products with what follows them element by element, mostly read once."""

    def value(self, rank: int = 0) -> tuple[str, tuple[int, ...]]:
        read = {name for op in self.ops for name in op.operands}
        found = [(name, shape) for name, shape in self.shapes.items() if name not in read and self.random.random() < 0.9]
        return found[int(self.random.integers(len(found)))] if found else super().value(rank)

    def module(self, count: int) -> Module:
        makers = [self.product, self.two, self.bias, self.bias, self.unary, self.unary, self.binary, self.clip, self.softmax]
        while len(self.ops) < count:
            makers[int(self.random.integers(len(makers)))]()
        return self.finish()

    def two(self) -> None:
        """A sum of two products, each maybe with a bias."""
        name, shape = self.value()
        size, sides = self.size(), []
        for _ in range(2):
            self.add("MatMul", (name, self.weight(shape[-1], size)), (*shape[:-1], size))
            if self.random.random() < 0.5:
                self.add("Add", (f"%v{self.made - 1}", self.weight(size)), (*shape[:-1], size))
            sides.append(f"%v{self.made - 1}")
        self.add("Add", (sides[0], sides[1]), (*shape[:-1], size))


def chained_module(seed: int, count: int, uneven: bool = False) -> Module:
    """A function of about ``count`` ops, of which many are epilogues of products."""
    return Chains(seed, uneven).module(count)


def random_module(seed: int, count: int, uneven: bool = False) -> Module:
    """A function of about ``count`` ops; with ``uneven``, of lengths that 2 and 4 do not divide."""
    return Graph(seed, uneven).module(count)


__all__ = ["chained_module", "random_module"]
