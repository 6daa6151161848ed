"""Collectives between processes: each rank ends with its part of the whole tensor, whatever the ranges and groups are."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnnc.build.training import Step
from ir import parse_module
from ir.core.module import Mesh
from ir.ops.boxes import members_along

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")

COLLECTIVES = {
    # Name: operand's type, collective over the axis, result's type. Shares along y are 3 to 1, along x equal.
    "gather uneven shares": ("5x8", "R, S(1)", 'all_gather(%o) {axis = "y", channel = #, dim = 1', "R, R"),
    "gather within a part": ("8x2", "S(0), S(0)", 'all_gather(%o) {axis = "y", channel = #, dim = 0', "S(0), R"),
    "gather what does not divide": ("5x2", "S(0), R", 'all_gather(%o) {axis = "x", channel = #, dim = 0', "R, R"),
    "sum": ("3x2", "R, P(sum)", 'all_reduce(%o) {axis = "y", channel = #, reduction = "sum"', "R, R"),
    "maximum": ("3x2", "P(max), R", 'all_reduce(%o) {axis = "x", channel = #, reduction = "max"', "R, R"),
    "sum of a part": ("3x8", "P(sum), S(1)", 'all_reduce(%o) {axis = "x", channel = #, reduction = "sum"', "R, S(1)"),
    "scatter uneven shares": (
        "8x3",
        "R, P(sum)",
        'reduce_scatter(%o) {axis = "y", channel = #, dim = 0, reduction = "sum"',
        "R, S(0)",
    ),
    "scatter within a part": (
        "8x3",
        "S(0), P(sum)",
        'reduce_scatter(%o) {axis = "y", channel = #, dim = 0, reduction = "sum"',
        "S(0), S(0)",
    ),
    "scatter a maximum": (
        "3x5",
        "P(max), R",
        'reduce_scatter(%o) {axis = "x", channel = #, dim = 1, reduction = "max"',
        "S(1), R",
    ),
    "turn uneven shares": (
        "8x4",
        "R, S(1)",
        'all_to_all(%o) {axis = "y", channel = #, concat_dim = 1, split_dim = 0',
        "R, S(0)",
    ),
    "turn what does not divide": (
        "5x3",
        "S(0), R",
        'all_to_all(%o) {axis = "x", channel = #, concat_dim = 0, split_dim = 1',
        "S(1), R",
    ),
    "turn within a part": (
        "8x4",
        "S(0), S(1)",
        'all_to_all(%o) {axis = "y", channel = #, concat_dim = 1, split_dim = 0',
        "S(0), S(0)",
    ),
}
RANKS = 5


@pytest.fixture(scope="module")
def step() -> Step:
    """Two stages: one on rank 0, and one of all collectives on a mesh of ranks 1 to 4."""
    lines = []
    for number, (shape, operand, call, result) in enumerate(COLLECTIVES.values()):
        value = f"%v{number}"
        lines.append(f"    {value} = onnx.Identity(%x) : tensor<{shape}xf32, @mesh[{operand}]>")
        said = call.replace("%o", value).replace("#", str(number))
        lines.append(f"    %r{number} = comm.{said}, mesh = @mesh}} : tensor<{shape}xf32, @mesh[{result}]>")
    return Step(
        parse_module(
            "module @m {\n  mesh @mesh [x = 2, y = [3, 1]] on [b, c, d, e]\n"
            "  stage @stage0 index 0 on [a] () -> () {\n  }\n"
            "  stage @stage1 index 1 on [b, c, d, e] mesh @mesh (%x : tensor<f32>) -> () {\n" + "\n".join(lines) + "\n  }\n}\n"
        )
    )


def part(step: Step, whole: Any, number: int, rank: int, *, result: bool) -> Any:
    """What a rank holds of a whole tensor that lies as an operand or a result of a collective."""
    stage = step.stages[1]
    collective = stage.ops[2 * number + 1]
    made = collective if result else stage.ops[2 * number]
    ranges = step.box(made.results[0].type, collective, rank)
    return whole[tuple(slice(start, start + length) for start, length in ranges)]


def whole(step: Step, number: int, rank: int) -> Any:
    """The whole operand: the same on all ranks, or of a reduction each rank's own term."""
    shape, operand, *_ = tuple(COLLECTIVES.values())[number]
    own = rank if "P(" in operand else 0
    sizes = [int(size) for size in shape.split("x")]
    return np.random.default_rng([number, own]).integers(-9, 9, sizes).astype(np.float32)


def expected(step: Step, number: int, rank: int) -> Any:
    _, operand, call, _ = tuple(COLLECTIVES.values())[number]
    if "P(" not in operand:
        return part(step, whole(step, number, rank), number, rank, result=True)
    mesh = next(iter(step.module.of_type(Mesh)))
    group = members_along(mesh, mesh.devices.index(step.devices[rank]), call.split('"')[1])
    terms = np.stack([whole(step, number, 1 + member) for member in group])
    return part(step, terms.max(0) if "max" in operand else terms.sum(0), number, rank, result=True)


