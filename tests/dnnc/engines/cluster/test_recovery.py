"""What is lost during a run on several hosts comes back: outputs are those of an undisturbed run, each once and in order."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np
import pytest

from dnnc.build.build import Build
from dnnc.data.generate import random_inputs
from dnnc.engines.cluster.agents import LocalAgents
from dnnc.engines.cluster.network import relay
from dnnc.engines.cluster.starting import FarProcesses
from dnnc.engines.onnxruntime import Pipeline, RunOptions, run_build
from dnnc.engines.onnxruntime.decoding.wiring import decoding_build
from dnnc.engines.onnxruntime.errors import RuntimeFailure, StageStopped
from dnnc.engines.onnxruntime.starter.stream import Stream
from dnnc.engines.onnxruntime.transport.codec import from_user
from tests.dnnc.engines.cluster.far import on_hosts
from tests.dnnc.engines.onnxruntime.builds import make_build
from tests.dnnc.engines.onnxruntime.decoding_builds import decoder_build, drawn
from tests.dnnc.engines.onnxruntime.mesh_builds import pair
from tests.dnnc.engines.onnxruntime.processes import gone
from tests.dnnc.engines.onnxruntime.test_decoding_recovery import REQUESTS, SIZES, kill
from tests.dnnc.engines.onnxruntime.test_decoding_recovery import Disturbed as DisturbedDecoder
from tests.dnnc.engines.onnxruntime.test_replicas import replicated

APART = {"cpu0": "a", "cpu1": "a", "cpu2": "b"}


class Disturbed(Sequence[dict[str, Any]]):
    """Microbatches. Before one of ``acts`` is fed for the first time, something is done."""

    def __init__(self, items: Sequence[dict[str, Any]], acts: Mapping[int, Callable[[], object]]) -> None:
        self.items = items
        self.acts = dict(acts)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, number: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[dict[str, Any]]: ...
    def __getitem__(self, number: int | slice) -> dict[str, Any] | Sequence[dict[str, Any]]:
        if isinstance(number, int) and number in self.acts:
            self.acts.pop(number)()
        return self.items[number]


def exponentials(folder: Path) -> Build:
    return make_build(folder, *(f"g (float[2] v{i}) => (float[2] v{i + 1}) {{ v{i + 1} = Exp(v{i}) }}" for i in range(3)))


def agents_of(processes: FarProcesses) -> LocalAgents:
    assert isinstance(processes.agents, LocalAgents)
    return processes.agents


def killings(pipeline: Pipeline, processes: FarProcesses, seed: int) -> Iterator[Callable[[], object]]:
    """Ways to lose a process or a host, at random."""
    generator = random.Random(seed)
    while True:
        if generator.random() < 0.5:
            yield lambda: agents_of(processes).processes[generator.choice("ab")].kill()
        else:
            yield lambda: os.kill(generator.choice(pipeline.processes), signal.SIGKILL)


@pytest.mark.slow
def test_a_stream_goes_on_when_a_host_is_lost(tmp_path: Path) -> None:
    build = make_build(tmp_path, "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    processes = on_hosts(build, {"cpu0": "a"}, tmp_path / "cache")
    with Stream(build, processes=processes) as stream:
        futures = [stream.submit({"x": from_user(np.full(2, n, np.float32))}) for n in range(3)]
        agents_of(processes).processes["a"].kill()
        futures += [stream.submit({"x": from_user(np.full(2, n, np.float32))}) for n in range(3, 6)]
        assert [future.result(60)["y"][0] for future in futures if future] == [0, -1, -2, -3, -4, -5]


@pytest.mark.slow
def test_a_run_goes_on_whatever_is_killed(tmp_path: Path) -> None:
    """Events are on one clock: what was computed comes once, what was lost and the time until all were back is told."""
    build = exponentials(tmp_path)
    inputs = [{"v0": np.random.default_rng(n).standard_normal(2).astype(np.float32)} for n in range(200)]
    expected = run_build(build, inputs).outputs
    processes = on_hosts(build, APART, tmp_path / "cache")
    with Pipeline(build, processes=processes) as pipeline:
        told: list[str] = []
        pipeline.recovery.tell = lambda diagnostic: told.append(diagnostic.code)
        numbers = random.Random(0).sample(range(200), 6)
        result = pipeline.run(Disturbed(inputs, dict(zip(numbers, killings(pipeline, processes, 0), strict=False))))
        assert [one["v3"].tobytes() for one in result.outputs] == [one["v3"].tobytes() for one in expected]
        assert told == ["W0637"] * len(told)
        assert len(told) > 1
        computed = [(e.stage, e.microbatch) for e in result.events if e.action == "F"]
        assert len(computed) == len(set(computed))
        assert {m for _, m in computed} >= set(range(max(numbers), 200))  # after the last loss nothing was lost
        away = [e for e in result.events if e.title == "away"]
        assert len(away) == 3 * len(told)
        assert {e.action for e in away} == {"lost"}
        for device in build.devices:
            own = sorted((e for e in result.events if e.device == device and e.action in ("F", "lost")), key=lambda e: e.start)
            assert all(one.end <= other.start + 1e-3 for one, other in pairwise(own))
        assert len(pipeline.run(inputs[:5]).outputs) == 5


@pytest.mark.slow
def test_replicas_with_unlike_turns_go_on(tmp_path: Path) -> None:
    """What was not answered is counted from 0 again, so it may be another replica's."""
    texts = ("g (float[2] x) => (float[2] h) { h = Exp(x) }", "g (float[2] h) => (float[2] y) { y = Neg(h) }")
    build = replicated(make_build(tmp_path, *texts), ((0, 1, 0, 0, 2), (0, 0, 1)))
    inputs = [{"x": np.random.default_rng(n).standard_normal(2).astype(np.float32)} for n in range(150)]
    expected, options = run_build(build, inputs).outputs, RunOptions(timeout=20)
    hosts = dict(zip(build.devices, "ababa", strict=True))
    processes = on_hosts(build, hosts, tmp_path / "cache", options)
    with Pipeline(build, options, processes) as pipeline:
        result = pipeline.run(Disturbed(inputs, dict(zip((11, 52, 94), killings(pipeline, processes, 1), strict=False))))
    assert [one["y"].tobytes() for one in result.outputs] == [one["y"].tobytes() for one in expected]
    assert any(e.action == "lost" for e in result.events)
    with Stream(build, options, processes=on_hosts(build, hosts, tmp_path / "cache", options)) as stream:
        futures = [stream.submit({"x": from_user(fed["x"])}) for fed in inputs[:7]]
        os.kill(stream.processes[1], signal.SIGKILL)
        futures += [stream.submit({"x": from_user(fed["x"])}) for fed in inputs[7:40]]
        found = [future.result(60)["y"].tobytes() for future in futures if future]
    assert found == [one["y"].tobytes() for one in expected[:40]]


