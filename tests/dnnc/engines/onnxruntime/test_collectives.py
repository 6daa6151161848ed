"""Collectives on arrays against numpy, and over real processes: the same bits for all, and nothing left when one dies."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.build.collective import SMALL, Collective
from dnnc.build.members import collective_faults
from dnnc.engines.onnxruntime.transport.collectives import Exchange, combine, even_slices
from dnnc.engines.onnxruntime.transport.sharing import places
from dnnc.onnx.elements import BY_NAME, BY_NUMBER, from_carrier, to_carrier, user_dtype
from tests.dnnc.engines.onnxruntime.members import members, shared_array, statuses
from tests.dnnc.engines.onnxruntime.processes import nothing_left

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


def lengths_of(total: int, parts: int) -> list[int]:
    """Uneven parts: the first are the longer ones."""
    return [total // parts + (i < total % parts) for i in range(parts)]


def collective(
    kind: str, shape: tuple[int, ...], groups: tuple[tuple[int, ...], ...], *, dtype: str = "float32", reduction: str = "sum",
    split: int = 0, join: int = 0, channel: int = 0,
) -> Collective:  # fmt: skip
    """A collective on a whole tensor of ``shape``, cut unevenly where the group's size does not divide it."""
    count = sum(map(len, groups))
    operands, results = [shape] * count, [shape] * count
    for group in groups:
        for place, member in enumerate(group):

            def part(dim: int, place: int = place, size: int = len(group)) -> tuple[int, ...]:
                return (*shape[:dim], lengths_of(shape[dim], size)[place], *shape[dim + 1 :])

            if kind in ("all_gather", "all_to_all"):
                operands[member] = part(join)
            if kind in ("reduce_scatter", "all_to_all"):
                results[member] = part(split)
    return Collective(
        kind,
        channel,
        0,
        "x",
        "y",
        BY_NAME[dtype].number,
        groups,
        tuple(operands),
        tuple(results),
        reduction if kind in ("all_reduce", "reduce_scatter") else "",
        split if kind in ("reduce_scatter", "all_to_all") else -1,
        join if kind in ("all_gather", "all_to_all") else -1,
    )


def operands_of(one: Collective, seed: int = 0) -> list[np.ndarray]:
    """An operand of the user dtype for each member."""
    random, dtype = np.random.default_rng(seed), user_dtype(BY_NUMBER[one.element].name)
    drawn = [random.standard_normal(shape) * 8 for shape in one.operands]
    return [(array > 0 if dtype.kind == "b" else array).astype(dtype) for array in drawn]


def expected(one: Collective, operands: list[np.ndarray], member: int) -> np.ndarray:
    """What a member gets, said with numpy."""
    group = one.group_of(member)
    terms = [operands[peer] for peer in group]
    place = group.index(member)
    if one.kind == "all_gather":
        return np.concatenate(terms, one.join)
    if one.kind == "all_to_all":
        starts = np.cumsum([one.results[peer][one.split] for peer in group])[:-1]
        return np.concatenate([np.split(term, starts, one.split)[place] for term in terms], one.join)
    wide = [term.astype(np.float32) if term.dtype.itemsize == 2 and term.dtype.kind in "fV" else term for term in terms]
    total = wide[0]
    for term in wide[1:]:
        total = total + term if one.reduction == "sum" else np.maximum(total, term)
    total = total.astype(terms[0].dtype)
    if one.kind == "reduce_scatter":
        starts = np.cumsum([one.results[peer][one.split] for peer in group])[:-1]
        return np.split(total, starts, one.split)[place]
    return total


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


CASES = [
    (KINDS, (6, 4, 10), ((0, 1), (2, 3)), "float32", 1, 2),
    (KINDS, (7, 5), ((0, 1, 2),), "float32", 0, 1),
    (KINDS, (9, 3), ((1, 0), (3, 2)), "bfloat16", 0, 1),
    (("all_reduce", "reduce_scatter"), (64, 1024), ((0, 1),), "float16", 0, 0),
    (("all_to_all",), (260, 257), ((0, 2), (1, 3)), "float32", 1, 0),
    (("all_reduce",), (5,), ((0, 1),), "int64", 0, 0),
    (("all_reduce",), (), ((0, 1, 2, 3),), "float32", 0, 0),
    (("all_gather",), (3, 2), ((0, 1, 2, 3),), "bool", 0, 0),
    (("all_gather",), (4096, 33), ((0, 1),), "float8_e4m3fn", 0, 0),
    (("all_to_all",), (4, 6), ((0,), (1,)), "float32", 0, 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[1:])).replace(" ", ""))
