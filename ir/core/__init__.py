"""The program as immutable data, and faults as data.

- ``types``, ``dims``, ``attributes``: what a name may hold, symbolic sizes, compile-time constants;
- ``ops``, ``module``, ``topology``: the body of a program, the symbols around it, the machines;
- ``facets``: what passes learn or decide about an op;
- ``objectives``, ``outcomes``, ``shares``: what a plan minimises; what a search reached; how a dimension is cut along the
  axes of a mesh;
- ``names``, ``ranges``, ``limits``: spellings, the range of each number, what an input may ask for;
- ``diagnostics``, ``faults``: faults as data; the kinds of faults of this room and of ``system``.
"""
