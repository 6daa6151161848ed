"""A function in stages, each on a mesh of its own: cuts, devices and shardings chosen together, with a bound.

``stages`` is the search. ``units`` says where a model may be cut, ``submeshes`` where a stage may lie. ``bounding`` keeps what
every run costs at least, from ``crossings`` (transfers) and ``chains`` (tables of units), whose problems ``borders`` makes;
``pipeline`` finds the best sequence under these, ``settled`` solves its stages. ``kernels``: their compiled loops.
"""
