"""A mixed-integer programme in a process of its own, which can be ended at any moment.

The solver asks whether to go on between linear programmes only, and one over ten thousand rows takes it seconds. Where a
programme is that large it is solved apart: the problem goes out and the answer comes back as lines of JSON, the value and
the bound so far among them; when the watch says so the process is killed and the last bound stands. It costs half a
second to start one, so small programmes are solved in place (``milp.solve_milp``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ir.system.child import module_command, module_environment
from passes.reference.assignment.local_search import Sides
from passes.reference.assignment.milp import MilpResult, solve_milp
from passes.solvers.highs import Watch
from passes.solvers.work import counts, did, is_over
from passes.stages.problem import Kind, Problem

LARGE = 6_000
"""Pins of tensors times devices from which a programme is solved apart: about as many rows."""
ARRAYS = {
    **dict.fromkeys(("seconds", "transfer"), np.float64),
    **dict.fromkeys(("producer", "tensor_bytes", "live", "weight_bytes"), np.int64),
}
ROWS = ("consumers", "weight_readers")
"""Fields of a problem that the programme reads: arrays with their types, and rows of numbers."""
_LOOK = 0.05
"""Seconds between two questions to the watch, while nothing is told."""


def solver_for(problem: Problem) -> Callable[..., MilpResult]:
    """``solve_milp`` or, for a large programme, ``solve_apart``."""
    return solve_milp if sum(map(len, problem.consumers)) * problem.devices < LARGE else solve_apart


def solve_apart(
    problem: Problem,
    *,
    below: float,
    seconds: float,
    gap: float,
    watch: Watch,
    sides: Sides | None = None,
) -> MilpResult:
    """``solve_milp`` in another process, which counts its work and ends by it; ``undecided`` with the last bound when it is
    ended before, or dies."""
    known = {name: getattr(problem, name) for name in (*ARRAYS, *ROWS, "comm", "forced", "stages")}
    limits = [(kind.count, kind.memory) for kind in problem.kinds]
    apart = None if sides is None else (sides.seconds, sides.side)
    question = {"below": below, "seconds": min(seconds, 1e9), "gap": gap, "problem": known, "kinds": limits, "sides": apart}
    value, bound, fault = math.inf, 0.0, ""
    with subprocess.Popen(
        module_command(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=module_environment(),
        start_new_session=True,  # an interrupt from the keyboard is for the search to handle
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question, default=np.ndarray.tolist).encode() + b"\n")
            process.stdin.flush()  # and left open: when this process dies, whatever the reason, the other one sees its end
            while watch(value, bound) and not is_over():
                if not select.select([process.stdout], [], [], _LOOK)[0]:
                    continue
                line = process.stdout.readline()
                if not line:
                    fault = f"its process ended with {process.wait()} and no answer"
                    break
                row = json.loads(line)
                if "status" in row:
                    for kind, units in sorted(row["did"].items()):
                        did(kind, units)
                    stages = row["stages"] and tuple((kind, tuple(nodes)) for kind, nodes in row["stages"])
                    return MilpResult(row["status"], stages, row["bound"], row["nodes"])
                value, bound = row["value"], max(bound, row["known"])
        except BrokenPipeError:
            fault = f"its process ended with {process.wait()} before it had read the question"
            with contextlib.suppress(BrokenPipeError):  # what it has not read cannot be flushed
                process.stdin.close()
        finally:
            process.kill()
    return MilpResult("undecided", None, bound, 0, fault)


def answer() -> None:
    """The other process: a question on standard input; prints lines of value and bound, then the answer."""
    question = json.loads(sys.stdin.readline())
    sides = question["sides"] and Sides(np.array(question["sides"][0]), np.array(question["sides"][1], np.int64))
    threading.Thread(target=_end_with_starter, daemon=True).start()
    limits = {name: question[name] for name in ("below", "seconds", "gap")}
    result = solve_milp(_read(question["problem"], question["kinds"]), **limits, watch=telling(), sides=sides)
    told_last = {"status": result.status, "stages": result.stages, "bound": result.bound, "nodes": result.nodes}
    print(json.dumps({**told_last, "did": counts()}), flush=True)


def telling() -> Watch:
    """Prints a line for each new value or bound: no clock decides which the starter sees, and ends by."""
    told = [(math.inf, 0.0)]

    def watch(value: float, bound: float) -> bool:
        if (value, bound) != told[0]:
            told[0] = value, bound
            print(json.dumps({"value": value, "known": bound}), flush=True)
        return True

    return watch


def _end_with_starter() -> None:
    """Waits for the end of standard input, which comes when the starter has ended; then nobody waits for an answer."""
    os.read(0, 1)
    os._exit(0)


def _read(told: dict[str, Any], kinds: list[tuple[int, int | None]]) -> Problem:
    """The problem that was told, its nodes, tensors and devices named by number."""
    fields: dict[str, Any] = {name: np.array(told[name], type_) for name, type_ in ARRAYS.items()}
    fields |= {name: tuple(map(tuple, told[name])) for name in ROWS}
    fields |= {name: tuple(map(str, range(len(told[of])))) for name, of in (("names", "live"), ("tensor_names", "producer"))}
    devices = tuple(Kind(str(k), tuple(f"{k}.{i}" for i in range(count)), memory) for k, (count, memory) in enumerate(kinds))
    return Problem(kinds=devices, comm=told["comm"], forced=tuple(told["forced"]), stages=told["stages"], **fields)


if __name__ == "__main__":
    answer()
