"""How processes of one host hand values to each other.

- ``wiring``: which place hands what to which; ``edges``, ``codec``, ``shared_memory``: one tensor from one process to another;
- ``collectives``, ``sharing``, ``parts``: members of a mesh bring parts of a tensor together.
"""
