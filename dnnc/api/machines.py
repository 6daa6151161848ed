"""``dnnc.measure_cluster``: the machines of a Ray cluster as a topology, for ``plan(machines=..)``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dnnc.api.options import PathLike, numbers
from dnnc.api.terms import python_terms, warn

if TYPE_CHECKING:
    from ir.core.topology import Topology


def measure_cluster(
    cluster: str,
    *,
    hosts: Mapping[str, str] | None = None,
    devices: int | None = None,
    ports: str = "26000-26999",
    seed: int = 0,
    training: bool = True,
    out: PathLike | None = None,
) -> Topology:
    """Measures the nodes of a Ray cluster whose head is at ``cluster``, HOST:PORT, and the network between each two of them.

    ``hosts``: nodes by the names that their hosts are to have, else all that offer cores; ``devices``: CPU devices of each
    node, else one for each NUMA node; ``ports``: FIRST-LAST, which nodes listen on; ``training``: measure it too, where
    torch is installed; ``out``: a file for the topology, with a comment on each number. Warns where a node was busy. Raises
    InvalidInput where there is no such cluster, it asks for no token, versions differ, or nodes do not reach each other;
    RuntimeFailure where a node goes meanwhile."""
    from dnnc.engines.hosts.options import ClusterOptions, port_range, require_packages
    from dnnc.machines import busy_warning
    from dnnc.machines.topology import topology_to_toml
    from ir.system.scratch import whole_file

    devices, seed = numbers("dnnc.measure_cluster", devices=devices, seed=seed)
    with python_terms():
        options = ClusterOptions(cluster, hosts or {}, port_range(ports))
        require_packages()
        from dnnc.machines.cluster import measured_cluster

        found = measured_cluster(options, devices=devices, seed=seed, training=training)
        if out is not None:
            with whole_file(Path(out)) as file:
                file.write(topology_to_toml(found.topology, found.notes).encode())
    warn(busy.at(host) for host, share in found.shares.items() if (busy := busy_warning(share)) is not None)
    return found.topology
