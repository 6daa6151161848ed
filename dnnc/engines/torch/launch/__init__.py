"""How the ranks of a training are started, meet, are followed and end.

- ``training``: a training build and its run; ``job``: what a rank is told; ``starting``: its processes;
- ``meeting``: hosts prove a shared secret to each other; ``telling``: what ranks tell; ``failures``: why training ended;
- ``on_cluster``, ``host``, ``host_files``: the hosts of a Ray cluster, the process that trains on one of them, and its files;
- ``forking``: ranks as forks of one process; ``retries``: training that goes on after a loss.
"""
