"""Machines: topology files, presets, and the machine at hand as a topology.

- ``topology``: files that describe machines, read and written (``README.md`` has all keys); ``presets``: those that come along;
- ``facts``, ``detect``, ``local``: what this host is; ``merge``: several topologies as one;
- ``measure``, ``kernels``, ``probes``, ``samples``: what it does; ``cluster``: the same of the nodes of a Ray cluster, and of
  the network between them; ``cache``: that, kept for later; ``profile``: seconds of a model's ops on it.

What measures is imported when it is called: a compile for another machine does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ir.system.lazy import exports

if TYPE_CHECKING:
    from dnnc.machines.detect import detected, missing_providers
    from dnnc.machines.facts import Facts, read_facts
    from dnnc.machines.local import is_local, machines_of
    from dnnc.machines.measure import busy_warning, duration, host_here, measured
    from dnnc.machines.merge import Merged, merged, parse_link

__all__ = [
    "Facts",
    "Merged",
    "busy_warning",
    "detected",
    "duration",
    "host_here",
    "is_local",
    "machines_of",
    "measured",
    "merged",
    "missing_providers",
    "parse_link",
    "read_facts",
]

__getattr__ = exports(
    __name__,
    {
        "detect": "detected missing_providers",
        "facts": "Facts read_facts",
        "local": "is_local machines_of",
        "measure": "busy_warning duration host_here measured",
        "merge": "Merged merged parse_link",
    },
)
