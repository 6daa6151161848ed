"""Two properties of values, derived from the plan's IR before anything runs: randomness, and the precision they have.

Both propagate along the dataflow of the entry function, from the operands of an op to its results. Values are called by their
ONNX names. An op with regions counts as one op.
"""

from __future__ import annotations

from dnnc.check.compare import EXACT, TOLERANCES, Precision
from ir.core.module import Module, Resource, Splat
from ir.core.ops import Op, all_ops, all_reads
from ir.core.types import TensorType, Type
from ir.ops.operators import QUANTISES, RANDOM, TRAINING_OPERAND, has
from passes.meshes.reshard_ops import without_reshards

_NARROW = frozenset(TOLERANCES) - {"float32", "float64", "complex64", "complex128"}


def random_values(module: Module) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names of the values that depend on a random op, and those ops, as text."""
    entry = without_reshards(module.entry).func
    false = {r.name for r in module.of_type(Resource) if (isinstance(r.data, Splat) and not r.data.value) or _is_zero(r)}
    drawn = [op for op in all_ops(entry.ops) if _is_random(op, false)]
    tainted: set[str] = set()
    for op in entry.ops:
        if any(_is_random(inner, false) for inner in all_ops((op,))) or any(name in tainted for name in all_reads(op)):
            tainted |= {value.name for value in op.results}
    text = tuple(f"{op.name.removeprefix('onnx.')} {op.location.node or op.id[1:]}" for op in drawn)
    return frozenset(name[1:] for name in tainted), text


def precisions(module: Module) -> dict[str, Precision]:
    """The precision of each value that is computed from an input and may be rounded. A cast from 16 to 32 bits keeps the
    precision of 16 bits; weights and inputs of few bits are exact."""
    precision_of: dict[str, Precision] = {}
    computed = {value.name for value in module.entry.args}
    for op in without_reshards(module.entry).func.ops:
        sources = [name for name in all_reads(op) if name in computed]
        if not sources and op.operands:
            continue
        carried = EXACT
        for name in sources:
            carried |= precision_of.get(name, EXACT)
        for inner in all_ops((op,)):
            floats = {name for value in inner.results if (name := _element(value.type)) in TOLERANCES}
            carried |= Precision(_NARROW & floats, has(inner, QUANTISES), bool(floats))
        for value in op.results:
            computed.add(value.name)
            own = carried  # integers are compared for equality, except quantised values
            if not carried.quantised and _element(value.type) not in TOLERANCES:
                own = Precision(rounded=carried.rounded)
            if own != EXACT:
                precision_of[value.name] = own
    return {name[1:]: precision for name, precision in precision_of.items()}


def _element(type_: Type) -> str:
    return type_.dtype.numpy_name if isinstance(type_, TensorType) else ""


def _is_random(op: Op, false: set[str]) -> bool:
    training = TRAINING_OPERAND.get(op.name)
    if training is None:
        return has(op, RANDOM)
    return len(op.operands) > training and op.operands[training] not in ("", *false)


def _is_zero(resource: Resource) -> bool:
    data = getattr(resource.data, "data", None)
    return isinstance(data, bytes) and len(data) == 1 and data == b"\0"
