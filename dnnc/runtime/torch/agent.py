"""torchrun as ``dnnc train`` starts it: its arguments are torchrun's.

It writes to ``DNNC_FAILURES`` how ranks ended that failed, and ends with its ranks when its standard input ends: whoever
started it has gone then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from dnnc.runtime.torch.failures import AGENT, FAILURES


def main(arguments: list[str]) -> int:
    """Run torchrun; its exit code."""
    alive = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the ranks inherit this one
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        ends = [{"rank": rank, "status": failure.exitcode} for rank, failure in error.failures.items()]
        Path(os.environ[FAILURES], AGENT).write_text(json.dumps(ends), encoding="utf-8")
        return 1
    return 0


def _end_with(alive: int) -> None:
    while os.read(alive, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # torchrun ends its ranks on this signal


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
