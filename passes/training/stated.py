"""What the model's framework does with an op in training (facet ``training``), written as ops that any pass understands.

- An Identity that is ``detached`` becomes ``grad.detach``: no gradient passes it.
- Of a Gather with a ``padding`` row, elements from that row are detached: ``%y`` becomes
  ``onnx.Where(index == row, grad.detach(gathered), gathered)``, so the row of the table gets no gradient.
- ``frozen`` stays for ``TrainingPass`` to read: a resource does not train, a batch normalisation keeps its running averages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ir.core.diagnostics import InvalidInput
from ir.core.facets import Facets, InTraining
from ir.core.module import Inline, Module, Resource
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from ir.ops.grads import DETACH
from ir.text.dense import dense_data
from passes.graph.graph import describe
from passes.training.faults import PaddedTable


def is_frozen(facets: Facets) -> bool:
    """Whether an op or a resource with these facets is ``frozen``."""
    return any(isinstance(facet, InTraining) and facet.rule == "frozen" for facet in facets)


def with_stated(module: Module) -> Module:
    """The module whose entry says by ops what its facets say of gradients."""
    func = module.entry
    if not any(op.facet(InTraining) is not None for op in func.ops):
        return module
    writer = _Writer(module)
    ops = tuple(one for op in func.ops for one in writer.written(op))
    symbols = module.replace(func, replace(func, ops=ops)).symbols
    return replace(module, symbols=(*writer.constants, *symbols))


class _Writer:
    def __init__(self, module: Module) -> None:
        self.symbols = {symbol.name for symbol in module.symbols}
        self.names = {value.name for op in module.entry.ops for value in op.results} | {a.name for a in module.entry.args}
        self.types = {value.name: value.type for op in module.entry.ops for value in op.results}
        self.types |= {arg.name: arg.type for arg in module.entry.args}
        self.types |= {name: resource.type for name, resource in module.resources.items()}
        self.constants: list[Resource] = []

    def written(self, op: Op) -> Iterator[Op]:
        fact = op.facet(InTraining)
        bare = replace(op, facets=tuple(facet for facet in op.facets if facet != fact))
        match fact:
            case InTraining("detached") if op.name == "onnx.Identity":
                yield replace(bare, name=DETACH)
            case InTraining("padding", row) if op.name == "onnx.Gather" and not op.get("axis", 0):
                yield from self.padded(bare, row)
            case _:
                yield op

    def padded(self, op: Op, row: int) -> Iterator[Op]:
        """Raises InvalidInput where the rank of the indices or of the result is not known."""
        index, (result,) = self.types.get(op.operands[1]), op.results
        made = result.type
        if not isinstance(index, TensorType) or index.shape is None or not isinstance(made, TensorType) or made.shape is None:
            raise InvalidInput(PaddedTable(), where=describe(op))
        behind = len(made.shape) - len(index.shape)
        gathered, detached, found, spread = (self.value(result, end) for end in ("gathered", "detached", "padding", "spread"))
        mask = TensorType(DType.BOOL, (*index.shape, *((1,) * behind)))
        axes = self.constant(f"{result.name[1:]}.axes", DType.I64, range(len(index.shape), len(made.shape)))
        number = self.constant(f"{result.name[1:]}.row", index.dtype, [row], scalar=True)
        yield replace(op, results=(Value(gathered, made),))
        yield Op(DETACH, (gathered,), (Value(detached, made),), location=op.location)
        flags = Value(found, TensorType(DType.BOOL, index.shape))
        yield Op("onnx.Equal", (op.operands[1], number), (flags,), location=op.location)
        yield Op("onnx.Unsqueeze", (found, axes), (Value(spread, mask),), location=op.location)
        yield Op("onnx.Where", (spread, detached, gathered), (result,), location=op.location)

    def value(self, result: Value, end: str) -> str:
        return unique(f"{result.name}.{end}", self.names)

    def constant(self, name: str, dtype: DType, numbers: range | list[int], scalar: bool = False) -> str:
        data = dense_data(dtype, [str(number) for number in numbers])
        shape = () if scalar else (len(numbers),)
        resource = Resource(unique(f"@{name}", self.symbols), TensorType(dtype, shape), Inline(data))
        self.constants.append(resource)
        return resource.name
