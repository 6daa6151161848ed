"""A mixed-integer programme as rows, and HiGHS to solve it: the one door to the solver. Others say what the rows mean.

``Rows`` is written column by column and row by row. ``solve_rows`` minimises one of its columns. That column is in units of
the caller's choice, ``factor`` of them a second, such that values are about ``SCALE``: the solver's tolerances are
absolute. Its dual bound is given less ``SAFETY`` of the scale, as exact as these tolerances, no more.

With one thread and one seed the solver does the same each time, and asks whether to go on at the same points: its work is
counted by these (``passes.solvers.work``), with the entries of the matrix: what lies between two of them took 0.8 ms of 2,500
entries, 10 of 7,000, 30 of 12,000 and 200 of 22,000. It asks between linear programmes only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ir.core.outcomes import Outcome
from passes.solvers.work import clock_left, did, now

SCALE = 1000.0
SAFETY = 1e-8
"""Relative: the solver's feasibility tolerance of 1e-6 on values scaled to ``SCALE``, ten times over."""
PROVEN = 10 * SAFETY
"""Relative: a value and a bound from here that differ by no more are equal to the solver, and the plan is called optimal."""

WIDE = 50_000
"""Entries up to which what the solver does between two questions grows with their square."""

Watch = Callable[[float, float], bool]
"""Told the best value and the bound so far, in seconds, the bound less ``SAFETY`` too; returns whether to go on."""


@dataclass
class Rows:
    """A sparse matrix being written row by row, with bounds of columns and rows."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def column(self, lower: float, upper: float, integer: bool = False) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.lower) - 1

    def row(self, entries: Iterable[tuple[int, float]], lower: float = -math.inf, upper: float = math.inf) -> None:
        """Entries of one column add up."""
        summed: dict[int, float] = {}
        for column, value in entries:
            summed[column] = summed.get(column, 0.0) + value
        for column, value in summed.items():
            if value:
                self.index.append(column)
                self.value.append(value)
        self.start.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)


@dataclass(frozen=True)
class Answer:
    """``values`` of the columns, None without a solution; ``bound`` in seconds, infinite when infeasible; ``nodes`` of the
    search tree."""

    status: Outcome
    values: tuple[float, ...] | None
    bound: float
    nodes: int


def solve_rows(
    rows: Rows,
    minimised: int,
    factor: float,
    *,
    seconds: float,
    watch: Watch,
    gap: float = 0.0,
    start: Mapping[int, float] | None = None,
    threads: int = 1,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Answer:
    """The least of column ``minimised``. ``start``: values of some columns to begin from; ``seconds`` of counted work;
    ``gap``: relative, at which to stop; ``options`` stand over the settings made here."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(rows.lower), len(rows.row_lower)
    cost = np.zeros(len(rows.lower))
    cost[minimised] = 1.0
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.array(rows.lower), np.array(rows.upper)
    lp.row_lower_, lp.row_upper_ = np.array(rows.row_lower), np.array(rows.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(rows.start, np.int32)
    lp.a_matrix_.index_ = np.array(rows.index, np.int32)
    lp.a_matrix_.value_ = np.array(rows.value)
    lp.integrality_ = [
        highspy.HighsVarType.kInteger if integer else highspy.HighsVarType.kContinuous for integer in rows.integer
    ]
    highs: Any = highspy.Highs
    solver = highs()
    settings = {
        "output_flag": False,
        "threads": threads,
        "random_seed": seed,
        "time_limit": max(clock_left(), 0.01),
        "mip_rel_gap": gap,
        "mip_abs_gap": 0.0,
        "mip_feasibility_tolerance": 1e-10,  # of integers: at the usual 1e-6 a load of 2 passes for 1.999998
        **(options or {}),
    }
    for name, value in settings.items():
        if solver.setOptionValue(name, value) == highspy.HighsStatus.kError:
            raise ValueError(f"HiGHS takes no {name} = {value!r}")
    if solver.passModel(lp) == highspy.HighsStatus.kError:
        raise ValueError("HiGHS does not accept the programme")
    if start is not None:
        solver.setSolution(len(start), np.array(list(start), np.int32), np.array(list(start.values())))

    def below(dual: float) -> float:
        return max(0.0, (dual - SAFETY * SCALE) / factor) if math.isfinite(dual) else 0.0

    raised: list[BaseException] = []
    entries, ends = len(rows.value), now() + seconds
    did("matrix", entries)

    def asked(event: Any) -> None:
        # Nothing may be thrown through the solver; what was is raised again once it has stopped.
        out = event.data_out
        did("look", entries * min(entries, WIDE))
        try:
            if not raised and now() < ends and watch(out.mip_primal_bound / factor, below(out.mip_dual_bound)):
                return
        except BaseException as error:
            raised.append(error)
        event.interrupt()

    solver.cbMipInterrupt += asked
    solver.cbSimplexInterrupt += asked
    solver.run()
    if raised:
        raise raised[0]
    status, info = solver.getModelStatus(), solver.getInfo()
    nodes = max(0, int(info.mip_node_count))
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return Answer("infeasible", None, math.inf, nodes)
    bound = below(info.mip_dual_bound)
    values: Sequence[float] = list(solver.getSolution().col_value)
    if start is not None and values and abs(values[minimised] - info.objective_function_value) > SCALE * 1e-6:
        # HiGHS 1.16.0 reads some starts wrongly once it has simplified the programme: it then claims a value below the optimum,
        # and hands back the start, whose value is another.
        left = ends - now()
        return solve_rows(
            rows, minimised, factor, start=None, seconds=left, gap=gap, threads=threads, seed=seed, watch=watch, options=options
        )
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible or not values:
        return Answer("undecided", None, bound, nodes)
    done = status == highspy.HighsModelStatus.kOptimal
    return Answer("optimal" if done and gap <= PROVEN else "within-gap", tuple(values), bound, nodes)
