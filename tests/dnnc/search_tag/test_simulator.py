"""The simulator of TAG's search against sums that are written out by hand, op by op."""

from __future__ import annotations

import itertools
import math

import pytest

from dnnc.machines.topology.read import read_topology
from dnnc.search_tag.actions import Action, How, moved
from dnnc.search_tag.cases import drawn
from dnnc.search_tag.device_groups import Machines
from dnnc.search_tag.simulator import Simulator, _Tasks
from ir.core.diagnostics import InvalidInput
from ir.core.facets import Cost
from tests.dnnc.search_tag.machines import simulator, text

FAST, SLOW = (0,), (1,)
MODEL = "zoo:mlp,layers=2,hidden=16,batch=8"
"""fc1 [784, 16], relu, fc2 [16, 10]."""
ACROSS = 6e-6
"""Latency between hosts: two ports of a microsecond, two links of two."""
BUCKET = 25 << 20


class ByHand:
    """Seconds of the three ops, whole, on a device of so many flop/s."""

    def __init__(self, simulation: Simulator) -> None:
        costs = [op.facet(Cost) for op in simulation.workload.module.entry.ops]
        assert [cost.kind for cost in costs if cost] == ["matmul", "elementwise", "matmul"]
        self.forward = [cost.flops for cost in costs if cost]
        self.backward = [cost.input_grad + cost.weight_grad for cost in costs if cost]
        self.weights = {0: 4 * (784 * 16 + 16), 2: 4 * (16 * 10 + 10)}

    def flops(self, *ops: int) -> int:
        return sum(self.forward[op] + self.backward[op] for op in ops)

    def update(self, *ops: int) -> float:
        """Weight, gradient and two states in, weight and states out, at 1 TB/s."""
        return sum(7 * self.weights[op] for op in ops) / 1e12


@pytest.fixture(scope="module")
def mlp() -> Simulator:
    return simulator(MODEL)


def strategy(simulation: Simulator, *of_ops: Action) -> list[Action]:
    """The action of each op, by op group."""
    found = [of_ops[0]] * simulation.workload.count
    for group, action in zip(simulation.workload.group_of, of_ops, strict=True):
        found[group] = action
    return found


def test_one_device_does_one_after_another(mlp: Simulator) -> None:
    hand = ByHand(mlp)
    seconds = mlp.run([Action(SLOW, How.ALL_REDUCE)] * 3).seconds
    assert seconds == pytest.approx(hand.flops(0, 1, 2) / 1e9 + hand.update(0, 2), rel=1e-12)


def test_every_device_does_the_whole_batch_of_a_duplicate(mlp: Simulator) -> None:
    hand = ByHand(mlp)
    outcome = mlp.run([Action((0, 1), How.DUPLICATE)] * 3)
    assert outcome.seconds == pytest.approx(hand.flops(0, 1, 2) / 1e9 + hand.update(0, 2), rel=1e-12)
    assert outcome.busy[0] == pytest.approx(hand.flops(0, 1, 2) / 2e9 + hand.update(0, 2), rel=1e-12)


def test_gradients_are_summed_whole_behind_the_backward_pass(mlp: Simulator) -> None:
    """The sum of fc1's, of two devices in two steps of its part of a bucket; that of fc2 is done long before."""
    hand = ByHand(mlp)
    summed = (2 * 2e-6 + BUCKET / 10e9) * hand.weights[0] / BUCKET
    seconds = mlp.run([Action(FAST, How.ALL_REDUCE)] * 3).seconds
    assert seconds == pytest.approx(hand.flops(0, 1, 2) / 2 / 2e9 + summed + hand.update(0), rel=1e-12)


def test_servers_get_gradients_and_send_weights(mlp: Simulator) -> None:
    """Each of two devices sends the other half of each gradient, at 10 GB/s both ways, and gets half of the weights. Those of
    fc2 are updated behind the backward pass, so they come between the gradient and the weights of fc1."""
    hand = ByHand(mlp)
    half = {op: 2e-6 + hand.weights[op] / 2 / 10e9 for op in (0, 2)}
    seconds = mlp.run([Action(FAST, How.PS)] * 3).seconds
    assert seconds == pytest.approx(hand.flops(0, 1, 2) / 2 / 2e9 + half[0] + half[2] + half[0], rel=1e-12)


def test_servers_and_collectives_share_the_links(mlp: Simulator) -> None:
    """Those of fc2 were updated behind the backward pass, so its weights wait for the sum of fc1's gradient."""
    hand = ByHand(mlp)
    summed = (2 * 2e-6 + BUCKET / 10e9) * hand.weights[0] / BUCKET
    brought = 2e-6 + hand.weights[2] / 2 / 10e9
    reduced, served = Action(FAST, How.ALL_REDUCE), Action(FAST, How.PS)
    seconds = mlp.run(strategy(mlp, reduced, reduced, served)).seconds
    assert seconds == pytest.approx(hand.flops(0, 1, 2) / 2 / 2e9 + summed + brought, rel=1e-12)


def test_tensors_travel_between_device_groups(mlp: Simulator) -> None:
    hand = ByHand(mlp)
    away = ACROSS + 8 * 16 * 4 / 1e9
    slow, fast = Action(SLOW, How.ALL_REDUCE), Action(FAST, How.ALL_REDUCE)
    seconds = mlp.run(strategy(mlp, slow, slow, fast)).seconds
    wanted = hand.flops(0, 1) / 1e9 + hand.flops(2) / 2 / 2e9 + 2 * away + hand.update(0)
    assert seconds == pytest.approx(wanted, rel=1e-12)


