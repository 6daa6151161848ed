"""Definitions of ONNX's operators for the verifier, derived from their schemas (``schemas``).

``register`` makes them known to ``ir.opdefs``; onnx itself is imported when the first is asked for. An operator of another
domain, or of a module that does not state its opset, has no definition: it is opaque. So is one of ONNX Runtime's own domain
that its table does not list, and those that it lists may have further attributes and operands: they gain them with releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from dnnc.frontends.attribute_values import value_faults
from dnnc.frontends.domains import MICROSOFT, STANDARD_DOMAINS
from ir.attributes import AttrKind
from ir.opdefs import ELEMENTWISE, PURE, RANDOM, AttrDef, OpDef, register_provider
from ir.ops import Op

RANDOM_OPERATORS = frozenset(
    {
        "com.microsoft.BiasDropout",
        "com.microsoft.BitmaskBiasDropout",
        "com.microsoft.BitmaskDropout",
        "com.microsoft.Sampling",
        "com.microsoft.WhisperBeamSearch",
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
"""Operators that draw random numbers; ``Dropout`` only when it trains."""

# fmt: off
ELEMENTWISE_OPERATORS = frozenset({
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp",
    "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu",
    "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow",
    "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub",
    "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
})
# fmt: on

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


def register() -> None:
    """Makes ONNX's operators known to the verifier."""
    register_provider("onnx", lookup)


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

    from dnnc.frontends import schemas

    grows = domain == MICROSOFT
    try:
        schema = schemas.schema(op_type, version, domain)
    except SchemaError:
        return None if grows else OpDef(name, check=lambda op: [f"opset {version} has no operator {op_type}"], extensible=True)
    attributes, regions = [], []
    for key, attribute in sorted(schema.attributes.items()):
        kind = str(attribute.type).rpartition(".")[2]
        if kind == "GRAPH":
            if not attribute.required:
                return None  # FlexAttention: an OpDef cannot say "perhaps a region"
            regions.append(key)
        elif kind != "GRAPHS":
            attributes.append((key, AttrDef(_KINDS[kind], attribute.required)))
    return OpDef(
        name,
        (schema.min_input, None if grows else _limit(schema.max_input)),
        (0, None if grows else _limit(schema.max_output)),
        tuple(attributes),
        tuple(regions),
        _traits(domain, op_type, bool(regions)),
        extensible=grows,
        check=partial(_value_faults, op_type) if domain in ("", MICROSOFT) else None,
    )


def _value_faults(op_type: str, op: Op) -> list[str]:
    return value_faults(op_type, len(op.operands), {key: attribute.value for key, attribute in op.attributes})


def _limit(count: int) -> int | None:
    return None if count >= 1 << 30 else count


def _traits(domain: str, op_type: str, has_regions: bool) -> frozenset[str]:
    if (f"{domain}." if domain else "") + op_type in RANDOM_OPERATORS:
        return frozenset({RANDOM})
    if has_regions:
        return frozenset()  # as pure as what the regions hold
    return frozenset({PURE, ELEMENTWISE} if not domain and op_type in ELEMENTWISE_OPERATORS else {PURE})


__all__ = ["ELEMENTWISE_OPERATORS", "RANDOM_OPERATORS", "lookup", "operator_of", "register"]