def run_rank(step: Step, rank: int, folder: Path) -> None:
    dist: Any = torch.distributed

    from dnnc.engines.torch.exchange import SWAPPED, Exchange, Network

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    network = Network(step, rank, torch.device("cpu"))
    network.connect()
    if rank:
        stage = step.stages[1]
        comm = Exchange(network, stage, rank - 1, {int(op.get("channel")): op for _, op in step.collectives(rank)})
        for number in range(len(COLLECTIVES)):
            op = stage.ops[2 * number + 1]
            held = torch.from_numpy(np.array(part(step, whole(step, number, rank), number, rank, result=False)))
            options = {key: op.get(key) for key in ("dim", "split_dim", "concat_dim", "reduction") if op.get(key) is not None}
            made = getattr(comm, op.name.removeprefix("comm."))(held, channel=number, **options)
            assert made.is_contiguous(), op
            np.save(folder / f"{number}.{rank}.npy", made.numpy())
            if op.name == "comm.all_reduce":
                wide = comm.all_reduce(held.repeat(SWAPPED // held.nbytes + 1, 1), number, op.get("reduction"))
                np.save(folder / f"{number}.{rank}.wide.npy", wide.numpy())
                both = comm.all_reduce_together([held.T, held], number, op.get("reduction"))
                np.save(folder / f"{number}.{rank}.together.npy", np.stack([both[0].T.numpy(), both[1].numpy()]))
                early = of_turns(comm, 0 if rank == 1 else rank, held, number, op.get("reduction"))
                np.save(folder / f"{number}.{rank}.early.npy", np.stack([both.numpy() for both in early]))
    dist.barrier()


def of_turns(comm: Any, turns: int, held: Any, number: int, reduction: str) -> Any:
    """Twice the sum, or maximum, of the means over the microbatches of a rank, each of which has what it holds, from so many
    microbatches of 4; a rank without any has zeros."""
    from dataclasses import replace

    one = replace(comm, turns=turns, buckets={})
    for _ in range(turns):
        one.add([held, held], number, reduction, 4)
    zeros = {name: torch.zeros_like(held) for name in "ab"} if not turns else {}
    return one.summed(zeros, ["a", "b"], number, reduction)


@pytest.fixture(scope="module")
def results(step: Step, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for the result of each collective on each rank of the mesh."""
    folder = tmp_path_factory.mktemp("exchange")
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if not child:
            status = 1
            try:
                run_rank(step, rank, folder)
                status = 0
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
            os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * RANKS
    return folder


@pytest.mark.parametrize("name", COLLECTIVES)
def test_each_rank_ends_with_its_part(name: str, step: Step, results: Path) -> None:
    number = list(COLLECTIVES).index(name)
    for rank in range(1, RANKS):
        found = np.load(results / f"{number}.{rank}.npy")
        assert np.array_equal(found, expected(step, number, rank)), f"rank {rank}"


@pytest.mark.parametrize("name", [name for name, row in COLLECTIVES.items() if "all_reduce" in row[2]])
def test_a_sum_of_much_is_that_of_little(name: str, step: Step, results: Path) -> None:
    number = list(COLLECTIVES).index(name)
    for rank in range(1, RANKS):
        one = expected(step, number, rank)
        found = np.load(results / f"{number}.{rank}.wide.npy")
        assert np.array_equal(found, np.tile(one, (len(found) // len(one), 1))), f"rank {rank}"


@pytest.mark.parametrize("name", [name for name, row in COLLECTIVES.items() if "all_reduce" in row[2]])
def test_a_bucket_is_its_sums(name: str, step: Step, results: Path) -> None:
    number = list(COLLECTIVES).index(name)
    for rank in range(1, RANKS):
        both = np.load(results / f"{number}.{rank}.together.npy")
        assert np.array_equal(both, np.stack([expected(step, number, rank)] * 2)), f"rank {rank}"


@pytest.mark.parametrize("name", [name for name, row in COLLECTIVES.items() if "all_reduce" in row[2]])
def test_a_sum_begins_with_the_last_microbatch_of_each_rank(name: str, step: Step, results: Path) -> None:
    number = list(COLLECTIVES).index(name)
    mesh = next(iter(step.module.of_type(Mesh)))
    call = COLLECTIVES[name][2]
    for rank in range(1, RANKS):
        group = members_along(mesh, mesh.devices.index(step.devices[rank]), call.split('"')[1])
        turns = {1 + member: member + 1 if member else 0 for member in group}
        terms = [part(step, whole(step, number, one), number, one, result=False) * count / 4 for one, count in turns.items()]
        wanted = np.max(terms, 0) if "max" in call else np.sum(terms, 0)
        assert np.allclose(np.load(results / f"{number}.{rank}.early.npy"), np.stack([wanted] * 2)), f"rank {rank}"


def test_of_messages_passed_on_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a rank receives tells when they have arrived; they had been kept until the step's end."""
    from dnnc.engines.torch import exchange

    waited: list[int] = []
    sent = iter(range(9))

    def isend(*_: Any, **__: Any) -> Any:
        number = next(sent)
        return SimpleNamespace(wait=lambda: waited.append(number))

    monkeypatch.setattr(exchange, "dist", SimpleNamespace(isend=isend))
    step: Any = SimpleNamespace(readers=lambda *_: (1,), makes=lambda *_: False, microbatches=8)
    network = exchange.Network(step, 0, torch.device("cpu"), most=99)
    monkeypatch.setattr(exchange.Network, "place", lambda *_: None)
    channel: Any = SimpleNamespace(number=0, target=SimpleNamespace(index=1))
    for microbatch in range(5):
        network.send(torch.ones(1), channel, microbatch)
    assert waited == [0, 1, 2]
    assert len(network.outgoing) == exchange.MOST_PASSED
