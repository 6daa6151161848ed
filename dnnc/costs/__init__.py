"""What devices cost: the machines that come with dnnc, as topology files (``presets/``), and their sources.

A preset is text in the topology format with ``$devices`` and ``$hosts`` filled in; ``dnnc.frontends.load_topology`` reads
it like a user's file. Numbers and where they are from live in those files, never in code.
"""

from dnnc.costs.presets import Preset, find_preset, local_cores, local_memory, preset_names

__all__ = ["Preset", "find_preset", "local_cores", "local_memory", "preset_names"]
