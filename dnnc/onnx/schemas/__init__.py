"""Schemas of operators: onnx's own, and those that ONNX Runtime registers beside them.

``schema`` looks up both. ``microsoft.toml`` lists those of ONNX Runtime (arity, type variables, attributes); ``RULES`` derive
their result types. They are every operator of ``com.microsoft``, and in the default domain the versions that onnx does not
define (``SimplifiedLayerNormalization``; ``LayerNormalization`` before opset 17). Where onnx defines an operator version, its
schema is used. ``registered`` puts ONNX Runtime's schemas into onnx's registry for the length of a block only: onnx's reference
implementation cannot be imported while two domains have an operator of the same name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

from onnx import defs

from dnnc.onnx.domains import MICROSOFT
from dnnc.onnx.schemas import attention, elements, products
from dnnc.onnx.schemas.node import Rule, inference

RULES: dict[str, Rule] = {**attention.RULES, **elements.RULES, **products.RULES}
"""``DOMAIN.OPERATOR``, or ``OPERATOR`` in the default domain -> the rule of its result types."""

_DEFAULT_DOMAIN = "ai.onnx"
# (INPUTS) -> (OUTPUTS) {ATTRIBUTES}; each is NAME: TYPE and a mark: ? optional, * any number, + one or more.
_SIGNATURE = re.compile(r"(?:until (?P<last>\d+): )?\((?P<inputs>.*)\) -> \((?P<outputs>.*?)\)(?: \{(?P<attributes>.*)\})?")
_FORMAL = re.compile(r"(?P<name>\w+): (?P<type>\w+(?:\(\w+\))?)(?P<mark>[?*+]?)(?:, |$)")
_ANY = ("tensor(float)",)
_OPTIONS = {
    "": defs.OpSchema.FormalParameterOption.Single,
    "?": defs.OpSchema.FormalParameterOption.Optional,
    "*": defs.OpSchema.FormalParameterOption.Variadic,
    "+": defs.OpSchema.FormalParameterOption.Variadic,
}


def schema(op_type: str, version: int, domain: str = "") -> defs.OpSchema:
    """The schema of an operator in opset ``version`` of ``domain``. Raises ``defs.SchemaError`` where there is none."""
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        entry = _entry(domain, op_type)
        if entry is None or not 1 <= version <= (entry.last or version):
            raise
        return entry.schema


@lru_cache(maxsize=4096)
def since_version(op_type: str, version: int, domain: str = "") -> int | None:
    """The opset of ``domain`` that last changed an operator, up to opset ``version``; None for an operator without a schema."""
    try:
        return int(schema(op_type, version, domain).since_version) if 0 < version < 1 << 31 else None
    except defs.SchemaError:
        return None


def is_listed(domain: str, op_type: str) -> bool:
    """Whether ``microsoft.toml`` has versions of the operator that onnx lacks."""
    return _entry(domain, op_type) is not None


@contextmanager
def registered(operators: Iterable[tuple[str, str]], versions: Mapping[str, int]) -> Iterator[None]:
    """In the block, onnx's inference knows those of ``operators`` (domain and name) that ``microsoft.toml`` lists and onnx does
    not define. ``versions``: domain -> opset."""
    missing = [key for key in sorted(set(operators)) if not _is_defined(*key, versions.get(key[0], 0))]
    entries = [entry for key in missing if (entry := _entry(*key)) is not None]
    for entry in entries:
        defs.register_schema(entry.schema)
    try:
        yield
    finally:
        for entry in entries:
            defs.deregister_schema(entry.schema.name, 1, entry.schema.domain)


@lru_cache(maxsize=4096)
def _is_defined(domain: str, op_type: str, version: int) -> bool:
    try:
        defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Entry:
    """A schema, registered as version 1, and the last opset that has it; None if all later ones have it."""

    schema: defs.OpSchema
    last: int | None


@cache
def _signatures() -> Mapping[str, Mapping[str, str]]:
    """``microsoft.toml``: domain -> operator -> signature."""
    return tomllib.loads(resources.files("dnnc.onnx.schemas").joinpath("microsoft.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=4096)
def _entry(domain: str, name: str) -> _Entry | None:
    """ONNX Runtime's schema of the operator; None where it has none, or where onnx defines the operator from version 1 on."""
    if domain not in ("", MICROSOFT) or _is_defined(domain, name, 1):
        return None
    signature = _signatures()[domain or _DEFAULT_DOMAIN].get(name)
    if signature is None:
        return None
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        raise ValueError(f"microsoft.toml: the signature of {name} is not (INPUTS) -> (OUTPUTS) {{ATTRIBUTES}}: {signature}")
    ins, outs = (_formals(match[side]) for side in ("inputs", "outputs"))
    # A type variable may have any type: only the rules care about types.
    variables = sorted({formal.type_str for formal in (*ins, *outs) if "(" not in formal.type_str})
    attributes = [
        defs.OpSchema.Attribute(key, getattr(defs.OpSchema.AttrType, kind), "", required=not mark)
        for key, kind, mark in _FORMAL.findall(match["attributes"] or "")
    ]
    schema = defs.OpSchema(
        name,
        domain,
        1,
        inputs=ins,
        outputs=outs,
        type_constraints=[(variable, _ANY, "") for variable in variables],
        attributes=attributes,
    )
    rule = RULES.get(f"{domain}.{name}" if domain else name)
    if rule is not None:
        schema.set_type_and_shape_inference_function(inference(rule, ins, outs))
    last = match["last"]
    return _Entry(schema, int(last) if last else None)


def _formals(text: str) -> list[defs.OpSchema.FormalParameter]:
    return [
        defs.OpSchema.FormalParameter(name, kind, "", param_option=_OPTIONS[mark], min_arity=mark == "+")
        for name, kind, mark in _FORMAL.findall(text)
    ]


__all__ = ["RULES", "is_listed", "registered", "schema", "since_version"]