def test_a_model_spreads_ops_over_devices() -> None:
    """fc1 is most of the seconds, so relu and fc2 are the other device's run."""
    one = simulator(MODEL, most=1)
    hand = ByHand(one)
    assert one.places(0, FAST) == {0: (0, "p-0"), 1: (0, "p-1"), 2: (0, "p-1")}
    seconds = one.run([Action(FAST, How.MODEL)]).seconds
    hop = 2e-6 + 8 * 16 * 4 / 10e9
    assert seconds == pytest.approx(hand.flops(0, 1, 2) / 2e9 + 2 * hop + hand.update(0, 2) / 2, rel=1e-12)


def test_factors_are_gathered_where_that_is_less() -> None:
    """Of a batch of 2, X and dY of fc1 are 14 kB and its gradient 3.2 MB; fc2's sum ends before fc1's begins."""
    model = simulator("zoo:mlp,layers=2,hidden=1024,batch=2", text(fast=200))
    actions = [Action(FAST, How.ALL_REDUCE)] * 3
    plain, gathered = model.run(actions), model.run(actions, factors=True)
    size, factors = 4 * 784 * 1024, 4 * 2 * (784 + 1024)
    backward = 2 * (2 * 2 * 784 * 1024) / 200e9
    summed = (2 * 2e-6 + BUCKET / 10e9) * size / BUCKET
    instead = 2e-6 + factors / 2 / 10e9 + backward / 4
    assert instead < summed
    assert gathered.gathered == 2
    assert plain.seconds - gathered.seconds == pytest.approx(summed - instead, rel=1e-3)


def test_memory_is_weights_and_what_is_kept(mlp: Simulator) -> None:
    held = 4 * sum(ByHand(mlp).weights.values())  # weight, gradient, two states
    saved = sum(mlp.workload.saved)
    for how, batch in ((How.ALL_REDUCE, saved / 2), (How.DUPLICATE, saved)):
        assert mlp.run([Action(FAST, how)] * 3).memory == pytest.approx((held + batch, 0))
    small = simulator(MODEL, text(memory="100 KiB"))
    assert not small.run([Action(FAST, How.DUPLICATE)] * 3).fits
    assert small.run([Action(SLOW, How.ALL_REDUCE)] * 3).fits
    assert small.reward(small.run([Action(FAST, How.DUPLICATE)] * 3)) == -1


def test_microbatches_follow_each_other_and_share_a_sum(mlp: Simulator) -> None:
    hand = ByHand(mlp)
    three = Simulator(mlp.workload, mlp.machines, microbatches=3)
    summed = (2 * 2e-6 + BUCKET / 10e9) * hand.weights[0] / BUCKET
    seconds = three.run([Action(FAST, How.ALL_REDUCE)] * 3).seconds  # fc2's update is ready before fc1's backward pass
    assert seconds == pytest.approx(3 * hand.flops(0, 1, 2) / 2 / 2e9 + summed + hand.update(0, 2), rel=1e-12)


def test_a_queue_serves_in_the_order_of_arrival() -> None:
    tasks = _Tasks()
    first = tasks.add(3.0, ("a",), [])
    late = tasks.add(1.0, ("b",), [first])  # ready at 3
    early = tasks.add(2.5, ("c",), [])
    second = tasks.add(4.0, ("b", "c"), [early])  # ready at 2.5, so before ``late``
    ends, busy = tasks.run()
    assert [ends[task] for task in (first, early, second, late)] == [3.0, 2.5, 6.5, 7.5]
    assert busy == {"a": 3.0, "b": 5.0, "c": 6.5}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_moves_is_what_readers_need_and_do_not_have(seed: int) -> None:
    machines = Machines(read_topology(drawn(seed)))
    groups = range(len(machines.groups))
    every = [chosen for size in groups for chosen in itertools.combinations(groups, size + 1)]

    def parts(action: Action) -> dict[str, tuple[float, float]]:
        names = machines.devices(action.groups)
        if action.how is How.DUPLICATE:
            return dict.fromkeys(names, (0.0, 1.0))
        return {name: (k / len(names), (k + 1) / len(names)) for k, name in enumerate(names)}

    for one, two in itertools.product(every, repeat=2):
        for hows in itertools.product((How.PS, How.DUPLICATE), repeat=2):
            source, target = Action(one, hows[0]), Action(two, hows[1])
            has, needs = parts(source), parts(target)
            arrived = dict.fromkeys(target.groups, 0.0)
            for (_, b), part in moved(machines, source, target).items():
                arrived[b] += part
            for b in target.groups:
                wanted = math.fsum(
                    needs[name][1] - needs[name][0] - _common(needs[name], has.get(name, (0.0, 0.0)))
                    for name in machines.groups[b].devices
                )
                assert arrived[b] == pytest.approx(wanted, abs=1e-9), (source, target, b)


def _common(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def test_too_many_device_groups_are_refused() -> None:
    names = [f"d{number}" for number in range(9)]
    hosts = "".join(
        f'[[hosts]]\nname = "h-{name}"\n[[devices]]\nname = "{name}"\ntype = "cpu"\nhost = "h-{name}"\n' for name in names
    )
    link = f'[[links]]\nends = {names}\nbandwidth = "1 GB/s"\nlatency = "1 us"\n'
    topology = read_topology(f'version = 1\n[types]\ncpu = "preset:cpu-1"\n{hosts}{link}')
    with pytest.raises(InvalidInput, match="9 groups of equal devices"):
        Machines(topology)
