"""Ctrl-C, as a signal to a real process: every rung of the search gives back its best plan and a bound that holds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CHILD = """
import json, os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from passes.partition.layouts import solve
from tests.passes.partition.layouts.models import problem_of

problem = problem_of("zoo:t5-base,layers=1", (2, 2)).problem
best = solve(problem, gap=0.0)
rows = [[best.status, best.interrupted, best.value, best.bound, problem.cost(best.choices)]]

def run(label, **options):
    # A signal 10 ms after the first progress of this label; after the search it would end the process.
    started = []
    def progress(told, fraction):
        if told == label and not started:
            started.append(threading.Timer(0.01, lambda: os.kill(os.getpid(), signal.SIGINT)))
            started[0].start()
    plan = solve(problem, gap=0.0, progress=progress, **options)
    rows.append([plan.status, plan.interrupted, plan.value, plan.bound, problem.cost(plan.choices)])
    return plan

run("choices", anytime=True)  # the first plan is known, a further rung is searched
limit = 0.8 * best.memory
assert run("memory", anytime=True, memory=limit).memory <= limit  # between prices of memory
try:
    run("choices")
except KeyboardInterrupt:
    rows.append("passed on")
print(json.dumps(rows), flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_ends_with_the_plan_and_its_bound() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    whole, *kept, passed_on = json.loads(done.stdout)
    status, interrupted, optimum, *_ = whole
    assert (status, interrupted) == ("optimal", False)
    for status, interrupted, value, bound, cost in kept:
        assert (status, interrupted) == ("within-gap", True)
        assert value == cost
        assert 0 < bound <= value
        assert optimum <= value * (1 + 1e-9)
    assert kept[0][3] <= optimum * (1 + 1e-9), "of the same problem; the other has a limit on memory"
    assert passed_on == "passed on", "unless asked for the plan at hand"
