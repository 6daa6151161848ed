"""A mixed-integer programme in a process of its own, which can be ended at any moment.

The solver asks whether to go on between linear programmes only, and one over ten thousand rows takes it seconds. Where a
programme is that large it is solved apart: the problem goes out and the answer comes back as pickles, the value and the bound
so far among them; when the watch says so the process is killed and the last bound stands. It costs half a
second to start one, so small programmes are solved in place (``milp.solve_milp``).
"""

from __future__ import annotations

import math
import os
import pickle
import select
import subprocess
import sys
import threading
import time

from ir.child import module_command, module_environment
from passes.model.highs import Watch
from passes.model.stages.problem import Problem
from passes.model.work import counts, did, is_over
from passes.partition.assignment.milp import MilpResult, solve_milp
from passes.partition.heuristics.local_search import Sides

LARGE = 6_000
"""Pins of tensors times devices from which a programme is solved apart: about as many rows."""
_LOOK = 0.05
"""Seconds between two questions to the watch."""


def solve_watched(
    problem: Problem,
    *,
    below: float,
    seconds: float,
    gap: float,
    watch: Watch,
    sides: Sides | None = None,
) -> MilpResult:
    """``solve_milp``, in place or apart by its size."""
    small = sum(map(len, problem.consumers)) * problem.devices < LARGE
    return (solve_milp if small else solve_apart)(problem, below=below, seconds=seconds, gap=gap, watch=watch, sides=sides)


def solve_apart(
    problem: Problem,
    *,
    below: float,
    seconds: float,
    gap: float,
    watch: Watch,
    sides: Sides | None = None,
) -> MilpResult:
    """``solve_milp`` in another process, which counts its work and ends by it; ``unknown`` with the last bound when it is ended
    before, or dies."""
    question = {"problem": problem, "below": below, "seconds": min(seconds, 1e9), "gap": gap, "sides": sides}
    value, bound, fault = math.inf, 0.0, ""
    with subprocess.Popen(
        module_command(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=module_environment(),
        start_new_session=True,  # an interrupt from the keyboard is for the search to handle
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump(question, process.stdin)
            process.stdin.flush()  # and left open: when this process dies, whatever the reason, the other one sees its end
            while watch(value, bound) and not is_over():
                if not select.select([process.stdout], [], [], _LOOK)[0]:
                    continue
                try:
                    told = pickle.load(process.stdout)
                except (EOFError, pickle.UnpicklingError):
                    fault = f"its process ended with {process.wait()} and no answer"
                    break
                if isinstance(told[0], MilpResult):
                    for kind, units in sorted(told[1].items()):
                        did(kind, units)
                    return told[0]
                value, bound = told[0], max(bound, told[1])
        except BrokenPipeError:
            fault = f"its process ended with {process.wait()} before it had read the question"
        finally:
            process.kill()
    return MilpResult("unknown", None, bound, 0, fault)


def answer() -> None:
    """The other process: a question on standard input; writes pairs of value and bound, then the answer and the work done."""
    question = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_starter, daemon=True).start()
    told = time.perf_counter()

    def tell(pair: tuple[object, object]) -> None:
        pickle.dump(pair, sys.stdout.buffer)
        sys.stdout.buffer.flush()

    def watch(value: float, bound: float) -> bool:
        nonlocal told
        if time.perf_counter() > told + _LOOK:
            told = time.perf_counter()
            tell((value, bound if math.isfinite(bound) else 0.0))
        return True

    tell((solve_milp(**question, watch=watch), counts()))


def _end_with_starter() -> None:
    """Waits for the end of standard input, which comes when the starter has ended; then nobody waits for an answer."""
    os.read(0, 1)
    os._exit(0)


__all__ = ["answer", "solve_apart", "solve_watched"]

if __name__ == "__main__":
    answer()
