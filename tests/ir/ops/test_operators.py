"""Traits of ONNX's operators: every name in the table is an operator, and what rests on a trait holds for all that have it."""

from __future__ import annotations

import pytest
from onnx.defs import get_all_schemas_with_history

from dnnc.onnx import schemas
from dnnc.onnx.opdefs import DIALECTS, operator_of
from ir.layout_rules import RULES
from ir.ops.opdefs import opdef
from ir.ops.operators import ELEMENTWISE, TRAINING_OPERAND, TRAITS, names_with

KNOWN = {(schema.domain, schema.name) for schema in get_all_schemas_with_history()}


@pytest.mark.parametrize("name", sorted(TRAITS))
def test_it_is_an_operator(name: str) -> None:
    domain, operator = operator_of(name)
    assert (domain, operator) in KNOWN or schemas.is_listed(domain, operator), name


def test_a_definition_has_the_traits_and_the_layout_rule() -> None:
    opsets = {"onnx": 24, "com.microsoft": 1}
    for name in sorted({*TRAITS, *RULES}):
        if name.startswith("grad."):  # its rules stand in the table alone: they are drawn by what this dialect defines
            continue
        definition = opdef(name, opsets, DIALECTS)
        if definition is not None and not definition.missing:
            assert TRAITS.get(name, frozenset()) <= definition.traits, name
            assert definition.layout is RULES.get(name), name


def test_every_elementwise_operator_has_a_layout_rule() -> None:
    assert names_with(ELEMENTWISE) <= RULES.keys()


def test_the_training_operand_is_the_schemas() -> None:
    for name, operand in TRAINING_OPERAND.items():
        domain, operator = operator_of(name)
        schema = schemas.schema(operator, 1 if domain else 20, domain)
        assert schema.inputs[operand].name == "training_mode"
