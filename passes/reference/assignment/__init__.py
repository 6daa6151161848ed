"""Any assignment of nodes to devices, contiguous or not: plans by annealing, and values below them refuted, one after another.

``solver`` is the search for throughput: ``reduce`` makes the problem of a trial value smaller, ``milp`` (in a process of its
own, ``milp_process``) says whether a plan reaches it. ``training`` has the same search for training graphs.
``local_search`` is the annealing (``anneal_kernels`` its loop).
"""
