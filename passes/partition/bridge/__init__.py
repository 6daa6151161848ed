"""From IR to a problem and from its solution to a plan: the pass ``partition_pass`` and what it asks for.

``requests`` reads cuts and pins, ``from_workload`` the problems of profiles, ``steps`` the costs of training steps, ``chunks``
several stages on a device; ``pieces``, ``on_links`` and ``handover`` are what a plan costs where devices, links and
microbatches meet; ``memory`` makes a plan fit to the byte; ``explain`` says why there is no plan.
"""
