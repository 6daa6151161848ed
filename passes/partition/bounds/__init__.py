"""Lower bounds for lattices too large to walk.

``minimum_cuts`` are the networks that others ask, and bound stages by single nodes; ``interval_bounds`` (over ``intervals`` of
the lattice) and ``subproblems`` (parts, and the relaxations of ``contraction`` with ``symmetry`` counted once) are bounds too.
``policy`` holds what steers these and the search.
"""
