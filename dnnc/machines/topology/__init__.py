"""Topology files: TOML or JSON that describes machines, as ``ir.core.topology.Topology`` and back
(``dnnc/machines/README.md``).

- ``read``: the way in; ``document``: typed reads that report a fault; ``reader``, ``device_types``, ``reachable``: what they
  build; ``writer``: the way back; ``faults``: what is wrong with a file;
- ``names``, ``quantities``: patterns and selectors of names; numbers with units.
"""

from dnnc.machines.topology.read import load_topology, read_topology
from dnnc.machines.topology.writer import topology_to_toml

__all__ = ["load_topology", "read_topology", "topology_to_toml"]
