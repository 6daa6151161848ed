"""Ctrl-C, as a signal to a real process: the search over any split prints its best plan and a bound that holds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from passes.solvers.anytime import interruptible

CHILD = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from passes.reference.assignment.solver import solve_any
from passes.stages.problem import violations
from passes.partition.lattice.objective import Budget
from tests.passes.partition.instances import series_parallel

problem = series_parallel(3, nodes=int(sys.argv[2]), devices=6)
told = []

def progress(label, fraction):
    if sys.argv[1] in label and not told:
        told.append(label)
        print("ready", flush=True)

found = solve_any(problem, Budget(seconds=40), progress)
broken = violations(problem, found.stages, ordered=False)
print(json.dumps([found.status, found.interrupted, found.value, found.bound, broken, found.reason]), flush=True)
"""


@pytest.mark.parametrize(("phase", "nodes"), [("local search", 100), ("trials", 800)])
@pytest.mark.slow
def test_an_interrupt_ends_with_the_plan_and_its_bound(phase: str, nodes: int) -> None:
    command = [sys.executable, "-c", CHILD, phase, str(nodes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n", child.communicate()[1]
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.7)  # into the phase: a slice of annealing, the solver's presolve or its nodes
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 0, err
    status, interrupted, value, bound, broken, _ = json.loads(out)
    assert (status, interrupted, broken) == ("within-gap", True, [])
    assert 0 < bound < value
    assert err == ""


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_interrupt_that_numba_wraps_is_an_interrupt(steps: int) -> None:
    error: BaseException = KeyboardInterrupt()
    for _ in range(steps):
        wrapped = SystemError("returned a result with an exception set")
        wrapped.__cause__ = error
        error = wrapped
    with pytest.raises(KeyboardInterrupt), interruptible():
        raise error


def test_a_system_error_of_another_cause_stays_one() -> None:
    with pytest.raises(SystemError), interruptible():
        raise SystemError("a fault of C") from ValueError("another")
