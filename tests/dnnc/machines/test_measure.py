"""Measured topologies: what is replaced, what is kept, and that real processes measure it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dnnc.cli import main
from dnnc.machines import (
    cache,
    detected,
    handover,
    host_here,
    machines_of,
    measure,
    measured,
    merged,
    parse_link,
    read_facts,
    samples,
)
from dnnc.machines.cache import cache_file
from dnnc.machines.kernels import training
from dnnc.machines.measure import _allowed, _fit, _Measured, _notes, _of_classes, _Taken, _type
from dnnc.machines.probes import Probes, Sample
from dnnc.machines.topology import load_topology, read_topology, topology_to_toml
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.topology import Topology

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two devices need two cores")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of one small model, few runs of each op."""
    monkeypatch.setattr(samples, "ZOO", ("zoo:mlp,layers=2",))
    monkeypatch.setattr(samples, "SIDES", (64,))
    monkeypatch.setattr(samples, "STREAM", 1 << 20)
    monkeypatch.setattr(samples, "QUANTISED", ((8, 8),))
    monkeypatch.setattr(measure, "SWEEPS", 1)
    monkeypatch.setattr(measure, "ROUNDS", 3)
    monkeypatch.setattr(handover, "ROUNDS", 1)
    monkeypatch.setattr(training, "ZOO", ("zoo:mlp,hidden=512",))


@pytest.mark.slow
@TWO_CORES
@pytest.mark.usefixtures("short")
def test_a_host_of_two_is_measured_and_the_other_kept() -> None:
    facts = read_facts(gpus="")
    here, _ = detected(facts, 2)
    other = load_topology("preset:cpu-2,cores=2,memory=8GiB", DiagnosticSink())
    both = merged("m", [("here", here), ("there", other)], [parse_link("here-there=1GB/s,50us")]).topology
    host = host_here(both, facts, both.hosts[0].name)
    found, notes, _ = measured(both, facts, host, training=False)
    assert read_topology(topology_to_toml(found, notes)) == found
    assert [device.name for device in found.devices] == [device.name for device in both.devices]
    mine, theirs = (found.type(found.devices[place].type) for place in (0, 2))
    assert theirs == both.type(both.devices[2].type)
    assert {"f32", "f64", "i8"} <= set(dict(mine.rates))
    assert 0 < mine.handover < 1
    assert mine.scalar_rate > 0
    assert mine.cache_bandwidth >= mine.memory_bandwidth
    assert all(rate > 0 for _, rate in mine.rates)
    assert mine.memory_bandwidth > 0
    assert mine.overhead >= 0
    assert all(0 < fraction <= 1 for _, fraction in mine.efficiency)
    before = {link.name: link for link in both.links}
    changed = {link.name for link in found.links if link != before[link.name]}
    assert len(changed) == 1
    assert set(before[changed.pop()].ends) == {host, *(device.name for device in found.devices[:2])}
    table = f"types.{mine.name}"
    keys = ("rates", "scalar_rate", "memory_bandwidth", "overhead", "handover", "efficiency")
    assert all(notes[table, key].startswith("measured") for key in keys)
    assert "matmul-blocks" in notes[table, "efficiency"].partition("; kept: ")[0]


def test_a_quota_of_a_part_of_a_core_is_not_a_busy_machine() -> None:
    """Two processes that a control group allows 1.5 cores have theirs for three quarters of the time."""
    facts = replace(read_facts(gpus=""), quota=1.5)
    assert _allowed(facts, 2) == 0.75
    assert _allowed(facts, 1) == _allowed(replace(facts, quota=None), 2) == 1.0


