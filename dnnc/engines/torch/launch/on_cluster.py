"""The hosts of a training on a Ray cluster: an actor on the node of each, which launches the process that trains there
(``host.py``). Nodes, versions and tokens are as for inference (``dnnc.engines.cluster.nodes.ray_cluster``)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dnnc.build.build import outline
from dnnc.build.elsewhere import device_hosts, host_addresses
from dnnc.engines.cluster.agents import LocalAgents
from dnnc.engines.cluster.nodes.actor import PACKAGES, NodeAgent, versions
from dnnc.engines.cluster.nodes.matching import HostNeeds, match_hosts
from dnnc.engines.cluster.nodes.ray_cluster import RayAgents, connected
from dnnc.engines.cluster.starting import Hosts
from dnnc.engines.hosts.faults import HostsChosen
from dnnc.engines.hosts.options import ClusterOptions
from dnnc.engines.torch.launch.hosts import HostsOfTraining
from dnnc.engines.torch.launch.training import TrainingBuild
from ir.core.diagnostics import Diagnostic, DnncError, InvalidInput
from ir.core.topology import Topology

MODULE = "dnnc.engines.torch.launch.host"
_PACKAGES = (*PACKAGES, "torch", "safetensors")
_END_SECONDS = 15.0
"""How long the processes of all hosts may take to end their ranks."""


class TrainAgent(NodeAgent):
    """The actor on a node: its process ends with it."""

    def __init__(self) -> None:
        super().__init__()
        self._process = LocalAgents(module=MODULE)

    def versions(self) -> dict[str, str]:
        return versions(_PACKAGES)

    def launch(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"offer": self._process.launch(settings)}
        except InvalidInput as error:
            return {"refused": [diagnostic.to_json() for diagnostic in error.diagnostics]}

    def close(self) -> None:
        self._process.close()
        super().close()


class TrainAgents(RayAgents):
    """Actors that end the processes of their hosts before they are ended themselves."""

    def close(self) -> None:
        try:
            asked, until = self.begin({host: ("close",) for host in self.actors}), time.monotonic() + _END_SECONDS
            for host, reference in asked.items():
                with contextlib.suppress(DnncError):  # of a node that has gone: the others still end their ranks
                    self.answers({host: reference}, "its ranks are ended", max(0.0, until - time.monotonic()))
        finally:
            super().close()


@contextmanager
def training_hosts(
    build: TrainingBuild, cluster: ClusterOptions, warned: Callable[[Diagnostic], None] = lambda diagnostic: None
) -> Iterator[HostsOfTraining]:
    """The hosts of a training on the nodes of a cluster, not started yet. Raises and warns as
    ``dnnc.engines.cluster.nodes.ray_cluster.on_cluster``."""
    where, of = f"--cluster {cluster.address}", device_hosts(build.files)
    needs = _needs(build, of)
    with connected(cluster.address) as (ray, nodes, here):
        found, chosen = match_hosts(list(needs.values()), nodes, cluster.hosts, where)
        if chosen:
            warned(HostsChosen(tuple(f"{name} = {found[name]}" for name in chosen)).at(where))
        agents = TrainAgents(ray, found, needs, where, TrainAgent)
        try:
            agents.require_versions(_PACKAGES)
            addresses = {name: node.address for name, node in found.items()}
            yield HostsOfTraining(build, Hosts(of, addresses, here, cluster.ports), agents)
        finally:
            agents.close()


def _needs(build: TrainingBuild, of: Mapping[str, str]) -> dict[str, HostNeeds]:
    """The cores that the ranks of each host use, in the order of the ranks."""
    topology, addresses = outline(build.files).first(Topology), host_addresses(build.files)
    assert topology is not None
    cores: dict[str, int] = {}
    for device in build.devices:
        cores[of[device]] = cores.get(of[device], 0) + topology.type(topology.device(device).type).cores
    return {host: HostNeeds(host, count, address=addresses.get(host, "")) for host, count in cores.items()}
