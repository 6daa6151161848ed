"""Runs ``dnnc`` on made inputs, in forked processes, and judges how each run ends.

Everything is imported once, then a worker is forked per batch of cases and calls ``dnnc.cli.main`` on one after another: a
case costs milliseconds, and a crash, a hang or memory that grows costs a worker and not the run. A case is a folder with the
input files, and the arguments of one command; it is made from its name alone, so a name is enough to see it again.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import resource
import select
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from ir.core.diagnostics import ExitCode
from tests.fuzz.verdict import CPU_LIMIT, MEMORY_LIMIT, Result, crash_place, faults_of, left_behind

CORPUS = Path(__file__).parent / "corpus"
WALL_LIMIT = 120.0
"""Seconds without an answer, on a machine that others use too."""
IDLE_LIMIT = 25.0
"""Seconds in which a command that has not answered uses no CPU: it waits for what does not come."""
BATCH = 100
"""Cases of one worker: what a case leaves in its memory ends with it."""
HOSTILE = 0.2
"""Part of the inputs, after each hostile one was tried once, that are made to break something rather than mutated."""

Make = Callable[[Random, Path, Path], list[str]]
"""Writes the input files of one case into a folder and returns the arguments; the second folder is the surface's base."""


@dataclass(frozen=True, slots=True)
class Surface:
    """One kind of input. ``make``: a mutated input; ``hostile``: inputs made to break something, each of which every run
    begins with; ``prepare`` writes into the base folder what all cases share; ``judge`` says what is wrong with a run that
    ended well, from the case's folder, the base and the result; ``quick``: mutated inputs in each run of the slow tests."""

    name: str
    make: Make
    hostile: tuple[Make, ...] = ()
    prepare: Callable[[Path], None] = lambda base: None
    judge: Callable[[Path, Path, Result], str] = lambda folder, base, result: ""
    quick: int = 40


@dataclass(slots=True)
class Tally:
    """What a run found: executions by exit code, failures by signature, the heaviest and slowest case."""

    executions: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[Result]] = field(default_factory=dict)
    slowest: Result = field(default_factory=lambda: Result(""))
    heaviest: Result = field(default_factory=lambda: Result(""))

    def add(self, result: Result) -> None:
        self.executions += 1
        self.codes["failed" if result.faults else str(result.code)] += 1
        self.slowest = max(self.slowest, result, key=lambda r: r.seconds)
        self.heaviest = max(self.heaviest, result, key=lambda r: r.memory)
        if result.faults:
            self.failures.setdefault(result.signature, []).append(result)


# --- the parent: which cases, which workers -----------------------------------------------------------------------------


def case_names(surface: Surface, seed: int) -> Iterator[str]:
    """The corpus, then every hostile input, then mutations without end."""
    for folder in sorted((CORPUS / surface.name).glob("*/command")):
        yield f"corpus/{folder.parent.name}"
    for number in range(len(surface.hostile)):
        yield f"hostile/{seed}/{number}"
    number = 0
    while True:
        yield f"mutated/{seed}/{number}"
        number += 1


def fuzz(surface: Surface, *, seed: int, seconds: float, executions: int, jobs: int, failures: Path) -> Tally:
    """Runs cases until the time or the number is used up; keeps the folders of failing ones in ``failures``."""
    tally = Tally()
    names = case_names(surface, seed)
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="dnnc-fuzz-work-") as scratch:
        base = Path(scratch) / "base"
        base.mkdir()
        _warm_up()
        _prepare(surface, base)
        workers = [_Worker(surface, base, Path(scratch) / f"worker{number}", failures) for number in range(jobs)]
        planned = 0
        try:
            while True:
                for worker in workers:
                    if worker.idle and planned < executions and time.monotonic() < deadline:
                        batch = [next(names) for _ in range(min(BATCH, executions - planned))]
                        planned += len(batch)
                        worker.start(batch)
                busy = [worker for worker in workers if not worker.idle]
                if not busy:
                    return tally
                select.select([worker.pipe for worker in busy], [], [], 0.5)
                for worker in busy:
                    for result in worker.results():
                        tally.add(result)
                    if time.monotonic() > deadline:
                        worker.cases = worker.cases[:1]
        finally:
            for worker in workers:
                worker.kill()


