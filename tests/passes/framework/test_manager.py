"""The pass manager: what it runs, checks, shows and leaves behind."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

import passes.framework.registry as registry
from ir import Func, Module, attr, parse_module, print_module
from ir.core.diagnostics import Diagnostic, InvalidInput, InvariantError
from ir.core.topology import Topology
from passes import AnalysisCache, Pass, PassContext, PassCrash, PassManager, parse_pipeline, pipeline_of
from passes.costs.network import network
from passes.framework.base import needed
from passes.graph.folding import expand, folding
from tests.passes.staging import devices

TEXT = """module @m {
  func @main(%x : tensor<4xf32>) -> (%y : tensor<4xf32>) {
    %y = onnx.Relu(%x) : tensor<4xf32>
  }
}
"""


@dataclass(frozen=True)
class MarkPass(Pass):
    """Write a mark on the module."""

    name: ClassVar[str] = "mark"
    text: str = "seen"

    def run(self, module: Module, context: PassContext) -> Module:
        context.count(self.name, marks=1)
        return replace(module, attributes=(("mark", attr(self.text)),))


@dataclass(frozen=True)
class RebuildPass(Pass):
    """Make an equal module of other objects."""

    name: ClassVar[str] = "rebuild"

    def run(self, module: Module, context: PassContext) -> Module:
        return replace(module, symbols=tuple(replace(s) for s in module.symbols))


@dataclass(frozen=True)
class BreakPass(Pass):
    """Read a value that nobody makes."""

    name: ClassVar[str] = "break"

    def run(self, module: Module, context: PassContext) -> Module:
        func = module.entry
        return module.replace(func, replace(func, ops=(replace(func.ops[0], operands=("%nowhere",)),)))


@dataclass(frozen=True)
class CrashPass(Pass):
    """Raise what no pass should."""

    name: ClassVar[str] = "crash"
    fault: str = "bug"

    def run(self, module: Module, context: PassContext) -> Module:
        if self.fault == "input":
            raise InvalidInput(Diagnostic("the model is at fault"))
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        raise RuntimeError("two\nlines")


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (MarkPass, RebuildPass, BreakPass, CrashPass):
        monkeypatch.setitem(registry.LISTED, cls.name, registry.Listed(f"{__name__}:{cls.__name__}"))


@pytest.fixture
def module() -> Module:
    return parse_module(TEXT)


def test_passes_run_in_order_and_each_is_reported(module: Module) -> None:
    seen: list[str] = []
    context = PassContext()
    manager = PassManager([MarkPass("a"), MarkPass("b"), RebuildPass()], on_pass=lambda name, seconds: seen.append(name))
    result = manager.run(module, context)
    assert dict(result.attributes)["mark"].value == "b"
    assert seen == ["mark", "mark", "rebuild"]
    assert [(r.text, r.changed, r.ops) for r in manager.reports] == [
        ("mark{text=a}", True, 1),
        ("mark{text=b}", True, 1),
        ("rebuild", False, 1),
    ]
    assert all(r.seconds >= 0 for r in manager.reports)
    assert context.statistics == {"mark": {"marks": 1}}


def test_an_equal_result_is_no_change_and_keeps_the_objects(module: Module) -> None:
    """What analyses were cached for stays valid."""
    manager = PassManager([RebuildPass()])
    assert manager.run(module) is module


def test_stop_after_runs_the_first_passes_only(module: Module) -> None:
    result = PassManager([MarkPass("a"), MarkPass("b")], stop_after=1).run(module)
    assert dict(result.attributes)["mark"].value == "a"
    assert PassManager([CrashPass()], stop_after=0).run(module) is module


def test_broken_ir_names_the_pass(module: Module) -> None:
    with pytest.raises(InvariantError, match="nowhere") as caught:
        PassManager([MarkPass(), BreakPass(), MarkPass()]).run(module)
    assert caught.value.culprit == "break"
    PassManager([BreakPass()], verify=False).run(module)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"print_before": ["rebuild"]}, ["before rebuild"]),
        ({"print_after": ["rebuild"]}, ["after rebuild (no change)"]),
        ({"print_after": ["all"]}, ["after mark", "after rebuild (no change)"]),
        ({"print_on_change": True}, ["after mark"]),
        ({}, []),
    ],
)
def test_prints_are_ir_text_with_a_title(module: Module, options: dict[str, object], shown: list[str]) -> None:
    stream = io.StringIO()
    result = PassManager([MarkPass(), RebuildPass()], stream=stream, **options).run(module)  # type: ignore[arg-type]
    text = stream.getvalue()
    titles = [line.strip("/- ") for line in text.splitlines() if line.startswith("// -----")]
    assert titles == shown
    if shown:
        assert parse_module(text[text.rindex("// -----") :]) == result


def test_a_folder_gets_one_numbered_file_per_pass(module: Module, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"
    result = PassManager([MarkPass(), RebuildPass()], print_folder=folder).run(module)
    assert sorted(path.name for path in folder.iterdir()) == ["00-input.ir", "10-mark.ir", "20-rebuild.ir"]
    assert parse_module((folder / "00-input.ir").read_text()) == module
    assert parse_module((folder / "20-rebuild.ir").read_text()) == result


def test_numbers_of_files_sort_in_the_order_of_passes(module: Module, tmp_path: Path) -> None:
    PassManager([MarkPass(str(i)) for i in range(11)], print_folder=tmp_path).run(module)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[1] == "010-mark.ir"
    assert names[-1] == "110-mark.ir"


def test_a_folder_on_change_holds_only_what_changed(module: Module, tmp_path: Path) -> None:
    PassManager([MarkPass(), RebuildPass()], print_folder=tmp_path, print_on_change=True).run(module)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00-input.ir", "10-mark.ir"]


@pytest.mark.parametrize(("culprit", "error"), [("crash", PassCrash), ("break", InvariantError)])
def test_a_crash_leaves_a_reproducer_that_crashes_again(
    module: Module, tmp_path: Path, culprit: str, error: type[Exception]
) -> None:
    path = tmp_path / "crash.ir"
    manager = PassManager(parse_pipeline(f'mark{{text="a b"}},{culprit},mark'), reproducer=path)
    with pytest.raises(error) as caught:
        manager.run(module)
    assert str(path) in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    text = path.read_text()
    assert pipeline_of(text) == f"{culprit},mark", "the passes before the crash have run"
    again = parse_module(text)
    assert dict(again.attributes)["mark"].value == "a b"
    with pytest.raises(error):
        PassManager(parse_pipeline(pipeline_of(text) or "")).run(again)


def test_a_crash_without_a_place_for_it_names_the_pass(module: Module) -> None:
    with pytest.raises(PassCrash, match=r"pass 'crash' failed with RuntimeError: two") as caught:
        PassManager([CrashPass()]).run(module)
    assert caught.value.reproducer is None
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(("fault", "error"), [("input", InvalidInput), ("interrupt", KeyboardInterrupt)])
def test_what_is_no_bug_goes_through_without_a_reproducer(
    module: Module, tmp_path: Path, fault: str, error: type[BaseException]
) -> None:
    path = tmp_path / "crash.ir"
    with pytest.raises(error):
        PassManager([CrashPass(fault)], reproducer=path).run(module)
    assert not path.exists()


@pytest.mark.parametrize("text", ["cost{unknown=2},fold", 'partition{cuts=["%a\'b"]}', "place"])
def test_the_pipeline_of_a_reproducer_survives_the_shell(text: str) -> None:
    import shlex

    assert pipeline_of(f"// RUN: dnnc opt %s --passes {shlex.quote(text)}\nmodule @m {{}}\n") == text
    assert pipeline_of("module @m {}\n") is None


def test_an_analysis_is_computed_once_per_function(module: Module) -> None:
    cache = AnalysisCache()
    calls: list[str] = []

    def count(func: Func) -> int:
        calls.append(func.name)
        return len(func.ops)

    analysis: Callable[[Func], int] = count
    other = replace(module.entry)
    assert [cache.get(analysis, f) for f in (module.entry, module.entry, other)] == [1, 1, 1]
    assert len(calls) == 2, "an equal function of another identity is asked again"


def test_the_analysis_cache_keeps_no_module_alive(module: Module) -> None:
    """A program that keeps one context for all it plans holds what it still uses, whatever its analyses gave."""
    context = PassContext()
    made = PassManager([MarkPass()]).run(module, context).extend([devices(3)])
    topology = needed(made, Topology)
    for _ in range(2):
        assert context.analyses.get(expand, made) is made, "it is not folded"
        assert context.analyses.get(folding, made.entry, made).blocks == ()
        assert context.analyses.get(network, topology) is network(topology)
    of_module, of_topology = weakref.ref(made), weakref.ref(topology)
    del made, topology
    gc.collect()
    assert of_module() is None
    network.cache_clear()  # which keeps the last two topologies
    assert of_topology() is None


def test_a_print_of_a_run_is_what_the_printer_prints(module: Module, tmp_path: Path) -> None:
    result = PassManager([MarkPass()], print_folder=tmp_path).run(module)
    assert (tmp_path / "10-mark.ir").read_text() == "// made by mark\n" + print_module(result)
