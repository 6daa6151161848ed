"""``dnnc topology measure --cluster`` on real raylets: what is measured serves a run, and nodes that go meanwhile are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink
from passes.costs.network import network
from tests.dnnc.engines.cluster.raylets.conftest import started
from tests.dnnc.engines.cluster.rays import RayCluster
from tests.dnnc.engines.onnxruntime.processes import gone

pytestmark = pytest.mark.slow

MEASURED = """
import sys
from dnnc.cli import main
from dnnc.machines import cluster

class Brief(cluster.NodeMeter):
    def describe(self, *arguments):
        from dnnc.machines import handover, measure, samples
        samples.ZOO, samples.SIDES, samples.STREAM, samples.QUANTISED = ("zoo:mlp,layers=2",), (64,), 1 << 20, ((8, 8),)
        measure.SWEEPS, measure.ROUNDS, handover.ROUNDS = 1, 3, 1
        return super().describe(*arguments)

cluster.NodeMeter = Brief
address, machines, build = sys.argv[1:]
model = ["zoo:mlp,layers=4,hidden=64,batch=4", "--mesh", "none", "--replicas", "1", "--stages", "2", "--no-report"]
sys.exit(
    main(["topology", "measure", "--cluster", address, "-o", machines, "--devices", "1", "--no-training"])
    or main(["compile", *model, "-t", machines, "-o", build, "-q"])
    or main(["run", build, "-m", "4", "--cluster", address])
)
"""


def test_a_measured_cluster_runs_a_plan_without_stated_hosts(cluster: RayCluster, tmp_path: Path) -> None:
    machines = str(tmp_path / "machines.toml")
    done = started(cluster, "-c", MEASURED, cluster.address, machines, str(tmp_path / "build"))
    said = done.communicate(timeout=240)[1]
    assert done.returncode == 0, said
    assert "W2216" not in said, "a node was chosen for want of a better reason"
    topology = load_topology(machines, DiagnosticSink())
    assert [one.name for one in topology.hosts] == ["a", "b"]
    assert topology.links[-1].ends == ("a", "b")
    assert 1e6 < topology.links[-1].bandwidth < 1e11
    assert 1e-6 < network(topology).path(*(device.name for device in topology.devices)).latency < 1
    assert gone(cluster.running("ray::Brief"))


LOST = """
import os, signal, sys
from contextlib import contextmanager
from dnnc.cli import main
from dnnc.engines.cluster.nodes.matching import HostNeeds
from dnnc.engines.cluster.nodes.ray_cluster import RayAgents, connected
from dnnc.machines import cluster
from ir.core.diagnostics import DnncError

victim = how = ""

class Mortal(cluster.NodeMeter):
    def describe(self, host, *arguments):
        from dnnc.machines import measure
        probes = measure.probes
        @contextmanager
        def last(*arguments):
            with probes(*arguments):
                os.kill(os.getpid(), signal.SIGKILL)
        if host == "a":
            measure.probes = last
        return super().describe(host, *arguments)

    def exchange(self, begins):
        if begins == (victim == "a"):
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            self._relay._loop.do(lambda: divmod(1, 0))  # its connections break
        return super().exchange(begins)

cluster.NodeMeter = Mortal
print(main(["topology", "measure", "--cluster", sys.argv[1], "-o", sys.argv[2]]))
with connected(sys.argv[1]) as (ray, nodes, _):
    named = {next(name for name in "ab" if f"host:{name}" in node.resources): node for node in nodes}
    for victim, how in (("a", "killed"), ("b", "cut off")):
        agents = RayAgents(ray, named, {name: HostNeeds(name, 1) for name in named}, "here", Mortal)
        try:
            cluster._network(agents, dict(sorted(named.items())), (26000, 26999), lambda label, _: None)
        except DnncError as error:
            print(type(error).__name__, *error.diagnostics)
        finally:
            agents.close()
"""


def test_a_node_that_goes_meanwhile_is_named(cluster: RayCluster, tmp_path: Path) -> None:
    """While its devices are measured, and while the network is."""
    machines = tmp_path / "machines.toml"
    measuring = started(cluster, "-c", LOST, cluster.address, str(machines))
    out, said = measuring.communicate(timeout=120)
    assert measuring.returncode == 0, said
    code, killed, cut = (line for line in out.splitlines() if line == "3" or line.startswith("StageStopped"))
    assert code == "3"
    assert "E2205" in said
    assert "host 'a' has gone while its devices were measured" in said
    assert not machines.exists()
    assert killed.startswith("StageStopped here: error[E2205]: host 'a' has gone while the network was measured")
    assert "StageStopped here: error[E2224]: no connection between host 'a' and tcp://" in cut
    assert gone(cluster.running("Mortal"))
    assert gone(cluster.running("dnnc.engines.onnxruntime.probe"))
