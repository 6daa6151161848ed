"""What happens when: a plan's seconds (``workload``), the order of work per device of a stream (``orders``) or a training step
(``families``), what every device then does when (``simulate``, whose
loop over ``arrays`` is in ``kernels``) and holds (``memory``)."""
