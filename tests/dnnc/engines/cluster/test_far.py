"""Builds on several hosts, each an agent of its own: outputs of one host, only what each needs, and ways to fail."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dnnc
from dnnc.build.build import Build
from dnnc.data.generate import random_inputs
from dnnc.engines.cluster.agents import LocalAgents
from dnnc.engines.onnxruntime import Pipeline, RunOptions, run_build
from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.onnxruntime.starter.stream import Stream
from dnnc.engines.onnxruntime.transport.codec import from_user
from ir.core.diagnostics import InvalidInput
from tests.dnnc.engines.cluster.far import on_hosts
from tests.dnnc.engines.onnxruntime.builds import make_build
from tests.dnnc.engines.onnxruntime.mesh_builds import pair
from tests.dnnc.engines.onnxruntime.processes import end_starter
from tests.dnnc.engines.onnxruntime.test_replicas import replicated, taker

APART = {"cpu0": "a", "cpu1": "a", "cpu2": "b"}


@pytest.mark.slow
def test_outputs_are_those_of_one_host(tmp_path: Path) -> None:
    """Stages 0 and 1 share memory, stage 2 is on another host; one value has another shape in each microbatch."""
    build = make_build(
        tmp_path,
        "g (float[n, 3] x) => (float[n, 3] h, int64[2] s) { h = Neg(x)  s = Shape(x) }",
        "g (float[n, 3] h) => (float[n, 3] e) { e = Exp(h) }",
        "g (float[n, 3] e, int64[2] s) => (float[m] y) { r = ReduceProd <keepdims = 1> (s)  y = Reshape(e, r) }",
    )
    inputs = [{"x": np.random.default_rng(m).standard_normal((1 + m % 5, 3)).astype(np.float32)} for m in range(30)]
    expected = run_build(build, inputs).outputs
    processes = on_hosts(build, APART, tmp_path / "cache")
    with Pipeline(build, processes=processes) as pipeline:
        for _ in range(2):
            result = pipeline.run(inputs)
            for one, other in zip(result.outputs, expected, strict=True):
                assert one["y"].tobytes() == other["y"].tobytes()
        assert sorted((e.stage, e.microbatch) for e in result.events if e.action == "F") == [
            (stage, microbatch) for stage in range(3) for microbatch in range(30)
        ]
        assert [process.host for process in processes.every] == ["a", "a", "b"]


TURNS = (0, 1, 0, 0, 2), (0, 0, 1)
"""Of two stages, the number of the replica that has each turn."""
HALVES = {"cpu0.0": "a", "cpu0.1": "b", "cpu0.2": "a", "cpu1.0": "b", "cpu1.1": "a"}


@pytest.mark.slow
def test_replicas_on_several_hosts_have_their_turns(tmp_path: Path) -> None:
    """Links of all kinds carry several microbatches of a round: inside a host, between hosts, and from and to the starter."""
    texts = ("g (float[2] x) => (float[2] h) { h = Exp(x) }", "g (float[2] h) => (float[2] y) { y = Neg(h) }")
    build = replicated(make_build(tmp_path, *texts), TURNS)
    inputs = [{"x": np.random.default_rng(m).standard_normal(2).astype(np.float32)} for m in range(31)]
    options = RunOptions(timeout=20)
    with Pipeline(build, options, on_hosts(build, HALVES, tmp_path / "cache", options)) as pipeline:
        begun = 0
        for count in (31, 4, 9):
            result = pipeline.run(inputs[:count])
            for fed, found in zip(inputs, result.outputs, strict=False):
                np.testing.assert_allclose(found["y"], -np.exp(fed["x"]), rtol=1e-6)
            ran = sorted((e.stage, e.microbatch, e.device) for e in result.events if e.action == "F")
            assert ran == [
                (stage, m, f"cpu{stage}.{taker(turns, begun + m)}") for stage, turns in enumerate(TURNS) for m in range(count)
            ]
            begun += count
    with Stream(build, processes=on_hosts(build, HALVES, tmp_path / "cache")) as stream:
        futures = [stream.submit({"x": from_user(fed["x"])}) for fed in inputs]
        for fed, future in zip(inputs, futures, strict=True):
            assert future is not None
            np.testing.assert_allclose(future.result(60)["y"], -np.exp(fed["x"]), rtol=1e-6)


def two_stages(folder: Path) -> Path:
    """A build with a stage on each of two hosts, and the weights of both in one file."""
    topology = folder / "machines.toml"
    topology.write_text(
        'version = 1\n[types]\ncpu = "preset:cpu-1"\n[[hosts]]\nname = "h{0..1}"\n'
        '[[devices]]\nname = "cpu0"\ntype = "cpu"\nhost = "h0"\n[[devices]]\nname = "cpu1"\ntype = "cpu"\nhost = "h1"\n'
        '[[links]]\nends = ["cpu0", "cpu1"]\nbandwidth = "1 GB/s"\n'
    )
    plan = dnnc.plan("zoo:mlp,layers=4,hidden=256,batch=4", machines=topology, mesh="none", replicas=1, stages=2)
    return plan.write(folder / "build").folder


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["sent", "read there"])
def test_each_host_gets_its_part_once(shared: bool, tmp_path: Path) -> None:
    """Of the weights in one file a host gets those of its stages, read where it sees the file, and in a second run nothing at
    all."""
    build = Build.open(two_stages(tmp_path))
    if not shared:
        build.folder.rename(tmp_path / "elsewhere")
    inputs = [random_inputs(build, seed=seed) for seed in range(4)]
    expected = run_build(build, inputs).outputs
    sent = []
    for _ in range(2):
        processes = on_hosts(build, {"cpu0": "a", "cpu1": "b"}, tmp_path / "cache")
        with Pipeline(build, processes=processes) as pipeline:
            sent.append(processes.sent_bytes)
            found = pipeline.run(inputs).outputs
        for one, other in zip(found, expected, strict=True):
            assert all(one[name].tobytes() == other[name].tobytes() for name in other)
    weights = sum(file.stamp.size for file in build.files.weights.values())
    models = sum(len(build.files.read(name)) for stage in build.stages for name in stage.models)
    assert sent[0] <= models if shared else 0.99 * weights < sent[0] <= weights + models
    assert sent[1] == 0


@pytest.mark.slow
def test_a_failed_microbatch_fails_alone(tmp_path: Path) -> None:
    build = make_build(
        tmp_path,
        "g (int64[1] i) => (float[1] h) <float[3] t = {1.0, 2.0, 3.0}> { h = Gather(t, i) }",
        "g (float[1] h) => (float[1] y) { y = Neg(h) }",
    )
    options = RunOptions()
    hosts = {"cpu0": "a", "cpu1": "b"}
    with Stream(build, options, processes=on_hosts(build, hosts, tmp_path / "cache", options)) as stream:
        futures = [stream.submit({"i": from_user(np.array([i]))}) for i in (0, 9, 2) * 5]
        for number, future in enumerate(futures):
            assert future is not None
            if number % 3 == 1:
                with pytest.raises(StageStopped, match=r"stage 0 on cpu0 of host a: .*E0627.*out of data bounds"):
                    future.result(60)
            else:
                assert future.result(60)["y"].tolist() == [-1.0 - number % 3]


@pytest.mark.slow
def test_a_killed_process_and_a_lost_host_are_named(tmp_path: Path) -> None:
    build = make_build(tmp_path, *(f"g (float[2] v{i}) => (float[2] v{i + 1}) {{ v{i + 1} = Neg(v{i}) }}" for i in range(3)))
    inputs = [{"v0": np.ones(2, np.float32)}] * 4
    with Pipeline(build, processes=on_hosts(build, APART, tmp_path / "cache", wait=0)) as pipeline:
        os.kill(pipeline.processes[1], signal.SIGKILL)
        with pytest.raises(StageStopped, match=r"stage 1 on cpu1 of host a: .*was killed by SIGKILL"):
            pipeline.run(inputs * 10000)
    processes = on_hosts(build, APART, tmp_path / "cache", wait=0)
    with Pipeline(build, processes=processes) as pipeline:
        pipeline.run(inputs)
        assert isinstance(processes.agents, LocalAgents)
        processes.agents.processes["b"].kill()
        with pytest.raises(StageStopped, match=r"stage 2 on cpu2 of host b: .*E2205.*host 'b' has gone"):
            pipeline.run(inputs * 10000)


STARTER = """
import sys, time
from pathlib import Path
from dnnc.engines.onnxruntime import Pipeline
from tests.dnnc.engines.cluster.far import on_hosts
from tests.dnnc.engines.onnxruntime.builds import make_build
folder = Path(sys.argv[1])
build = make_build(folder, "g (float[2] x) => (float[2] h) { h = Neg(x) }", "g (float[2] h) => (float[2] y) { y = Neg(h) }")
processes = on_hosts(build, {"cpu0": "a", "cpu1": "b"}, folder)
with Pipeline(build, processes=processes) as pipeline:
    print(*pipeline.processes, *(agent.pid for agent in processes.agents.processes.values()), flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_killed_starter_leaves_nothing_on_any_host(tmp_path: Path) -> None:
    assert end_starter(["-c", STARTER, str(tmp_path)], signal.SIGKILL) == 4


@pytest.mark.slow
def test_what_a_host_refuses_is_told(tmp_path: Path) -> None:
    """The folder of its cache cannot be made: a file stands there."""
    (tmp_path / "cache").write_text("")
    build = make_build(tmp_path, "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    with (
        pytest.raises(InvalidInput, match=r"E2218.*host 'a' does not run dnnc: .*cache"),
        Pipeline(build, processes=on_hosts(build, {"cpu0": "a"}, tmp_path / "cache")),
    ):
        pass


def small_disk(folder: Path) -> list[str]:
    """What a command begins with to have a file system of 64 KB in a folder, which others do not see."""
    mounted = f'mount -t tmpfs -o size=64k,mode=700 none {folder} && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, "sh"]


@pytest.mark.slow
def test_a_host_without_space_is_named(tmp_path: Path) -> None:
    """Its cache has no room for the weights of its stage; nothing half-written is left."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    if subprocess.run([*small_disk(cache), "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount a file system")
    build = Build.open(two_stages(tmp_path))
    agents = LocalAgents(before={"b": [*small_disk(cache)]})
    with (
        pytest.raises(InvalidInput, match=r"host 'b': .*cache.*: error\[E\d+\]: .*No space left on device"),
        Pipeline(build, processes=on_hosts(build, {"cpu0": "a", "cpu1": "b"}, cache, agents=agents)),
    ):
        pass
    assert not [name for name in os.listdir(cache) if name.startswith(".")]


@pytest.mark.slow
def test_a_mesh_over_hosts_computes_what_it_does_on_one(tmp_path: Path) -> None:
    """Collectives between members of several hosts, and of one, by edges."""
    build = Build.open(pair(tmp_path, 4))
    inputs = [random_inputs(build, seed=seed) for seed in range(20)]
    expected = run_build(build, inputs).outputs
    of = dict(zip(build.devices, "aabb", strict=True))
    with Pipeline(build, processes=on_hosts(build, of, tmp_path / "cache")) as pipeline:
        found = pipeline.run(inputs).outputs
    for one, other in zip(found, expected, strict=True):
        assert one["y"].tobytes() == other["y"].tobytes()