def test_over_processes_as_on_arrays_as_numpy(
    case: tuple[tuple[str, ...], tuple[int, ...], tuple[tuple[int, ...], ...], str, int, int],
) -> None:
    """Several kinds, one after another; three samples in a row, so that places are used again."""
    kinds, shape, groups, dtype, split, join = case
    every = [
        collective(kind, shape, groups, dtype=dtype, split=split, join=join, channel=channel)
        for channel, kind in enumerate(kinds)
    ]
    count = len(every[0].operands)
    element = BY_NAME[dtype]
    samples = [[operands_of(one, seed) for one in every] for seed in range(3)]
    found = [[[shared_array(one.results[m], element.carrier) for m in range(count)] for one in every] for _ in samples]

    def job(exchange: Exchange) -> None:
        for number, sample in enumerate(samples):
            for channel, operands in enumerate(sample):
                exchange.operand(channel, number % 2).data[...] = to_carrier(operands[exchange.member], element)
                exchange.run(channel, number % 2)
                found[number][channel][exchange.member][...] = exchange.result(channel, number % 2).data

    with members(every, count, job) as processes:
        assert statuses(processes) == [0] * count
    for one in every:
        assert list(collective_faults(one, count)) == []
        for sample, results in zip(samples, found, strict=True):
            operands = sample[one.channel]
            for member in range(count):
                wanted = expected(one, operands, member)
                carriers = [to_carrier(operands[peer], element) for peer in one.group_of(member)]
                alone = np.empty(one.results[member], element.carrier)
                combine(one, member, carriers, alone)
                for result in (alone, results[one.channel][member]):
                    assert same_bits(from_carrier(result, element, one.results[member]), wanted), one.kind


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_on_arrays(data: st.DataObject) -> None:
    """Any shape, split, group order, element type and reduction that a collective admits."""
    kind = data.draw(st.sampled_from(KINDS))
    count = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3)))
    split, join = (data.draw(st.integers(0, len(shape) - 1)) for _ in range(2))
    if kind == "all_to_all" and split == join:
        return
    dtype = data.draw(st.sampled_from(["float32", "float64", "float16", "bfloat16", "int32", "uint8"]))
    reduction = data.draw(st.sampled_from(["sum", "max"]))
    order = tuple(data.draw(st.permutations(range(count))))
    one = collective(kind, shape, (order,), dtype=dtype, reduction=reduction, split=split, join=join)
    assert list(collective_faults(one, count)) == []
    operands = operands_of(one, 1)
    for member in range(count):
        target = np.empty(one.results[member], BY_NUMBER[one.element].carrier)
        combine(one, member, [to_carrier(operands[peer], BY_NUMBER[one.element]) for peer in order], target)
        assert same_bits(from_carrier(target, BY_NUMBER[one.element], target.shape), expected(one, operands, member))


def test_sixteen_bits_are_added_in_thirty_two() -> None:
    """256 + 0.5 + 0.5 + 0.5: in bfloat16 each step would round back to 256; float32 gives 257.5, which rounds to 258."""
    one = collective("all_reduce", (1,), ((0, 1, 2, 3),), dtype="bfloat16")
    terms = [np.array([value], ml_dtypes.bfloat16) for value in (256, 0.5, 0.5, 0.5)]
    target = np.empty(1, np.uint16)
    combine(one, 2, [term.view(np.uint16) for term in terms], target)
    assert float(target.view(ml_dtypes.bfloat16)[0]) == 258
    nan = np.array([np.nan], ml_dtypes.bfloat16).view(np.uint16)
    combine(one, 0, [nan] * 4, target)
    assert np.isnan(float(target.view(ml_dtypes.bfloat16)[0]))


