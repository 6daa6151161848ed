"""Values without a known shape on the way of a gradient are refused where they are, whatever the rule: no internal error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ir import Func, Module, Op, TensorType, Value
from ir.core.diagnostics import InvalidInput
from passes.differentiate import DifferentiatePass
from tests.passes.differentiate.numeric import Case, module_of
from tests.passes.differentiate.test_every_rule import CASES, OPSET, SLOPES

oracle = pytest.importorskip("tests.passes.differentiate.oracle", reason="the extra 'train' is not installed")

Hidden = Callable[[TensorType], TensorType]
HIDDEN: dict[str, Hidden] = {
    "rank": lambda type_: TensorType(type_.dtype, None),
    "dimensions": lambda type_: TensorType(type_.dtype, (None,) * len(type_.shape or ())),
    "named dimensions": lambda type_: TensorType(type_.dtype, tuple(f"d{i}" for i in range(len(type_.shape or ())))),
}


def hidden(module: Module, names: set[str], by: Hidden) -> Module:
    """The module in which values of these names have types of unknown shape; a constant of these names becomes an argument."""
    func = module.entry

    def of(value: Value) -> Value:
        assert isinstance(value.type, TensorType)
        return replace(value, type=by(value.type)) if value.name in names else value

    constants = {name: f"%given.{name[1:]}" for name in names if name[:1] == "@"}
    args = tuple(of(Value(name, module.resources[name].type)) for name in constants)
    ops = tuple(
        replace(op, operands=tuple(constants.get(n, n) for n in op.operands), results=tuple(map(of, op.results)))
        for op in func.ops
    )
    after = Func(func.name, tuple(replace(arg, name=constants[arg.name]) for arg in args), func.results, ops)
    return module.replace(func, after)


def tried(case: Case) -> tuple[Module, Op]:
    module = module_of(case, opset=OPSET, computed=True)
    return module, next(op for op in module.entry.ops if op.results[0].name == "%y0")


def differentiated(modules: Iterator[Module]) -> Iterator[str]:
    """Where each module is refused; empty where it is not."""
    for module in modules:
        try:
            DifferentiatePass().run(module, oracle.context())
        except InvalidInput as error:
            (told,) = error.diagnostics
            yield told.where
        else:
            yield ""


@pytest.mark.parametrize("name", sorted(set(SLOPES) & set(CASES)))
def test_each_value_in_turn(name: str) -> None:
    """Off the way of the gradient, as of the number of largest elements, a rule may go without."""
    module, op = tried(SLOPES[name])
    names = [name for name in (*op.operands, *(value.name for value in op.results)) if name]
    on_the_way = [name for name in op.operands if name[:1] == "%"]
    refused = dict(zip(names, differentiated(hidden(module, {n}, HIDDEN["rank"]) for n in names), strict=True))
    assert all(refused[name] for name in on_the_way), refused


@pytest.mark.parametrize("way", HIDDEN)
def test_all_at_once(way: str) -> None:
    for name in set(SLOPES) & set(CASES):
        module, op = tried(SLOPES[name])
        names = {name for name in op.operands if name[:1] == "%"} | {value.name for value in op.results}
        assert all(differentiated(iter([hidden(module, names, HIDDEN[way])]))), name
