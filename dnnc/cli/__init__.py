"""The ``dnnc`` command. ``main`` is the whole interface; the commands live in this package's modules.

``dnnc --help`` must answer at once, so nothing heavy is imported before a command runs: every command imports what it needs
inside its function.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command on ``argv`` (the process's own arguments when None) and returns its exit code (``ir.ExitCode``)."""
    try:
        from dnnc.cli.entry import run
    except KeyboardInterrupt:  # Ctrl-C before there is anything to interrupt
        return 130
    return run(argv)
