"""From IR to a problem and from its solution to a plan: the search over the lattice (``lattice_search``) and what it asks for.

Before the search: ``requests`` reads cuts and pins, ``pins`` refuses those that contradict each other, ``steps`` makes the
problem of training steps, ``chunks`` that of several stages on a device. After it: ``plan`` makes the stages of the plan,
``on_links`` looks for better ones on the real links, ``copies`` for those of few hosts that all take microbatches in
turn, ``handover`` adds what a stage spends on each microbatch, ``memory`` makes the plan fit to the byte; ``explain`` says why
there is none.
"""
