"""The golden harness: text inputs whose printed outputs are kept and reviewed as diffs (``golden/README.md``).

A case is a file under ``golden/`` whose first line is ``// RUN: dnnc ...`` (``# RUN:`` where ``//`` is no comment). What the
command prints is its sibling ``NAME.out.ir``; with ``--print-folder %d`` it is the folder ``NAME/`` with one file per pass;
a case with ``// error: ...`` comments must fail with exactly these errors, each on its line, and prints nothing.

Invariants: every output parses, prints back the same and verifies; an output that no case makes is stale and fails; an
update writes only what differs and removes only what is stale.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ir
from dnnc.driver import pass_context, with_topology
from dnnc.frontends import import_model, load_model, load_topology
from ir import load_module, parse_module, print_module
from ir.diagnostics import Diagnostic, DiagnosticSink, DnncError, Severity, UsageError
from ir.module import Module
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline

ROOT = Path(__file__).resolve().parent.parent / "golden"
_RUN = re.compile(r"\s*(?://|#)\s*RUN:\s*(?P<command>.*\S)\s*")
_MARK = r"(?://|#)\s*(?:error|warning):"
_EXPECT = re.compile(rf"(?://|#)\s*(?P<severity>error|warning):\s*(?P<words>.*?\S)\s*(?={_MARK}|$)")
_NAME = re.compile(r'[%@]?(?:"(?:[^"\\]|\\.)*"|[A-Za-z0-9_./:$-]+)')


class GoldenMismatch(AssertionError):
    """What was printed is not what is kept; the message is the diff and the command that accepts it."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """An ``// error:`` or ``// warning:`` comment: the words, and the line they stand on (0: anywhere, when alone on it)."""

    severity: Severity
    words: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Case:
    """One golden case. ``name`` is its path under ``golden/`` without the suffix: the test id and what ``-k`` takes."""

    path: Path
    name: str
    argv: tuple[str, ...]
    expectations: tuple[Expectation, ...]

    @property
    def fails(self) -> bool:
        return any(e.severity is Severity.ERROR for e in self.expectations)

    @property
    def prints_folder(self) -> bool:
        return "--print-folder" in self.argv


def cases(root: Path = ROOT) -> tuple[Case, ...]:
    """Every case under ``root``, sorted by name."""
    return tuple(case for path in sorted(root.rglob("*")) if (case := read_case(path, root)))


def read_case(path: Path, root: Path) -> Case | None:
    """The case in ``path``, or None where its first line is no RUN line. Raises ValueError for one of another command."""
    if not path.is_file() or path.suffix in (".md", ".onnx", ".data"):
        return None
    lines = path.read_text(encoding="utf-8").split("\n")
    run = _RUN.fullmatch(lines[0])
    if run is None:
        return None
    argv = tuple(shlex.split(run["command"]))
    if argv[:1] != ("dnnc",) or len(argv) < 2:
        raise ValueError(f"{path}: the RUN line must call dnnc, found: {run['command']}")
    expectations = []
    for number, line in enumerate(lines, start=1):
        comments = list(_EXPECT.finditer(line))
        text = line[: comments[0].start()].strip() if comments else ""
        for found in comments:
            expectations.append(Expectation(Severity(found["severity"]), found["words"], number if text else 0, text))
    return Case(path, path.relative_to(root).with_suffix("").as_posix(), argv[1:], tuple(expectations))


def check(case: Case, *, update: bool = False) -> None:
    """Runs ``case`` and compares, or writes when ``update``. Raises GoldenMismatch."""
    sink = DiagnosticSink()
    try:
        outputs = run(case, sink)
    except DnncError as error:
        _check_diagnostics(case, [*error.diagnostics, *sink.diagnostics])
        outputs = {}
    else:
        _check_diagnostics(case, sink.diagnostics)
    for path, text in outputs.items():
        _check_output(path, text)
    found = {path: path.read_text(encoding="utf-8") for path in _kept_outputs(case)}
    if found == outputs:
        return
    if update:
        write(found, outputs)
        return
    message = "".join(diff(path, found.get(path), outputs.get(path)) for path in sorted({*found, *outputs}))
    raise GoldenMismatch(f"{message}\nIf this is what it should print: pytest --update-golden -k {case.name}")


