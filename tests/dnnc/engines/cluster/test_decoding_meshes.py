"""Decoders whose stages are meshes: answers are those of one device, on one host and on several, whatever is killed, and where
sequences are given what an encoder made."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnnc
from dnnc.build.build import Build
from dnnc.engines.onnxruntime.decoding.answers import Request
from dnnc.engines.onnxruntime.decoding.decoder import Decoder
from dnnc.engines.onnxruntime.decoding.given import given_arrays
from dnnc.engines.onnxruntime.decoding.wiring import decoding_build
from tests.dnnc.engines.cluster.far import on_hosts
from tests.dnnc.engines.onnxruntime.test_decoding_recovery import Disturbed, kill

pytestmark = pytest.mark.slow

SMALL = "layers=2,hidden=64,heads=4,ffn=128,vocab=256,cache=inplace,context=64,batch=2"
LLAMA, T5 = f"zoo:llama-7b,kv_heads=2,{SMALL}", f"zoo:t5-base,{SMALL}"
PROMPTS = [(1, 2, 3), (4,), tuple(range(50, 75)), (5, 6), (7,) * 9]
SPLITS: dict[str, dict[str, Any]] = {"heads": {"stages": 1, "strategy": "megatron"}, "two stages": {"stages": 2}}


def built(spec: str, folder: Path, machines: str = "preset:cpu-1", **options: Any) -> Build:
    plan = dnnc.plan(spec, machines=machines, context=64, batch=2, groups=2, chunk=4, report=False, **options)
    return Build.open(plan.write(folder).folder)


def on_mesh(spec: str, folder: Path, split: str) -> Build:
    devices = 2 * SPLITS[split]["stages"]
    return built(spec, folder, f"preset:cpu-{devices},cores={devices}", mesh="2", **SPLITS[split])


def requests(build: Build) -> list[Request]:
    """Of unlike lengths, greedy; in a model that reads what an encoder made each has its own, of its own length."""
    assert build.decoding is not None
    given = {state.name: state.shape[1:] for state in build.decoding.states if not state.result and state.dtype == "f32"}
    chance, found = np.random.default_rng(0), []
    for number, ids in enumerate(PROMPTS):
        lengths = {name: (shape[0], shape[1] - 7 * number, shape[2]) for name, shape in given.items()}
        arrays = {name: 3 * chance.standard_normal(shape, np.float32) for name, shape in lengths.items()}
        found.append(Request(ids, 30, 1.5, seed=number, given=given_arrays(build.decoding, arrays)))
    return found


def answers(decoder: Decoder, asked: list[Request]) -> list[list[int]]:
    return [list(answer) for answer in [decoder.ask(request) for request in asked]]


@pytest.mark.parametrize(("spec", "split"), [(LLAMA, "two stages"), (T5, "heads")], ids=["llama", "t5"])
def test_members_that_are_killed_change_no_answer(spec: str, split: str, tmp_path: Path) -> None:
    """While prompts are read, while answers come, and while caches are computed again."""
    alone = built(spec, tmp_path / "alone")
    asked = requests(alone)
    with Decoder(alone) as decoder:
        expected = answers(decoder, asked)
    assert len({tuple(answer) for answer in expected}) == len(expected)
    build = on_mesh(spec, tmp_path / "mesh", split)
    acts = {3: kill(1), 20: kill(0), 22: kill(-1)}
    with Disturbed(build, acts) as disturbed:
        assert answers(disturbed, asked) == expected
        assert disturbed.told == ["W0639"] * 3


def test_all_members_that_are_killed_at_once_change_no_answer(tmp_path: Path) -> None:
    build = on_mesh(LLAMA, tmp_path / "mesh", "heads")
    asked = requests(build)

    def kill_all(decoder: Disturbed) -> None:
        for process in decoder.processes:
            os.kill(process, signal.SIGKILL)

    with Disturbed(build, {}) as decoder:
        expected = answers(decoder, asked)
    with Disturbed(build, {9: kill_all}) as decoder:
        assert answers(decoder, asked) == expected
        assert decoder.told == ["W0639"]


def test_meshes_on_hosts(tmp_path: Path) -> None:
    """The host of the first member is lost in the middle of the answers."""
    build = on_mesh(LLAMA, tmp_path / "mesh", "two stages")
    asked = requests(build)
    with Decoder(build) as decoder:
        expected = answers(decoder, asked)
    places = {f"cpu{number}": host for number, host in enumerate("abab")}
    processes = on_hosts(decoding_build(build), places, tmp_path / "cache")
    acts = {12: lambda _: processes.agents.processes["a"].kill()}
    with Disturbed(build, acts, processes=processes) as disturbed:
        assert answers(disturbed, asked) == expected
        assert disturbed.told == ["W0637"]
