"""Data that a Python program gives as objects: it writes each microbatch to a file of a folder, and the ranks, which are other
processes, read these while it writes the next ones (``Feed``).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dnnc.data.npz import write_npz
from dnnc.data.samples.arrays import Inputs, empty, fitting
from dnnc.data.samples.columns import Column, columns_of_npz
from dnnc.data.samples.stream import raised
from ir.core.diagnostics import Diagnostic, DnncError, InvalidInput
from ir.system.scratch import whole_file

MICROBATCHES = "microbatches:"
"""Begin of a source that is a folder of microbatches, ``k.npz`` each."""
AHEAD = 2
"""Steps that are written before the ranks ask for them."""
_FAILED = "failed.json"
_POLL = 0.002
"""Seconds between two looks for a file."""
_ENDING = 2.0
"""Seconds that the thread of a ``Feed`` has to end."""


@dataclass
class GivenMicrobatches:
    """A folder with a file for each microbatch, some of which are not written yet."""

    inputs: Inputs
    folder: Path
    identity: bytes = MICROBATCHES.encode()

    def microbatch(self, number: int) -> Mapping[str, Any]:
        columns = self._columns(number)
        arrays = empty(self.inputs.wanted)
        for port in self.inputs.wanted:
            whole = fitting(port, columns[port.name].array())
            if port.shape:
                first, count = self.inputs.part(port)
                arrays[port.name][first : first + count] = whole[first : first + count]
            else:
                arrays[port.name][...] = whole
        return arrays

    def array(self, number: int, name: str) -> Any:
        return fitting(self.inputs.port(name), self._columns(number)[name].array())

    def verify(self, rank: int, ranks: int) -> None:
        """Who writes a microbatch has verified it."""

    def _columns(self, number: int) -> Mapping[str, Column]:
        """Waits for the file. Raises InvalidInput where the data ended with an error."""
        path = self.folder / f"{number}.npz"
        while not path.exists():
            if (self.folder / _FAILED).exists() and not path.exists():
                texts = json.loads((self.folder / _FAILED).read_text())
                raise InvalidInput([Diagnostic.from_json(one) for one in texts])
            time.sleep(_POLL)
        return columns_of_npz(path, lambda headers: None)


@dataclass
class Feed:
    """Writes the microbatches from ``first`` up to ``end`` to ``folder`` from a thread of its own, ``AHEAD`` steps before they
    are used, and removes those that were. ``read``: gives a microbatch by its number; ``kept``: nothing is removed, since
    training may begin again; ``unsaid``: an error that could not be written for the ranks."""

    folder: Path
    read: Callable[[int], Mapping[str, Any]]
    first: int
    end: int
    microbatches: int
    kept: bool = False
    used: int = 0
    removed: int = 0
    ended: bool = False
    unsaid: DnncError | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    thread: threading.Thread | None = None

    def __enter__(self) -> Feed:
        self.used = self.removed = self.first
        self.thread = threading.Thread(target=self._write, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify()
        assert self.thread is not None
        self.thread.join(_ENDING)  # a person's iterable may block for ever
        self._raise_unsaid()

    def done(self, step: int, read: int) -> None:
        """So many steps are done, and no rank reads what steps up to ``read`` used. Raises an error that no rank could be
        told."""
        self._raise_unsaid()
        with self.changed:
            self.used = step * self.microbatches
            self.changed.notify()
        while not self.kept and self.removed < read * self.microbatches:
            (self.folder / f"{self.removed}.npz").unlink(missing_ok=True)
            self.removed += 1

    def _write(self) -> None:
        try:
            self._write_all()
        except DnncError as error:
            self._fail(error)
        except BaseException as error:  # else ranks wait for a microbatch that nobody writes
            self._fail(raised(error, "data"))

    def _write_all(self) -> None:
        for number in range(self.first, self.end):
            with self.changed:
                while not self.ended and number >= self.used + (AHEAD + 1) * self.microbatches:
                    self.changed.wait()
                if self.ended:
                    return
            arrays = self.read(number)
            if self.ended:
                return
            write_npz(self.folder / f"{number}.npz", arrays)

    def _fail(self, error: DnncError) -> None:
        """Tells the ranks, or where the disk refuses that too, the caller."""
        try:
            with whole_file(self.folder / _FAILED) as file:
                file.write(json.dumps([one.to_json() for one in error.diagnostics]).encode())
        except (DnncError, OSError):
            self.unsaid = None if self.ended else error

    def _raise_unsaid(self) -> None:
        error, self.unsaid = self.unsaid, None
        if error is not None:
            raise error