def run(case: Case, sink: DiagnosticSink) -> dict[Path, str]:
    """The outputs of the case's command by the path that keeps them. Raises DnncError as the command would."""
    command = COMMANDS.get(case.argv[0])
    if command is None:
        raise ValueError(f"{case.path}: golden cases run dnnc {' and '.join(COMMANDS)}, not {case.argv[0]}")
    return command(case, sink)


def write(found: dict[Path, str], outputs: dict[Path, str]) -> None:
    """Makes the kept files equal to ``outputs``, touching only those that differ."""
    for path, text in outputs.items():
        if found.get(path) != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in found.keys() - outputs.keys():
        path.unlink()


def stale_outputs(root: Path = ROOT) -> list[Path]:
    """Files under ``root`` that are neither a case, nor an output of one, nor a README."""
    known = {path for case in cases(root) for path in (case.path, *_kept_outputs(case))}
    helpers = {".md", ".onnx", ".data"}
    return [path for path in sorted(root.rglob("*")) if path.is_file() and path not in known and path.suffix not in helpers]


def diff(path: Path, kept: str | None, printed: str | None) -> str:
    """Unified diff of one output; a missing side is an empty file."""
    name = path.relative_to(ROOT.parent).as_posix() if path.is_relative_to(ROOT.parent) else path.name
    before = (kept or "").splitlines(keepends=True)
    after = (printed or "").splitlines(keepends=True)
    labels = (
        f"{name} (kept)" if kept is not None else "/dev/null",
        f"{name} (printed now)" if printed is not None else "/dev/null",
    )
    return "".join(difflib.unified_diff(before, after, *labels))


def _kept_outputs(case: Case) -> Iterator[Path]:
    """The files that are kept as outputs of the case, whether or not they should be."""
    folder = case.path.with_suffix("")
    if case.prints_folder and folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if path.is_file())
    if (single := _single_output(case)).is_file():
        yield single


def _single_output(case: Case) -> Path:
    return case.path.with_suffix(".out.ir")


def _check_output(path: Path, text: str) -> None:
    module = parse_module(text, path.name)
    text = re.sub(r"\A(?://.*\n)+", "", text)  # which passes made it
    if (again := print_module(module)) != text:
        raise GoldenMismatch(f"what is printed does not print back the same:\n{diff(path, text, again)}")
    if faults := ir.verify(module):
        raise GoldenMismatch(f"{path.name} does not verify:\n" + "\n".join(map(str, faults)))


# --- what a case expects to be told --------------------------------------------------------------------------------


def _check_diagnostics(case: Case, diagnostics: list[Diagnostic]) -> None:
    """Each expectation has its diagnostic, and each error its expectation."""
    remaining = list(dict.fromkeys(diagnostics))
    for expected in case.expectations:
        match = next((d for d in remaining if _matches(expected, d)), None)
        if match is None:
            told = "\n".join(map(str, diagnostics)) or "(nothing)"
            place = f"line {expected.line}" if expected.line else "anywhere"
            raise GoldenMismatch(
                f"{case.name}: expected at {place}: {expected.severity.value}: {expected.words}\ntold:\n{told}"
            )
        remaining.remove(match)
    unexpected = [d for d in remaining if d.severity is Severity.ERROR]
    if unexpected:
        raise GoldenMismatch(f"{case.name}: errors that no comment expects:\n" + "\n".join(map(str, unexpected)))


def _matches(expected: Expectation, diagnostic: Diagnostic) -> bool:
    """Words inside the message (or hint), severity equal, place equal.

    The place is the span's line; a diagnostic without a span (a pass knows no text) must name what the line defines."""
    if diagnostic.severity is not expected.severity or expected.words not in f"{diagnostic.message}\n{diagnostic.hint}":
        return False
    if not expected.line:
        return diagnostic.span is None
    if diagnostic.span is not None:
        return diagnostic.span.line == expected.line
    defined = _NAME.findall(expected.text.split("=", 1)[0])
    said = f"{diagnostic.where} {diagnostic.message}"
    return any(_mentions(said, name) for name in defined)


