"""The simulation of a service, against figures that follow by hand."""

from __future__ import annotations

import pytest

from tests.bench.referees.serving import LayerSeconds, Lengths, Links, Node, Service

FLAT = LayerSeconds(((1, 0.001), (1000, 0.001)), ((1, 0.0), (4000, 0.0)))
"""A layer that takes a millisecond for any number of tokens, and no time for prompts."""
HALF = LayerSeconds(((1, 0.002), (1000, 0.002)), ((1, 0.0), (4000, 0.0)))
NEAR = Links((1e12, 0.0), (1e12, 1.0))
LENGTHS = Lengths(100, 100)


def service(*nodes: Node, knows_caches: bool = True, lengths: Lengths = LENGTHS, prompt: LayerSeconds | None = None) -> Service:
    layers = max(node.behind for node in nodes)
    return Service(layers, 2, nodes, {"fast": prompt or FLAT, "slow": HALF}, NEAR, lengths, knows_caches)


def test_one_node_serves_a_batch_per_step() -> None:
    # Of 10,000 tokens 0.8 are filled, about 200 by each request: of these 40, half decode while half are on their way, 2 ms a
    # step.
    one = service(Node("fast", 0, 2, 10_000))
    assert one.tokens_per_second(2, 3) == pytest.approx(20 / 0.002, rel=0.1)


def test_two_nodes_in_a_row_work_at_once() -> None:
    one, two = service(Node("fast", 0, 2, 10_000)), service(Node("fast", 0, 1, 10_000), Node("fast", 1, 2, 10_000))
    assert one.tokens_per_second(2, 3) < two.tokens_per_second(2, 3) < 40 / 0.002


def test_a_slow_link_delays_each_round() -> None:
    far = service(Node("fast", 0, 1, 10_000), Node("fast", 1, 2, 10_000, region=1))
    assert far.tokens_per_second(60, 20) == pytest.approx(40 / 1.002, rel=0.2)


def test_nodes_with_the_same_layers_share_in_proportion_to_speed() -> None:
    both = service(Node("fast", 0, 2, 10_000), Node("slow", 0, 2, 10_000))
    assert both.shares == pytest.approx([2 / 3, 1 / 3], abs=0.01)


def test_requests_skip_layers_that_the_node_before_has_run() -> None:
    # Behind layers 0 and 1 of the first node, the second runs one of its two.
    overlapping = service(Node("fast", 0, 2, 1e9), Node("fast", 1, 3, 1e9), knows_caches=False)
    assert overlapping.flow == {-1: {0: pytest.approx(1)}, 0: {1: pytest.approx(1)}, 1: {-1: pytest.approx(1)}}
    assert overlapping.entries == [0, 2]


def test_a_scheduler_that_does_not_know_caches_leaves_room_for_chance() -> None:
    knows, does_not = service(Node("fast", 0, 1, 10_000)), service(Node("fast", 0, 1, 10_000), knows_caches=False)
    assert 1 <= does_not.in_flight < 50
    assert does_not.tokens_per_second(2, 3) < knows.tokens_per_second(2, 3)


def test_tokens_wait_behind_prompts() -> None:
    slow_prompts = LayerSeconds(FLAT.decode, ((1, 0.5), (4000, 0.5)))
    nodes = [Node("fast", layer, layer + 1, 10_000) for layer in range(4)]
    waiting = service(*nodes, prompt=slow_prompts).tokens_per_second(120, 20)
    # If prompts cost their share of the time alone: 40 requests, a round of 4 ms, a prompt in 100 rounds.
    assert waiting < 0.8 * min(100 / 0.5, 40 / 0.004)


@pytest.mark.parametrize(("mean", "longest"), [(750, 2048), (240, 1024), (10, 10_000)])
def test_lengths_have_the_means_after_the_cut(mean: float, longest: int) -> None:
    import random

    lengths, chance = Lengths(mean, mean, (longest, longest)), random.Random(0)
    drawn = [lengths.draw(chance)[0] for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.06)
    held, deviation = lengths.held
    assert held == 2 * mean
    assert deviation > mean
