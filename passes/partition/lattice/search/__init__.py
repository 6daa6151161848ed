"""The search over ideals that objectives share (``search``), with throughput (``throughput``) as the first of them and replicas
of stages."""
