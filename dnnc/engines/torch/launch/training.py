"""Starts the ranks of a training build, follows them, and ends them all when one fails.

Invariants: whatever happens (an error, Ctrl-C, a request to end, the end of this process itself), no process of the training
is left (``dnnc.engines.torch.launch.starting``); what is raised says which rank failed and why
(``dnnc.engines.torch.launch.failures``).

On several hosts ``dnnc train`` runs on each, with its number in ``node``: ranks follow the order of devices in the stages, and
a host takes those whose devices the topology has on it. Hosts are numbered in the order of their first ranks, so rank 0 is on
host 0. Emulated, hosts take equal numbers of ranks, whatever the topology says.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.build.build import plan_of, read_program, require_programs
from dnnc.build.snapshot import TORCH, Snapshot
from dnnc.engines.onnxruntime.transport.edges import anonymous_memory
from dnnc.engines.torch.faults import (
    AveragesMissing,
    CheckpointWithoutDigest,
    LaterCheckpoints,
    NotATrainingBuild,
    OptimizerStateMissing,
    RateEndsAtZero,
    TrainingNotInstalled,
)
from dnnc.engines.torch.files import TrainingFiles
from dnnc.engines.torch.launch.failures import Ended, is_owned
from dnnc.engines.torch.launch.faults import (
    EvaluationOnCluster,
    EvaluationWithoutData,
    MeetingPlaceMissing,
    NoCheckpointFolder,
    NodeOutside,
    NotAFolder,
    OtherNumberOfHosts,
    OtherSeed,
    RanksUneven,
)
from dnnc.engines.torch.launch.job import UNFINISHED, Job
from dnnc.engines.torch.launch.meeting import Meeting, meet_hosts, read_secret
from dnnc.engines.torch.launch.starting import Ranks, started
from dnnc.engines.torch.launch.telling import DONE, STARTING, Progressed
from ir.core.diagnostics import Diagnostic, DiagnosticSink, InvalidInput, UsageError
from ir.core.facets import OptimizerState
from ir.core.types import TensorType, without_layout
from ir.ops.optimizers import EMA_STATE, STATE, state_types
from ir.ops.rates import TABLE
from ir.ops.recipe import Recipe
from ir.system.child import kept_from_forks
from ir.system.scratch import remove_dead, scratch_folder
from passes.graph.graph import listing

if TYPE_CHECKING:
    from dnnc.engines.torch.checkpoint import Checkpoint

_STEP = re.compile(r"step[0-9]{1,18}")
_POLL = 0.05
"""Seconds between two looks at the ranks."""
_REPORTS = 2.0
"""Seconds that other ranks have to say why they end when one has lost them, or saw NaN of theirs: one of them is the reason."""
_SLACK = 10.0
"""Seconds beyond the time-out of ranks, who tell of it themselves, before this process ends them."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What a person asks of ``dnnc train``. ``steps``: to train now. ``last_batch``: ``drop`` or ``use``, empty where nothing
    is said. ``nodes``, ``node``, ``meeting``, ``secret``: how many
    hosts, which this is, HOST:PORT of the first, where they meet, and the file of what they prove to each other there.
    ``slow``: DEVICE=K for each device that waits K seconds for each one that it computes. ``compared``: whoever starts this
    judges losses and weights, also those that are no finite numbers. ``emulate``: the hosts are not those of the plan.
    ``eval_data``, ``eval_every``: on what and after how many steps the model is evaluated (0: after the last); ``patience``:
    evaluations without a better loss after which training stops, 0 for never."""

    steps: int = 1
    data: str = "synthetic"
    last_batch: str = ""
    seed: int = 0
    checkpoint: Path | None = None
    every: int = 0
    resume: Checkpoint | None = None
    out: Path | None = None
    timeout: float = 300.0
    threads: int = 0
    nodes: int = 1
    node: int = 0
    meeting: str = ""
    secret: Path | None = None
    slow: tuple[str, ...] = ()
    compared: bool = False
    emulate: bool = False
    eval_data: str = ""
    eval_every: int = 0
    patience: int = 0

    @property
    def begin(self) -> int:
        """The steps that are done before."""
        return self.resume.position.step if self.resume is not None else 0

    def arguments(self) -> list[str]:
        """The options of a rank, which gets the build and the checkpoint by ``TrainingFiles``."""
        words = ["--steps", str(self.steps), "--data", self.data, "--seed", str(self.seed), "--every", str(self.every)]
        words += ["--last-batch", self.last_batch, "--timeout", str(self.timeout), "--threads", str(self.threads)]
        words += ["--compared"] * self.compared + ["--emulate"] * self.emulate
        words += ["--eval-data", self.eval_data, "--eval-every", str(self.eval_every), "--patience", str(self.patience)]
        words += [word for device in self.slow for word in ("--slow", device)]
        for name, path in (("--checkpoint", self.checkpoint), ("--out", self.out)):
            words += [name, str(path.absolute())] if path is not None else []
        return words

    def alike(self, digest: str) -> dict[str, Any]:
        """What all hosts must have alike, beside which of them this is. ``digest``: of the build."""
        more = {"build": digest, "--steps": self.steps, "--seed": self.seed, "--every": self.every}
        more["--last-batch"] = self.last_batch or "not given"
        more |= {"--eval-data": self.eval_data or "none", "--eval-every": self.eval_every, "--patience": self.patience}
        data = (
            "a file of samples" if self.data.endswith((".npz", ".npy")) else self.data
        )  # ranks compare the samples themselves
        resumed = "none"
        if self.resume is not None:
            position = self.resume.position
            resumed = f"a checkpoint of step {position.step}, seed {position.seed}, SHA-256 {self.resume.contents()}"
        options = {"--checkpoint": self.checkpoint is not None, "--resume": resumed, "--data": data, "--emulate": self.emulate}
        return {"node": self.node, "nodes": self.nodes, **more, **options}


def require_torch(where: str) -> None:
    """Raises UsageError where PyTorch is missing, or what reads checkpoints."""
    missing = [name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(TrainingNotInstalled(tuple(missing)), where=where)


@dataclass(frozen=True)
class TrainingBuild:
    """A training build, whose ``files`` are those that were written. ``labels``: what to call each rank; ``predicted``: seconds
    of a step; ``digest``: of the manifest, which lists the digests of all files; ``devices``: of each rank."""

    files: Snapshot
    labels: tuple[str, ...]
    predicted: float
    digest: str
    devices: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path) -> TrainingBuild:
        """Raises InvalidInput for what is no training build, UsageError where PyTorch is missing."""
        files = Snapshot.open(folder)
        plan = plan_of(files)
        if plan.minimises.trains:
            require_programs(files)
        if files.engine != TORCH:
            raise InvalidInput(NotATrainingBuild(), where=str(folder))
        require_torch("dnnc train")
        at: dict[str, list[str]] = {}
        for stage in plan.stages:
            for device in stage.devices:
                at.setdefault(device, []).append(str(stage.index))
        labels = [f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)} on {device}" for device, stages in at.items()]
        digest = hashlib.sha256(json.dumps(files.manifest, sort_keys=True).encode()).hexdigest()
        return cls(files, tuple(labels), plan.value, digest, tuple(at))

    def ranks_of(self, options: TrainOptions) -> Sequence[int]:
        """The ranks that this host starts. Raises UsageError."""
        every = range(len(self.devices))
        if not options.emulate and options.nodes > 1:
            hosts = [self._host_of.get(device, "") for device in self.devices]
            names = list(dict.fromkeys(hosts))
            if len(names) != options.nodes:
                raise UsageError(OtherNumberOfHosts(len(names), listing(names)), where=f"--nodes {options.nodes}")
            ranks = {node: [rank for rank in every if hosts[rank] == name] for node, name in enumerate(names)}
        else:
            count, rest = divmod(len(every), options.nodes)
            if rest or not count:
                raise UsageError(RanksUneven(options.nodes, len(every)), where="--nodes")
            ranks = {node: [*every[node * count : (node + 1) * count]] for node in range(options.nodes)}
        if options.nodes > 1 and not options.meeting:
            raise UsageError(MeetingPlaceMissing(), where="--meet")
        if options.node not in ranks:
            raise UsageError(NodeOutside(options.node, options.nodes), where="--node")
        return ranks[options.node]

    def host(self, rank: int) -> str:
        """The host of a rank in the topology."""
        return self._host_of.get(self.devices[rank], "")

    @cached_property
    def _host_of(self) -> Mapping[str, str]:
        from ir.core.topology import Topology

        topology = read_program(self.files).first(Topology)
        return {device.name: device.host for device in topology.devices} if topology is not None else {}


def require_folders(options: TrainOptions) -> None:
    """Raises UsageError where there is no folder to write to."""
    if options.every and options.checkpoint is None:
        raise UsageError(NoCheckpointFolder(), where="--every")
    for flag, folder in (("--checkpoint", options.checkpoint), ("--out", options.out)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise UsageError(NotAFolder(), where=f"{flag} {folder}")


def require_own_seed(resume: Checkpoint | None, seed: int | None) -> None:
    """Raises UsageError for another seed than that of the checkpoint."""
    if resume is not None and seed not in (None, resume.position.seed):
        raise UsageError(OtherSeed(resume.where, resume.position.seed), where=f"--seed {seed}")


def require_evaluable(options: TrainOptions, cluster: object) -> None:
    """Raises UsageError for options of an evaluation that do not go together, or with a cluster."""
    if not options.eval_data:
        for flag, value in (("--eval-every", options.eval_every), ("--patience", options.patience)):
            if value:
                raise UsageError(EvaluationWithoutData(), where=flag)
    elif cluster is not None:
        raise UsageError(EvaluationOnCluster(), where="--eval-data")


def doubts(build: TrainingBuild, options: TrainOptions) -> DiagnosticSink:
    """Warnings before the first step: where steps change nothing, since the schedule of the learning rate has ended at 0, and
    where training goes on from a checkpoint without the optimizer's state, which another optimizer wrote, or without a
    digest; and where the folder for checkpoints holds later ones of another training."""
    sink = DiagnosticSink()
    schedule = Recipe.of(read_program(build.files).entry).schedule
    end = options.begin + options.steps
    lasts = len(schedule.values) if schedule.kind == TABLE else schedule.steps
    if 0 < lasts < end and schedule.at(lasts) == 0:
        sink.warn(RateEndsAtZero(lasts + 1, end), where=f"--steps {options.steps}")
    if options.resume is not None:
        _resumption(build, options.resume, sink)
    if options.checkpoint is not None and (later := _later(options.checkpoint, options.begin)):
        sink.warn(LaterCheckpoints(listing(later), options.begin), where=str(options.checkpoint))
    return sink


def _later(folder: Path, done: int) -> list[str]:
    """The checkpoints in a folder of steps after ``done``, in the order of their steps."""
    from dnnc.engines.torch.checkpoint import is_checkpoint

    steps = sorted(int(path.name.removeprefix("step")) for path in folder.glob("step*") if _STEP.fullmatch(path.name))
    return [f"step{step}" for step in steps if step > done and is_checkpoint(folder / f"step{step}")]


def _resumption(build: TrainingBuild, checkpoint: Checkpoint, sink: DiagnosticSink) -> None:
    """Warnings about a checkpoint from which training goes on."""
    held = set(checkpoint.names)
    if checkpoint.digest is None:
        sink.warn(CheckpointWithoutDigest(), where=checkpoint.where)
    if not checkpoint.position.step:  # the build's own weights, or others', without a step done
        return
    resources = read_program(build.files).resources.values()
    lacking: dict[str, list[str]] = {}
    for resource in resources:
        optimizer = next((facet.name for facet in resource.facets if isinstance(facet, OptimizerState)), "sgd")
        weight = resource.name[1:]  # one that is not there at all is of another model, which the ranks refuse
        type_ = without_layout(resource.type)
        states = state_types(optimizer, type_) if isinstance(type_, TensorType) else {}
        if weight in held and any(f"{weight}.{state}" not in held for state in states):
            lacking.setdefault(optimizer, []).append(weight)
    written = {name.rpartition(".")[2] for name in held}
    before = " or ".join(name for name, states in STATE.items() if not written.isdisjoint(states)) or "sgd"
    for optimizer, weights in lacking.items():
        sink.warn(OptimizerStateMissing(optimizer, listing(weights), before), where=checkpoint.where)
    if Recipe.of(read_program(build.files).entry).ema is not None and EMA_STATE not in written:
        sink.warn(AveragesMissing(), where=checkpoint.where)


def train(
    build: TrainingBuild,
    options: TrainOptions,
    told: Callable[[Progressed], None] = lambda progressed: None,
    warned: Callable[[Diagnostic], None] = lambda diagnostic: None,
    met: Meeting | None = None,
) -> float:
    """Train; ``told`` hears of each step once it is done, ``warned`` of strangers where hosts meet (both on host 0). ``met``:
    where ranks of several hosts find each other, if the hosts need not meet any more. Returns seconds.

    Raises what ended a rank: UsageError, InvalidInput, RuntimeFailure (a fault of a program), StageStopped (a signal, the
    time-out, the machine). Where checkpoints are written, on one host, Ctrl-C ends with the checkpoint of a step to come."""
    began = time.perf_counter()
    numbers = build.ranks_of(options)
    files = TrainingFiles(build.files, options.resume)
    confirm = cache(files.confirm)  # once a step is done all have read their weights, and later nobody does

    pace, interrupted = 1.0, False

    def heard(progressed: Progressed) -> None:
        nonlocal pace
        pace = progressed.seconds
        confirm()
        told(progressed)

    named = str(build.files.folder.absolute())  # tells a person what the process is of; the rank does not open it
    with (
        _jobs(build, options, numbers, warned, met) as (jobs, passed),
        scratch_folder() as folder,
        files.handed() as (memory, inherited),
        _tidied(options.checkpoint),
        started(
            jobs,
            [named, "--handed", str(memory), *options.arguments(), *["--apart"] * (met is not None)],
            [*passed, *inherited],
            options.threads or 1,
            folder,
        ) as ranks,
    ):
        try:
            hung = _follow(ranks, options.timeout + _SLACK, heard)
        except KeyboardInterrupt:
            alone = options.checkpoint is not None and options.nodes == 1 and not options.compared and not options.meeting
            if not alone or not ranks.listening.ask_to_end(ranks.doing(), pace):
                raise
            interrupted = True
            hung = _follow(ranks, options.timeout + _SLACK, heard)  # another Ctrl-C ends it at once
        doing = ranks.doing()
    for progressed in ranks.listening.steps:  # told since, by ranks that end
        heard(progressed)
    if interrupted:
        raise KeyboardInterrupt
    ends = {rank: status for rank, status in ranks.ends.items() if rank not in ranks.terminated}
    ended = Ended(build.labels, ranks.listening.failures, doing, ends, tuple(ranks.last_lines), apart=options.nodes > 1)
    if hung:
        raise ended.hangs(sorted(doing), options.timeout + _SLACK)
    if any(ranks.ends.values()) or any(words != DONE for words in doing.values()):
        raise ended.reason(options.timeout)
    confirm()
    return time.perf_counter() - began


@contextmanager
def _tidied(folder: Path | None) -> Iterator[None]:
    """Removes, in the end, what ranks that were killed left of checkpoints in this folder."""
    try:
        yield
    finally:
        if folder is not None:
            remove_dead(path for pattern in UNFINISHED for path in folder.glob(pattern))


@contextmanager
def _jobs(
    build: TrainingBuild,
    options: TrainOptions,
    numbers: Sequence[int],
    warned: Callable[[Diagnostic], None],
    met: Meeting | None,
) -> Iterator[tuple[list[Job], list[int]]]:
    """The jobs of the ranks of this host, and the descriptors that all of them inherit, once the hosts have met."""
    with ExitStack() as stack:
        alive, mine = os.pipe()
        marks, memory = anonymous_memory(0), anonymous_memory(0)
        for descriptor in (alive, mine, marks, memory):
            stack.callback(os.close, descriptor)
        stack.enter_context(kept_from_forks(mine))  # its end of file tells the ranks that this process has ended
        job = Job(0, 0, len(build.labels), alive, -1, marks, f"/proc/self/fd/{memory}")
        listen = None
        if options.nodes > 1:
            if met is None:
                secret = read_secret(options.secret)
                claims = options.alike(build.digest)
                met = stack.enter_context(meet_hosts(options.meeting, secret, claims, options.timeout, warned))
            job, listen = replace(job, store=met.store, address=met.address), met.listen
        job = replace(job, beside=tuple(numbers))
        jobs = [replace(job, rank=rank, local_rank=local_rank) for local_rank, rank in enumerate(numbers)]
        yield [replace(one, listen=None if one.rank else listen) for one in jobs], [memory]


def _follow(ranks: Ranks, limit: float, told: Callable[[Progressed], None]) -> bool:
    """Pass on what the ranks tell until they end, or one fails. Returns whether, instead, all of them have stood still for
    ``limit`` seconds."""
    before: dict[int, str] = {}
    changed, failed = time.monotonic(), math.inf
    while not ranks.poll():
        if ranks.hear(_POLL):
            changed = time.monotonic()
        steps, ranks.listening.steps = ranks.listening.steps, []
        for progressed in steps:
            told(progressed)
        now = ranks.doing()
        if any(status or now.get(rank) != DONE for rank, status in ranks.ends.items()):
            failed = min(failed, time.monotonic())
            others = {one["rank"] for one in ranks.listening.failures if not is_owned(one)}
            if not others.issuperset(ranks.ends) or time.monotonic() - failed > _REPORTS:
                return False
        if now != before or not now or STARTING in now.values():  # ranks bound the time of their start
            before, changed = now, time.monotonic()
        elif time.monotonic() - changed > limit:
            return True
    return False
