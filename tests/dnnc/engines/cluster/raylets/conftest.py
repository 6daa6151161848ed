"""Two raylets for all files of this folder, and a build for their hosts. Its tests are skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dnnc.cli import main
from tests.dnnc.engines.cluster.rays import RayCluster, ray_cluster

MACHINES = """version = 1
[types]
cpu = "preset:cpu-1"
[[hosts]]
name = "a"
[[hosts]]
name = "b"
[[devices]]
name = "a{0..1}"
type = "cpu"
host = "a"
[[devices]]
name = "b0"
type = "cpu"
host = "b"
[[links]]
ends = ["a*", "b*"]
bandwidth = "1 GB/s"
"""
WORKER = "dnnc.engines.onnxruntime.worker"


@pytest.fixture(autouse=True)
def _nothing_left() -> None:
    """The cluster stays for all tests; what runs leave is looked for by name."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'dnnc[cluster]'")


@pytest.fixture(scope="package")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stages: two on host a, one on host b; beside their machines."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "machines.toml").write_text(MACHINES)
    options = ["--mesh", "none", "--replicas", "1", "--stages", "3", "--no-report", "-q"]
    compiled = ["compile", "zoo:mlp,layers=4,hidden=64,batch=4", "-t", str(folder / "machines.toml"), "-o"]
    assert main([*compiled, str(folder / "build"), *options]) == 0
    return folder / "build"


@pytest.fixture(scope="package")
def raylets() -> Iterator[RayCluster]:
    with ray_cluster(("a", "b")) as one:
        yield one


@pytest.fixture
def cluster(raylets: RayCluster) -> RayCluster:
    """The raylets, with those started again that the test before has killed."""
    raylets.mend()
    return raylets


def started(cluster: RayCluster, *command: str) -> subprocess.Popen[str]:
    """Python with the arguments ``command``, among those who may use the cluster."""
    python = [sys.executable, "-P", *command]
    return subprocess.Popen(python, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def dnnc(cluster: RayCluster, *arguments: str) -> subprocess.Popen[str]:
    return started(cluster, "-m", "dnnc", *arguments, "--cluster", cluster.address)
