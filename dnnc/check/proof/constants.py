"""Rule 2: a constant of a program is the part of a weight whose bytes it has.

Which weight is tried follows from the names; which part, from the shapes on the members. Both are checked by the bytes: of the
weight as the model has it, where its file is still there and unchanged, else as the build's own copy (``annotated.onnx``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from numpy.typing import NDArray

from dnnc.build.build import ANNOTATED, Build
from dnnc.check.proof.facts import Part
from dnnc.check.proof.model import Model
from dnnc.check.proof.programs import StageText, Unit
from dnnc.check.proof.segments import initializers, tensor_data
from dnnc.check.proof.terms import Content, content
from dnnc.check.reference import original_weights
from dnnc.onnx.arrays import to_array, to_data
from dnnc.onnx.weights import WeightFiles, read_resource
from ir.core.diagnostics import InvalidInput
from ir.core.module import External, Mesh, Resource, View
from ir.core.names import bare
from ir.core.types import Placement, Replicate, Shard, TensorType
from ir.ops.boxes import Box, Placements, box, shape_of


@dataclass(slots=True)
class Weights:
    """Reads the weights of the model. ``own_copy``: whether the build's own copy was read instead of the model's file."""

    build: Build
    files: WeightFiles | None = None
    own_copy: bool = False
    _copy: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.files = original_weights(self.build)

    def array(self, resource: Resource) -> NDArray[Any] | None:
        """The elements of a weight; None where they cannot be read."""
        data = resource.data.whole if isinstance(resource.data, View) else resource.data
        try:
            if not isinstance(data, External):
                return read_resource(resource, WeightFiles(self.build.folder))
            if self.files is not None:
                return read_resource(resource, self.files)
            self.own_copy = True
            return self.copied(resource)
        except (InvalidInput, ValueError):
            return None

    def copied(self, resource: Resource) -> NDArray[Any] | None:
        """The elements of a weight as annotated.onnx has it. Raises ValueError."""
        if self._copy is None:
            self._copy = initializers(self.build.files.read(ANNOTATED))
        tensor, type_ = self._copy.get(bare(resource.name)), resource.type
        if tensor is None or not isinstance(type_, TensorType):
            return None
        _, data = tensor_data(tensor, self.build.files.weights_for(ANNOTATED))
        return to_array(type_, data if isinstance(data, tuple) else bytes(data))


@dataclass(slots=True)
class Use:
    """A constant of a unit that may be a part of a weight."""

    text: StageText
    unit: Unit
    term: int
    contents: Sequence[Content]
    parts: list[Placements] = field(default_factory=list)


def parts_of_weights(model: Model, texts: Sequence[StageText], weights: Weights) -> Iterator[tuple[StageText, Unit, int, Part]]:
    """The facts of all constants that have the name of a weight. Reads one weight at a time."""
    uses: dict[int, list[Use]] = {}
    nodes = {bare(resource.name): node for node, resource in model.resources.items()}
    for text in texts:
        for unit in text.units:
            for term, same in unit.constants.items():
                for name, contents in same:
                    node = nodes.get(name)
                    if node is None:  # where a value has the name of a weight, the weight has a suffix
                        node = nodes.get(name.rpartition("_")[0])
                    if node is not None:
                        uses.setdefault(node, []).append(Use(text, unit, term, contents))
    for node, of_weight in uses.items():
        yield from _of_weight(model, node, of_weight, weights)


def _of_weight(model: Model, node: int, uses: list[Use], weights: Weights) -> Iterator[tuple[StageText, Unit, int, Part]]:
    resource, shape = model.resources[node], shape_of(model.types[node])
    array = weights.array(resource) if shape is not None else None
    type_ = model.types[node]
    if array is None or shape is None or not isinstance(type_, TensorType):
        return
    cache: dict[Box, Content] = {}

    def part(here: Box) -> Content:
        if here not in cache:
            lengths = tuple(length for _, length in here)
            piece = array[tuple(slice(start, start + length) for start, length in here)]
            cache[here] = content(type_.dtype, lengths, to_data(piece, type_.dtype))
        return cache[here]

    for use in uses:
        for placements in _candidates(shape, use.text.mesh, use.unit.members, use.contents):
            boxes = [box(type_, placements, use.text.mesh, member) for member in use.unit.members]
            if all(part(here).key == one.key for here, one in zip(boxes, use.contents, strict=True)):
                yield use.text, use.unit, use.term, Part(node, placements)


def _candidates(
    shape: tuple[int, ...], mesh: Mesh, members: Sequence[int], contents: Sequence[Content]
) -> Iterator[Placements]:
    """Placements by which the members would hold parts of these shapes."""
    choices: tuple[Placement, ...] = (Replicate(), *map(Shard, range(len(shape))))
    for placements in product(choices, repeat=len(mesh.axes)):
        type_ = TensorType(contents[0].dtype, shape)
        if all(
            tuple(length for _, length in box(type_, placements, mesh, member)) == one.shape
            for member, one in zip(members, contents, strict=True)
        ):
            yield placements
