"""Trainings of one test process start their ranks from one process that has imported torch: each takes 2 s of a processor less.

A *template* (``dnnc.engines.torch.launch.forking``) is a program that imports torch and forks the ranks. Here one process,
``python -m tests.dnnc.engines.torch.warm_template``, imports the same, reads plans and forks the templates, each with the
arguments, the environment, the directory and the descriptors with which it would have been started. A single rank is
forked, too, where users have it started as a program. Tests of how ranks start, and those that run ``dnnc train`` as a
command, start templates as programs.
"""

from __future__ import annotations

import array
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ir
from dnnc.engines.torch.launch.starting import rank_environment
from ir.system.child import module_command
from tests.dnnc.engines.onnxruntime.processes import LASTING

_FORKING = "dnnc.engines.torch.launch.forking"
_HIGH = 200
"""Descriptors from here on are those that a template got, before they have their own numbers."""
_LONGEST = 1 << 20
GOLDEN = Path(__file__).parents[4] / "golden/passes"
TEXTS = ("schedule/training_step.out.ir", "differentiate/mesh_column_row.out.ir")
"""A plan and programs of training, as ranks read them."""


class Warm:
    """The process that forks templates, from the first training on. ``popen`` takes the place of ``subprocess.Popen`` in
    ``forking``."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, self._other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST)

    def popen(self, command: Sequence[str], **options: Any) -> Template:
        assert list(command[:4]) == module_command(_FORKING), command
        if self._process is None:
            mine = [*module_command(__name__), str(self._other.fileno())]
            environment = rank_environment({"OMP_NUM_THREADS": "1"})
            self._process = subprocess.Popen(mine, env=environment, pass_fds=[self._other.fileno()], stdin=subprocess.DEVNULL)
            self._other.close()
            LASTING.add(self._process.pid)
        return Template(self._socket, list(command[4:]), **options)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # else processes that were forked meanwhile would keep it open
        self._socket.close()
        self._other.close()
        if self._process is not None:
            self._process.wait()
            LASTING.discard(self._process.pid)


class Template:
    """A template that was forked: what ``forking`` asks of ``subprocess.Popen``."""

    def __init__(
        self,
        server: socket.socket,
        arguments: list[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        start_new_session: bool,
    ) -> None:
        assert stdin == subprocess.DEVNULL
        assert start_new_session
        self.server = server
        self.returncode: int | None = None
        numbers = [1, 2, *pass_fds]
        asked = {"arguments": arguments, "environment": dict(env), "numbers": numbers, "directory": os.getcwd()}
        given = array.array("i", [stdout, stderr, *pass_fds])
        server.sendmsg([json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
        self.pid = int(server.recv(_LONGEST))
        assert self.pid > 1, "an exit status in place of a process number"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, 9)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = int(self.server.recv(_LONGEST))
        return self.returncode


def main(descriptor: int) -> None:
    """Forks a template for each request, and tells its process number and its exit status. Ends when nobody asks any more."""
    from dnnc.build.timeline import predicted
    from dnnc.engines.torch import rank  # noqa: F401
    from dnnc.engines.torch.launch import forking
    from dnnc.onnx import DIALECTS
    from passes.graph.folding import expand

    # What reads a plan and simulates it is imported, and the parser has compiled its expressions.
    plan, _ = (expand(ir.load_module((GOLDEN / name).read_text(), dialects=DIALECTS)) for name in TEXTS)
    predicted(plan)
    gc.freeze()
    own = os.environ["PYTHONPATH"].split(os.pathsep)
    server = socket.socket(fileno=descriptor)
    while True:
        text, descriptors, _, _ = socket.recv_fds(server, _LONGEST, 250)
        if not text:
            return
        asked = json.loads(text)
        if pid := os.fork():
            for given in descriptors:
                os.close(given)
            server.send(b"%d" % pid)
            server.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            continue
        server.close()
        os.setsid()
        _take(descriptors, asked["numbers"])
        os.chdir(asked["directory"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        entries = asked["environment"]["PYTHONPATH"].split(os.pathsep)
        sys.path[:] = entries + [entry for entry in sys.path if entry not in own]
        forking.main(asked["arguments"])
        os._exit(0)


def _take(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give each descriptor its number."""
    import fcntl

    high = [fcntl.fcntl(given, fcntl.F_DUPFD, _HIGH) for given in descriptors]
    for given in descriptors:
        os.close(given)
    for one, number in zip(high, numbers, strict=True):
        assert number < _HIGH
        os.dup2(one, number)
        os.close(one)


if __name__ == "__main__":
    main(int(sys.argv[1]))