@pytest.fixture
def measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """An empty cache, and measurements that take no time: each call takes the next share of its cores that a process had."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shares: list[float] = []
    monkeypatch.setattr(measure, "measured", lambda topology, *_, **__: (topology, {}, shares.pop(0)))
    return shares


def test_this_machine_is_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], measurements: list[float]) -> None:
    machines = ["-t", "preset:local,devices=1"]
    compile_ = ["compile", "zoo:mlp", *machines, "-o", str(tmp_path / "build"), "--plan-only", "--mesh", "none"]
    compile_ += ["--objective", "training"]
    measurements[:] = [1.0]
    assert main(compile_) == 0
    (file,) = (tmp_path / "cache/dnnc/machines").iterdir()
    assert f"note[W0856]: measured on this machine, and kept in {file}" in capsys.readouterr().err
    before = (tmp_path / "build/plan.ir").read_bytes()
    assert main(compile_) == 0  # a second measurement would find nothing to take
    assert "W0856" not in capsys.readouterr().err
    assert (tmp_path / "build/plan.ir").read_bytes() == before
    measurements[:] = [1.0]
    assert main(["topology", "measure", "--devices", "1"]) == 0
    told = capsys.readouterr()
    assert told.out == file.read_text()
    assert "--fresh measures again" in told.err
    assert main(["topology", "measure", "--devices", "1", "--host", "nobody"]) == 2  # what is kept is of no such host
    assert main(["topology", "measure", "--devices", "1", "--fresh"]) == 0
    assert not measurements
    file.write_text("version = 1\n[[dev")
    measurements[:] = [1.0]
    assert main(compile_) == 0
    assert not measurements


def test_inference_is_measured_alone_unless_training_was_too(measurements: list[float]) -> None:
    measurements[:] = [1.0, 1.0]
    for both in (False, False, True, True, False):
        machines_of("preset:local,devices=1", DiagnosticSink(), training=both)
    assert not measurements


def test_what_a_busy_machine_shows_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], measurements: list[float]
) -> None:
    measurements[:] = [0.6, 0.6]
    for _ in range(2):
        machines_of("preset:local,devices=1", DiagnosticSink())
    assert not list((tmp_path / "cache").rglob("*.toml"))
    measurements[:] = [0.6]
    assert main(["topology", "measure", "--devices", "1", "-o", str(tmp_path / "mine.toml")]) == 0
    told = capsys.readouterr().err
    assert "warning[W0857]: the machine was busy: the measuring processes had their cores for 60.0 % of the time" in told
    assert not list((tmp_path / "cache").rglob("*.toml"))


@pytest.mark.usefixtures("measurements")
def test_other_hardware_limits_or_numbers_of_devices_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = read_facts(gpus="")
    others = [(facts, 1), (facts, None), (replace(facts, memory=facts.memory // 2), 1), (replace(facts, quota=0.5), 1)]
    assert len({cache_file(*one) for one in others}) == len(others)
    before = cache_file(facts, 1)
    assert cache_file(facts, 1, training=False) != before
    assert before == cache_file(read_facts(gpus=""), 1)
    monkeypatch.setattr(cache, "_MEASURING", ("measure.py",))
    assert cache_file(facts, 1) != before, "it is measured in another way"


@TWO_CORES
@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_training_is_measured_by_torch() -> None:
    """Where torch is there: what the link does in training, the passes of products, the start of a kernel; with comments, which
    the file keeps."""
    pytest.importorskip("torch")
    facts = read_facts(gpus="")
    topology, _ = detected(facts, 2)
    found, notes, _ = measured(topology, facts, facts.host)
    (link,) = found.links
    assert link.training_bandwidth > 0
    assert 1e-6 < link.training_latency < 1
    assert 0 <= link.training_start < 10
    assert re.fullmatch(
        r"measured: 4 MiB and 4 KiB by gloo, the first summed, sums between products; \+-.*", notes["links.memory", "training"]
    )
    assert read_topology(topology_to_toml(found, notes)) == found
    (type_,) = found.types
    assert 1e-8 < type_.launch < 1e-2
    assert {"matmul-training", "matmul-backward"} <= set(dict(type_.efficiency))
    assert all(0 < fraction <= 1 for _, fraction in type_.efficiency)
    assert notes[f"types.{type_.name}", "efficiency"].endswith("matmul-training of torch")
    assert dict(type_.rates)["bf16"] > 0  # as 'dnnc train --dtype bf16' asks for
    assert notes[f"types.{type_.name}", "rates"].endswith("bf16: products of torch")


def test_rates_and_efficiencies_say_what_the_ops_took() -> None:
    """A convolution quicker than the products raises the rate, so that nothing exceeds it."""
    found = _Measured(rates={"f32": (100e9, 0.0), "f64": (40e9, 0.0)})
    _fit(found, {"conv": 0.5, "matmul": 1.25, "softmax": 10.0}, {"conv": 1.0, "matmul": 1.0, "softmax": 1.0})
    rates = {dtype: rate for dtype, (rate, _) in found.rates.items()}
    assert found.efficiency == {"conv": 1.0, "matmul": 0.4, "softmax": 0.05}
    assert rates["f32"] == pytest.approx(200e9)
    assert rates["f64"] * found.efficiency["matmul"] == pytest.approx(40e9)


def test_weights_that_lie_in_the_caches_take_nothing_off_an_op() -> None:
    """A product that runs again and again has its weights at hand: its efficiency is its flops over its seconds. One with so
    many weights for its flops that it would wait for memory tells nothing of arithmetic."""
    found = _Measured(rates={"f32": (100e9, 0.0)}, bandwidth=(10e9, 0.0), cache=(50e9, 0.0), scalar=1e9)
    many, one = (
        samples._one(f"%y = onnx.MatMul(%x, @w) : tensor<{rows}x512xf32>", f"{rows}x512xf32", "512x512xf32")
        for rows in (512, 1)
    )
    seconds = {id(many): many.cost.flops / 80e9, id(one): 1e-4}
    assert many.cost.weight / 10e9 > 0.02 * seconds[id(many)]
    _fit(found, *_of_classes(found, [many, one], seconds, 1 << 22))
    assert found.ops == {"matmul": 1}
    assert found.rates["f32"][0] * found.efficiency["matmul"] == pytest.approx(80e9, rel=0.01)


def test_the_slowest_device_of_each_sweep_counts() -> None:
    """Devices of a type work in turn or together, at the pace of the one that is slowest at that time; what it did is taken
    as a whole, also the ops for which another device was slower."""
    answers = iter([{0: [1.0, 1.2], 1: [5.0, 5.0]}, {0: [3.0], 1: [1.0]}, {0: [1.0], 1: [7.0]}, {0: [9.0], 1: [2.0]}])

    class Answers(Probes):
        def ask(self, order: Mapping[str, Any], asked: Iterable[int], *, rounds: int, warm: int = 3) -> dict[int, list[float]]:
            assert list(asked) == [0, 1]
            return next(answers)

    taken = _Taken(Answers([], [[0], [1]], Path(), 0), {"core": [0, 1]})
    for _ in range(2):
        for key in ("a", "b"):
            taken.take(key, "kernels", Path("model.onnx"), 1)
        taken.end_sweep()
    assert taken.seconds == {("a", "core"): [5.0, 5.0, 1.0], ("b", "core"): [1.0, 9.0]}
    assert taken.quickest == {"core": [4.1 / 6.0, 9.0 / 10.0]}


def test_the_rate_of_8_bits_is_that_of_integer_products() -> None:
    """What a product and a convolution of 8 bits are planned with is what they took."""
    found = _Measured(rates={"f32": (100e9, 0.0), "i8": (400e9, 0.0)})
    _fit(found, {"matmul": 1.25, "conv-i8": 2.0}, {"matmul": 1.0, "conv-i8": 1.0})
    rate = found.rates["i8"][0]
    assert rate * found.efficiency["matmul"] == pytest.approx(400e9)
    assert rate * found.efficiency["conv-i8"] == pytest.approx(200e9)


def replace_rates(found: _Measured, **rates: tuple[float, float]) -> _Measured:
    return replace(found, rates={**found.rates, **rates}, unsteady={})


def test_notes_tell_which_rates_were_not_measured() -> None:
    found = _Measured(rates={"f32": (100e9, 0.02)}, missing=["bf16"], unsteady={"f16": 2.12})
    before = replace(load_topology("preset:cpu-1", DiagnosticSink()).types[0], rates=(("f16", 1e9), ("f32", 2e9), ("i8", 3e9)))
    text = _notes(_type(before, before.name, found), found, before)[f"types.{before.name}", "rates"]
    assert "f32 +-2.0 %" in text
    assert "bf16: this onnxruntime multiplies none" in text
    assert "f16 not believed (+-212.0 %)" in text
    assert "for want of arithmetic" not in text
    slow = replace_rates(found, f16=(50e9, 0.1))
    assert "f16: slower than f32" in _notes(_type(before, before.name, slow), slow, before)[f"types.{before.name}", "rates"]
    assert text.endswith("kept, not measured: f16, i8")
    unequal = _notes(_type(before, before.name, found), replace(found, quickest=0.62), before)
    assert unequal[f"types.{before.name}", "rates"].endswith("; the quickest device takes 62.0 % of the seconds of the slowest")
    assert dict(_type(before, before.name, found).rates) == {"f16": 1e9, "f32": 100e9, "i8": 3e9}


def test_spread_of_a_sample() -> None:
    assert Sample.of([3.0]) == Sample(3.0, 0.0)
    assert Sample.of([1.0, 2.0, 3.0]) == Sample(2.0, 1.0)


def hosts(*names: str) -> Topology:
    topology = load_topology("preset:2xa100x1", DiagnosticSink())
    return replace(topology, hosts=tuple(replace(h, name=n) for h, n in zip(topology.hosts, names, strict=True)))


def test_what_cannot_be_measured_is_told() -> None:
    facts = replace(read_facts(gpus=""), host="b")
    with pytest.raises(UsageError, match="b has no CPU device"):
        host_here(hosts("a", "b"), facts)
    with pytest.raises(UsageError, match="no host of 2xa100x1 is called 'b'"):
        host_here(hosts("a", "c"), facts)
    with pytest.raises(InvalidInput, match="expected devices=N"):
        machines_of("preset:local,cores=2", DiagnosticSink())
    with pytest.raises(InvalidInput, match="measured when it is asked for"):
        read_topology('version = 1\ninclude = "preset:local"\n')
    assert main(["topology", "measure", "preset:cpu-999", "-q"]) == 2
