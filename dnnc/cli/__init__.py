"""The ``dnnc`` command. ``main`` is the whole interface; the commands live in ``commands``, their options in ``options``.

- ``app``: the tree of commands; ``panels``: the order of the help; ``completion``: of shells;
- ``entry``: runs one command, from arguments to an exit code; ``streams``, ``console``, ``logs``: what it prints, and where;
- ``tracing``: options that print modules and times of passes; ``faults``: what the command refuses.

``dnnc --help`` must answer at once, so nothing heavy is imported before a command runs: every command imports what it needs
inside its function.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command on ``argv`` and returns its exit code (``ir.ExitCode``). None stands for the process's own
    arguments: then the process is expected to end afterwards."""
    whole_process = argv is None
    try:
        if whole_process:
            _leave_current_directory()
            gc.set_threshold(50_000)  # modules are immutable trees, without cycles: looking for some often is in vain
        from dnnc.cli.entry import run
    except KeyboardInterrupt:  # Ctrl-C before there is anything to interrupt
        return 130
    code = run(argv)
    if whole_process:
        gc.freeze()  # the interpreter need not search all that was imported before it ends: a fifth of a short command's time
    return code


def _leave_current_directory() -> None:
    """Takes the current directory off the path of this process. ``python -m`` and empty entries of ``PYTHONPATH`` put it there;
    it stays where ``PYTHONPATH`` names it, and where it holds this package. Comes before all other imports."""
    try:
        current = os.getcwd()
    except OSError:  # it was removed
        return
    named = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if current not in (os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), *named):
        sys.path[:] = [entry for entry in sys.path if entry not in ("", current)]
