"""Stages between ideals of the graph, on single devices and their replicas.

- ``objective``: what an objective brings to a search over the lattice, and what a solution is;
- ``search``: the search over the whole lattice; ``groups``: over links of two speeds;
- ``heuristics``: plans without a proof; ``bounds``: of plans where the lattice is too large to walk.
"""
