"""What searches are made with, whatever they search: compiled loops, counted work, flows, a solver of mixed-integer programmes.

- ``kernels``: the door to numba; ``flow_kernels``: maximum flow;
- ``highs``: a mixed-integer programme as rows, and the door to its solver;
- ``anytime``: limits, results, and the driver that keeps plan and bound whatever ends a search,
  Ctrl-C in compiled loops included;
- ``work``: counted work, which ends searches in place of a clock: a search asks ``now()`` and says what it did.
"""
