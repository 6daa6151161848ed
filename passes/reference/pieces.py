"""Pieces: a split in which data flows back and forth between devices, as stages that run in one order.

A device that holds a set of nodes, some of which wait for nodes elsewhere that wait for it, runs the set in pieces: each piece
is a stage of its own, on the same device, and data flows from earlier stages to later ones only. So programs, schedules and
checks need to know nothing of such splits.

Once it is a device's turn, it does all that it can: whatever else it might keep for later cannot help anyone. So a piece
is the closure of what is done, and only the order of turns is searched, by a beam over sets done: the fewest pieces that it
meets, which is not proven least.

Invariants: pieces cover the sets; every node comes after what it reads; two neighbouring pieces lie on different devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from passes.stages.problem import Problem

BEAM = 64
"""Sets of nodes done that are carried along."""


def pieces(problem: Problem, sets: Sequence[Sequence[int]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """(position in ``sets``, nodes ascending) of each piece, in the order in which they run."""
    home = {v: d for d, nodes in enumerate(sets) for v in nodes}
    before = [sum(1 << u for u in makers) for makers in problem.neighbours[0]]
    own = [sorted(nodes) for nodes in sets]
    everything = sum(1 << v for v in home)
    turns: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {0: ()}
    while everything not in turns:
        wider: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {}
        for done, path in turns.items():
            for device, nodes in enumerate(own):
                reached, piece = done, []
                for v in nodes:  # ascending is topological
                    if not reached >> v & 1 and before[v] & ~reached == 0:
                        reached |= 1 << v
                        piece.append(v)
                if piece:
                    wider.setdefault(reached, (*path, (device, tuple(piece))))
        best = sorted(wider, key=lambda done: -done.bit_count())
        turns = {done: wider[done] for done in best[:BEAM]}
    return turns[everything]
