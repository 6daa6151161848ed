"""Ranks that stand for slower machines, and plans for devices of unequal speeds that they train."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dnnc.cli import main
from dnnc.engines.torch import slowed
from dnnc.engines.torch.slowed import Slowed, slow_devices
from ir.core.diagnostics import UsageError
from ir.core.ops import Op
from tests.dnnc.engines.torch.training_builds import MODEL, TWO_STAGES, compiled, weights

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

SPEEDS = {"a": 1.0, "b": 0.5, "c": 0.3, "d": 0.2}
LINK = '[[links]]\nends = ["host", "devices of host"]\nbandwidth = "20 GB/s"\nlatency = "10 us"\n'
SLOW = ("--slow", "b=1", "--slow", "c=2.3", "--slow", "d=4")
PARTS = ("--mesh", "4", "--strategy", "data", "--shares", "10,5,3,2")
WITH_NORMS = "zoo:resnet50,image=32,width=4,classes=10,batch=20"


class Clock:
    """Seconds that pass as the test says; ``late``: what each sleep takes too long."""

    def __init__(self, late: float = 0.0) -> None:
        self.computed, self.slept, self.late = 7.0, list[float](), late

    def thread_time(self) -> float:
        return self.computed

    def perf_counter(self) -> float:
        return sum(self.slept) + self.late * len(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(slowed, "time", clock)
    return clock


def test_a_rank_waits_in_proportion_to_what_it_computed_since(clock: Clock) -> None:
    waits = Slowed(3.0, seen=clock.thread_time())
    for seconds, expected in ((0.01, 0.03), (0.5, 1.5)):
        clock.computed += seconds
        waits.wait()
        waits.wait()
        assert clock.slept[-1] == pytest.approx(expected)
    assert len(clock.slept) == 2


def test_what_a_sleep_was_too_long_is_taken_off_the_next(clock: Clock) -> None:
    clock.late = 0.002
    waits = Slowed(1.0, seen=clock.thread_time())
    for _ in range(2):
        clock.computed += 0.01
        waits.wait()
    assert clock.slept == pytest.approx([0.01, 0.008])


def test_short_waits_are_added_up(clock: Clock) -> None:
    waits = Slowed(2.0, seen=clock.thread_time())
    for _ in range(10):
        clock.computed += 3e-5
        waits.wait()
    assert clock.slept == pytest.approx([1.2e-4] * 5)


def test_what_is_computed_before_training_is_left_out(clock: Clock) -> None:
    waits = Slowed(2.0, seen=clock.thread_time())
    clock.computed += 5
    waits.begin()
    waits.wait()
    assert not clock.slept


@pytest.mark.parametrize("text", ["cpu1", "cpu1=", "=3", "cpu1=-1", "cpu1=nan", "cpu1=1e9", "cpu1=fast"])
def test_what_is_no_factor_of_a_device(text: str) -> None:
    with pytest.raises(UsageError, match="it is not DEVICE=K"):
        slow_devices([text])


def test_factors_of_devices() -> None:
    assert slow_devices(["cpu1=3", "node=1.gpu0=0.5", "cpu1=2"]) == {"cpu1": 2.0, "node=1.gpu0": 0.5}


def test_a_rank_waits_before_it_sends_or_joins_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    from dnnc.engines.torch import exchange

    done: list[str] = []
    communication = SimpleNamespace(
        all_reduce=lambda *_, **__: SimpleNamespace(wait=lambda: done.append("sum")),
        isend=lambda *_, **__: done.append("send"),
        irecv=None,
        ReduceOp=torch.distributed.ReduceOp,
    )
    monkeypatch.setattr(exchange, "dist", communication)
    monkeypatch.setattr(exchange, "swapped", lambda *_: [done.append("swap")][:0])
    monkeypatch.setattr(exchange.Exchange, "_group", lambda *_: None)
    monkeypatch.setattr(exchange.Exchange, "_ranks", lambda *_: (0, 1))
    monkeypatch.setattr(exchange.Exchange, "_served", lambda *_: None)
    step = SimpleNamespace(
        readers=lambda *_: [1], makes=lambda *_: True, microbatches=1, row=lambda rank: [], devices=("a", "b")
    )
    network: Any = SimpleNamespace(rank=0, slowed=SimpleNamespace(wait=lambda: done.append("wait")), here={}, outgoing=[])
    network.step, network.most, network.tag, network.place = step, 9, lambda *_: 1, lambda *_: None
    sums: Any = {0: Op("comm.all_reduce", (), ())}
    comm: Any = exchange.Exchange(network, SimpleNamespace(index=0), 0, sums)  # type: ignore[arg-type]
    comm.all_reduce(torch.ones(exchange.SWAPPED), 0)
    bucket = exchange.Bucket.of([torch.ones(2)], 1)
    comm._begin(bucket, 0, "sum")
    bucket.work.wait()
    comm._swap({0: torch.ones(1), 1: torch.ones(1)}, {0: [1], 1: [1]}, torch.ones(1), 0)
    channel: Any = SimpleNamespace(number=0, target=SimpleNamespace(index=1))
    exchange.Network.send(network, torch.ones(1), channel, 0)
    assert done == ["wait", "sum", "wait", "sum", "wait", "swap", "wait", "send"]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topology of four devices of unequal speeds."""
    path = tmp_path_factory.mktemp("machines") / "machines.toml"
    types = [
        f'[types.{name}]\nlike = "preset:cpu-1"\nrates = {{ f32 = "{100 * speed} GFLOP/s" }}' for name, speed in SPEEDS.items()
    ]
    devices = [f'[[devices]]\nname = "{name}"\ntype = "{name}"' for name in SPEEDS]
    path.write_text("\n".join(["version = 1", *types, *devices, LINK]))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "loss", "options", "devices", "steps"),
    [
        (MODEL.replace("batch=4", "batch=20"), "mse:y", PARTS, "abcd", 3),
        (MODEL, "mse:y", TWO_STAGES, "ab", 3),
        (WITH_NORMS, "cross-entropy:y", PARTS, "abcd", 1),  # of further steps the norms of few samples blow rounding up
    ],
    ids=["unequal parts", "idle devices", "norms in unequal parts"],
)
def test_steps_on_slowed_ranks_are_those_of_the_unsplit_model(
    machines: Path,
    tmp_path: Path,
    model: str,
    loss: str,
    options: tuple[str, ...],
    devices: str,
    steps: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = compiled(tmp_path / "build", *options, model=model, loss=loss, topology=str(machines))
    stages = json.loads((build / "plan.json").read_text())["stages"]
    assert sorted(name for stage in stages for name in stage["device"]) == list(devices)
    if len(devices) == len(SPEEDS):
        assert stages[0]["mesh"]["shares"] == {"x": [10, 5, 3, 2]}
    assert main(["train", str(build), "--steps", str(steps), "--check", "--json", *SLOW]) == 0
    found = json.loads(capsys.readouterr().out)
    loose = [name for name in found["not_compared"] if not name.endswith("running_var")]  # of few samples, deep in the model
    assert (found["steps"], found["weights"] > 0, loose) == (steps, True, [])


@pytest.mark.slow
def test_unequal_parts_go_on_from_a_checkpoint_of_a_plan_with_idle_devices(machines: Path, tmp_path: Path) -> None:
    model = MODEL.replace("batch=4", "batch=20")
    idle = compiled(tmp_path / "idle", *TWO_STAGES, model=model, topology=str(machines))
    parts = compiled(tmp_path / "parts", *PARTS, model=model, topology=str(machines))
    whole, half = tmp_path / "whole", tmp_path / "half"
    assert main(["train", str(parts), "--steps", "4", "--checkpoint", str(whole), "-q"]) == 0
    assert main(["train", str(idle), "--steps", "2", "--checkpoint", str(half), "-q"]) == 0
    resumed = ("--resume", str(half / "step2"), "--checkpoint", str(half))
    assert main(["train", str(parts), "--steps", "2", *resumed, "-q", *SLOW]) == 0
    one, other = (weights(folder / "step4") for folder in (whole, half))
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


@pytest.mark.slow
def test_a_slow_device_takes_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its passes in the measured timeline do; that of the other is as before. A device that the topology lacks is refused."""
    build, out = compiled(tmp_path / "build"), tmp_path / "out"
    assert main(["train", str(build), "--steps", "3", "--slow", "cpu1=100", "--out", str(out), "-q"]) == 0
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    (track,) = {event["pid"] for event in events if event["ph"] == "M" and event["args"].get("name") == "measured"}
    passes = [event for event in events if event["ph"] == "X" and event["pid"] == track and event["name"][0] == "F"]
    fast, slow = ([event["dur"] for event in passes if event["args"]["stage"] == stage] for stage in (0, 1))
    assert statistics.median(slow) > 10 * statistics.median(fast)
    assert main(["train", str(build), "--slow", "cpu7=1"]) == 2
    assert "--slow: error[E0739]: there is no device 'cpu7'\n  hint: the topology has cpu0, cpu1" in capsys.readouterr().err
