"""The numbers that steer the shared search and what it asks (``bounds``, ``heuristics``), in one record: none decides whether a
bound holds, only what is tried. It lies in ``bounds``, which both import.

They were set by ``tests.bench.solve`` (seconds to a proof), ``tests.bench.lattices`` (gaps of large lattices in 60 s) and
``tests.bench.ablation`` (which phase improves which instance).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """See the module."""

    ideals_per_second: int = 500_000
    """Ideals that are walked over and stored in a second: nothing stops a walk, so its length keeps the time limit."""
    wide: int = 4_096
    """Nodes times devices from which on a plan of one stage comes before the first order: it bounds what that one tries."""
    few: int = 4_000
    """Ideals up to which orders after the first are not tried: the whole lattice costs as little."""
    first: tuple[float, ...] = (1.25, 2.0)
    """Times the lower bound at which the first plan is looked for, before any will do: without these ``tests.bench.solve``
    tests 1.3 to 30 times as many pairs of small workloads."""
    many: int = 4_000
    """Ideals from which on trial values rise from the lower bound: with fewer, one run of the programme costs less than
    several."""
    trials: tuple[float, ...] = (1e-4, 0.01, 0.1, 0.4)
    """Parts of the way from the lower to the upper bound that are tried before the whole."""
    start_share: float = 0.4
    """Part of the time left for the bound of the first stages alone: NASNet on 16 machines in a straight line is proven in
    it."""
    cut_share: float = 0.2
    """Part of the time left for plans over minimum cuts, before the bounds of a lattice too large to walk and after: either
    halves NASNet's gap."""
    idle: int = 6
    """Looks around the best plan without a better one after which no other is taken."""
    contract_share: float = 0.45
    interval_share: float = 0.65
    bound_share: float = 0.75
    """Parts of the whole time after which bounds of a lattice too large to walk end: contractions, intervals of the lattice,
    all."""
    budgets: int = 10
    """Budgets of pairs for all these bounds: they are many small programmes."""
    parts: int = 4
    """Parts around the dearest stage that are searched alone, each after a better plan."""
    small_gap: float = 2e-4
    """Relative gap below which a search that is not exact ends early."""

    # The first stages of a straight pipeline (``pipedream.starts``).
    start_reaches: tuple[float, ...] = (1.2, 1.4, 1.6, 2.0)
    """Seconds walked over, as multiples of the largest trial value."""
    start_ideals: int = 20_000
    """Thin ideals that are chained: every pair within reach is looked at."""
    start_trials: int = 13
    """Trial values between the bound and the best value."""
    start_step: float = 1.1
    """How far over the bound the next trial values go: thin ideals are few where little may be cut."""

    # Graphs too large for all else (``heuristics.segments``).
    huge: int = 4_000
    """Nodes from which on the prefixes of an order are segmented, and nothing else is looked for."""
    segments: tuple[int, ...] = (256, 1_024, 4_096)
    """Segments of an order, in turn: a plan soon, then better ones."""
    segments_work: int = 4 * 10**9
    """Segments times tensors cut by all their prefixes: a second's work of the programme."""
    segments_near: float = 2.0
    """Even segments on each side of a cut that are divided further."""

    # Plans over minimum cuts (``heuristics.cut_plans``).
    windows: int = 150
    """Equal ranges of weight: a minimum cut or more in each, and the intervals that bounds begin with."""
    cut_prices: tuple[float, ...] = (0.0, -0.02, 0.02, -0.06, 0.06, -0.2, 0.2, -0.5, 0.5)
    """Seconds of cut that a second of compute is worth, in turn."""
    cut_reaches: tuple[float, ...] = (0.03, 0.08, 0.015, 0.05)
    """How far from a boundary others are looked for, in parts of a stage's weight, in turn."""
    cut_forced: int = 32
    """Nodes that are forced in and out around a boundary, each time others."""
    cut_ideals: int = 6_000
    """Ideals in a family: a few hundredths of a second of the programme."""

    # The bound of single nodes.
    nodes: int = 48
    """Nodes looked at, the most promising first."""
    node_shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Weights of compute that are tried where it overlaps with transfers."""

    # The bound by intervals (``bounds.interval_bounds``).
    interval_nodes: int = 2_500
    """Nodes beyond which the tables of ancestors and descendants are too large."""
    most_intervals: int = 1_200
    fewest_intervals: int = 60
    """Where the programme has time for fewer intervals than these, the bound is not tried."""
    interval_work: int = 3 * 10**7
    """Stages that one run of the programme looks at: tens of milliseconds."""
    interval_cuts: int = 4
    """Minimum cuts per stage or boundary: multipliers tried."""
    multiplier_step: float = 0.1
    """The first change of a multiplier, in prices of a second."""
    charge: float = 0.1
    """The first price of a memory's bytes, in parts of a stage, where a cut asks for more than there are; it doubles."""
    disputed: float = 0.1
    """A range of weight is split while it is wider than this part of the weight on which the stages at both sides do not
    agree."""
    narrow: float = 1e-5
    """Width of a range, in parts of a stage, below which it is not split."""

    # Parts and contractions (``bounds.subproblems``).
    part_ideals: int = 60_000
    """Ideals of a part."""
    slow: float = 0.1
    """A kind whose share of all speed is below this part of the fastest's gives way first: it matters little."""
    efforts: tuple[tuple[float, int], ...] = (
        (0.0, 100_000),
        *((0.03, 20_000), (0.01, 20_000), (0.003, 20_000)),
        *((0.003, 100_000), (0.01, 100_000), (0.03, 100_000)),
    )
    """What one move may need, in parts of a load, and ideals of the relaxed problem, in turn: first what needs nothing, since
    it is exact. 20,000 ideals are a tenth of a second's work."""
    apart: tuple[float, ...] = (0.5, 0.35, 0.25, 0.18, 0.13, 0.09, 0.06, 0.04, 0.02, 0.0)
    """Parts of all nodes that a node must be beside in order to give way: the largest is taken that leaves few ideals."""
    relaxed_trials: tuple[float, ...] = (0.5, 0.8, 0.95, 1.0)
    """Parts of the way from the bound to the value at which a relaxed problem is asked for a plan."""


POLICY = Policy()
