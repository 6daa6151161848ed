"""Lower bounds for lattices too large to walk.

``minimum_cuts``: the least transfers of a stage of which some nodes are known, and a bound from the stage of each node.
``interval_bounds``: paths through ``intervals`` of the lattice, by compiled loops (``kernels``). ``subproblems``: parts of the
graph, and relaxations by ``contraction``, in which branches that are alike count once (``symmetry``). ``policy``: the numbers
that steer these and the search.
"""
