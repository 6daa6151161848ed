"""The dialect ``onnx``: definitions of ONNX's operators, derived from their schemas (``schemas``).

The first look-up imports onnx. Three kinds of operators have no definition: those of other domains, those of a domain whose
opset the module does not state, and those of ONNX Runtime's own domain that the table ``schemas/microsoft.toml`` lacks. An
operator in that table may have more attributes and operands than the table says, since releases of ONNX Runtime add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from dnnc.onnx.domains import MICROSOFT, STANDARD_DOMAINS
from dnnc.onnx.importer.attribute_values import value_faults
from ir.core.attributes import AttrKind
from ir.core.ops import Op
from ir.layout_rules import RULES
from ir.ops.grads import BATCH_NORMALIZATION, UNBIASED
from ir.ops.grads import DIALECTS as BASE
from ir.ops.opdefs import PURE, AttrDef, Dialect, Dialects, OpDef
from ir.ops.operators import RANDOM, TRAITS

# onnx.defs.OpSchema.AttrType, by name. A STRING may hold bytes, a sparse constant is imported as a dense tensor.
_KINDS = {
    "FLOAT": AttrKind.FLOAT,
    "INT": AttrKind.INT,
    "STRING": None,
    "TENSOR": AttrKind.TENSOR,
    "TYPE_PROTO": AttrKind.TYPE,
    "FLOATS": AttrKind.FLOATS,
    "INTS": AttrKind.INTS,
    "STRINGS": AttrKind.STRINGS,
    "TENSORS": AttrKind.TENSORS,
    "TYPE_PROTOS": AttrKind.TYPES,
    "SPARSE_TENSOR": AttrKind.TENSOR,
    "SPARSE_TENSORS": AttrKind.TENSORS,
}


def operator_of(name: str) -> tuple[str, str]:
    """(domain, operator) of an op's name: ``onnx.ai.onnx.ml.Scaler`` gives (``ai.onnx.ml``, ``Scaler``)."""
    domain, _, op_type = name.partition(".")[2].rpartition(".")
    return domain, op_type


def lookup(name: str, opsets: Mapping[str, int]) -> OpDef | None:
    """The definition of op ``name`` (``onnx.Gemm``) under these opsets (the default domain's is ``onnx``)."""
    domain, op_type = operator_of(name)
    version = opsets.get(domain or "onnx")
    if version is None or domain not in (*STANDARD_DOMAINS, MICROSOFT) or version >= 1 << 31:  # onnx counts opsets in 32 bits
        return None
    return _definition(name, domain, op_type, version)


@lru_cache(maxsize=4096)
def _definition(name: str, domain: str, op_type: str, version: int) -> OpDef | None:
    from onnx.defs import SchemaError

    from dnnc.onnx import schemas

    grows = domain == MICROSOFT
    try:
        schema = schemas.schema(op_type, version, domain)
    except SchemaError:
        return None if grows else OpDef(name, missing=f"opset {version} has no operator {op_type}")
    attributes, regions = [], []
    for key, attribute in sorted(schema.attributes.items()):
        kind = str(attribute.type).rpartition(".")[2]
        if kind == "GRAPH":
            if not attribute.required:
                return None  # FlexAttention: an OpDef cannot say "perhaps a region"
            regions.append(key)
        elif kind != "GRAPHS":
            attributes.append((key, AttrDef(_KINDS[kind], attribute.required)))
    if name == BATCH_NORMALIZATION:
        attributes.append((UNBIASED, AttrDef(AttrKind.INT)))  # of a training step: no model file has it
    return OpDef(
        name,
        (schema.min_input, None if grows else _limit(schema.max_input)),
        (0, None if grows else _limit(schema.max_output)),
        tuple(attributes),
        tuple(regions),
        _traits(name, bool(regions)),
        extensible=grows,
        check=partial(_value_faults, op_type) if domain in ("", MICROSOFT) else None,
        layout=RULES.get(name),
    )


def _value_faults(op_type: str, op: Op) -> list[str]:
    return value_faults(op_type, len(op.operands), {key: attribute.value for key, attribute in op.attributes})


def _limit(count: int) -> int | None:
    return None if count >= 1 << 30 else count


def _traits(name: str, has_regions: bool) -> frozenset[str]:
    traits = TRAITS.get(name, frozenset())
    # An op with regions is as pure as what they hold.
    return traits if RANDOM in traits or has_regions else traits | {PURE}


DIALECTS: Dialects = (*BASE, Dialect("onnx", lookup))
"""The dialects of the modules that dnnc works on, to be given to the verifier."""
