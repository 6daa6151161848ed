"""Trains on several hosts from one place, the *starter*: launches a process on each host (``host.py``), sends each the files
that its ranks read, hears of steps, and writes what ranks wrote there: parts of checkpoints, and the timeline.

Invariants: a checkpoint has its name here once the parts of all hosts are there; whatever happens, no process of the training
is left on a host; what is raised names the host and the device that ended first, where one is known.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dnnc.engines.cluster.agent import ANSWERS, COMMANDS, ERROR_BYTES, PARTS_LINK, STRIDE, readable
from dnnc.engines.cluster.agents import Agents
from dnnc.engines.cluster.files.parts import PIECES, Part, received, send_parts
from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.cluster.starting import START_SECONDS, Hosts, wanted_keys
from dnnc.engines.hosts.answers import MOST_ANSWER, Answers
from dnnc.engines.hosts.faults import HostGone, HostSilent, NotConnected, PartDamaged
from dnnc.engines.onnxruntime.errors import Interrupted, RuntimeFailure, StageStopped
from dnnc.engines.onnxruntime.transport.edges import Receiver, Sender, config_text
from dnnc.engines.torch.checkpoint.saving import kept, owned, remove_unfinished
from dnnc.engines.torch.checkpoint.stored import file_of, publish
from dnnc.engines.torch.faults import FileNotWritten
from dnnc.engines.torch.files import TrainingFiles
from dnnc.engines.torch.launch.faults import HostLost, RankLost
from dnnc.engines.torch.launch.host import CHECKPOINTS, ERRORS, FILES_LINK
from dnnc.engines.torch.launch.host_files import host_files, sample_files
from dnnc.engines.torch.launch.starting import forward
from dnnc.engines.torch.launch.telling import Progressed
from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions
from ir.core.diagnostics import DnncError, InvalidInput, UsageError
from ir.system.digests import digest_file
from ir.system.scratch import PARTIAL, locked_folder, whole_file

_CHECKPOINT, _TRACE = re.compile(r"(step[0-9]+)/(rank[0-9]+\.safetensors)"), re.compile(r"trace\.json")
_MOST_BYTES = 1 << 62
_STALLED = 15.0
"""Seconds that a host has to say why it ends, or that a rank of it stands still, after another host has lost it; and that
the others have to send parts of checkpoints after one has failed."""
_LOST = (HostLost.code, RankLost.code)
_KINDS = {one.__name__: one for one in (UsageError, InvalidInput, StageStopped, Interrupted, RuntimeFailure)}


@dataclass(slots=True)
class _There:
    """A host with its process. ``failed``: why it ended; ``over``: it has done its part, or has gone."""

    name: str
    number: int
    commands: int
    answers: int
    parts: Sender
    files: Receiver
    ranks: tuple[int, ...]
    over: bool = False
    failed: DnncError | None = None
    data: tuple[str, str] = ("", "")
    buffered: bytes = b""
    lines: list[bytes] = field(default_factory=list)

    @property
    def said(self) -> Answers:
        return Answers(self.name)

    def read(self) -> None:
        """Reads what is there; an empty line stands for the end."""
        data = os.read(self.answers, 1 << 16)
        *lines, self.buffered = (self.buffered + data).split(b"\n")
        if len(self.buffered) > MOST_ANSWER:
            lines, self.buffered = [*lines, self.buffered], b""
        self.lines += lines if data else [b""]

    @property
    def lost(self) -> bool:
        """Whether it ended because another host did not answer."""
        return self.failed is not None and self.failed.diagnostics[0].code in _LOST


class HostsOfTraining:
    """The hosts of a training. ``agents``: launches ``host.py`` on each."""

    def __init__(self, build: TrainingBuild, hosts: Hosts, agents: Agents) -> None:
        self.build = build
        self.hosts = hosts
        self.agents = agents
        self._relay: Relay | None = None
        self._there: list[_There] = []
        self._descriptors: list[int] = []
        self._threads: list[threading.Thread] = []
        self._unfinished: dict[str, Path] = {}
        self._names: list[str] = []
        self._stack = ExitStack()
        self.sent_bytes = 0

    def train(self, options: TrainOptions, told: Callable[[Progressed], None] = lambda progressed: None) -> float:
        """As ``dnnc.engines.torch.launch.training.train``."""
        began = time.perf_counter()
        try:
            with _losses(options, told) as heard:
                self._start(options)
                self._follow(options, heard)
        except ConnectionError as error:
            raise StageStopped(NotConnected(tuple(str(error).split(", "))), where=str(self.build.files.folder)) from None
        finally:
            self.close()
        TrainingFiles(self.build.files, options.resume).confirm()
        return time.perf_counter() - began

    def close(self) -> None:
        """Ends the processes on all hosts and closes everything; may be called again."""
        try:
            if self._relay is not None:
                self._relay.close()  # they end when the starter has gone
            self.agents.close()
        finally:
            while self._descriptors:
                os.close(self._descriptors.pop())
            for thread in self._threads:
                thread.join(1.0)
            for there in self._there:
                there.parts.close()
                there.files.close()
            self._stack.close()
            self._relay, self._there, self._threads = None, [], []

    def _start(self, options: TrainOptions) -> None:
        """Launches all hosts, sends them their files, and lets them begin. Raises ConnectionError and DnncError."""
        self._relay = relay = Relay(self.hosts.here, self.hosts.ports)
        of = [self.hosts.of[device] for device in self.build.devices]
        ranks = {name: tuple(rank for rank, host in enumerate(of) if host == name) for name in dict.fromkeys(of)}
        for name, own in ranks.items():
            self._there.append(self._launch(relay, name, own))
        files, samples = TrainingFiles(self.build.files, options.resume), sample_files(options.data)
        self._names, self._unfinished = [file_of(rank) for rank in owned(files.step, kept(files.step, files.resumed))], {}
        for there in self._there:
            needed = host_files(files, there.ranks, samples)
            self._command(there, self._order(options, needed.to_json()))
            try:
                wanted = wanted_keys(there.said, self._answer(there, "wants", START_SECONDS), needed.needed)
                self.sent_bytes += send_parts(there.parts, needed.needed, wanted)
            except EOFError:
                raise self._gone(there, "it was sent files of the build") from None
        store = "none"
        for there in self._there:
            place, data = there.said.items(self._answer(there, "ready", max(START_SECONDS, options.timeout)), "ready", 2)
            there_name, here_name = (there.said.text(one, "data") for one in there.said.items(data, "data", 2))
            there.data = (there_name, here_name)
            if not there.number:
                store = there.said.place(place, "ready", self.hosts.addresses[there.name])
        for there in self._there:
            self._command(there, {"go": store})

    def _launch(self, relay: Relay, name: str, ranks: tuple[int, ...]) -> _There:
        number, hosts = len(self._there), self.hosts
        offer = self.agents.launch(
            {
                "number": number,
                "host": name,
                "address": hosts.addresses[name],
                "ports": list(hosts.ports),
                "starter": list(relay.offer),
                "cache": hosts.cache,
                "cache_bytes": hosts.cache_bytes,
            }
        )
        peer = f"host {name}"
        try:
            relay.meet({peer: offer})
        except ConnectionError as error:
            devices = ", ".join(self.build.devices[rank] for rank in ranks)
            raise StageStopped(NotConnected((str(error),)), where=f"{devices} of host {name}") from None
        commands_read, commands = os.pipe()
        answers, answers_written = os.pipe()
        errors, errors_written = os.pipe()
        self._descriptors += [commands, answers]
        relay.send_stream(number * STRIDE + COMMANDS, peer, commands_read)
        relay.receive_stream(number * STRIDE + ANSWERS, peer, answers_written)
        relay.receive_stream(number * STRIDE + ERRORS, peer, errors_written, last=ERROR_BYTES)
        thread = threading.Thread(target=forward, args=(os.fdopen(errors, "rb"), _Forgotten()), daemon=True)
        thread.start()
        self._threads.append(thread)
        parts = relay.sender(PARTS_LINK + number, PIECES, peer)
        return _There(name, number, commands, answers, parts, relay.receiver(FILES_LINK + number, PIECES, peer), ranks)

    def _order(self, options: TrainOptions, files: Mapping[str, Any]) -> dict[str, Any]:
        build = self.build
        several = len(self._there) > 1
        labels = [
            f"{label} of host {self.hosts.of[device]}" if several else label
            for label, device in zip(build.labels, build.devices, strict=True)
        ]
        alike = ("steps", "data", "last_batch", "seed", "every", "timeout", "threads", "slow", "compared")
        train = {name: getattr(options, name) for name in alike}
        train |= {"nodes": len(self._there), "checkpoint": options.checkpoint is not None, "out": options.out is not None}
        resumed_from = options.resume.where if options.resume is not None else ""
        listed = {name: build.files.manifest["files"][name] for name in build.files.weights}
        return {
            "train": train,
            "files": {**files, "resumed_from": resumed_from},
            "folder": str(build.files.folder),
            "manifest": {**build.files.manifest, "files": listed},
            "labels": labels,
            "predicted": build.predicted,
            "digest": build.digest,
            "devices": build.devices,
        }

    def _command(self, there: _There, command: Mapping[str, Any]) -> None:
        data = config_text(command)
        while data:
            try:
                data = data[os.write(there.commands, data) :]
            except BrokenPipeError:
                raise self._gone(there, "its ranks are started") from None

    def _answer(self, there: _There, field: str, seconds: float) -> Any:
        """A field of the next answer that has it; while the host hashes files it says so. Raises what the host refuses,
        StageStopped where it has gone, or has said nothing for so many seconds."""
        while True:
            deadline = time.monotonic() + seconds
            while not there.lines:
                if not readable([there.answers], deadline - time.monotonic()):
                    raise StageStopped(HostSilent(there.name, seconds), where=str(self.build.files.folder))
                there.read()
            line = there.lines.pop(0)
            if not line:
                raise self._gone(there, "its ranks are started")
            answer = there.said.line(line)
            if "failed" in answer:
                raise _error(there, answer)
            if field in answer:
                return answer[field]
            if "hashed" not in answer:
                raise there.said.refuse("an answer", sorted(answer), field)

    def _gone(self, there: _There, doing: str) -> StageStopped:
        return StageStopped(HostGone(there.name, doing), where=str(self.build.files.folder))

    def _follow(self, options: TrainOptions, told: Callable[[Progressed], None]) -> None:
        """Hears the hosts until all have done their part. Raises why training ended: the first reason that a host has itself,
        once the others have sent the parts of checkpoints they had written; that one has lost another, when no host tells
        more."""
        deadline: float | None = None
        first: DnncError | None = None
        while running := [there for there in self._there if not there.over]:
            seconds = None if deadline is None else deadline - time.monotonic()
            if seconds is not None and seconds <= 0:
                break
            buffered = any(there.lines for there in running)
            ready = readable([there.answers for there in running], 0.0 if buffered else seconds)
            for there in running:
                if there.answers in ready:
                    there.read()
                while there.lines and not there.over:
                    self._hear(there, there.lines.pop(0), options, told)
                if there.failed is not None and not there.lost and first is None:
                    first, deadline = there.failed, time.monotonic() + _STALLED
                if there.lost and deadline is None:
                    deadline = time.monotonic() + _STALLED
            if first is not None and options.checkpoint is None:
                raise first
        if first is not None:
            raise first
        for there in self._there:
            if there.failed is not None:
                raise there.failed

    def _hear(self, there: _There, line: bytes, options: TrainOptions, told: Callable[[Progressed], None]) -> None:
        if not line:
            there.over, there.failed = True, self._gone(there, "it trained")
            return
        try:
            self._follow_answer(there, there.said.line(line), options, told)
        except InvalidInput as wrong:
            there.over, there.failed = True, wrong

    def _follow_answer(
        self, there: _There, answer: Mapping[str, Any], options: TrainOptions, told: Callable[[Progressed], None]
    ) -> None:
        if "step" in answer:
            told(_progressed(there.said, answer["step"]))
        elif "failed" in answer:
            there.over, there.failed = True, _error(there, answer)
        elif "done" in answer:
            there.over = True
        elif "file" in answer:
            try:
                self._take(there, answer, options)
            except EOFError:
                there.over, there.failed = True, self._gone(there, "it sent a checkpoint")
        else:
            raise there.said.refuse("an answer", sorted(answer), "a step, a file or an end")

    def _take(self, there: _There, answer: Mapping[str, Any], options: TrainOptions) -> None:
        """Writes a file that a rank wrote, and makes a checkpoint once the files of all ranks are there. Raises EOFError when
        its host has gone, InvalidInput where the disk refuses."""
        said, name = there.said, there.said.text(answer["file"], "file")
        folder = options.checkpoint if answer.get("folder") == CHECKPOINTS else options.out
        matched = (_CHECKPOINT if answer.get("folder") == CHECKPOINTS else _TRACE).fullmatch(name)
        if folder is None or matched is None or (matched.groups() and matched[2] not in self._names):
            raise said.refuse("file", name, "the name of a part of a checkpoint or of the timeline")
        try:
            part = Part.from_json(said.items(answer.get("part"), "part", 3))
        except (TypeError, ValueError):
            part = Part("", 0, ())
        if not part.whole or type(part.size) is not int or not 0 <= part.size <= _MOST_BYTES:
            raise said.refuse("part", answer.get("part"), "a whole file")
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder_of(folder, matched[1]) if matched.groups() else None
        path = folder / name if unfinished is None else unfinished / matched[2]
        with whole_file(path) as file:
            stated = b""
            try:
                for offset, data in received(there.files, part):
                    if offset < 0:
                        stated = data
                    else:
                        file.write(data)
            except ValueError as error:
                raise said.refuse("file", str(error), "its bytes") from None
            file.flush()
            os.fsync(file.fileno())  # the host removes its own
            file.seek(0)
            if digest_file(file) != f"sha256:{stated.hex()}":
                raise InvalidInput(PartDamaged(part.key), where=str(path))
        if unfinished is not None and all((unfinished / one).exists() for one in self._names):
            publish(unfinished, self._names, folder / matched[1])
            del self._unfinished[matched[1]]

    def _folder_of(self, folder: Path, name: str) -> Path:
        """Where parts of a checkpoint are until all are there. Raises InvalidInput where there can be none."""
        if name not in self._unfinished:
            remove_unfinished(folder)
            try:
                self._unfinished[name] = self._stack.enter_context(locked_folder(folder, f".{name}.", PARTIAL))
            except OSError as error:
                raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(folder / name)) from error
        return self._unfinished[name]


def _progressed(said: Answers, found: Any) -> Progressed:
    """A step that a host tells of; a loss may be any number."""
    step = said.table(found, "step")
    loss = step.get("loss")
    if not (type(loss) is float or (type(loss) is int and abs(loss) < _MOST_BYTES)):
        raise said.refuse("loss", loss, "a number")
    pace, seconds = (said.real(step.get(name), name, 0.0) for name in ("pace", "seconds"))
    number = said.integer(step.get("step"), "step", 1, _MOST_BYTES)
    return Progressed(number, float(loss), pace, seconds, said.text(step.get("samples"), "samples"))


@contextmanager
def _losses(options: TrainOptions, told: Callable[[Progressed], None]) -> Iterator[Callable[[Progressed], None]]:
    """``told``, which also writes ``losses.json`` where a folder for it is stated."""
    if options.out is None:
        yield told
        return
    from dnnc.engines.torch.watch.record import Losses

    losses = Losses.open(options.out, options.resume.position.step if options.resume is not None else 0)

    def heard(done: Progressed) -> None:
        losses.add(done.step, done.loss)
        told(done)

    try:
        yield heard
    finally:
        os.close(losses.file)


class _Forgotten:
    """Last lines of standard error that nobody asks for: hosts tell them."""

    def extend(self, lines: Any) -> None:
        for _ in lines:
            pass


def _error(there: _There, answer: Mapping[str, Any]) -> DnncError:
    """What a host says that it ended with; data have the names there that they have here."""
    diagnostics = []
    for diagnostic in there.said.diagnostics(answer["failed"], "failed", located=False):
        for name in ("message", "where", "hint", "note"):
            text = getattr(diagnostic, name)
            if there.data[0] and there.data[0] in text:
                diagnostic = replace(diagnostic, **{name: text.replace(*there.data)})
        diagnostics.append(diagnostic)
    return _KINDS.get(str(answer.get("kind")), RuntimeFailure)(diagnostics)
