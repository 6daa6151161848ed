"""Pipeline text: reads into passes, prints back, and says where and what is wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import passes.framework.registry as registry
from ir import Module
from ir.core.diagnostics import UsageError
from passes import PASSES, PIPELINES, Pass, PassContext, describe, parse_pipeline, pipeline_text
from passes.framework.earlier import PIPELINES as EARLIER
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.cost import CostPass


@dataclass(frozen=True)
class EveryPass(Pass):
    """A pass with an option of each type."""

    name: ClassVar[str] = "every"
    text: str = "word"
    whole: int = 3
    real: float = 0.5
    flag: bool = False
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = (1, 2)
    limit: float | None = None

    def run(self, module: Module, context: PassContext) -> Module:
        return module


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.LISTED, "every", registry.Listed(f"{__name__}:EveryPass"))


def test_options_are_read_by_the_types_of_the_fields() -> None:
    text = 'cost, every{text="a, b", whole=-4,real=1e-3,flag,names=[%x/y:0, "odd, ]name"],numbers=[],limit=2.5}\n,canonicalize'
    assert parse_pipeline(text) == (
        CostPass(),
        EveryPass("a, b", -4, 1e-3, True, ("%x/y:0", "odd, ]name"), (), 2.5),
        CanonicalizePass(),
    )


def test_one_value_is_a_list_of_one() -> None:
    assert parse_pipeline("canonicalize{dims=batch=8}") == (CanonicalizePass(dims=("batch=8",)),)


def test_blank_text_is_no_pass() -> None:
    assert parse_pipeline(" \n") == ()


def test_canonical_text_leaves_out_defaults_and_quotes_what_needs_it() -> None:
    assert pipeline_text([CostPass(), EveryPass(whole=4, names=("a", "b c"))]) == 'cost,every{whole=4,names=[a,"b c"]}'


@given(
    st.builds(
        EveryPass,
        text=st.text(),
        whole=st.integers(),
        real=st.floats(allow_nan=False),
        flag=st.booleans(),
        names=st.lists(st.text()).map(tuple),
        numbers=st.lists(st.integers()).map(tuple),
        limit=st.none() | st.floats(allow_nan=False),
    )
)
def test_text_of_any_options_reads_back_equal(step: EveryPass) -> None:
    text = pipeline_text((step, CostPass()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.LISTED, "every", registry.Listed(f"{__name__}:EveryPass"))
        assert parse_pipeline(text) == (step, CostPass())
        assert pipeline_text(parse_pipeline(text)) == text


@pytest.mark.parametrize(
    ("text", "line", "column", "words", "hint"),
    [
        ("cost,partitoin", 1, 6, "unknown pass 'partitoin'", "did you mean 'partition'?"),
        ("cost{unknwon=1}", 1, 6, "pass 'cost' has no option 'unknwon'", "did you mean 'unknown'?"),
        ("cost{unknown=many}", 1, 14, "expected a whole number, found 'many'", ""),
        ("cost{unknown=1.5}", 1, 14, "expected a whole number, found '1.5'", ""),
        ("every{flag=perhaps}", 1, 12, "expected true or false, found 'perhaps'", ""),
        ("every{whole}", 1, 7, "expected a whole number, found nothing", ""),
        ("every{whole=[1]}", 1, 7, "expected a whole number, found a list", ""),
        ("cost{unknown=1,unknown=2}", 1, 16, "option 'unknown' is given twice", ""),
        ("default-inference{x=1}", 1, 1, "is a pipeline, not a pass", "canonicalize,cost"),
        ("cost,,cost", 1, 6, "found ',', expected a name", "for example"),
        ("cost,\ncost{", 2, 6, "found the end, expected a name or '}'", "for example"),
        ("cost cost", 1, 6, "found 'cost', expected ',' or '{'", "for example"),
        ("cost}", 1, 5, "found '}'", "for example"),
        ('every{text="open}', 1, 12, "found '\"'", "for example"),
    ],
)
def test_a_fault_is_located_and_names_what_was_meant(text: str, line: int, column: int, words: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pipeline(text, "--passes")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.span is not None
    assert (diagnostic.where, diagnostic.span.line, diagnostic.span.column) == ("--passes", line, column)
    assert words in diagnostic.message
    assert hint in diagnostic.hint


def test_all_faults_of_a_text_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_pipeline("csot,every{whole=x,relly=1},canonicalise")
    assert len(caught.value.diagnostics) == 4


def test_the_caret_stands_under_the_fault() -> None:
    with pytest.raises(UsageError) as caught:
        parse_pipeline("cost,csot")
    assert str(caught.value).split("\n")[1:3] == ["  cost,csot", "       ^^^^"]


@pytest.mark.parametrize("name", list(PASSES))
def test_every_listed_pass_loads_and_describes_itself(name: str) -> None:
    info = describe(name)
    assert info.name == name == PASSES[name].name
    assert info.help.endswith(".")
    assert len(info.options) == len(dataclasses.fields(PASSES[name]))
    assert parse_pipeline(name) == (PASSES[name](),), "a name alone is valid pipeline text"


@pytest.mark.parametrize("name", list(PIPELINES))
def test_every_named_pipeline_stands_for_its_passes(name: str) -> None:
    assert parse_pipeline(name) == parse_pipeline(PIPELINES[name]) != ()


def test_importing_the_package_loads_no_pass_and_nothing_heavy() -> None:
    code = "import sys, json, passes; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    heavy = {
        "lark",
        "numpy",
        "networkx",
        "numba",
        "onnx",
        "passes.prepare.cost",
        "passes.prepare.canonicalize",
        "passes.partition",
    }
    assert heavy.isdisjoint(loaded)


@pytest.mark.parametrize("text", ["cost{unknown=-5}", "canonicalize{fold-bytes=-1}"])
def test_numbers_out_of_range_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="at least 0"):
        parse_pipeline(text)


def test_passes_that_nothing_needs_any_more_are_left_out() -> None:
    assert parse_pipeline("cost,contract{max-ideals=12},partition") == parse_pipeline("cost,partition")


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ("shard", "partition{mesh=auto,stages=1},place"),
        ("shard{mesh=2x4}", "partition{mesh=2x4,stages=1},place"),
        ("shard{stages=0,replicas=0,whole=false}", "partition{mesh=auto,replicas=0},place"),
        ("shard{training=true,memory=1024}", "partition{objective=training,mesh=auto,stages=1,device-memory=1024},place"),
        ("sharded-inference", EARLIER["sharded-inference"]),
        ("sharded-training", EARLIER["sharded-training"]),
    ],
)
def test_names_of_earlier_versions_are_refused_with_the_text_to_write(earlier: str, today: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_pipeline(f"cost,{earlier}")
    (told,) = error.value.diagnostics
    assert (told.hint, told.span.column if told.span else 0) == (f"write {today}", 6)
    assert parse_pipeline(today)
