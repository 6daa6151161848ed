"""What happens when: a plan's seconds (``workload``), the order of work per device of a stream (``orders``) or a training step
(``families``), what every device then does when (``simulate``) and holds (``memory``)."""
