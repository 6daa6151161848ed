"""How processes exchange tensors: those of one host here, between hosts by ``dnnc.engines.cluster``.

- ``wiring``: which place sends what to which, ``turns``: of which microbatches;
- ``edges``: a slot of shared memory for each microbatch, and tokens; ``codec``: values of unknown size as bytes;
  ``shared_memory``: the transport of the engine, made of these; ``opening``: finds the transport that a description names;
- ``collectives``: how the members of a mesh combine parts of a tensor; ``sharing``: the shared memory for that;
  ``edge_group``: the same by edges, where members are on several hosts;
- ``parts``: cuts tensors into parts and assembles them.
"""
