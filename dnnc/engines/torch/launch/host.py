"""The process that trains on one host of a cluster: gets the files, starts the ranks of the host, tells of them.

``dnnc.engines.torch.launch.hosts``, the *starter*, launches one on each host (``dnnc.engines.cluster.agents``). Everything goes
through relays with keys, but what ranks send each other:

- commands, lines of JSON: ``{"train": options, "files": .., ..}``; then ``{"go": HOST:PORT}``, where the ranks' store is;
- answers, lines of JSON: ``{"wants": keys}``, with ``{"hashed": part}`` while a file is hashed; then
  ``{"ready": [HOST:PORT, data]}``, on the host of rank 0 where its store listens, else null, and what data are called there
  and here; ``{"step": ..}``; ``{"file": name, "part": ..}`` before a file that a rank wrote; ``{"done": seconds}``, or
  ``{"failed": diagnostics, "kind": name of the exception}``;
- two links of parts: of the build to this host, and of files that ranks wrote (parts of checkpoints, the timeline) back;
- standard error, of the ranks too.

Invariant: when the starter or who launched this process has gone, it ends all ranks, and leaves no file but the cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dnnc.engines.cluster.agent import ANSWERS, COMMANDS, PARTS_LINK, STRIDE, wants_and_progress
from dnnc.engines.cluster.files.parts import PIECES, Needed, cached_parts, part_of, send_parts
from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.hosts.faults import HostRefused
from dnnc.engines.onnxruntime.starter.roles import STARTER
from dnnc.engines.onnxruntime.transport.edges import config_text
from dnnc.engines.torch.launch.faults import CannotListen
from dnnc.engines.torch.launch.host_files import data_source, received_files
from dnnc.engines.torch.launch.meeting import Meeting
from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions, train
from ir.core.diagnostics import Diagnostic, DnncError, InvalidInput
from ir.system.digests import OpenFile
from ir.system.scratch import scratch_folder
from ir.system.signals import Terminated, termination_raises

ERRORS = 2
"""The number of the stream of standard error, from those of the host on."""
FILES_LINK = PARTS_LINK + STRIDE
"""The number of the link of files from the first host to the starter."""
_STDIN = 0
_LOOK = 0.1
"""Seconds between two looks for parts of checkpoints that ranks have written."""
CHECKPOINTS, OUT = "checkpoints", "out"
"""Folders in which ranks write."""


class TrainingHost:
    """``settings``: as of ``dnnc.engines.cluster.agent.Agent``. Raises InvalidInput where there is no port."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.number = int(settings["number"])
        first, last = settings["ports"]
        self.relay = Relay(settings["address"], (first, last))
        self._lock = threading.Lock()
        self._commands: SimpleQueue[Any] = SimpleQueue()

    def serve(self) -> None:
        """Trains as the starter says. Raises ConnectionError where the starter is not reached, Terminated when it has gone."""
        with contextlib.suppress(OSError):  # Ray runs its workers at a low priority, which ranks would inherit
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self.relay.meet({STARTER: self.settings["starter"]}, called=True)
        first = self.number * STRIDE
        commands, written = os.pipe()
        read, self._answers = os.pipe()
        told, errors = os.pipe()
        self.relay.receive_stream(first + COMMANDS, STARTER, written)
        self.relay.send_stream(first + ANSWERS, STARTER, read)
        self.relay.send_stream(first + ERRORS, STARTER, told)
        os.dup2(errors, sys.stderr.fileno())
        os.close(errors)
        self._parts = self.relay.receiver(PARTS_LINK + self.number, PIECES, STARTER)
        self._files = self.relay.sender(FILES_LINK + self.number, PIECES, STARTER)
        for watched in (commands, _STDIN):
            threading.Thread(target=self._hear, args=(watched,), daemon=True).start()
        try:
            with ExitStack() as stack:
                self._train(stack, self._commands.get())
        except DnncError as error:
            self._failed(type(error).__name__, error.diagnostics)
        except Exception as error:  # also what dnnc did wrong here is told there
            reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._failed("InvalidInput", [HostRefused(self.settings["host"], reason).at()])
        while True:  # until the starter has gone; a signal that comes just before a pause without an end would not end it
            time.sleep(_LOOK)

    def _hear(self, descriptor: int) -> None:
        """Thread: passes commands on; ends this process when they end. It reads the descriptor itself: a thread that waits in a
        buffered reader holds its lock, and the interpreter aborts where it wants that lock at its end."""
        buffered = b""
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(descriptor, 1 << 16):
                *lines, buffered = (buffered + data).split(b"\n")
                for line in lines:
                    self._commands.put(json.loads(line))
        os.kill(os.getpid(), signal.SIGTERM)

    def _train(self, stack: ExitStack, command: Mapping[str, Any]) -> None:
        scratch = stack.enter_context(scratch_folder())
        files = command["files"]
        entries = cached_parts(files["parts"], self.settings, self._parts, *wants_and_progress(self._answer))
        training = received_files(files, command["folder"], command["manifest"], entries)
        settings = dict(command["train"])
        source = data_source(settings["data"], files["data"], entries, scratch / "data")
        folders = {name: scratch / name if settings[name] else None for name in ("checkpoint", "out")}
        settings |= {
            **folders,
            "slow": tuple(settings["slow"]),
            "data": source,
            "resume": training.resumed,
            "node": self.number,
        }
        build = TrainingBuild(
            training.build, tuple(command["labels"]), command["predicted"], command["digest"], tuple(command["devices"])
        )
        listener = stack.enter_context(_listening(self.settings["address"])) if not self.number else None
        place = _place(listener) if listener is not None else None
        self._answer({"ready": [place, [source, command["train"]["data"]]]})
        store = str(self._commands.get()["go"])
        met = Meeting(store, self.settings["address"], None if listener is None else listener.fileno())
        options = TrainOptions(**settings, meeting=store)
        with self._sent(options):
            seconds = train(build, options, lambda step: self._answer({"step": asdict(step)}), met=met)
        self._answer({"done": seconds})

    @contextmanager
    def _sent(self, options: TrainOptions) -> Iterator[None]:
        """Sends the starter each part of a checkpoint once its rank has written it, and the timeline at the end."""
        over = threading.Event()

        def look() -> None:
            with contextlib.suppress(EOFError):  # the starter has gone
                while not over.wait(_LOOK):
                    self._send_checkpoints(options.checkpoint)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with contextlib.suppress(EOFError):
                self._send_checkpoints(options.checkpoint)
        if options.out is not None and (trace := options.out / "trace.json").exists():
            self._send(trace, OUT, trace.name)

    def _send_checkpoints(self, folder: Path | None) -> None:
        if folder is None or not folder.is_dir():
            return
        for path in sorted(folder.glob("step*/rank*.safetensors"), key=lambda path: path.stat().st_mtime_ns):
            self._send(path, CHECKPOINTS, f"{path.parent.name}/{path.name}")
            path.unlink()

    def _send(self, path: Path, folder: str, name: str) -> None:
        """Sends a file that a rank wrote. Raises EOFError when the starter has gone."""
        file = OpenFile(path.open("rb"))
        part = part_of(file, [(0, file.stamp.size)])
        self._answer({"file": name, "folder": folder, "part": part.to_json()})
        send_parts(self._files, Needed({}, {}, (part,), {part.key: file}), [part.key])

    def _failed(self, kind: str, diagnostics: Any) -> None:
        self._answer({"failed": [one.to_json() for one in diagnostics], "kind": kind})

    def _answer(self, answer: Mapping[str, Any]) -> None:
        data = config_text(answer)
        with self._lock, contextlib.suppress(BrokenPipeError):  # the starter has gone, which ``_hear`` hears too
            while data:
                data = data[os.write(self._answers, data) :]


@contextmanager
def _listening(address: str) -> Iterator[socket.socket]:
    """A socket that listens at a free port of the address. Raises InvalidInput."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family, backlog=128)
    except OSError as error:
        raise InvalidInput(CannotListen(error.strerror or str(error)), where=address) from None
    with listener:
        yield listener


def _place(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main() -> int:
    """A host as a program: its settings are one line of standard input, what its relay offers one line of standard output. It
    ends when its standard input does."""
    try:
        host = TrainingHost(json.loads(sys.stdin.readline()))
    except DnncError as error:
        diagnostics: list[Diagnostic] = list(error.diagnostics)
        print(json.dumps({"refused": [diagnostic.to_json() for diagnostic in diagnostics]}), flush=True)
        return 0
    print(json.dumps({"offer": host.relay.offer}), flush=True)
    try:
        with termination_raises():
            host.serve()
    except Terminated:
        pass
    except ConnectionError:
        return 1
    finally:
        host.relay.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