@pytest.mark.slow
def test_answers_go_on_whatever_is_killed(tmp_path: Path) -> None:
    """A process, the host of the first stage, the host of the second one."""
    build = decoder_build(tmp_path, SIZES)
    processes = on_hosts(decoding_build(build), {"cpu0": "a", "cpu1": "b"}, tmp_path / "cache")

    def kill_host(name: str) -> Callable[[object], object]:
        return lambda decoder: agents_of(processes).processes[name].kill()

    acts = {3: kill(1), 12: kill_host("a"), 21: kill_host("b")}
    with DisturbedDecoder(build, acts, processes=processes) as decoder:
        answers = [decoder.ask(request) for request in REQUESTS]
        for request, answer in zip(REQUESTS, answers, strict=True):
            most = SIZES.context - len(request.ids)
            assert list(answer) == drawn(request, min(request.max_tokens or most, most), SIZES.context)
        assert decoder.told in (["W0637"] * 2, ["W0637"] * 3)  # of two losses the second may be seen with the first


@pytest.mark.slow
def test_members_of_a_mesh_over_hosts_come_back(tmp_path: Path) -> None:
    """They exchange operands inside a host and between hosts."""
    build = Build.open(pair(tmp_path, 4))
    inputs = [random_inputs(build, seed=seed) for seed in range(100)]
    expected = run_build(build, inputs).outputs
    processes = on_hosts(build, dict(zip(build.devices, "aabb", strict=True)), tmp_path / "cache")
    with Pipeline(build, processes=processes) as pipeline:
        acts = dict(zip((3, 40, 41), killings(pipeline, processes, 5), strict=False))
        found = pipeline.run(Disturbed(inputs, acts)).outputs
    assert [one["y"].tobytes() for one in found] == [one["y"].tobytes() for one in expected]


