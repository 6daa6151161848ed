"""How decisions about layouts stand in a module: strategies in ``shard<..>``, layouts in the texts of attributes."""

from __future__ import annotations

import re

from ir.diagnostics import InvalidInput
from ir.facets import StageSet
from ir.module import Mesh, Module, Resource
from ir.names import quote_symbol
from ir.types import Partial, Placement, Replicate, Shard, TensorType
from passes.model.graph import reads

SEPARATOR = "; "
"""Between the names of strategies in ``shard<..>``, one per axis."""
WHOLE = "replicate"
"""The name of the strategy of an op that runs whole on every member."""
_PLACEMENT = re.compile(r"S\((\d{1,4})\)|R|P\((sum|max)\)")


def kept_layouts(module: Module, index: int, mesh: Mesh) -> dict[str, tuple[Placement, ...]]:
    """How stage ``index``, which is on ``mesh``, keeps each resource that its ops read: as its type says where that is on the
    same mesh, else as the function's attribute ``shard.kept`` says, else whole. Raises InvalidInput for a text that is not
    ``"k @resource @mesh[placements]"``."""
    func, types = module.entry, {resource.name: resource.type for resource in module.of_type(Resource)}
    own = [op for op in func.ops if index in op.facet(StageSet, StageSet(())).stages]
    whole: tuple[Placement, ...] = (Replicate(),) * len(mesh.axes)
    found = dict.fromkeys((name for op in own for name in reads(op) if name in types), whole)
    for name in found:
        type_ = types[name]
        if isinstance(type_, TensorType) and type_.layout is not None and type_.layout.mesh == mesh.name:
            found[name] = type_.layout.placements
    attribute = dict(func.attributes).get("shard.kept")
    if attribute is not None and not isinstance(attribute.value, tuple):
        raise InvalidInput(f"{attribute.value!r} found, a list of texts expected", where="shard.kept")
    for text in attribute.value if attribute else ():
        number, _, rest = str(text).partition(" ")
        name, _, placements = rest.rpartition(f" {quote_symbol(mesh.name)}[")
        if number == str(index):
            if name not in types or not placements.endswith("]"):
                raise InvalidInput(f"'{text}' found, 'STAGE @resource {mesh.name}[..]' expected", where="shard.kept")
            found[name] = read_placements(placements[:-1])
    return found


def read_placements(text: str) -> tuple[Placement, ...]:
    """``S(0), R, P(sum)``. Raises InvalidInput."""
    found: list[Placement] = []
    for part in text.split(","):
        match = _PLACEMENT.fullmatch(part.strip())
        if match is None:
            raise InvalidInput(f"'{part.strip()}' is no placement; S(dim), R or P(sum) expected", where=text)
        dim, reduction = match.groups()
        found.append(Shard(int(dim)) if dim else Partial(reduction) if reduction else Replicate())
    return tuple(found)


__all__ = ["SEPARATOR", "WHOLE", "kept_layouts", "read_placements"]
