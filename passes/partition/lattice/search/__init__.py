"""The search over ideals for any objective (``search``), the objective throughput (``throughput``), and stages with replicas
(``replicas``)."""