def _mentions(text: str, name: str) -> bool:
    bare = name.lstrip("%@").strip('"')
    return len(bare) > 0 and re.search(rf"(?<![\w.]){re.escape(bare)}(?![\w])", text) is not None


# --- the commands ----------------------------------------------------------------------------------------------------


def _run_opt(case: Case, sink: DiagnosticSink) -> dict[Path, str]:
    """``dnnc opt %s --passes PIPELINE [--print-folder %d] [--topology SPEC]``"""
    parser = _Parser(case)
    parser.add_argument("input")
    parser.add_argument("--passes", required=True)
    parser.add_argument("--print-folder")
    parser.add_argument("-t", "--topology")
    options = parser.parse_args(case.argv[1:])
    pipeline = parse_pipeline(options.passes)
    module = load_module(case.path.read_text(encoding="utf-8"), case.path.name)
    return _run_pipeline(case, module, pipeline, sink, options)


def _run_import(case: Case, sink: DiagnosticSink) -> dict[Path, str]:
    """``dnnc import %s [--dim NAME=VALUE].. [--passes PIPELINE]`` on ONNX text (``onnx.parser``) or a PipeDream profile."""
    import onnx

    parser = _Parser(case)
    parser.add_argument("input")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--passes", default="")
    parser.add_argument("--print-folder")
    parser.add_argument("-t", "--topology")
    options = parser.parse_args(case.argv[1:])
    if case.path.suffix == ".txt":
        return _run_pipeline(case, load_model(str(case.path), {}, sink).module, parse_pipeline(options.passes), sink, options)
    dims = dict(text.split("=", 1) for text in options.dim)
    # onnx.parser knows no `//`; blank lines keep the line numbers of its messages.
    lines = [
        re.sub(r"\s*//\s*(RUN|error|warning)?:?.*$", "", line) for line in case.path.read_text(encoding="utf-8").split("\n")
    ]
    model = onnx.parser.parse_model("\n".join(lines))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{case.path.stem}.onnx"
        onnx.save(model, str(path))
        for data in case.path.parent.glob("*.data"):
            (Path(folder) / data.name).write_bytes(data.read_bytes())
        imported = import_model(path, dims={k: int(v) if v.isdigit() else v for k, v in dims.items()}, sink=sink)
        return _run_pipeline(case, imported.module, parse_pipeline(options.passes), sink, options)


def _run_topology(case: Case, sink: DiagnosticSink) -> dict[Path, str]:
    """``dnnc topology show %s --ir``: the topology of the case's TOML, as IR."""
    parser = _Parser(case)
    parser.add_argument("verb", choices=["show"])
    parser.add_argument("input")
    parser.add_argument("--ir", action="store_true", required=True)
    parser.parse_args(case.argv[1:])
    topology = load_topology(str(case.path), sink)
    return {_single_output(case): print_module(Module(topology.name, (topology,)))}


def _run_pipeline(
    case: Case, module: Module, pipeline: tuple[object, ...], sink: DiagnosticSink, options: argparse.Namespace
) -> dict[Path, str]:
    if options.topology:
        module = with_topology(module, load_topology(options.topology, sink))
    context = pass_context(sink)
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        manager = PassManager(pipeline, print_folder=printed if case.prints_folder else None)  # type: ignore[arg-type]
        module = manager.run(module, context)
        if case.prints_folder:
            target = case.path.with_suffix("")
            return {target / path.name: path.read_text(encoding="utf-8") for path in sorted(printed.iterdir())}
    return {_single_output(case): print_module(module)}


class _Parser(argparse.ArgumentParser):
    """Arguments of a RUN line; a wrong one is a fault of the case."""

    def __init__(self, case: Case) -> None:
        super().__init__(prog=f"{case.name}: dnnc {case.argv[0]}", add_help=False)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{self.prog}: {message}")


COMMANDS: dict[str, Callable[[Case, DiagnosticSink], dict[Path, str]]] = {
    "opt": _run_opt,
    "import": _run_import,
    "topology": _run_topology,
}
