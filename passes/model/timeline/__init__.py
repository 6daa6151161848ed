"""What happens when: a plan's seconds (``workload``), the order of work per device of a stream or a training step (``orders``),
and what every device then does when (``simulate``)."""
