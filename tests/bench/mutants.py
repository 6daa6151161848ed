"""How many broken lines the tests catch: ``python -m tests.bench.mutants [--seed 0] [--count 120] [--rooms ROOM;..]``.

A mutant is this checkout with one line broken: a comparison moved by one or turned round, operands swapped, a ``not`` dropped,
a constant changed, a result lost. Strings, messages (``raise``), docstrings, annotations and decorators stay as they are. The
lines are drawn from the seed, equally many of each room of ROOMS, so they depend on the sources alone.

Each mutant is judged by the quick tests of its room (``pytest -x``, the test files nearest to the broken file first) in a
copy of the checkout, until a test fails or ``--seconds`` (60) of CPU time are spent. Printed are a line for each mutant and the
sums of each room. A test that fails without its mutant too has caught nothing: the tests that failed run once more at the end.

To compare two sets of tests: ``--tree DIR`` takes ``tests`` and ``golden`` of another checkout (the same mutants, judged by
other tests), and ``--caught LOG`` judges only the mutants that an earlier run caught, first by the test that caught each. They
are found by their text, so that the sources may have changed in between; those whose line is no more, or stands twice, are
printed as ``gone``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.machine import header

REPO = Path(__file__).resolve().parents[2]
SECONDS = 60.0  # of CPU time, for each mutant
PATIENCE = 8  # wall time of a mutant may be that many times its CPU time: tests wait for processes
SOURCES = ("grammars", "ir", "passes", "dnnc")
TESTS = ("tests", "golden")
ROOMS = {  # room: the test folders that judge it
    "ir/text": ("tests/ir/text", "tests/ir/core", "tests/grammars"),
    "ir/layout_rules": ("tests/ir/layout_rules", "tests/passes/partition/layouts"),
    "passes/prepare/canonicalize": ("tests/passes/prepare/canonicalize",),
    **{f"passes/{room}": (f"tests/passes/{room}",) for room in ("graph", "costs", "meshes", "stages", "timeline")},
    "passes/partition": ("tests/passes/partition",),
    "passes/partition/layouts": ("tests/passes/partition/layouts",),
    "dnnc/onnx": ("tests/dnnc/onnx",),
    "dnnc/compile": ("tests/dnnc/compile", "tests/dnnc/cli"),
    "dnnc/engines": ("tests/dnnc/engines",),
    "dnnc/cli": ("tests/dnnc/cli",),
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Mult: ast.Add}
TURNED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)  # a - b becomes b - a
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
SKIPPED = (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One line of one file and what it becomes."""

    path: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.before.strip()}  ->  {self.after.strip()}"


@dataclass(frozen=True)
class Verdict:
    """What judging a mutant gave: the test that failed (or an empty text), the CPU seconds, and whether they ran out."""

    mutant: Mutant
    test: str
    seconds: float
    stopped: bool = False


