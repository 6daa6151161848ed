"""The golden harness: text inputs whose printed outputs are kept and reviewed as diffs (``golden/README.md``).

A case is a file under ``golden/`` whose first line is ``// RUN: dnnc ...`` (``# RUN:`` where ``//`` is no comment). What the
command prints is its sibling ``NAME.out.ir``; with ``--print-folder %d`` it is the folder ``NAME/`` with one file per pass;
a case with ``// error: ...`` comments must fail with exactly these errors, each on its line, and prints nothing.

The command itself runs, in this process, and what it writes to standard error is read back as diagnostics.

Invariants: every output parses, prints back the same and verifies; an output that no case makes is stale and fails; an
update writes only what differs and removes only what is stale.
"""

from __future__ import annotations

import difflib
import io
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import ir
from dnnc.cli import entry as cli
from dnnc.onnx import DIALECTS
from ir import parse_module, print_module
from ir.core.diagnostics import Diagnostic, ExitCode, Severity, Span

ROOT = Path(__file__).resolve().parent.parent / "golden"
_RUN = re.compile(r"\s*(?://|#)\s*RUN:\s*(?P<command>.*\S)\s*")
_MARK = r"(?://|#)\s*(?:error|warning):"
_EXPECT = re.compile(rf"(?://|#)\s*(?P<severity>error|warning):\s*(?P<words>.*?\S)\s*(?={_MARK}|$)")
_SAID = re.compile(
    r"(?:(?P<where>.*?)(?::(?P<line>\d+):(?P<column>\d+))?: )?"
    r"(?P<severity>error|warning|note)(?:\[\w+\])?: (?P<message>.*)",
    re.DOTALL,
)
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
    outputs, told = run(case)
    _check_diagnostics(case, told)
    for path, text in outputs.items():
        _check_output(path, text)
    found = {path: path.read_text(encoding="utf-8") for path in kept_outputs(case)}
    if found == outputs:
        return
    if update:
        write(found, outputs)
        return
    message = "".join(diff(path, found.get(path), outputs.get(path)) for path in sorted({*found, *outputs}))
    raise GoldenMismatch(f"{message}\nIf this is what it should print: pytest --update-golden -k {case.name}")


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
    known = {path for case in cases(root) for path in (case.path, *kept_outputs(case))}
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


def kept_outputs(case: Case) -> list[Path]:
    """The files that are kept as outputs of the case, in the order of its passes, whether or not they should be."""
    folder = case.path.with_suffix("")
    files = sorted(folder.iterdir()) if case.prints_folder and folder.is_dir() else []
    return [path for path in (*files, _single_output(case)) if path.is_file()]


def _single_output(case: Case) -> Path:
    return case.path.with_suffix(".out.ir")


def _check_output(path: Path, text: str) -> None:
    module = parse_module(text, path.name)
    text = re.sub(r"\A(?://.*\n)+", "", text)  # which passes made it
    if (again := print_module(module)) != text:
        raise GoldenMismatch(f"what is printed does not print back the same:\n{diff(path, text, again)}")
    if faults := ir.verify(module, dialects=DIALECTS):
        raise GoldenMismatch(f"{path.name} does not verify:\n" + "\n".join(map(str, faults)))


# --- what a case expects to be told --------------------------------------------------------------------------------


def _check_diagnostics(case: Case, told: Told) -> None:
    """Each expectation has its diagnostic, and each error its expectation; a fault of the case is none of dnnc."""
    diagnostics = told.diagnostics
    if told.code == ExitCode.INTERNAL:
        raise GoldenMismatch(f"{case.name}: a fault inside dnnc:\n" + "\n".join(map(str, diagnostics)))
    remaining = list(dict.fromkeys(diagnostics))
    for expected in case.expectations:
        match = next((d for d in remaining if _matches(expected, d)), None)
        if match is None:
            said = "\n".join(map(str, diagnostics)) or "(nothing)"
            place = f"line {expected.line}" if expected.line else "anywhere"
            raise GoldenMismatch(
                f"{case.name}: expected at {place}: {expected.severity.value}: {expected.words}\ntold:\n{said}"
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


# --- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """What a command printed: data, diagnostics, exit code."""

    text: str
    diagnostics: tuple[Diagnostic, ...]
    code: int


def run(case: Case) -> tuple[dict[Path, str], Told]:
    """The outputs of the case's command by the path that keeps them, and what it told. ``dnnc`` itself runs, in this process:
    ``%s`` is the case (as an ONNX file, where it is ONNX text), ``%d`` an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        given = _input(case, Path(folder))
        argv = [str({"%s": given, "%d": printed}.get(word, word)) for word in case.argv]
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = cli.run(argv)
        told = Told(out.getvalue(), tuple(_diagnostics(err.getvalue(), given)), code)
        if code:
            return {}, told
        if case.prints_folder:
            target = case.path.with_suffix("")
            return {target / path.name: path.read_text(encoding="utf-8") for path in sorted(printed.iterdir())}, told
        return {_single_output(case): told.text}, told


def _input(case: Case, folder: Path) -> Path:
    """The file that stands for ``%s``."""
    if case.path.suffix != ".onnxtxt":
        return case.path
    import onnx

    # onnx.parser knows no `//`; blank lines keep the line numbers of its messages.
    lines = [
        re.sub(r"\s*//\s*(RUN|error|warning)?:?.*$", "", line) for line in case.path.read_text(encoding="utf-8").split("\n")
    ]
    path = folder / f"{case.path.stem}.onnx"
    onnx.save(onnx.parser.parse_model("\n".join(lines)), str(path))
    for data in case.path.parent.glob("*.data"):
        (folder / data.name).write_bytes(data.read_bytes())
    return path


def _diagnostics(text: str, given: Path) -> Iterator[Diagnostic]:
    """The diagnostics that a command wrote, as it spells them (``Diagnostic.__str__``)."""
    told = text.replace(f"{given.parent}/", "").rstrip("\n")
    for block in re.split(r"\n(?=\S)", told) if told else ():
        first, *others = block.split("\n")
        found = _SAID.fullmatch(first)
        if found is None:
            raise GoldenMismatch(f"what {given.name} was told is no diagnostic: {block}")
        hint = "\n".join(line.removeprefix("  hint: ") for line in others if line.startswith("  hint: "))
        span = Span(int(found["line"]), int(found["column"]), 1) if found["line"] else None
        yield Diagnostic(found["message"], found["where"] or "", span, hint, Severity(found["severity"]))
