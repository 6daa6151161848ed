"""The numbers that steer the shared search, in one record: none decides whether a bound holds, only what is tried.

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
    """Times the lower bound at which the first plan is looked for, before any will do."""
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


POLICY = Policy()

__all__ = ["POLICY", "Policy"]
