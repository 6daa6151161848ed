"""Starts the ranks of a training build with torchrun, follows them, and ends them all when one fails.

Invariants: whatever happens (an error, Ctrl-C, a request to end, the end of this process itself), no process of the training
is left; what is raised says which rank failed and why (``dnnc.runtime.torch.failures``).

The ranks of one host are those of its torchrun. On several hosts ``dnnc train`` runs on each, with its number in ``node``:
ranks follow the order of devices in the stages, and each host takes the next of them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dnnc.program.build import PLAN, PROGRAM, TORCH, require_programs
from dnnc.program.plan_json import plan_from_json
from dnnc.program.snapshot import MANIFEST, REBUILD, Snapshot
from dnnc.runtime.torch.failures import FAILURES, STARTING, Ended, doing
from ir.child import module_command, module_environment
from ir.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.facets import OptimizerState
from ir.grads import STATE
from ir.scratch import scratch_folder
from passes.model.graph import listing

if TYPE_CHECKING:
    from dnnc.backend.torch.checkpoint import Checkpoint

_STEP = re.compile(r"step (\d+)  loss (\S+)  (\S+) samples/s  (\S+) s")
_NOISE = re.compile(r"^[WIE]\d{4} .*|.*(OMP_NUM_THREADS|FutureWarning|ProcessGroupGloo).*")
HEAP = {
    name: os.environ.get(name, value) for name, value in (("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", str(1 << 40)))
}
"""Variables by which glibc keeps freed memory, unless somebody set them. Without them each pass of a microbatch gives its
tensors back to the system and takes them page by page anew: a step of an MLP of 2048x2048 weights took 1.4 times as long."""
_POLL = 0.5
_GRACE = 10.0
"""Seconds that torchrun has to end its ranks."""
_SLACK = 10.0
"""Seconds beyond the time-out of ranks, who tell of it themselves, before this process ends them."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What a person asks of ``dnnc train``. ``steps``: to train now. ``nodes``, ``node``, ``meeting``: how many hosts, which
    this is, and HOST:PORT of the first, where they meet. ``slow``: DEVICE=K for each device that waits K seconds for each one
    that it computes."""

    steps: int = 1
    data: str = "synthetic"
    seed: int = 0
    checkpoint: Path | None = None
    every: int = 0
    resume: Path | None = None
    out: Path | None = None
    timeout: float = 300.0
    threads: int = 0
    nodes: int = 1
    node: int = 0
    meeting: str = ""
    slow: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The options of a rank."""
        told = ["--steps", str(self.steps), "--data", self.data, "--seed", str(self.seed), "--every", str(self.every)]
        told += ["--timeout", str(self.timeout), "--threads", str(self.threads)]
        told += [word for device in self.slow for word in ("--slow", device)]
        for name, path in (("--checkpoint", self.checkpoint), ("--resume", self.resume), ("--out", self.out)):
            told += [name, str(path.absolute())] if path is not None else []
        return told


@dataclass(frozen=True, slots=True)
class TrainingBuild:
    """A training build, whose ``files`` are those that were written. ``labels``: what to call each rank; ``predicted``: seconds
    of a step."""

    files: Snapshot
    labels: tuple[str, ...]
    predicted: float

    @classmethod
    def open(cls, folder: Path) -> TrainingBuild:
        """Raises InvalidInput for what is no training build, UsageError where PyTorch is missing."""
        files = Snapshot.open(folder)
        manifest = files.manifest
        plan = plan_from_json(files.json(PLAN), files.where(PLAN))
        if plan.minimises.trains:
            require_programs(files)
        if manifest.get("engine") != TORCH:
            hint = "compile with --objective training and --loss; 'dnnc run' runs a build for inference"
            raise InvalidInput("it is no build for training", where=str(folder), hint=hint)
        missing = [name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(f"training needs {' and '.join(missing)}", where="dnnc train", hint="pip install 'dnnc[train]'")
        try:
            at: dict[str, list[str]] = {}
            for stage in manifest["stages"]:
                for device in stage["devices"]:
                    at.setdefault(str(device), []).append(str(int(stage["index"])))
        except (KeyError, TypeError, ValueError) as error:
            message = f"the manifest does not describe a training build: {error}"
            raise InvalidInput(message, where=str(folder / MANIFEST), hint=REBUILD) from error
        labels = [f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)} on {device}" for device, stages in at.items()]
        return cls(files, tuple(labels), plan.value)

    def ranks_of(self, options: TrainOptions) -> int:
        """How many ranks this host starts. Raises UsageError."""
        count, rest = divmod(len(self.labels), options.nodes)
        if rest or not count:
            hint = f"the plan has {len(self.labels)} devices: choose a divisor of them"
            raise UsageError(f"{options.nodes} hosts cannot take equal numbers of ranks", where="--nodes", hint=hint)
        if options.nodes > 1 and not re.fullmatch(r"[^:]+:\d+", options.meeting):
            raise UsageError("hosts must know where to meet", where="--meet", hint="give HOST:PORT of the first to all of them")
        if not 0 <= options.node < options.nodes:
            raise UsageError(f"this host is {options.node}, of {options.nodes} counted from 0", where="--node")
        return count


