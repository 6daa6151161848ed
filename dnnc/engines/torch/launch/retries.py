"""Training that goes on after a process or a host was lost: from the last checkpoint, which holds step and seed, so it ends
with the parameters of a training without the loss."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dnnc.engines.hosts.options import ClusterOptions, require_packages
from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.torch.launch.faults import FolderInUse, GoesOn, RetriesNeedCheckpoints
from dnnc.engines.torch.launch.telling import Progressed
from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions, train
from ir.core.diagnostics import Diagnostic, InvalidInput, UsageError
from ir.system.child import kept_from_forks
from ir.system.digests import Stamp

_PAUSE = 0.5
"""Seconds between two tries to start."""
_NAME = re.compile(r"step([0-9]+)")


class Launch(Protocol):
    """``dnnc.engines.torch.launch.training.train``, or the same on a cluster."""

    def __call__(
        self,
        build: TrainingBuild,
        options: TrainOptions,
        told: Callable[[Progressed], None],
        warned: Callable[[Diagnostic], None],
        /,
    ) -> float: ...


def launched_on(cluster: ClusterOptions | None) -> Launch:
    """Starts the ranks on a cluster, or without one on this host or by hand on several. On a cluster, each start after a
    step was trained waits up to ``cluster.wait`` seconds for nodes: one that was lost comes back, or Ray notices later that it
    has gone."""
    if cluster is None:
        return train
    require_packages()
    from dnnc.engines.torch.launch.on_cluster import training_hosts

    started = False

    def launch(
        build: TrainingBuild,
        options: TrainOptions,
        told: Callable[[Progressed], None],
        warned: Callable[[Diagnostic], None],
    ) -> float:
        nonlocal started
        until = time.monotonic() + (cluster.wait if started else 0.0)
        trains = False

        def heard(done: Progressed) -> None:
            nonlocal started, trains
            started = trains = True
            told(done)

        while True:
            try:
                with training_hosts(build, cluster, warned) as hosts:
                    return hosts.train(options, heard)
            except InvalidInput:
                if trains or time.monotonic() + _PAUSE >= until:
                    raise
            time.sleep(_PAUSE)

    return launch


def train_with_retries(
    launch: Launch,
    build: TrainingBuild,
    options: TrainOptions,
    retries: int,
    told: Callable[[Progressed], None],
    warned: Callable[[Diagnostic], None],
) -> float:
    """Trains; begins again up to ``retries`` times where the machine ended it (StageStopped), with a warning, from the last
    checkpoint that it has written. ``told`` hears of each step once. Returns seconds of all that was done. Raises UsageError
    for retries where no checkpoints are written or several hosts were started by hand, and where another training writes into
    the folder for checkpoints."""
    if retries and (options.checkpoint is None or options.nodes > 1):
        raise UsageError(RetriesNeedCheckpoints(), where="--retries")
    end = options.steps + (options.resume.position.step if options.resume is not None else 0)
    before, heard, began = _checkpoints(options.checkpoint) if retries else {}, 0, time.perf_counter()

    def once(done: Progressed) -> None:
        nonlocal heard
        if done.step > heard:
            heard = done.step
            told(done)

    with _held({} if options.node else {"--checkpoint": options.checkpoint, "--out": options.out}):
        while True:
            try:
                launch(build, options, once, warned)
                return time.perf_counter() - began
            except StageStopped as error:
                if not retries:
                    raise
                from dnnc.engines.torch.checkpoint import Checkpoint

                retries -= 1
                written = {step: found for step, found in _checkpoints(options.checkpoint).items() if found != before.get(step)}
                step = max((step for step in written if step <= end), default=None)
                if step is not None:
                    resumed = Checkpoint.open(written[step][0])
                    resumed.verify()
                    options = replace(options, resume=resumed, steps=end - step)
                at = options.resume.position.step if options.resume is not None else 0
                first = error.diagnostics[0]
                warned(GoesOn(at, first.message, retries).at(first.where))
                if at == end:
                    return time.perf_counter() - began


@contextmanager
def _held(folders: dict[str, Path | None]) -> Iterator[None]:
    """Holds the folders that a training writes into locked, each by its option. The system releases the locks when this process
    ends, however it does. Raises UsageError where another training holds one. Where the file system locks no folders, nothing
    is held. A folder that was made for this and is still empty goes."""
    named = {folder.resolve(): flag for flag, folder in reversed(folders.items()) if folder is not None}
    with ExitStack() as stack:
        for folder, flag in named.items():
            with suppress(OSError):  # also where there can be no folder, which the ranks tell
                if not folder.exists():
                    folder.mkdir(parents=True)
                    stack.callback(_gone_if_empty, folder)
                lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, lock)
                stack.enter_context(kept_from_forks(lock))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UsageError(FolderInUse(), where=f"{flag} {folders[flag]}") from None
        yield


def _gone_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _checkpoints(folder: Path | None) -> dict[int, tuple[Path, Stamp]]:
    """The checkpoints in a folder by their steps, with what tells one from another of its name."""
    from dnnc.engines.torch.checkpoint import INDEX

    found: dict[int, tuple[Path, Stamp]] = {}
    for path in folder.iterdir() if folder is not None and folder.is_dir() else ():
        if name := _NAME.fullmatch(path.name):
            with suppress(OSError), (path / INDEX).open("rb") as file:
                found[int(name[1])] = path, Stamp.of(file.fileno())
    return found
