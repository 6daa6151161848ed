"""Processor milliseconds in which the simulator follows a step of 8 stages and 1,000 microbatches, beside its slow twin.

Run: ``python -m tests.bench.simulate``. The median of ``RUNS``. *times*: from rows to when each action starts and ends;
*events*: from rows to Python objects, which ``simulate`` returns; *rows*: what making the rows takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from passes.timeline.families import FAMILIES
from passes.timeline.families.base import rows_of
from passes.timeline.simulate import makespan, run_rows
from tests.bench.machine import header
from tests.passes.timeline.followed import run_rows_slowly
from tests.passes.timeline.test_families import placed

STAGES, MICROBATCHES, RUNS = 8, 1000, 7


def milliseconds(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return 1000 * statistics.median(spent)


def main() -> None:
    print(header())
    print(f"{'family':14} {'actions':>8} {'times ms':>9} {'events ms':>10} {'twin ms':>9} {'rows ms':>9}")
    for family in FAMILIES:
        measure(family)


def measure(family: str) -> None:
    """Prints a line of the table."""
    load = placed(family, STAGES // 2 if family in ("interleaved", "zb-v") else STAGES)
    rows = rows_of(load, FAMILIES[family](load, MICROBATCHES))
    makespan(load, rows)
    times, events = milliseconds(lambda: makespan(load, rows)), milliseconds(lambda: run_rows(load, rows))
    twin = milliseconds(lambda: run_rows_slowly(load, rows))
    made = milliseconds(lambda: rows_of(load, FAMILIES[family](load, MICROBATCHES)))
    print(f"{family:14} {sum(map(len, rows.values())):8} {times:9.1f} {events:10.1f} {twin:9.1f} {made:9.1f}")


if __name__ == "__main__":
    main()