def test_max() -> None:
    one = collective("all_reduce", (2, 3), ((0, 1, 2),), dtype="bool", reduction="max")
    operands = operands_of(one)
    target = np.empty((2, 3), bool)
    combine(one, 1, operands, target)
    assert same_bits(target, operands[0] | operands[1] | operands[2])


def test_places_do_not_overlap() -> None:
    """Operands of all members, results of all groups, a part that lies in its group's result is inside it."""
    several = [
        collective(kind, (8, 129, 64), groups, split=1, join=join, channel=i)
        for i, (kind, groups, join) in enumerate(
            (kind, groups, join) for kind in KINDS for groups in (((0, 1), (2, 3)), ((0, 2), (1, 3))) for join in (0, 2)
        )
    ]
    found = places(several)
    taken: list[tuple[int, int]] = []
    for number, one in enumerate(several):
        spans = [(o, one.nbytes(one.operands[m])) for (n, m), o in found.operands.items() if n == number]
        rests = [(o, one.nbytes(one.results[m])) for (n, m), o in found.results.items() if n == number]
        if one.kind == "all_gather" and one.join == 0:
            assert all(any(r <= o and o + size <= r + whole for r, whole in rests) for o, size in spans)
            spans = []
        taken += [*spans, *rests]
    taken.sort()
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(taken))
    assert taken[-1][0] + taken[-1][1] <= found.size


@pytest.mark.parametrize(("count", "parts"), [(0, 2), (1, 4), (64, 2), (1000, 3), (1 << 20, 4)])
def test_slices_cover(count: int, parts: int) -> None:
    slices = even_slices(count, parts)
    assert len(slices) == parts
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(count))


@pytest.mark.parametrize("size", [4, SMALL])
def test_a_member_that_dies_ends_the_others(size: int) -> None:
    """Whatever they wait for."""
    one = collective("all_reduce", (size,), ((0, 1, 2, 3),))

    def job(exchange: Exchange) -> None:
        for sample in range(1 << 30):
            if exchange.member == 2 and sample == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            exchange.run(0, sample % 2)

    with members([one], 4, job) as processes:
        assert statuses(processes) == [75, 75, -signal.SIGKILL, 75]


def test_members_out_of_step_are_an_error() -> None:
    """One that skips a collective is found at the next, instead of wrong numbers."""
    small = collective("all_reduce", (4,), ((0, 1),))
    large = collective("all_reduce", (SMALL,), ((0, 1),), channel=1)

    def job(exchange: Exchange) -> None:
        exchange.run(0, 0)
        if exchange.member == 0:
            exchange._sent[1] += 1  # as if it had passed one more barrier with member 1
        exchange.run(1, 0)

    with members([small, large], 2, job) as processes:
        assert 1 in statuses(processes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "gossip"}, "'gossip' is unknown"),
        ({"element": 22}, "int4"),
        ({"element": 999}, "999"),
        ({"level": -1}, "level"),
        ({"groups": ((0, 0),)}, "do not hold each of 2 members once"),
        ({"groups": ((0,),)}, "do not hold each of 2 members once"),
        ({"groups": ((0, 1, 2),)}, "do not hold each of 2 members once"),
        ({"operands": ((4, 6),)}, "1 operands and 2 results"),
        ({"operands": ((4, -6), (4, 6))}, "below 0"),
        ({"reduction": "mean"}, "'mean' is unknown"),
        ({"element": 9}, "no sum of elements of type bool"),
        ({"split": 2}, "split dimension 2"),
        ({"join": 0}, "join dimension 0"),
        ({"operands": ((4, 6), (5, 6))}, "reduce_scatter"),
        ({"results": ((2, 6), (3, 6))}, "parts of [2, 3]"),
        ({"results": ((2, 6), (2, 5))}, "reduce_scatter"),
    ],
)
def test_faults_are_named(changes: dict[str, object], words: str) -> None:
    one = collective("reduce_scatter", (4, 6), ((0, 1),))
    assert list(collective_faults(one, 2)) == []
    wrong = Collective.from_json({**one.to_json(), **changes})
    assert words in "; ".join(collective_faults(wrong, 2))