def resumption(build: TrainingBuild, checkpoint: Checkpoint) -> DiagnosticSink:
    """A warning where training goes on from a checkpoint without the optimizer's state: another optimizer wrote it."""
    from dnnc.frontends import DIALECTS
    from ir import load_module

    sink, held = DiagnosticSink(), set(checkpoint.names)
    if not checkpoint.position.step:  # the build's own weights, or others', without a step done
        return sink
    text, where = build.files.text(PROGRAM), build.files.where(PROGRAM)
    resources = load_module(text, where=where, dialects=DIALECTS).resources.values()
    lacking: dict[str, list[str]] = {}
    for resource in resources:
        optimizer = next((facet.name for facet in resource.facets if isinstance(facet, OptimizerState)), "sgd")
        weight = resource.name[1:]  # one that is not there at all is of another model, which the ranks refuse
        if weight in held and any(f"{weight}.{state}" not in held for state in STATE[optimizer]):
            lacking.setdefault(optimizer, []).append(weight)
    written = {name.rpartition(".")[2] for name in held}
    before = " or ".join(name for name, states in STATE.items() if states and written.issuperset(states)) or "sgd"
    for optimizer, weights in lacking.items():
        message = f"it holds no state of {optimizer} for {listing(weights)}: this begins at zero"
        sink.warn(message, where=checkpoint.where, hint=f"to go on as before, compile with --optimizer {before}")
    return sink


@dataclass(frozen=True, slots=True)
class Progressed:
    """A step as rank 0 tells of it. ``pace``: samples a second; ``seconds``: that it took."""

    step: int
    loss: float
    pace: float
    seconds: float


def train(
    build: TrainingBuild,
    options: TrainOptions,
    told: Callable[[Progressed], None] = lambda progressed: None,
    more: Mapping[str, str] | None = None,
) -> float:
    """Train; ``told`` hears of each step once it is done (on host 0). Returns seconds. ``more``: variables for the ranks.

    Raises what ended a rank: UsageError, InvalidInput, RuntimeFailure (a fault of a program), StageStopped (a signal, the
    time-out, the machine)."""
    began = time.perf_counter()
    ranks = build.ranks_of(options)
    command = [*module_command("dnnc.runtime.torch.agent"), *_torchrun(options, ranks)]
    command += ["-m", "dnnc.runtime.torch.rank", str(build.files.folder.absolute()), *options.arguments()]
    with scratch_folder() as folder:
        threads = {"OMP_NUM_THREADS": str(options.threads or 1)}
        variables = {FAILURES: str(folder), "PYTHONSAFEPATH": "1", **threads, **HEAP, **(more or {})}
        with _running(command, variables) as (process, said):
            hung = _follow(process, folder, options.timeout + _SLACK, told)
            status = process.wait() if not hung else None
        if hung:
            found = Ended.read(folder, build.labels, tuple(said))
            raise found.hangs(sorted(found.doing), options.timeout + _SLACK)
        if status:
            raise Ended.read(folder, build.labels, tuple(said)).reason(options.timeout)
    return time.perf_counter() - began


def _torchrun(options: TrainOptions, ranks: int) -> list[str]:
    """The options of torchrun: one host finds a free port, several meet where they were told."""
    if options.nodes == 1:
        return ["--standalone", "--nproc-per-node", str(ranks)]
    host, _, port = options.meeting.rpartition(":")
    place = ["--nnodes", str(options.nodes), "--node-rank", str(options.node), "--master-addr", host, "--master-port", port]
    return [*place, "--nproc-per-node", str(ranks)]


@contextmanager
def _running(command: Sequence[str], more: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], deque[str]]]:
    """A process in a session of its own, so that Ctrl-C reaches it through this one alone, and the last lines of its standard
    error. It is gone at the end."""
    said: deque[str] = deque(maxlen=12)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=module_environment(more),
        start_new_session=True,
    )
    assert process.stderr is not None
    listener = threading.Thread(target=_listen, args=(process.stderr, said), daemon=True)
    listener.start()
    try:
        yield process, said
    finally:
        _end(process)
        listener.join(1.0)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _listen(pipe: IO[bytes], said: deque[str]) -> None:
    with suppress(OSError, ValueError):
        for line in pipe:
            text = line.decode(errors="replace").rstrip()
            if text and not _NOISE.match(text):
                said.append(text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End torchrun, which ends its ranks. Ranks end too when it is killed (``rank``)."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def _follow(process: subprocess.Popen[bytes], folder: Path, limit: float, told: Callable[[Progressed], None]) -> bool:
    """Pass on what the ranks say until they end. Returns whether, instead, all of them have stood still for ``limit``
    seconds."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    before: Any = None
    changed, rest = time.monotonic(), b""
    while True:
        if select.select([pipe], [], [], _POLL)[0]:
            data = os.read(pipe, 1 << 16)
            if not data:
                return False
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if match := _STEP.match(line.decode(errors="replace")):
                    told(Progressed(int(match[1]), *(float(text) for text in match.groups()[1:])))
            changed = time.monotonic()
        now = doing(folder)
        if now != before or not now or STARTING in now.values():  # ranks bound the time of their start
            before, changed = now, time.monotonic()
        elif time.monotonic() - changed > limit:
            return True


__all__ = ["Progressed", "TrainOptions", "TrainingBuild", "resumption", "train"]
