"""The lattice of ideals of a problem, between two of which each stage lies, and the dynamic programme over them.

- ``tables``, ``states``: a problem as the kernels want it; which devices a plan has used up to a boundary;
- ``orders``, ``ideals``: topological orders, and families of ideals with their prices;
- ``dp``: from a family to stages;
- ``kernels``, ``walk_kernels``: the compiled loops, and ``kernel_arrays``, what they read and fill in.
"""
