"""Plans without a proof: from minimum cuts (``cut_plans``), along orders of segments (``segments``), by annealing of any
assignment (``local_search``, its loop: ``anneal_kernels``).
"""