def replacements(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Every expression or statement of a module that may be broken, with the text that replaces it."""
    for node in _code(tree):
        match node:
            case ast.Compare(left, [op], [right]):
                yield node, ast.unparse(ast.Compare(left, [COMPARISONS[type(op)]()], [right]))
            case ast.BinOp(left, op, right) if type(op) in OPERATIONS and not _is_text(left, right):
                yield node, f"({ast.unparse(ast.BinOp(left, OPERATIONS[type(op)](), right))})"
            case ast.BinOp(left, ast.Sub() | ast.Div() | ast.FloorDiv() | ast.Pow() as op, right):
                yield node, f"({ast.unparse(ast.BinOp(right, op, left))})"
            case ast.UnaryOp(ast.Not(), operand):
                yield node, f"({ast.unparse(operand)})"
            case ast.BoolOp(op, values):
                yield node, f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))})"
            case ast.Call(ast.Name(name), arguments, keywords) if name in CALLS:
                yield node, ast.unparse(ast.Call(ast.Name(CALLS[name]), arguments, keywords))
            case ast.Constant(bool(value)):
                yield node, str(not value)
            case ast.Constant(int(value)):
                yield node, str(value + 1)
            case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
                yield node, "return None"
            case ast.Continue():
                yield node, "break"
            case ast.Expr(ast.Call()):
                yield node, "pass"


def _is_text(*operands: ast.expr) -> bool:
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str)) for each in operands
    )


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module that run: no annotation, decorator, message, or block for a type checker."""
    if isinstance(node, SKIPPED) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "type_params") and not _is_strict(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _code(child)


def _is_strict(node: ast.AST) -> bool:
    """Whether this is ``strict=`` of ``zip``: to drop the check changes nothing that the program computes."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def mutants(room: str, count: int, seed: int) -> list[Mutant]:
    """``count`` lines of a room, drawn from all that can be broken; each is broken in one way, drawn too."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted((REPO / room).rglob("*.py")):
        name = path.relative_to(REPO).as_posix()
        text = path.read_text()
        for node, new in replacements(ast.parse(text)):
            if node.lineno == node.end_lineno:
                line = text.split("\n")[node.lineno - 1]
                raw = line.encode()
                after = (raw[: node.col_offset] + new.encode() + raw[node.end_col_offset :]).decode()
                lines.setdefault((name, node.lineno), []).append(Mutant(name, node.lineno, line, after))
    draw = random.Random(f"{seed}:{room}")
    chosen = draw.sample(sorted(lines), min(count, len(lines)))
    return [draw.choice(lines[each]) for each in sorted(chosen)]


def judges(tests: Path, room: str, path: str) -> list[str]:
    """The test files of a room: those named like the broken file first, then those that name its module, then the others."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    files = [file for folder in ROOMS[room] for file in sorted((tests / folder).rglob("test_*.py"))]

    def distance(file: Path) -> int:
        if file.stem == f"test_{Path(path).stem}":
            return 0
        text = file.read_text()
        return 1 if module in text else 2 if module.rpartition(".")[0] in text else 3

    return [file.relative_to(tests).as_posix() for file in sorted(files, key=distance)]


def spent(process: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def pytest(tree: Path, scratch: Path, arguments: list[str], seconds: float) -> tuple[int | None, str, float]:
    """Runs pytest in ``tree``. Returns its exit code (None where it was stopped), what it printed and its CPU seconds."""
    log, temporary = scratch / "log", scratch / "t"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tree), "TMPDIR": str(temporary), "CI": "true"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    began, used, code = time.monotonic(), 0.0, None
    while (code := process.poll()) is None and used < seconds and time.monotonic() - began < PATIENCE * seconds:
        time.sleep(0.1)
        used = max(used, spent(process.pid))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    text = log.read_text(errors="replace")
    shutil.rmtree(temporary, ignore_errors=True)
    return code, text, used


def failed(text: str) -> list[str]:
    """The tests that pytest's summary names."""
    named = (
        line.split(" - ")[0].removeprefix("FAILED ").removeprefix("ERROR ") for line in text.splitlines() if _is_failure(line)
    )
    return list(dict.fromkeys(named))


def _is_failure(line: str) -> bool:
    return line.startswith(("FAILED tests/", "ERROR tests/"))


def caught_by(log: str, room: str) -> Iterator[tuple[Mutant, str]]:
    """The mutants of a room that an earlier run printed as caught, each with the test that failed."""
    lines = (re.fullmatch(r"(tests/.*?) +\d+ s  (\S+):\d+  (.*)  ->  (.*)", line) for line in log.splitlines())
    for match in filter(None, lines):
        test, name, before, after = match.groups()
        if not name.startswith(f"{room}/"):
            continue
        paths = [REPO / name] if (REPO / name).exists() else sorted((REPO / room).rglob(Path(name).name))
        places = [
            (path, number, line)
            for path in paths
            for number, line in enumerate(path.read_text().split("\n"), 1)
            if line.strip() == before
        ]
        if len(places) != 1:
            print(f"{'gone':10}        {name}  {before}  ->  {after}")
            continue
        ((path, number, line),) = places
        indent = line[: len(line) - len(line.lstrip())]
        yield Mutant(path.relative_to(REPO).as_posix(), number, line, indent + after), test


def judge(mutant: Mutant, room: str, pristine: Path, scratch: Path, seconds: float, first: str = "") -> Verdict:
    """Runs the room's tests in a copy of ``pristine`` in which the mutant's line is broken, before them the test ``first``."""
    tree = scratch / "m"
    shutil.copytree(pristine, tree, copy_function=os.link)
    path = tree / mutant.path
    lines = path.read_text().split("\n")
    lines[mutant.line - 1] = mutant.after
    path.unlink()
    path.write_text("\n".join(lines))
    text = ""
    if first and (tree / first.split("::")[0]).exists():
        code, text, used = pytest(tree, scratch, ["-x", first], seconds)
    if not failed(text):
        code, text, used = pytest(tree, scratch, ["-x", *judges(tree, room, mutant.path)], seconds)
    shutil.rmtree(tree, ignore_errors=True)
    if code is None or code == 0:
        return Verdict(mutant, "", used, stopped=code is None)
    return Verdict(mutant, next(iter(failed(text)), f"pytest ended with {code}"), used)


def without_false(verdicts: list[Verdict], pristine: Path, scratch: Path) -> list[Verdict]:
    """Those verdicts, but a test that fails without a mutant too has caught nothing."""
    tests = sorted({each.test for each in verdicts if "::" in each.test})
    if not tests:
        return verdicts
    _, text, _ = pytest(pristine, scratch, tests, 600.0)
    false = failed(text)
    for test in false:
        print(f"fails without a mutant: {test}")
    return [replace(each, test="") if each.test in false else each for each in verdicts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=120, help="mutants of all rooms together")
    parser.add_argument("--rooms", default=";".join(ROOMS), help="rooms, separated by ;")
    parser.add_argument("--tree", type=Path, default=REPO, help="the checkout whose tests judge")
    parser.add_argument("--caught", type=Path, help="what an earlier run printed: judge those that it caught")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="CPU time for each mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants and judge none")
    arguments = parser.parse_args()
    rooms = arguments.rooms.split(";")
    if unknown := [room for room in rooms if room not in ROOMS]:
        parser.error(f"no such room: {', '.join(unknown)} (there are {', '.join(ROOMS)})")
    firsts: dict[Mutant, str] = {}
    if arguments.caught:
        of_log = {room: list(caught_by(arguments.caught.read_text(), room)) for room in rooms}
        firsts = dict(pair for pairs in of_log.values() for pair in pairs)
        chosen = {room: [mutant for mutant, _ in pairs] for room, pairs in of_log.items()}
    else:
        chosen = {room: mutants(room, arguments.count // len(rooms), arguments.seed) for room in rooms}
    if arguments.list:
        print("\n".join(str(each) for group in chosen.values() for each in group))
        return
    os.nice(10)
    print(header(), flush=True)
    verdicts: dict[str, list[Verdict]] = {}
    with tempfile.TemporaryDirectory(prefix="dnnc-mutants-") as name:
        scratch = Path(name)
        pristine = scratch / "p"
        for folder in SOURCES + TESTS:
            shutil.copytree((arguments.tree if folder in TESTS else REPO) / folder, pristine / folder)
        shutil.copy2(REPO / "README.md", pristine)
        shutil.copy2(REPO / "pyproject.toml", pristine)
        for room, group in chosen.items():
            for mutant in group:
                verdict = judge(mutant, room, pristine, scratch, arguments.seconds, firsts.get(mutant, ""))
                verdicts.setdefault(room, []).append(verdict)
                print(f"{_word(verdict):10} {verdict.seconds:3.0f} s  {mutant}", flush=True)
        everything = without_false([each for group in verdicts.values() for each in group], pristine, scratch)
    by_room = Counter(each.mutant.path for each in everything if each.test)
    print(f"{'room':22} mutants caught stopped")
    for room, judged in verdicts.items():
        caught = sum(bool(each.test) for each in everything if each.mutant in {one.mutant for one in judged})
        print(f"{room:22} {len(judged):7} {caught:6} {sum(each.stopped for each in judged):7}")
    print(f"{'all':22} {len(everything):7} {by_room.total():6} {sum(each.stopped for each in everything):7}")


def _word(verdict: Verdict) -> str:
    return verdict.test or ("stopped" if verdict.stopped else "missed")


if __name__ == "__main__":
    main()
