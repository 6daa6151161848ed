"""The search for stages on single devices and replicas: from IR to a problem over the lattice, and from its solution to a plan.
``lattice_search`` is the search; the others are its steps.

Before the search: ``total_memory`` refuses a model that all devices together cannot hold, ``requests`` reads cuts and pins,
``pins`` refuses those that contradict each other, ``steps`` makes the problem of training steps, ``hosts`` tells it what stages
reach on several hosts, ``chunks`` makes the problem of several stages on a device. After it: ``plan`` makes the stages of the
plan, ``on_links`` looks for better ones on the real links, ``copies`` for those of few hosts that take microbatches in turn,
``handover`` adds what a stage spends on each microbatch, ``memory`` makes the plan fit to the byte, and ``explain`` says why
there is no plan.
"""
