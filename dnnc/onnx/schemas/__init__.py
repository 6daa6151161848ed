"""Schemas of operators: onnx's own, and those that ONNX Runtime registers beside them.

``schema`` answers for both. ONNX Runtime's are listed in ``microsoft.toml`` (arity, type variables, attributes) and get the
result types that ``RULES`` derive: every operator of ``com.microsoft``, and in the default domain the versions that
onnx does not define (``SimplifiedLayerNormalization``; ``LayerNormalization`` before opset 17). Where onnx defines an operator
itself, its definition is the one that counts. onnx's registry knows them only while ``registered`` says so: its reference
implementation cannot be imported while two domains have operators of one name.
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
"""The rule of each operator's result types, by domain and operator as in the names of ops."""

_DEFAULT_DOMAIN = "ai.onnx"
# (INPUTS) -> (OUTPUTS) {ATTRIBUTES}, each NAME: TYPE and its mark: ? optional, * any number, + one or more.
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


def is_listed(domain: str, op_type: str) -> bool:
    """Whether ONNX Runtime registers the operator in versions that onnx lacks."""
    return _entry(domain, op_type) is not None


@contextmanager
def registered(operators: Iterable[tuple[str, str]], versions: Mapping[str, int]) -> Iterator[None]:
    """Within, onnx's inference knows those of ``operators`` (domain and name) that ONNX Runtime registers and that onnx does
    not define in ``versions``, the opset of each domain."""
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
    """A schema, of version 1, and the last opset that has it (None: there is no last)."""

    schema: defs.OpSchema
    last: int | None


@cache
def _signatures() -> Mapping[str, Mapping[str, str]]:
    """The table: signatures by domain and name."""
    return tomllib.loads(resources.files("dnnc.onnx.schemas").joinpath("microsoft.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=4096)
def _entry(domain: str, name: str) -> _Entry | None:
    """The operator as ONNX Runtime registers it; None where it does not, or where onnx defines it from its first version on."""
    if domain not in ("", MICROSOFT) or _is_defined(domain, name, 1):
        return None
    signature = _signatures()[domain or _DEFAULT_DOMAIN].get(name)
    if signature is None:
        return None
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        raise ValueError(f"microsoft.toml: the signature of {name} is not (INPUTS) -> (OUTPUTS) {{ATTRIBUTES}}: {signature}")
    ins, outs = (_formals(match[side]) for side in ("inputs", "outputs"))
    # Types are nobody's business here but the rules': a variable may be any that onnx knows.
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


__all__ = ["RULES", "is_listed", "registered", "schema"]
