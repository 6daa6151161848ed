"""What a run can end with besides its results: a stage that died, hung or raised."""

from __future__ import annotations

from ir.diagnostics import DnncError, ExitCode


class RuntimeFailure(DnncError):
    """A stage died, hung or raised while it ran; the message names stage, device and microbatch: exit 1."""

    exit_code = ExitCode.INTERNAL
