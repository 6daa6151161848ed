"""Runs a pipeline: passes in order, each one timed, verified, and shown on request.

Invariants: after each pass the module verifies, else InvariantError names the pass; a pass changed the module exactly when the
result is not equal to what it got; a fault of the input (DnncError) goes through untouched; whatever else goes wrong in a
pass leaves a reproducer, where a path for it was given: the module as the pass got it, and the rest of the pipeline in
its first line.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import ir
from ir.core.diagnostics import DnncError, InvalidInput, InvariantError, Span
from ir.core.module import Func, Module, Program, Stage
from passes.framework.base import Pass, PassContext
from passes.framework.faults import RunLineCount, RunLineQuotes
from passes.framework.order import check_order
from passes.framework.pipeline import made_by, pass_text, pipeline_text

_LOG = logging.getLogger("dnnc.passes")
_RUN_LINE = re.compile(r"// RUN: dnnc opt %s --passes (?P<passes>.+)")


class PassCrash(Exception):
    """A pass raised what is no fault of the input: a bug. ``reproducer``: the file that replays it, where one was written."""

    def __init__(self, name: str, error: BaseException, reproducer: Path | None) -> None:
        self.pass_name = name
        self.reproducer = reproducer
        kept = f"; `{_replay(reproducer)}` reproduces it" if reproducer else ""
        super().__init__(f"pass '{name}' failed with {type(error).__name__}: {error}{kept}")


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one run of a pass did: its text, seconds in it, and whether anything changed."""

    name: str
    text: str
    seconds: float
    changed: bool
    ops: int


class PassManager:
    """Runs ``passes`` in order over a module.

    ``verify``: check the module after each pass. ``print_before``, ``print_after``: names of passes around which the module is
    printed, ``all`` for every one; ``print_on_change``: print after each pass that changed it. Prints go to ``stream``
    (stderr), or to ``print_folder``: ``00-input.ir``, then one file per pass, ``10-cost.ir``, ``20-fold.ir``..: every pass,
    unless one of the three conditions selects. ``start_after``, ``stop_after``: the first so many passes ran already; run the
    first N passes only. ``reproducer``: file written
    when a pass crashes. ``on_pass(name, seconds)`` is called after each pass. ``expanded``: give the module back without
    ``fold``'s blocks.

    After ``run``, ``reports`` tells what each pass did.
    """

    def __init__(
        self,
        passes: Iterable[Pass],
        *,
        verify: bool = True,
        print_before: Collection[str] = (),
        print_after: Collection[str] = (),
        print_on_change: bool = False,
        print_folder: Path | None = None,
        stream: TextIO | None = None,
        start_after: int = 0,
        stop_after: int | None = None,
        reproducer: Path | None = None,
        on_pass: Callable[[str, float], None] | None = None,
        expanded: bool = False,
    ) -> None:
        self.passes = tuple(passes)
        self.verify = verify
        self.print_before = frozenset(print_before)
        self.print_after = frozenset(print_after)
        self.print_on_change = print_on_change
        self.print_folder = print_folder
        self.stream = stream
        self.start_after = start_after
        self.stop_after = stop_after
        self.reproducer = reproducer
        self.on_pass = on_pass
        self.expanded = expanded
        self.reports: list[PassReport] = []
        self.given: Module | None = None

    def run(self, module: Module, context: PassContext | None = None) -> Module:
        """The module after the pipeline. Nothing runs where a pass of it, up to the last, would miss what it needs (``order``).

        Raises DnncError for a fault of the input, InvariantError when a pass broke the IR, PassCrash when one failed."""
        context = context or PassContext()
        self.reports = []
        self.given = module
        check_order(self.passes[self.start_after :], module)
        if self.print_folder is not None:
            self.print_folder.mkdir(parents=True, exist_ok=True)
            if not self.start_after:
                self._write("00-input.ir", module, 0)
        steps = self.passes[self.start_after : self.stop_after]
        view = _View(module, context)
        for number, step in enumerate(steps, start=self.start_after + 1):
            if _selects(self.print_before, step.name):
                self._show(f"{self._label(number, step)}.before", f"before {step.name}", view.folded(), number - 1)
            view.changed(self._step(number, step, view.expanded() if step.by_op else view.folded(), context))
            report = self.reports[-1]
            asked = _selects(self.print_after, step.name) or (self.print_on_change and report.changed)
            everything = self.print_folder is not None and not (self.print_before or self.print_after or self.print_on_change)
            if asked or everything:
                change = "" if report.changed else " (no change)"
                self._show(self._label(number, step), f"after {step.name}{change}", view.folded(), number)
            if self.on_pass is not None:
                self.on_pass(step.name, report.seconds)
        return view.expanded() if self.expanded else view.folded()

    def _step(self, number: int, step: Pass, module: Module, context: PassContext) -> Module:
        """Runs one pass, checks what it made, and files its report."""
        start = time.perf_counter()
        try:
            result = step.run(module, context)
            seconds = time.perf_counter() - start
            changed = result is not module and result != module
            if self.verify and changed and (faults := ir.verify(result, dialects=context.dialects)):
                raise InvariantError(faults, step.name)
        except (DnncError, MemoryError, OSError):  # faults of the input or of the machine, told as such
            raise
        except InvariantError as error:
            self._blame_input(error, context)
            if kept := self._reproduce(number, module, error):
                error.add_note(f"`{_replay(kept)}` reproduces it")
            raise
        except Exception as error:
            self._blame_input(error, context)
            raise PassCrash(step.name, error, self._reproduce(number, module, error)) from error
        ops = sum(len(symbol.ops) for symbol in result.symbols if isinstance(symbol, Func | Stage | Program))
        self.reports.append(PassReport(step.name, pass_text(step), seconds, changed, ops))
        _LOG.debug("%s: %.3f s, %d ops%s", self.reports[-1].text, seconds, ops, "" if changed else ", no change")
        return result if changed else module

    def _blame_input(self, error: BaseException, context: PassContext) -> None:
        """Raises InvalidInput where the module broke an invariant before the first pass: no pass is to blame then."""
        if self.given is not None and (faults := ir.verify(self.given, dialects=context.dialects)):
            raise InvalidInput(faults) from error

    def _label(self, number: int, step: Pass) -> str:
        """``10-cost``: numbers leave room, as wide as the last one, so that names sort in the order of the passes."""
        return f"{number * 10:0{len(str(len(self.passes) * 10))}d}-{step.name}"

    def _show(self, label: str, title: str, module: Module, ran: int) -> None:
        """Prints ``module``, which the first ``ran`` passes made."""
        if self.print_folder is not None:
            self._write(f"{label}.ir", module, ran)
        else:
            text = made_by(self.passes[:ran]) + ir.print_module(module)
            print(f"// ----- {title} -----\n{text}", file=self.stream or sys.stderr)

    def _write(self, name: str, module: Module, ran: int) -> None:
        assert self.print_folder is not None
        (self.print_folder / name).write_text(made_by(self.passes[:ran]) + ir.print_module(module), encoding="utf-8")

    def _reproduce(self, number: int, module: Module, error: BaseException) -> Path | None:
        """Writes the module before pass ``number`` with the rest of the pipeline in its first line."""
        if self.reproducer is None:
            return None
        pipeline = pipeline_text(self.passes[number - 1 : self.stop_after])
        words = " ".join(f"{type(error).__name__}: {error}".split())
        header = (
            f"// RUN: dnnc opt %s --passes {shlex.quote(pipeline)}\n// Pass '{self.passes[number - 1].name}' failed: {words}\n"
        )
        try:
            self.reproducer.parent.mkdir(parents=True, exist_ok=True)
            self.reproducer.unlink(missing_ok=True)
            with open(self.reproducer, "x", encoding="utf-8", opener=_private) as file:  # it holds the user's model
                file.write(header + ir.print_module(module))
        except OSError:  # a full disk; the crash itself is what must be told
            return None
        return self.reproducer


