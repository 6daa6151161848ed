"""The order of passes: what the registry says of each is so, and pipelines are judged by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dnnc.check.proof import prover
from dnnc.compile.context import pass_context
from dnnc.onnx import DIALECTS
from ir import load_module, parse_module
from ir.core.diagnostics import DiagnosticSink, UsageError
from ir.core.module import Module
from passes import PIPELINES, parse_pipeline
from passes.framework.manager import PassManager
from passes.framework.order import order_faults
from passes.framework.properties import MEANING, Property, holds
from passes.framework.registry import LISTED
from tests import golden
from tests.source_nodes import ROOT

BARE = """module @m {
  func @main(%x : tensor<4xf32>) -> (%y : tensor<4xf32>) {
    %y = onnx.Relu(%x) : tensor<4xf32>
  }
"""
MACHINES = """  topology @top {
    type core {rates = {f32 = 1e9}, memory_bandwidth = 1e9}
    host h
    device a {type = core, host = h}
  }
"""


def judged(pipeline: str, text: str = BARE) -> list[str]:
    """The messages about a pipeline's order on a module."""
    names = [step.name for step in parse_pipeline(pipeline)]
    return [fault.message for fault in order_faults(names, parse_module(text + "}\n"))]


def test_what_a_pass_misses_is_told_once_and_before_anything_runs() -> None:
    assert judged("cost,place,schedule") == [
        "'place' needs 'topology' (the module describes machines), which the module lacks and no pass before establishes",
        "'place' needs 'staged' (each op is in a stage), which the module lacks and no pass before establishes",
        "'place' needs 'planned' (the module has a plan), which the module lacks and no pass before establishes",
    ]
    assert judged("cost,unfuse,partition,place", BARE + MACHINES) == [
        "'partition' needs 'costed' (each op has its cost, or its seconds by type of device), which 'unfuse' destroys"
    ]
    ran: list[str] = []
    manager = PassManager(parse_pipeline("cost,localize"), on_pass=lambda name, seconds: ran.append(name))
    with pytest.raises(UsageError, match=r"pass 2 of 2.*(?s:.*)run 'lower' before 'localize'"):
        manager.run(parse_module(BARE + "}\n"), pass_context(DiagnosticSink()))
    assert ran == []


def test_a_module_goes_on_from_where_it_is() -> None:
    staged = BARE.replace("xf32>\n  }", "xf32> stage<0>\n  }")
    assert judged("lower,localize", staged) == []
    assert judged("localize", staged) != []
    costed = BARE.replace("xf32>\n  }", "xf32> cost<flops = 4>\n  }")
    assert judged("partition,place,schedule,lower,localize", costed + MACHINES) == []


@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "profiled"])
def test_a_named_pipeline_finds_what_it_needs_in_a_bare_module(name: str) -> None:
    assert judged(name, BARE + MACHINES) == []


def test_each_property_has_a_predicate_and_is_needed_or_told_of() -> None:
    """What no pass needs is there for a reader: what it says is documented in the table of passes."""
    module = parse_module(BARE + "}\n")
    assert set(MEANING) == set(Property)
    assert not any(holds(one, module) for one in Property)
    touched = {one for listed in LISTED.values() for one in (*listed.needs, *listed.establishes)}
    assert touched == set(Property)


def steps(case: golden.Case) -> Iterator[tuple[str, Module, Module]]:
    """Each pass of a golden case with the module before and after it, as far as it runs."""
    text = case.path.read_text(encoding="utf-8")
    module = load_module(text, case.name, dialects=DIALECTS)
    for step in parse_pipeline(case.argv[case.argv.index("--passes") + 1]):
        context = pass_context(DiagnosticSink())
        context.prove = prover
        after = PassManager((step,), verify=False).run(module, context)
        yield step.name, module, after
        module = after


def wrong(case: golden.Case) -> list[str]:
    """What the registry says of the passes of a golden case and is not so."""
    found = []
    for name, before, after in steps(case):
        listed = LISTED[name]
        found += [f"{case.name}: {name} lacks {one} and runs" for one in listed.needs if not holds(one, before)]
        found += [f"{case.name}: {name} does not establish {one}" for one in listed.establishes if not holds(one, after)]
        kept = set(Property) - set(listed.establishes) - set(listed.destroys)
        lost = [one for one in kept if holds(one, before) and not holds(one, after)]
        found += [f"{case.name}: {name} destroys {one}" for one in sorted(lost)]
    return found


CASES = [case for case in golden.cases() if case.name.startswith("passes/") and not case.fails and "--passes" in case.argv]


@pytest.mark.slow
def test_passes_establish_and_keep_what_the_registry_says() -> None:
    """Over all goldens of passes."""
    assert {name.split("/")[1] for name in (case.name for case in CASES)} == set(LISTED)
    assert [line for case in CASES for line in wrong(case)] == []


def test_the_table_of_passes_is_that_of_the_registry() -> None:
    text = (ROOT / "passes" / "README.md").read_text(encoding="utf-8")
    for name, listed in LISTED.items():
        row = [", ".join(words) for words in (listed.needs, listed.establishes, listed.destroys)]
        assert f"| `{name}` | {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") in text
    for property_, meaning in MEANING.items():
        assert f"*{property_}*: {meaning}" in text
