"""``python -m tests.fuzz kills [compile|run|check|all] [--count N] [--seed S]``: real commands, ended by signals.

After each: no process of the command is left, no file but the result, and that is whole: the old one, the new one, or none.
What SIGKILL leaves must be gone after the next start of the command. A *moment* is some milliseconds after the start, or after
the command first has what it must not leave: a hidden file or folder beside its result, scratch, stage processes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
MOMENTS = ("any", "mess")
"""``any``: after a random part of the time that the command takes; ``mess``: soon after there is something to clean up."""
MODEL = "zoo:mlp,layers=6,hidden=1024"
COMMANDS = {
    "compile": ("compile", MODEL, "-t", "preset:cpu-2", "--stages", "2", "-o", "out", "--quiet"),
    "run": ("run", "build", "-m", "300", "--outputs", "out.npz", "--trace", "--quiet"),
    "check": ("check", "build", "--samples", "20", "--quiet"),
}
_MARK = "DNNC_KILLS_TRIAL"
_ENDED = 15.0
"""Seconds in which the command must be gone after the signal."""
_ALONE = 5.0
"""Seconds in which the processes that it started must be gone after it."""


@dataclass(slots=True)
class Box:
    """A folder of its own in which one kind of command is run again and again. ``wholes``: what its result may be, by content;
    ``seconds``: how long the command takes."""

    kind: str
    folder: Path
    wholes: set[str] = field(default_factory=set)
    seconds: float = 0.0

    @property
    def arguments(self) -> list[str]:
        return [sys.executable, "-P", "-m", "dnnc", *COMMANDS[self.kind]]

    @property
    def result(self) -> Path:
        return self.folder / {"compile": "out", "run": "out.npz", "check": "none"}[self.kind]

    def start(self, mark: str = "") -> subprocess.Popen[bytes]:
        home = str(self.folder / "home")
        environment = {**os.environ, "HOME": home, "TMPDIR": str(self.folder / "tmp"), _MARK: mark}
        environment.pop("XDG_CACHE_HOME", None)
        with (self.folder / "said").open("wb") as said:
            return subprocess.Popen(
                self.arguments, cwd=self.folder, env=environment, stdout=said, stderr=said, start_new_session=True
            )

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def finish(self) -> None:
        """One whole run of the command."""
        code = self.start().wait(120)
        assert code == 0, (code, self.said())

    def mess(self) -> list[str]:
        """Files that the command may not leave."""
        allowed = {"said", "build", "home", "tmp", self.result.name}
        found = [path for path in self.folder.iterdir() if path.name not in allowed]
        inside = [path for path in (self.folder / "build").iterdir() if path.name.startswith(".")]
        return sorted(str(path.relative_to(self.folder)) for path in (*found, *inside, *(self.folder / "tmp").iterdir()))

    def content(self) -> str:
        """What the result holds; empty where there is none."""
        if self.result.is_dir():
            digest = hashlib.sha256()
            for path in sorted(path for path in self.result.rglob("*") if path.is_file()):
                digest.update(f"{path.relative_to(self.result)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
            return digest.hexdigest()
        if self.result.exists():
            with np.load(self.result) as arrays:
                return hashlib.sha256(b"".join(np.ascontiguousarray(arrays[name]) for name in arrays.files)).hexdigest()
        return ""

    def check_trace(self) -> None:
        json.loads((self.folder / "build" / "trace.json").read_text())


def box(kind: str, folder: Path) -> Box:
    """A prepared box: what the command reads is there, an old result, and how long the command takes."""
    made = Box(kind, folder)
    for name in ("home", "tmp", "build"):
        (folder / name).mkdir(parents=True)
    if kind != "compile":
        options = ["compile", MODEL, "-t", "preset:cpu-2", "--stages", "2", "-o", str(folder / "build"), "--quiet"]
        subprocess.run([sys.executable, "-P", "-m", "dnnc", *options], check=True, timeout=120)
    made.wholes = {""}
    made.finish()  # the first start may compile kernels
    begun = time.monotonic()
    made.finish()
    made.seconds = time.monotonic() - begun
    made.wholes.add(made.content())
    assert made.mess() == []
    return made


def trial(box: Box, number: signal.Signals, moment: str, rng: Random) -> tuple[list[str], int]:
    """One start, ended by a signal. Returns what is wrong after it, and the exit code."""
    if rng.random() < 0.5:  # else the result of the trial before is the old one
        shutil.rmtree(box.result) if box.result.is_dir() else box.result.unlink(missing_ok=True)
    mark = uuid.uuid4().hex
    process = box.start(mark)
    _wait_for(moment, box, process, mark, rng)
    process.send_signal(number)
    faults = []
    try:
        code = process.wait(_ENDED)
    except subprocess.TimeoutExpired:
        faults.append(f"still there {_ENDED:g} s after {number.name}")
        process.kill()
        code = process.wait()
    if code not in (0, 128 + number, -number):
        faults.append(f"exit {code} after {number.name}: {box.said()[-500:]}")
    if "Traceback" in box.said() and code != -number:  # Python's own, before there is a command to interrupt
        faults.append(f"a traceback after {number.name}: {box.said()[-500:]}")
    deadline = time.monotonic() + _ALONE
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    faults += [f"process {pid} is left: {command}" for pid, command in left.items()]
    faults += _half_written(box)
    if number is signal.SIGKILL:
        box.finish()
    faults += [f"left after {number.name}: {path}" for path in box.mess()]
    for path in box.mess():  # for the trials to come
        target = box.folder / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    return faults, code


def _half_written(box: Box) -> list[str]:
    try:
        box.check_trace() if box.kind == "run" else None
        content = box.content()
    except Exception as error:  # whatever a half-written file makes numpy or json raise
        return [f"half-written: {type(error).__name__}: {error}"]
    return [] if content in box.wholes else ["the result is neither the old nor the new one"]


def _wait_for(moment: str, box: Box, process: subprocess.Popen[bytes], mark: str, rng: Random) -> None:
    if moment == "any":
        time.sleep(rng.uniform(0, 1.1 * box.seconds))
        return
    while process.poll() is None and not box.mess() and not (box.kind == "run" and len(processes(mark)) > 1):
        time.sleep(0.001)
    time.sleep(rng.choice((0, 0, rng.uniform(0, 0.05), rng.uniform(0, 0.5))))


def processes(mark: str) -> dict[int, str]:
    """Living processes that a trial started, by the mark in their environment, with their command lines."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if f"{_MARK}={mark}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-80:]
            except OSError:  # it has ended, or is another user's
                continue
    return found


