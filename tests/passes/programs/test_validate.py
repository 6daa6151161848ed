"""``validate`` in a pipeline; a module without programs, and a caller that proves nothing."""

from __future__ import annotations

import pytest

from dnnc.check.proof import prover
from dnnc.compile.context import pass_context
from ir import load_module
from ir.core.diagnostics import CheckFailed, DiagnosticSink, DnncError, InvalidInput, UsageError
from ir.core.module import Module, Program, Stage
from passes.framework.base import PassContext
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.programs.validate import ValidatePass
from tests.golden import ROOT


def localized() -> Module:
    path = ROOT / "passes" / "validate" / "members.out.ir"
    return load_module(path.read_text(), str(path))


def validated(module: Module, context: PassContext | None = None) -> PassContext:
    context = context or pass_context(DiagnosticSink())
    context.prove = prover
    assert PassManager(parse_pipeline("validate")).run(module, context) == module
    return context


def test_what_is_proven_is_counted() -> None:
    assert validated(localized()).statistics["validate"] == {"stages": 2, "ops": 3, "collectives": 1, "weights": 2}


def test_a_pass_that_made_something_else_is_refuted() -> None:
    text = (ROOT / "passes" / "validate" / "other_operator.ir").read_text()
    with pytest.raises(CheckFailed) as error:
        validated(load_module(text, "other_operator.ir"))
    assert error.value.diagnostics[0].where == "stage 1 on c"


@pytest.mark.parametrize(
    ("passes", "kind", "message"),
    [("localize", InvalidInput, "the module has no stages"), ("validate", UsageError, "nothing here proves programs")],
)
def test_what_cannot_be_proven_is_told(passes: str, kind: type[DnncError], message: str) -> None:
    module = localized()
    if passes == "localize":
        module = module.without(Stage, Program)
    with pytest.raises(kind, match=message):
        ValidatePass().run(module, PassContext())