@functools.cache
def _warm_up() -> None:
    """Imports what commands import and loads the compiled kernels."""
    import dnnc.compile.driver
    import dnnc.engines.onnxruntime
    import dnnc.engines.onnxruntime.write
    import dnnc.onnx.importer.read
    import dnnc.workloads.solve
    import dnnc.workloads.verify_plan  # noqa: F401
    from dnnc.cli.app import tree

    tree()
    with tempfile.TemporaryDirectory() as folder:
        from dnnc.cli import main

        plan = ["compile", "zoo:mlp,layers=3,hidden=8,inputs=8", "-t", "preset:cpu-2", "-o", f"{folder}/b", "--plan-only", "-q"]
        if main(plan) or main([*plan, "--mesh", "2"]):
            raise SystemExit("the command does not work on a small model")


def _prepare(surface: Surface, base: Path) -> None:
    """Lets the surface write its base in a process of its own: no thread may be left in this one, which is to be forked."""

    def prepare() -> None:
        _quiet()
        surface.prepare(base)

    _forked(prepare)


def _quiet() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)


def _forked(action: Callable[[], None]) -> None:
    """Runs ``action`` in a child; raises SystemExit when it fails."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("the inputs of the surface could not be prepared")


class _Worker:
    """A forked process that runs a batch of cases, and what the parent knows of it."""

    def __init__(self, surface: Surface, base: Path, scratch: Path, failures: Path) -> None:
        self.surface, self.base, self.scratch, self.failures = surface, base, scratch, failures
        self.cases: list[str] = []
        self.pid = 0
        self.pipe = -1
        self._partial = b""
        self._stop_at = 0.0
        self._cpu_at_start = 0.0
        self._cpu = 0.0
        self._idle_since = 0.0

    @property
    def idle(self) -> bool:
        return not self.cases

    def start(self, cases: list[str]) -> None:
        """Forks a process for ``cases``."""
        self.cases = cases
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os.close(reader)
            try:
                run_batch(self.surface, self.base, self.scratch, self.failures, cases, writer)
                os._exit(0)
            except BaseException:  # a fault of the fuzzer itself
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(70)
        os.close(writer)
        self.pipe = reader
        self._partial = b""
        self._begin()

    def _begin(self) -> None:
        self._stop_at = time.monotonic() + WALL_LIMIT
        self._cpu = self._cpu_at_start = _cpu_seconds(self.pid)
        self._idle_since = time.monotonic()

    def results(self) -> Iterator[Result]:
        """What the worker has answered, and what its silence means: it died, or it does not answer."""
        while self.cases and select.select([self.pipe], [], [], 0)[0]:
            data = os.read(self.pipe, 1 << 20)
            if not data:
                status = self._reap()
                yield self._lost(f"died: {signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else status}")
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                result = Result(**json.loads(line))
                assert result.case == self.cases[0], "answers come in order"
                del self.cases[0]
                self._begin()
                yield result
                if not self.cases:
                    self._reap(kill=True)  # of a batch that was cut short, the rest is not wanted
                    return
        if self.cases:
            now, cpu = time.monotonic(), _cpu_seconds(self.pid)
            if cpu > self._cpu:
                self._cpu, self._idle_since = cpu, now
            used = cpu - self._cpu_at_start
            if used > CPU_LIMIT or now > self._stop_at or now - self._idle_since > IDLE_LIMIT:
                self._reap(kill=True)
                yield self._lost(f"no answer: {used:.0f} s of CPU", used)

    def _lost(self, fault: str, seconds: float = 0.0) -> Result:
        """The case that the worker did not survive, kept; another worker goes on with the rest."""
        case, *rest = self.cases
        self.cases = []
        result = Result(case, seconds=seconds, faults=[fault])
        with suppress(OSError, ValueError):
            result.arguments = shlex.split((self.scratch / "command").read_text())[1:]
            result.stderr = (self.scratch / "stderr").read_text(errors="replace")[:2000]
        keep(self.scratch / "case", result, self.failures / self.surface.name)
        if rest:
            self.start(rest)
        return result

    def _reap(self, kill: bool = False) -> int:
        if kill:
            os.killpg(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        status = os.waitpid(self.pid, 0)[1]
        self.pid = 0
        return status

    def kill(self) -> None:
        if self.pid:
            with suppress(OSError):
                self._reap(kill=True)


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and of the children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def keep(folder: Path, result: Result, failures: Path) -> None:
    """Copies a failing case beside its command and what went wrong, unless there are enough of its kind."""
    kind = re.sub(r"[^\w.-]+", "_", result.signature)[:100]
    if len(list(failures.glob(f"{kind}.*"))) >= 3:
        return
    target = failures / f"{kind}.{result.case.replace('/', '-')}"
    with suppress(OSError, shutil.Error):
        shutil.copytree(folder, target, symlinks=True, ignore_dangling_symlinks=True, dirs_exist_ok=True, copy_function=_copy)
    target.mkdir(parents=True, exist_ok=True)
    (target / "command").write_text(shlex.join(["dnnc", *result.arguments]) + "\n", encoding="utf-8", errors="backslashreplace")
    (target / "result.json").write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")


def _copy(source: str, target: str) -> None:
    if os.path.isfile(source) and os.path.getsize(source) < 64 << 20:
        shutil.copyfile(source, target, follow_symlinks=False)


# --- the worker: one case after another ---------------------------------------------------------------------------------


def run_batch(surface: Surface, base: Path, scratch: Path, failures: Path, cases: list[str], answers: int) -> None:
    """Runs the cases in this process and writes one line of JSON per case to the descriptor ``answers``."""
    os.nice(5)
    scratch.mkdir(exist_ok=True)
    os.environ.update(TMPDIR=str(scratch / "tmp"), COLUMNS="120", NO_COLOR="1")
    tempfile.tempdir = None
    _redirect(scratch)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = size + MEMORY_LIMIT + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for case in cases:
        result = run_case(surface, base, scratch, case)
        if result.faults:
            keep(scratch / "case", result, failures / surface.name)
        result.stdout, result.stderr = result.stdout[:500], result.stderr[:4000]
        with open(answers, "ab", closefd=False) as pipe:
            pipe.write(json.dumps(asdict(result)).encode() + b"\n")


def run_case(surface: Surface, base: Path, scratch: Path, case: str) -> Result:
    """Makes one case, runs the command on it and judges."""
    folder, temporary = scratch / "case", scratch / "tmp"
    for path in (folder, temporary):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    arguments = make_case(surface, base, folder, case)
    os.chdir(folder)
    (scratch / "command").write_text(shlex.join(["dnnc", *arguments]), errors="backslashreplace")
    before = {path for path in folder.rglob("*")}
    result = run_command(case, arguments, scratch)
    result.faults += faults_of(result)
    result.faults += left_behind(arguments, result.code, folder, before, temporary)
    if not result.faults and result.code == 0 and (wrong := surface.judge(folder, base, result)):
        result.faults.append(wrong)
    return result


def make_case(surface: Surface, base: Path, folder: Path, case: str) -> list[str]:
    """Writes the files of the case named ``case`` and returns its arguments."""
    kind, _, rest = case.partition("/")
    if kind == "corpus":
        source = CORPUS / surface.name / rest
        shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True)
        return [word.replace("{base}", str(base)) for word in shlex.split((source / "command").read_text(encoding="utf-8"))[1:]]
    rng = Random(f"{surface.name}/{case}")
    if kind == "hostile":
        return surface.hostile[int(rest.partition("/")[2])](rng, folder, base)
    make = rng.choice(surface.hostile) if surface.hostile and rng.random() < HOSTILE else surface.make
    return make(rng, folder, base)


def run_command(case: str, arguments: list[str], scratch: Path) -> Result:
    """Runs ``main`` with standard output and error in files, and measures it."""
    from dnnc.cli import main

    result = Result(case, arguments)
    for stream in (1, 2):
        os.ftruncate(stream, 0)
        os.lseek(stream, 0, os.SEEK_SET)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory starts anew
    resident = _status("VmRSS")
    began, children = time.process_time(), _children_seconds()
    try:
        result.code = main(arguments)
    except BaseException as error:
        result.faults.append(f"uncaught: {type(error).__name__}: {error}")
    result.seconds = time.process_time() - began + _children_seconds() - children
    result.memory = max(0, _status("VmHWM") - resident)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    for name in ("stdout", "stderr"):
        data = (scratch / name).read_bytes()[: 8 << 20]
        try:
            setattr(result, name, data.decode())
        except UnicodeDecodeError:
            setattr(result, name, data.decode(errors="replace"))
            if len(data) < 8 << 20:
                result.faults.append(f"{name} is not UTF-8")
    if result.code == ExitCode.INTERNAL:
        result.place = crash_place(scratch / "tmp")
    return result


def _redirect(scratch: Path) -> None:
    """Standard output and error of this process and its children go to two files; standard input is empty."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(scratch / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(file, stream)
        text = io.TextIOWrapper(
            io.FileIO(stream, "w", closefd=False), encoding="utf-8", errors="strict", write_through=stream == 2
        )
        setattr(sys, name, text)


def _status(key: str) -> int:
    """Bytes that ``/proc/self/status`` states for ``key``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    return 0


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
