"""Bytes that a stage needs on each of its devices, asked by searches, ``place``, ``replay``, ``schedule`` and reports.

A device holds, all the time,

- *weights*: each resource that an op of the stage reads, once; of a weight that trains also its gradient and the optimizer's
  state (``Learning.held``); a state once for each of its sets;
- *buffers*: of every tensor received from another stage as many as phases can work on at once, and ``SLOTS`` of every gradient
  that comes back (``footprint.buffer_bytes``);

and while it works its *workspace*: activations that are alive at once (``liveness``), what is saved of microbatches between
their forward and backward pass, gradients that wait to be added to those of other microbatches, and older versions of the
weights, where the order of work keeps some (``stage``).

- ``liveness``: bytes alive while each op runs; ``stage``: what passes of a training step make, save and free;
- ``kernels``: bytes that kernels work in;
- ``footprint``: the sum by kinds of bytes, and what a device lacks of it.
"""
