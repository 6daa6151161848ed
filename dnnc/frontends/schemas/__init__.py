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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources

from onnx import defs

from dnnc.frontends.schemas import attention, elements, products
from dnnc.frontends.schemas.node import Rule, inference

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
        entry = _entries().get((domain, op_type))
        if entry is None or not 1 <= version <= (entry.last or version):
            raise
        return entry.schema


def is_listed(domain: str, op_type: str) -> bool:
    """Whether ONNX Runtime registers the operator in versions that onnx lacks."""
    return (domain, op_type) in _entries()


@contextmanager
def registered(operators: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Within, onnx's inference knows those of ``operators`` (domain and name) that ONNX Runtime registers."""
    entries = [_entries()[key] for key in sorted(set(operators)) if key in _entries()]
    for entry in entries:
        defs.register_schema(entry.schema)
    try:
        yield
    finally:
        for entry in entries:
            defs.deregister_schema(entry.schema.name, 1, entry.schema.domain)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A schema, of version 1, and the last opset that has it (None: there is no last)."""

    schema: defs.OpSchema
    last: int | None


@cache
def _entries() -> dict[tuple[str, str], _Entry]:
    """The operators of the table that onnx does not define itself, by domain and name."""
    text = resources.files("dnnc.frontends.schemas").joinpath("microsoft.toml").read_text(encoding="utf-8")
    found = {}
    for section, rows in tomllib.loads(text).items():
        domain = "" if section == _DEFAULT_DOMAIN else section
        for name, signature in rows.items():
            try:
                defs.get_schema(name, 1, domain)
            except defs.SchemaError:
                found[domain, name] = _entry(domain, name, signature)
    return found


def _entry(domain: str, name: str, signature: str) -> _Entry:
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