class _View:
    """A module as passes want it: as it is, or expanded. ``before``, while one that was folded is expanded: what it was, and
    what that was expanded."""

    def __init__(self, module: Module, context: PassContext) -> None:
        self.module, self.context = module, context
        self.before: tuple[Module, Module] | None = None

    def changed(self, module: Module) -> None:
        self.module = module

    def expanded(self) -> Module:
        from passes.graph.folding import expand

        if self.before is None:
            whole = self.context.analyses.get(expand, self.module)
            self.before = (self.module, whole) if whole is not self.module else None
            self.module = whole
        return self.module

    def folded(self) -> Module:
        """The module, folded again where it was."""
        from passes.graph.folding import refolded

        if self.before is not None:
            self.module, self.before = refolded(*self.before, self.module), None
        return self.module


def pipeline_of(text: str, where: str = "") -> str | None:
    """The pipeline text that the RUN line of an IR text names (a reproducer, a golden case), or None without one. Raises
    InvalidInput for a RUN line that no shell would read; ``where`` names the text."""
    found = _RUN_LINE.match(text)
    if found is None:
        return None
    span = Span(1, found.start("passes") + 1, len(found["passes"]), found[0])
    try:
        words = shlex.split(found["passes"])
    except ValueError as error:
        raise InvalidInput(RunLineQuotes(str(error)), where=where, span=span) from None
    if len(words) != 1:
        raise InvalidInput(RunLineCount(len(words)), where=where, span=span)
    return words[0]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _replay(reproducer: Path) -> str:
    """The command that replays a reproducer, as a shell takes it."""
    return f"dnnc opt {shlex.quote(str(reproducer))}"


def _selects(names: frozenset[str], name: str) -> bool:
    return name in names or "all" in names
