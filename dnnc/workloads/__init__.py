"""Profiled workloads of the literature, planned on the machines of their file: ``dnnc solve`` and what follows it.

- ``solve``, ``methods``, ``profiled``: a file to a split with its proof; ``report``, ``placement_result``: shown, and written;
- ``verify_plan``: a split checked by code that shares nothing with the solver; ``scheduled``: what ``dnnc simulate`` follows.
"""
