"""Stages between ideals of the graph, on single devices and their replicas: the search over the lattice (``search``), over
links of two speeds (``groups``), plans without a proof (``heuristics``), and bounds where the lattice is too large to walk
(``bounds``).
"""
