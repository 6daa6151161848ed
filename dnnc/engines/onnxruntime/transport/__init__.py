"""How processes of one host exchange tensors.

- ``wiring``: which place sends what to which; ``edges``: a slot of shared memory for each microbatch, and tokens;
  ``codec``: values of unknown size as bytes; ``shared_memory``: the transport of the engine, made of these; ``opening``:
  finds the transport that a description names;
- ``collectives``: how the members of a mesh combine parts of a tensor; ``sharing``: the shared memory for that;
- ``parts``: cuts tensors into parts and assembles them.
"""