def main(argv: Sequence[str]) -> int:
    """The exit code: 1 when something was wrong after a kill."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz kills", description=__doc__)
    parser.add_argument("kind", nargs="?", default="all", choices=[*COMMANDS, "all"])
    parser.add_argument("--count", type=int, default=100, help="kills of each command")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and what they start, ignore it
    failed = False
    for kind in COMMANDS if options.kind == "all" else [options.kind]:
        rng, codes, broken = Random(options.seed), Counter[str](), 0
        shared_memory = set(os.listdir("/dev/shm"))
        with tempfile.TemporaryDirectory(prefix="dnnc-kills-") as folder:
            prepared = box(kind, Path(folder))
            for count in range(options.count):
                number, moment = SIGNALS[count % len(SIGNALS)], MOMENTS[count // len(SIGNALS) % len(MOMENTS)]
                faults, code = trial(prepared, number, moment, rng)
                codes[f"{number.name} {code}"] += 1
                broken += code != 0
                failed = failed or bool(faults)
                for fault in faults:
                    print(f"{kind} {count} ({number.name}, {moment}): {fault}", flush=True)
        if more := set(os.listdir("/dev/shm")) - shared_memory:
            failed = True
            print(f"{kind}: shared memory is left: {sorted(more)}")
        told = ", ".join(f"{name}: {times}" for name, times in sorted(codes.items()))
        print(f"{kind}: {options.count} kills, {broken} of them before the end ({told})", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
