"""Place: the plan on real links, the best devices for its stages, and limits that say by how much they are exceeded."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.diagnostics import Infeasible, InvalidInput, Severity
from ir.core.facets import Cost, StageSet, Time, Transfer
from ir.core.module import Func, Module, Plan, Resource, Splat
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import DType, TensorType
from passes.costs.network import network
from passes.framework.base import PassContext, needed
from passes.partition.place import PlacePass
from passes.solvers.anytime import Limits
from passes.stages.placement import Message, PlacementProblem
from passes.stages.placement_search import BranchAndBound, PlacementSearch
from tests.passes.staging import VECTOR, chain, devices, op, planned, value


def placed(module: Module) -> Plan:
    plan = PlacePass().run(module, PassContext()).first(Plan)
    assert plan is not None
    return plan


def test_seconds_and_bytes_of_each_stage() -> None:
    # A value is 1024 bytes, a route crosses two links of 1024 byte/s: one second each way.
    plan = placed(planned(chain([0, 0, 1], seconds=3.0), devices(2)))
    first, second = plan.stages
    assert (first.compute, first.receive, first.send) == (6.0, 0.0, 1.0)
    assert (second.compute, second.receive, second.send) == (3.0, 1.0, 0.0)
    assert (first.devices, second.devices, first.ops, second.ops) == (("d0",), ("d1",), 2, 1)
    assert (second.weights, second.workspace, second.buffers) == (0, 1024, 2048)
    assert plan.value == plan.port_value == 7.0


def test_weights_count_once_and_in_every_stage_that_reads_them() -> None:
    weight = Resource("@w", TensorType(DType.F32, (100,)), Splat(0))
    time = {"t": 1.0}
    ops = (
        op("onnx.A", ["%x", "@w"], ["%a"], (0,), seconds=time),
        op("onnx.B", ["%a", "@w"], ["%b"], (0,), seconds=time),
        op("onnx.C", ["%b", "@w"], ["%c"], (1,), seconds=time),
    )
    func = Func("@main", (value("%x"),), (value("%c"),), ops)
    plan = placed(planned(Module("@m", (weight, func)), devices(2)))
    assert [stage.weights for stage in plan.stages] == [400, 400]


def test_an_edge_over_a_stage_has_one_buffer_more() -> None:
    time = {"t": 1.0}
    ops = (
        op("onnx.A", ["%x"], ["%a"], (0,), seconds=time),
        op("onnx.B", ["%a"], ["%b"], (1,), seconds=time),
        op("onnx.C", ["%a", "%b"], ["%c"], (2,), seconds=time),
    )
    func = Func("@main", (value("%x"),), (value("%c"),), ops)
    plan = placed(planned(Module("@m", (func,)), devices(3)))
    assert [stage.buffers for stage in plan.stages] == [0, 2 * 1024, (2 + 3) * 1024]


def test_buffers_of_skipping_tensors_may_exceed_the_memory_with_a_warning() -> None:
    time = {"t": 1.0}
    ops = (
        op("onnx.A", ["%x"], ["%a"], (0,), seconds=time),
        op("onnx.B", ["%a"], ["%b"], (1,), seconds=time),
        op("onnx.C", ["%a", "%b"], ["%c"], (2,), seconds=time),
    )
    module = Module("@m", (Func("@main", (value("%x"),), (value("%c"),), ops),))
    context = PassContext()
    # Stage 2: 1024 of workspace, 2 slots for each of two tensors, and one more for the tensor that passes over stage 1.
    PlacePass().run(planned(module, devices(3, memory=1024 + 4096)), context)
    (warning,) = context.sink.diagnostics
    assert (warning.severity, warning.where) == (Severity.WARNING, "stage 2")
    assert "1024 bytes too many" in warning.message
    with pytest.raises(Infeasible, match="1 bytes too many"):
        PlacePass().run(planned(module, devices(3, memory=1024 + 4095)), PassContext())


def test_one_tensor_to_two_stages_costs_its_bytes_twice_and_the_latency_once() -> None:
    time = {"t": 1.0}
    ops = (
        op("onnx.A", ["%x"], ["%a"], (0,), seconds=time),
        op("onnx.B", ["%a"], ["%b"], (1,), seconds=time),
        op("onnx.C", ["%a", "%b"], ["%c"], (2,), seconds=time),
    )
    links = tuple(Link(f"l{i}", (f"d{i}", "h"), 1024.0, latency=0.25) for i in range(3))
    module = Module("@m", (Func("@main", (value("%x"),), (value("%c"),), ops),))
    plan = placed(planned(module, devices(3, links=links)))
    assert [stage.send for stage in plan.stages] == [0.5 + 2 * 1.0, 0.5 + 1.0, 0.0]
    assert [stage.receive for stage in plan.stages] == [0.0, 1.5, 3.0]
    assert plan.port_value == 1.0 + 3.0


def test_a_transfer_facet_stands_over_the_links() -> None:
    ops = (
        op("onnx.A", ["%x"], ["%a"], (0,), seconds={"t": 1.0}).with_facets(Transfer((0.25,))),
        op("onnx.B", ["%a"], ["%b"], (1,), seconds={"t": 1.0}),
    )
    func = Func("@main", (value("%x"),), (value("%b"),), ops)
    plan = placed(planned(Module("@m", (func,)), devices(2)))
    assert (plan.stages[0].send, plan.stages[1].receive) == (0.25, 0.25)


def test_a_device_with_free_transfers_pays_nothing_for_its_part() -> None:
    topology = devices(1)
    free = DeviceType("c", rates=(("f32", 1.0),), free_transfers=True)
    topology = replace(
        topology,
        types=(*topology.types, free),
        devices=(*topology.devices, Device("c0", "c", "h")),
        links=(*topology.links, Link("l-c0", ("c0", "h"), 1024.0)),
    )
    ops = (
        op("onnx.A", ["%x"], ["%a"], (0,), seconds={"t": 1.0, "c": 5.0}),
        op("onnx.B", ["%a"], ["%b"], (1,), seconds={"t": 1.0, "c": 5.0}),
    )
    module = Module("@m", (Func("@main", (value("%x"),), (value("%b"),), ops),))
    first, second = placed(planned(module, topology, {0: ("d0",), 1: ("c0",)}, type_="")).stages
    assert (first.send, second.receive) == (1.0, 0.0)


def test_a_shared_link_bounds_the_value() -> None:
    # Three transfers a sample cross the bus of 1024 byte/s: 3 s, while no device is busy for more than 2.1 s.
    bus = (Link("bus", ("d0", "d1", "d2", "d3", "h"), 1024.0, shared=True),)
    plan = placed(planned(chain([0, 1, 2, 3], seconds=0.1), devices(4, links=bus)))
    assert plan.value == pytest.approx(3.0)
    assert max(s.compute + s.receive + s.send for s in plan.stages) == pytest.approx(2.1)


def test_half_duplex_adds_both_directions() -> None:
    def both_ways(duplex: str) -> float:
        links = tuple(Link(f"l{i}", (f"d{i}", "h"), 1024.0, duplex=duplex) for i in range(3))
        return placed(planned(chain([0, 1, 2], seconds=0.1), devices(3, links=links))).value

    # The link of the middle stage carries a message in and one out.
    assert both_ways("full") == both_ways("half") == pytest.approx(2.1), "the device itself is as busy under 'sum'"
    module = planned(
        chain([0, 1, 2], seconds=0.1),
        devices(3, links=tuple(Link(f"l{i}", (f"d{i}", "h"), 1024.0, duplex="half") for i in range(3))),
    )
    plan = module.first(Plan)
    assert plan is not None
    assert placed(module.replace(plan, replace(plan, comm="duplex"))).value == pytest.approx(2.0)


def test_given_devices_are_kept() -> None:
    plan = placed(planned(chain([0, 1]), devices(3), {0: ("d2",)}))
    assert plan.stages[0].devices == ("d2",)
    assert plan.stages[1].devices != ("d2",)


def two_hosts(slow: float = 64.0) -> Topology:
    """d0, d2 on host a, d1, d3 on host b; 1024 byte/s inside a host, ``slow`` between."""
    devices_ = tuple(Device(f"d{i}", "t", "ab"[i % 2]) for i in range(4))
    links = tuple(Link(f"l{i}", (f"d{i}", "ab"[i % 2]), 1024.0) for i in range(4))
    return Topology(
        "@top",
        (DeviceType("t", rates=(("f32", 1.0),)),),
        (Host("a"), Host("b")),
        devices_,
        (),
        (*links, Link("net", ("a", "b"), slow)),
    )


def test_neighbours_share_a_host_where_the_link_between_hosts_is_slow() -> None:
    # In the order of the devices every neighbour would be on the other host.
    plan = placed(planned(chain([0, 1]), two_hosts()))
    hosts = [int(stage.devices[0][1]) % 2 for stage in plan.stages]
    assert hosts[0] == hosts[1]
    assert plan.value == 2.0


def test_the_light_tensor_crosses_the_slow_link() -> None:
    small = TensorType(DType.F32, (1,))
    time = {"t": 1.0}
    ops = [op("onnx.A", [f"%v{i - 1}" if i else "%x"], [f"%v{i}"], (i,), seconds=time) for i in range(4)]
    ops[1] = replace(ops[1], results=(replace(ops[1].results[0], type=small),))
    func = Func("@main", (value("%x"),), (value("%v3"),), tuple(ops))
    plan = placed(planned(Module("@m", (func,)), two_hosts()))
    hosts = [int(stage.devices[0][1]) % 2 for stage in plan.stages]
    assert hosts in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_status_follows_the_bound() -> None:
    module = planned(chain([0, 1]), devices(2))
    plan = module.first(Plan)
    assert plan is not None
    assert placed(module.replace(plan, replace(plan, bound=2.0))).status == "optimal"
    assert placed(module.replace(plan, replace(plan, bound=1.0, status="optimal"))).status == "within-gap"


def test_a_value_below_its_bound_is_a_fault_of_who_made_the_bound() -> None:
    """Of a plan that was read somebody may have edited something; of one that was searched for just now nobody has."""
    module = planned(chain([0, 0]), devices(1))
    plan = module.first(Plan)
    assert plan is not None
    wrong = module.replace(plan, replace(plan, bound=3.0))
    with pytest.raises(InvalidInput, match=r"no plan is below 3\.0 s, and takes 2\.0 s itself: the bound was edited"):
        placed(wrong)
    searched = PassContext(statistics={"partition": {}})
    with pytest.raises(AssertionError, match=r"takes 2\.0 s, and its bound says that none is below 3\.0 s: one is wrong"):
        PlacePass().run(wrong, searched)
    stated = replace(plan, bound=3.0, certificate=(("plan", "given, not searched for"),))
    with pytest.raises(InvalidInput):
        PlacePass().run(module.replace(plan, stated), searched)


def learning_chain(memory: Mapping[str, int], flush: bool = True) -> Module:
    """Two stages of one op on devices that hold so many bytes, in steps of 8 microbatches; an op saves 1 KiB of each."""
    ops = tuple(
        replace(
            op("onnx.MatMul", [f"%v{i - 1}" if i else "%x", "@w"], [f"%v{i}"], (i,), seconds={"t": 1.0}),
            facets=(StageSet((i,)), Time((("@t", 1.0),)), Cost(saved=1024)),
        )
        for i in range(2)
    )
    func = Func("@main", (value("%x"),), (value("%v1"),), ops)
    links = devices(len(memory)).links
    every = tuple(Device(f"d{i}", "t", "h", size) for i, size in enumerate(memory.values()))
    module = planned(Module("@m", (Resource("@w", VECTOR, Splat(0)), func)), replace(devices(2), devices=every, links=links))
    plan = needed(module, Plan)
    return module.replace(plan, replace(plan, objective="training", microbatches=8, flush=flush))


@pytest.mark.parametrize(
    ("family", "held", "versions"),
    [
        ("", (2, 1), (0, 0)),
        ("gpipe", (8, 8), (0, 0)),
        ("zb-h1", (2, 2), (0, 0)),
        ("pipedream", (2, 1), (1, 0)),
        ("2bw", (2, 1), (1, 1)),
    ],
)
def test_memory_is_that_of_the_order_of_work(family: str, held: tuple[int, ...], versions: tuple[int, ...]) -> None:
    """A stage holds what is saved of the microbatches in flight, and 1 KiB of each old version of its weight."""
    module = learning_chain({"d0": 1 << 20, "d1": 1 << 20}, flush=family not in ("pipedream", "2bw"))
    plan = PlacePass(family=family).run(module, PassContext()).first(Plan)
    assert plan is not None
    alive = (2, 1)  # operand and result of an op; what stage 1 receives lies in a buffer
    assert [stage.workspace for stage in plan.stages] == [
        1024 * sum(of_stage) for of_stage in zip(alive, held, versions, strict=True)
    ]


def test_stages_go_to_the_devices_that_hold_their_order_of_work() -> None:
    """Stage 1 holds eight microbatches of GPipe's, which the first device has no memory for, and one of 1F1B's."""
    module = learning_chain({"small": 12 << 10, "large": 20 << 10, "larger": 20 << 10})
    plan = needed(PlacePass(family="gpipe").run(module, PassContext()), Plan)
    assert sorted(device for stage in plan.stages for device in stage.devices) == ["d1", "d2"]
    PlacePass().run(learning_chain({"small": 12 << 10, "large": 12 << 10}), PassContext())
    with pytest.raises(Infeasible):
        PlacePass(family="gpipe").run(learning_chain({"small": 12 << 10, "large": 12 << 10}), PassContext())


def test_too_little_memory_says_which_device_and_how_many_bytes() -> None:
    # Stage 1: 1024 of workspace and 2 slots of 1024.
    with pytest.raises(Infeasible) as raised:
        placed(planned(chain([0, 1]), devices(2, memory=3000)))
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.where == "stage 1"
    assert "needs 3072 bytes on d0, which has 3000: 72 bytes too many" in diagnostic.message
    assert "0 of weights, 1024 of workspace, 2048 of buffers" in diagnostic.message


def test_of_replicas_on_stated_devices_that_is_named_which_lacks_memory() -> None:
    topology = devices(2, memory=1000)
    topology = replace(topology, devices=(replace(topology.devices[0], memory=10_000), topology.devices[1]))
    module = planned(chain([0, 0]), topology)
    plan = needed(module, Plan)
    both = replace(plan, stages=(replace(plan.stages[0], devices=("d0", "d1"), replicas=2),))
    with pytest.raises(Infeasible) as raised:
        placed(module.replace(plan, both))
    assert "on d1, which has 1000: 1048 bytes too many" in raised.value.diagnostics[0].message


def test_stages_go_to_the_devices_that_hold_them() -> None:
    topology = devices(2, memory=3000)
    topology = replace(topology, devices=(replace(topology.devices[0], memory=10_000), topology.devices[1]))
    plan = placed(planned(chain([0, 1]), topology))
    assert [stage.devices for stage in plan.stages] == [("d1",), ("d0",)]


def test_more_stages_than_devices_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="2 stages do not all find a device"):
        placed(planned(chain([0, 1]), devices(1)))


def test_an_op_that_no_device_runs_is_infeasible() -> None:
    func = Func("@main", (value("%x"),), (value("%a"),), (op("onnx.A", ["%x"], ["%a"], (0,), seconds={"other": 1.0}),))
    with pytest.raises(Infeasible, match="an op that d0, d1 cannot run"):
        placed(planned(Module("@m", (func,)), devices(2)))


def test_faulty_plans_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no device is called 'd9'"):
        placed(planned(chain([0, 1]), devices(2), {0: ("d9",)}))
    with pytest.raises(InvalidInput, match="'d0' already runs stage 0"):
        placed(planned(chain([0, 1]), devices(2), {0: ("d0",), 1: ("d0", "d1")}))


def random_problem(seed: int, together: bool = False) -> PlacementProblem:
    """Up to 5 stages on up to 6 devices of 3 hosts with unequal links, some shared or half duplex, some stages fixed;
    ``together``: the first two on one device."""
    rng = random.Random(seed)
    hosts = [f"h{i}" for i in range(rng.randint(1, 3))]
    count = rng.randint(2, 6)
    names = [f"d{i}" for i in range(count)]
    host_of = [rng.choice(hosts) for _ in names]

    def link(name: str, one: str, other: str) -> Link:
        duplex, shared = rng.choice(["full", "half"]), rng.random() < 0.5
        return Link(name, (one, other), rng.choice([100.0, 200.0]), rng.choice([0.0, 0.5]), duplex, shared)

    links = [link(f"l{i}", name, host) for i, (name, host) in enumerate(zip(names, host_of, strict=True))]
    links += [link(f"n{i}", hosts[0], host) for i, host in enumerate(hosts[1:])]
    types = [rng.choice("ttu") for _ in names]
    every = tuple(map(DeviceType, sorted({*types})))
    topology = Topology("@t", every, tuple(map(Host, hosts)), tuple(map(Device, names, types, host_of)), (), tuple(links))
    size = rng.randint(1, min(5, count))
    compute = [[rng.choice([1.0, 2.0])] * count for _ in range(size)]
    for row in compute:
        refused = rng.choice([*types, ""])
        if rng.random() < 0.5 and {*types} != {refused}:
            row[:] = [math.inf if type_ == refused else seconds for type_, seconds in zip(types, row, strict=True)]
    pairs = sorted({tuple(sorted(rng.sample(range(size), 2))) for _ in range(2 * size)}) if size > 1 else []
    sizes = {a: rng.choice([0, 100, 300]) for a in range(size)}
    shared = rng.random() < 0.5  # each stage sends one tensor to all its readers, or each reader another tensor
    messages = [
        Message(f"%t{a}", a, b, sizes[a]) if shared else Message(f"%t{i}", a, b, rng.choice([0, 100, 300]))
        for i, (a, b) in enumerate(pairs)
    ]
    fixed: list[tuple[int, ...]] = [()] * size
    if rng.random() < 0.3:
        fixed[0] = (next(d for d in range(count) if math.isfinite(compute[0][d])),)
    if together:
        compute[:2] = [[1.0] * count] * min(2, size)
        fixed[:2] = [(rng.randrange(count),)] * min(2, size)
    rows = tuple(map(tuple, compute))
    return PlacementProblem(topology, network(topology), "sum", rows, tuple(messages), tuple(fixed), (1,) * len(rows))


def best_of_all(problem: PlacementProblem) -> float:
    """The least value over every placement; inf where there is none."""
    best = math.inf
    for choice in itertools.product(*(fixed or problem.candidates(stage) for stage, fixed in enumerate(problem.fixed))):
        free = [device for device, fixed in zip(choice, problem.fixed, strict=True) if not fixed]
        if len({*free, *itertools.chain(*problem.fixed)}) == len(free) + len(set(problem.fixed) - {()}):
            best = min(best, problem.value(tuple((device,) for device in choice)))
    return best


@pytest.mark.parametrize("seed", range(24))
def test_the_search_equals_trying_every_placement(seed: int) -> None:
    problem = random_problem(seed)
    search = PlacementSearch(problem)
    found = search.run()
    assert search.tight() or search.infeasible
    assert (problem.value(found) if found is not None else math.inf) == pytest.approx(best_of_all(problem), rel=1e-12)


@pytest.mark.parametrize("together", [False, True], ids=["apart", "two stages on one device"])
@pytest.mark.parametrize("seed", [*range(24), 679])
def test_branch_and_bound_alone_equals_trying_every_placement(seed: int, together: bool) -> None:
    """Without a good start, so that the devices it takes for exchangeable matter."""
    problem = random_problem(seed, together)
    search = PlacementSearch(problem)
    BranchAndBound(search, 100_000).run()
    assert search.value == pytest.approx(best_of_all(problem), rel=1e-12)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_values_bound_each_other(seed: int) -> None:
    """Ports bound any placement; media are what ``Network.busy`` says."""
    problem = random_problem(seed)
    found = PlacementSearch(problem, nodes=100).run()
    if found is None:
        return
    value_ = problem.value(found)
    assert problem.floor <= value_ * (1 + 1e-12)
    assert problem.port_value(found) <= value_ * (1 + 1e-12)
    names = problem.names
    transfers = [(names[found[m.source][0]], names[found[m.target][0]], m.size) for m in problem.messages]
    busy = problem.network.busy(transfers)
    assert max(problem.busy(found).values(), default=0.0) == pytest.approx(max(busy.values(), default=0.0))


def proven(problem: PlacementProblem, nodes: int) -> bool:
    search = PlacementSearch(problem, nodes=nodes)
    return search.run() is not None and search.tight()


def test_a_limited_search_says_so_and_still_places() -> None:
    problem = next(p for p in map(random_problem, range(1000)) if p.size == 5 and proven(p, 20_000) and not proven(p, 1))
    found = PlacementSearch(problem, nodes=1).run()
    assert found is not None
    assert len({device for devices_ in found for device in devices_}) == 5


def replicated(width: int, *routes: tuple[int, int]) -> PlacementProblem:
    """Stages of ``width`` replicas each on hosts "a" and "b" in turn; a message of 64 bytes for each of ``routes``."""
    stages = 1 + max(target for _, target in routes)
    names = [f"d{i}" for i in range(stages * width)]
    devices_ = tuple(Device(name, "t", "ab"[i % 2]) for i, name in enumerate(names))
    links = tuple(Link(f"l{i}", (name, "ab"[i % 2]), 1024.0) for i, name in enumerate(names))
    net = Link("net", ("a", "b"), 64.0, shared=True)
    topology = Topology("@top", (DeviceType("t"),), (Host("a"), Host("b")), devices_, (), (*links, net))
    fixed = tuple(tuple(range(s * width, (s + 1) * width)) for s in range(stages))
    messages = tuple(Message("%v", source, target, 64) for source, target in routes)
    compute = ((1.0,) * len(names),) * stages
    return PlacementProblem(topology, network(topology), "sum", compute, messages, fixed, (width,) * stages)


def test_replicas_that_never_meet_cost_no_route() -> None:
    """Sample m goes from replica m mod 2 to replica m mod 2: inside a host, though others of them are apart."""
    problem = replicated(2, (0, 1))
    assert problem.parts(1, problem.fixed) == (1.0, 0.0625, 0.0)
    assert problem.parts(0, problem.fixed) == (1.0, 0.0, 0.0625)
    assert problem.busy(problem.fixed) == {}
    crossed = (problem.fixed[0], (problem.fixed[1][1], problem.fixed[1][0]))
    assert problem.parts(1, crossed) == (1.0, 1.0, 0.0)
    assert problem.parts(0, crossed) == (1.0, 0.0, 1.0)
    assert problem.busy(crossed) == {"net from a": 0.5, "net from b": 0.5}


def test_what_passes_between_stages_on_the_same_replicas_costs_nothing() -> None:
    """Sample m is on replica m mod 2 for both of them."""
    problem = replicated(2, (0, 1), (0, 2), (1, 2))
    here = (problem.fixed[0], problem.fixed[1], problem.fixed[0])
    assert problem.parts(0, here)[2] == problem.send_seconds([0], here[0][0], here[1][:1])[0]
    assert problem.parts(2, here)[1] == problem.receive_seconds(2, here[1][0], here[0][0])


def test_one_tensor_to_many_replicated_stages_is_priced_at_once() -> None:
    """Sixteen readers of four replicas each are 4 ** 16 combinations: none of them is asked for."""
    problem = replicated(4, *((0, target) for target in range(1, 17)))
    compute, receive, send = problem.parts(0, problem.fixed)
    assert (compute, receive) == (1.0, 0.0)
    assert send <= 16.0
    assert problem.value(problem.fixed) > 0.25


def test_without_time_place_ends_with_what_it_has_and_says_so() -> None:
    """Stages in order need not be best; looking on takes time, which a limit of none does not give."""
    module = planned(chain([0, 0, 1, 2, 3, 3], seconds=3.0), devices(6))
    context = PassContext()
    plan = PlacePass(time_limit=0.0).run(module, context).first(Plan)
    assert plan is not None
    assert all(stage.devices for stage in plan.stages)
    assert plan.value >= placed(module).value


def left_open() -> PlacementProblem:
    """One with a placement, which few looks do not prove the best."""
    for problem in map(random_problem, range(1000)):
        search = PlacementSearch(problem, nodes=30)
        if search.run() is not None and not search.tight():
            return problem
    raise AssertionError("every problem is easy")


def test_without_time_a_search_looks_at_one_more() -> None:
    looked: list[str] = []
    problem = left_open()
    search = PlacementSearch(problem, Limits(seconds=-1.0), progress=lambda label, part: looked.append(label))
    assert search.run() is not None
    assert not search.tight()
    assert len(looked) <= 2


def test_an_interrupt_ends_a_search_with_its_best_placement() -> None:
    """The next look at a placement brings it."""

    def interrupt(label: str, part: float | None) -> None:
        raise KeyboardInterrupt

    search = PlacementSearch(left_open(), progress=interrupt)
    assert search.run() is not None
    assert search.interrupted
