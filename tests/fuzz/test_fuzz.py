"""A share of the fuzzers, the same in every run: every hostile input and some mutations (slow); and what their verdict is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ir.core.module import Module, Plan
from passes.partition.bridge.lattice_search import LatticeSearch
from tests.fuzz import choices
from tests.fuzz.surfaces import SURFACES
from tests.fuzz.verdict import Result, faults_of

ROOT = Path(__file__).resolve().parent.parent.parent


def fuzz(surface: str, executions: int, failures: Path) -> None:
    """In a process of its own: workers are forked, and a process that has run tests has threads."""
    command = [sys.executable, "-m", "tests.fuzz", surface, "--executions", str(executions), "--failures", str(failures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", SURFACES)
def test_no_input_breaks_the_command(name: str, tmp_path: Path) -> None:
    fuzz(name, len(SURFACES[name].hostile) + SURFACES[name].quick, tmp_path)


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (Result("", code=1, stderr="error[E0107]: a fault inside dnnc"), "exit 1"),
        (Result("", code=-9), "exit -9"),
        (Result("", code=3, stderr="error[E0103]: no such thing"), "no location"),
        (Result("", code=3, stderr="a.ir:1:2: error: x\nerror: and another"), "no location"),
        (Result("", code=3, stderr="a.ir:1:2: error[E2101]: x\na.ir:1:2: error[E2101]: x"), "said twice"),
        (Result("", code=3), "no message"),
        (Result("", code=0, stdout="name \x1b[31m"), "raw control characters on stdout"),
        (Result("", code=3, stderr="a\u202eb: error: x"), "raw control characters on stderr"),
        (Result("", code=0, stderr="Traceback (most recent call last):"), "traceback"),
        (Result("", code=0, seconds=21.0), "slow"),
        (Result("", code=0, memory=3 << 30), "memory"),
    ],
)
def test_what_fails(result: Result, fault: str) -> None:
    assert [found.partition(":")[0] for found in faults_of(result)][:1] == [fault]


@pytest.mark.parametrize("code", [0, 2, 3, 4, 5, 130])
def test_what_does_not(code: int) -> None:
    assert faults_of(Result("", code=code, stderr="a.ir:1:2: error[E2101]: not so")) == []


def test_no_plan_is_worse_than_one_of_fewer_choices() -> None:
    assert list(choices.failures(range(8, 11))) == []


def test_the_plan_of_the_least_load_may_be_worse_on_the_real_links_than_one_stage() -> None:
    """The best is of two stages, and had been a third quicker than what was found; 1.5 % are left."""
    case = choices.case_of(2374)
    best, (two,) = choices.planned(case.module, case.every), [one for one in case.fewer if one.stages == 2]
    least = choices.planned(case.module, two)
    assert best is not None
    assert least is not None
    assert best.value < 1.02 * least.value


@pytest.mark.parametrize(
    ("every", "fewer", "fault"),
    [
        ((1.02, 0.5), (1.0, 0.5), "of more choices 1.02 (2.0% more)"),
        ((1.0, 1.0), (0.999, 0.5), "bound of more choices 1"),
        ((1.0, 1.1), (2.0, 0.5), "bound 1.1 above its value 1"),
        ((1.0, 0.5), (1.0, 1.1), "bound 1.1 above it"),
        (None, (1.0, 0.5), "of more choices none"),
        (ZeroDivisionError, (1.0, 0.5), "ZeroDivisionError"),
        ((1.005, 0.5), (1.0, 0.5), ""),
        ((1.0, 0.5), None, ""),
    ],
)
def test_what_fails_of_plans(every: Any, fewer: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``every``, ``fewer``: value and bound of the plan of most choices, and of the others; None: none fits."""
    best = choices.case_of(8).every

    def planned(module: Module, search: LatticeSearch) -> Plan | None:
        given = every if search == best else fewer
        if isinstance(given, type):
            raise given
        return None if given is None else Plan("@p", "training", "sum", given[0], given[0], given[1], "within-gap", 1.0, ())

    monkeypatch.setattr(choices, "planned", planned)
    told = list(choices.failures([8]))
    assert all(fault in one for one in told)
    assert bool(told) == bool(fault)


DYING = """
import os, sys
from pathlib import Path
from tests.fuzz.harness import Surface, fuzz
def make(rng, folder, base):
    number = rng.randrange(4)
    if number == 0:
        os.abort()
    return ["topology", "presets"]
tally = fuzz(Surface("dying", make), seed=0, seconds=60, executions=12, jobs=2, failures=Path(sys.argv[1]))
print(tally.executions, sorted(tally.failures))
"""


@pytest.mark.slow
def test_a_worker_that_dies_costs_one_case(tmp_path: Path) -> None:
    """The case is kept as a failure, and the others are run."""
    done = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("12 ['died"), done.stdout + done.stderr
    assert list(tmp_path.glob("dying/died*/result.json"))
