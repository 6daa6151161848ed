"""Forty requests at once, by threads or tasks of asyncio, some of which are closed early: each answer is that of its request
alone, on one device."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dnnc
from dnnc.engines.onnxruntime.decoding.answers import Answer
from tests.dnnc.engines.onnxruntime.processes import nothing_left

pytestmark = pytest.mark.slow

CONTEXT, COUNT = 96, 40
LLAMA = f"zoo:llama-7b,layers=4,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=256,cache=inplace,context={CONTEXT}"
BUILDS: dict[str, dict[str, Any]] = {
    "replicas": {"machines": "preset:cpu-2", "stages": 1, "replicas": 2, "batch": 2, "groups": 4},
    "mesh": {"machines": "preset:cpu-2", "stages": 1, "mesh": "2", "strategy": "megatron", "batch": 3, "groups": 2},
    "stages": {"machines": "preset:cpu-4,cores=4", "stages": 2, "replicas": 2, "batch": 2, "groups": 4},
}
Told = tuple[list[int], str]
"""Tokens of an answer, and why it ended."""


def written(folder: Path, batch: int, **options: Any) -> dnnc.Build:
    plan = dnnc.plan(f"{LLAMA},batch={batch}", context=CONTEXT, batch=batch, chunk=8, report=False, **options)
    return plan.write(folder)


def requests() -> list[dict[str, Any]]:
    """Prompts of one token to a full context, greedy and drawn, with and without tokens that end them."""
    chance = random.Random(1)
    return [
        {
            "ids": [chance.randrange(256) for _ in range(chance.choice([1, 2, 7, 8, 9, 60, CONTEXT - 1]))],
            "max_tokens": chance.choice([None, 1, 5, 30, 200]),
            "temperature": chance.choice([0, 0.7, 1.5]),
            "top_k": chance.choice([0, 5]),
            "top_p": chance.choice([1.0, 0.9]),
            "seed": chance.randrange(1000),
            "stop": [chance.randrange(256) for _ in range(chance.choice([0, 30]))],
        }
        for _ in range(COUNT)
    ]


def read(answer: Answer, most: int | None) -> Told:
    """Closes the answer after ``most`` tokens."""
    found = []
    for token in answer:
        found.append(token)
        if len(found) == most:
            answer.close()
    return found, answer.reason


async def read_in_task(answer: Answer, most: int | None) -> Told:
    found = []
    async for token in answer:
        found.append(token)
        if len(found) == most:
            answer.close()
    return found, answer.reason


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """The answers one after the other."""
    build = written(tmp_path_factory.mktemp("alone") / "b", 1, machines="preset:cpu-1", groups=1)
    with build.start() as session:
        return [read(session.generate(**request), None) for request in requests()]


def assert_same(found: list[Told], expected: list[Told], most: list[int | None]) -> None:
    for one, whole, cut in zip(found, expected, most, strict=True):
        if one[1] == "closed":
            assert cut is not None
            assert one[0] == whole[0][: len(one[0])]
            assert len(one[0]) >= cut
        else:
            assert one == whole


@pytest.mark.parametrize("name", BUILDS)
def test_many_requests(name: str, alone: list[Told], tmp_path: Path) -> None:
    assert {reason for _, reason in alone} == {"stop", "length", "context"}
    with nothing_left():
        assert_many_are_right(alone, written(tmp_path / "b", **BUILDS[name]))


def assert_many_are_right(alone: list[Told], build: dnnc.Build) -> None:
    asked, chance = requests(), random.Random(2)
    most = [chance.choice([None, None, 1, 3]) for _ in asked]
    with build.start() as session, ThreadPoolExecutor(COUNT) as threads:
        by_threads = list(threads.map(lambda request, cut: read(session.generate(**request), cut), asked, most))
        assert_same(by_threads, alone, most)

        async def tasks() -> list[Told]:
            """Half of these are cancelled, which the others do not notice."""
            answers = [session.generate(**request) for request in asked]
            running = [asyncio.create_task(read_in_task(answer, cut)) for answer, cut in zip(answers, most, strict=True)]
            await asyncio.sleep(0)
            for task in running[1::2]:
                task.cancel()
            return list(await asyncio.gather(*running[::2]))

        assert_same(asyncio.run(tasks()), alone[::2], most[::2])
