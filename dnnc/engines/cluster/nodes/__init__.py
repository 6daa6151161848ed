"""The nodes of a Ray cluster as the hosts of a run.

- ``matching``: which node stands for each host;
- ``ray_cluster``: connects to Ray and launches an actor on each node; ``actor``: what runs there;
- ``survey``: what the nodes have, and what is missing for the machines of a topology.
"""
