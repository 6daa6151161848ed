"""The ``dnnc`` command. ``main`` is the whole interface; the commands live in this package's modules.

``dnnc --help`` must answer at once, so nothing heavy is imported before a command runs: every command imports what it needs
inside its function.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command on ``argv`` and returns its exit code (``ir.ExitCode``). None stands for the process's own
    arguments: then the process is expected to end afterwards."""
    whole_process = argv is None
    try:
        if whole_process:
            gc.set_threshold(50_000)  # modules are immutable trees, without cycles: looking for some often is in vain
        from dnnc.cli.entry import run
    except KeyboardInterrupt:  # Ctrl-C before there is anything to interrupt
        return 130
    code = run(argv)
    if whole_process:
        gc.freeze()  # the interpreter need not search all that was imported before it ends: a fifth of a short command's time
    return code