@pytest.mark.slow
def test_a_host_that_wakes_up_later_takes_no_part(tmp_path: Path) -> None:
    """A process that was stopped, as one that is cut off, still holds microbatches of the time before."""
    build = exponentials(tmp_path)
    inputs = [{"v0": np.full(2, n / 100, np.float32)} for n in range(200)]
    expected = run_build(build, inputs).outputs
    processes = on_hosts(build, APART, tmp_path / "cache")
    with Pipeline(build, processes=processes) as pipeline:
        old = pipeline.processes

        def lose() -> None:
            os.kill(agents_of(processes).processes["b"].pid, signal.SIGSTOP)  # else it would end its process
            os.kill(old[2], signal.SIGSTOP)
            os.kill(old[0], signal.SIGKILL)

        acts = {50: lose, 120: lambda: os.kill(old[2], signal.SIGCONT)}
        found = pipeline.run(Disturbed(inputs, acts)).outputs
        assert gone(old)
    assert [one["v3"].tobytes() for one in found] == [one["v3"].tobytes() for one in expected]


@pytest.mark.slow
def test_a_host_that_is_stopped_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is switched off: nothing ends there, and nobody closes a connection."""
    monkeypatch.setattr(relay, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(relay, "SILENT_SECONDS", 2.0)
    build = exponentials(tmp_path)
    inputs = [{"v0": np.full(2, n / 100, np.float32)} for n in range(100)]
    expected = run_build(build, inputs).outputs
    processes = on_hosts(build, APART, tmp_path / "cache")
    with Pipeline(build, processes=processes) as pipeline:
        stopped = [agents_of(processes).processes["b"].pid, pipeline.processes[2]]
        found = pipeline.run(Disturbed(inputs, {50: lambda: [os.kill(one, signal.SIGSTOP) for one in stopped]})).outputs
        os.kill(stopped[1], signal.SIGCONT)  # its agent was killed
        assert gone(stopped)
    assert [one["v3"].tobytes() for one in found] == [one["v3"].tobytes() for one in expected]


class NotBack(LocalAgents):
    """Agents that start once."""

    def launch(self, settings: Mapping[str, Any]) -> tuple[str, str]:
        if settings["host"] == "b" and len(self.processes) > 1:
            raise ConnectionError("nobody is there")
        return super().launch(settings)

    def close(self) -> None:
        processes = dict(self.processes)
        super().close()
        self.processes = processes


@pytest.mark.slow
def test_a_host_that_stays_away_ends_the_run(tmp_path: Path) -> None:
    build = exponentials(tmp_path)
    processes = on_hosts(build, APART, tmp_path / "cache", wait=3.0, agents=NotBack())
    with Pipeline(build, processes=processes) as pipeline:
        acts = {50: agents_of(processes).processes["b"].kill}
        with pytest.raises(StageStopped, match=r"stage 2 on cpu2 of host b: .*E2205(.|\n)*E2202.*nobody is there"):
            pipeline.run(Disturbed([{"v0": np.ones(2, np.float32)}] * 1000, acts))


@pytest.mark.slow
def test_what_would_come_again_is_not_tried_again(tmp_path: Path) -> None:
    """A crash, which a process brings about itself."""
    build = exponentials(tmp_path)
    with Pipeline(build, processes=on_hosts(build, APART, tmp_path / "cache")) as pipeline:
        acts = {5: lambda: os.kill(pipeline.processes[1], signal.SIGSEGV)}
        with pytest.raises(RuntimeFailure, match=r"stage 1 on cpu1 of host a: .*was killed by SIGSEGV"):
            pipeline.run(Disturbed([{"v0": np.ones(2, np.float32)}] * 1000, acts))
