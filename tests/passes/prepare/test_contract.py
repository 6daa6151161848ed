"""Contract: what must share a stage does, what need not be told apart is one group, and groups form no cycle."""

from __future__ import annotations

import random

import pytest

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.facets import Group
from ir.core.module import Func, Module, Plan, Resource, Splat
from ir.core.ops import Op, Value
from ir.core.types import DType, SeqType, TensorType
from passes.framework.base import PassContext
from passes.graph.graph import reads
from passes.partition.partition_pass import PartitionPass
from passes.prepare.contract import ContractPass
from passes.stages.colocation import SPAN, colocation
from tests.passes.staging import VECTOR, chain, devices, op, value

TIME = {"t": 1.0}


def module_of(*ops: Op, results: str = "", resources: tuple[Resource, ...] = ()) -> Module:
    last = results or ops[-1].results[0].name
    return Module("@m", (*resources, Func("@main", (value("%x"),), (value(last),), ops)))


def groups(module: Module, **options: object) -> list[int]:
    done = ContractPass(**options).run(module.extend([devices(2)]), PassContext())  # type: ignore[arg-type]
    return [op_.facet(Group, Group(-1)).group for op_ in done.entry.ops]


def test_dear_transfers_join_cheap_ops() -> None:
    # A transfer costs 1 s at each end, an op 0.1 s: nothing is gained by parting the chain.
    assert len(set(groups(chain([0] * 5, seconds=0.1)))) < 5
    assert len(set(groups(chain([0] * 5, seconds=3.0)))) == 5
    assert len(set(groups(chain([0] * 5, seconds=0.1), exact=False))) == 5


def test_attributes_tell_the_guarantee() -> None:
    done = ContractPass(comm="overlap").run(chain([0] * 3).extend([devices(2)]), PassContext())
    assert set(attributes({"contract.guarantee": "exact", "contract.comm": "overlap"})) <= set(done.entry.attributes)
    again = ContractPass().run(done, PassContext())
    assert dict(again.entry.attributes)["contract.comm"].value == "sum"


def test_quantisation_joins_its_op() -> None:
    module = module_of(
        op("onnx.QuantizeLinear", ["%x", "@s"], ["%q"], seconds=TIME),
        op("onnx.DequantizeLinear", ["%q", "@s"], ["%d"], seconds=TIME),
        op("onnx.DequantizeLinear", ["@w", "@s"], ["%dw"], seconds=TIME),
        op("onnx.MatMul", ["%d", "%dw"], ["%m"], seconds=TIME),
        op("onnx.QuantizeLinear", ["%m", "@s"], ["%mq"], seconds=TIME),
        op("onnx.DequantizeLinear", ["%mq", "@s"], ["%md"], seconds=TIME),
        op("onnx.Relu", ["%md"], ["%y"], seconds=TIME),
    )
    assert colocation(module) == ((0, 1, 2, 3, 4), (5, 6))


def test_values_that_cannot_travel_stay() -> None:
    unsized = TensorType(DType.I64, ("n",))
    module = module_of(
        Op("onnx.NonZero", ("%x",), (Value("%n", unsized),)),
        Op("onnx.SequenceConstruct", ("%x",), (Value("%s", SeqType(VECTOR)),)),
        Op("onnx.Gather", ("%x", "%n"), (value("%g"),)),
        Op("onnx.SequenceAt", ("%s", "@i"), (value("%e"),)),
        Op("onnx.Add", ("%g", "%e"), (value("%y"),)),
    )
    assert colocation(module) == ((0, 2), (1, 3), (4,))


def shared_weight(distance: int) -> Module:
    weight = Resource("@w", TensorType(DType.F32, (2048,)), Splat(0))
    ops = [op("onnx.Add", [f"%v{i - 1}" if i else "%x"], [f"%v{i}"], seconds=TIME) for i in range(distance + 1)]
    ops[0] = op("onnx.Add", ["%x", "@w"], ["%v0"], seconds=TIME)
    ops[-1] = op("onnx.Add", [f"%v{distance - 1}", "@w"], [f"%v{distance}"], seconds=TIME)
    return module_of(*ops, resources=(weight,))


def test_shared_weight_joins_near_readers_only() -> None:
    assert colocation(shared_weight(SPAN - 1)) == (tuple(range(SPAN)),)
    assert len(colocation(shared_weight(SPAN))) == SPAN + 1


def test_small_shared_weight_is_copied() -> None:
    module = shared_weight(2)
    small = Resource("@w", TensorType(DType.F32, ()), Splat(0))
    assert len(colocation(module.replace(module.symbols[0], small))) == 3


def test_a_class_takes_in_what_leaves_and_returns() -> None:
    unsized = TensorType(DType.I64, ("n",))
    module = module_of(
        Op("onnx.Split", ("%x",), (value("%a"), Value("%n", unsized))),
        Op("onnx.Relu", ("%a",), (value("%b"),)),
        Op("onnx.Concat", ("%b", "%n"), (value("%y"),)),
    )
    assert colocation(module) == ((0, 1, 2),)


@pytest.mark.parametrize("seed", range(16))
def test_groups_never_form_a_cycle(seed: int) -> None:
    """Random graphs with values that cannot travel: numbers of groups never fall along an edge."""
    rng = random.Random(seed)
    ops = []
    for i in range(12):
        operands = [f"%v{j}" for j in range(i) if rng.random() < 0.25] or ["%x"]
        type_ = TensorType(DType.I64, ("n",)) if rng.random() < 0.15 else VECTOR
        made = op("onnx.Sum", operands, [], seconds={"t": rng.choice((0.0, 0.1, 3.0))})
        ops.append(Op(made.name, made.operands, (Value(f"%v{i}", type_),), facets=made.facets))
    module = module_of(*ops)
    numbers = groups(module, comm=rng.choice(("sum", "overlap", "duplex")))
    at = {v.name: numbers[i] for i, op_ in enumerate(module.entry.ops) for v in op_.results}
    assert all(at.get(name, -1) <= numbers[i] for i, op_ in enumerate(module.entry.ops) for name in reads(op_))


def branches(count: int) -> Module:
    """``count`` chains of two ops between a source and a sum, all alike."""
    ops = [op("onnx.Relu", ["%x"], ["%s"], seconds={"t": 3.0})]
    for i in range(count):
        ops.append(op("onnx.Relu", ["%s"], [f"%a{i}"], seconds={"t": 3.0}))
        ops.append(op("onnx.Relu", [f"%a{i}"], [f"%b{i}"], seconds={"t": 3.0}))
    ops.append(op("onnx.Sum", [f"%b{i}" for i in range(count)], ["%y"], seconds={"t": 3.0}))
    return module_of(*ops)


def test_antichains_are_contracted_when_asked() -> None:
    """The loss is stated, and the plan is held against the bound of the graph that nothing was given up of."""
    module = branches(7).extend([devices(2)])
    context = PassContext()
    assert len(set(groups(branches(7)))) == 16
    small = ContractPass(max_ideals=50).run(module, context)
    assert int(context.statistics["contract"]["groups"]) < 16
    assert str(dict(small.entry.attributes)["contract.guarantee"].value).startswith("bounded:")
    plan = PartitionPass().run(small, PassContext()).first(Plan)
    exact = PartitionPass().run(ContractPass().run(module, PassContext()), PassContext()).first(Plan)
    assert plan is not None
    assert exact is not None
    assert exact.status == "optimal"
    assert plan.bound <= exact.value <= plan.value <= 1.3 * exact.value
    assert plan.status == "within-gap"
    assert "contracted" in dict(plan.certificate)["bound"]


def test_contraction_that_a_demand_breaks_is_undone() -> None:
    """Nodes pinned apart lie in one group of the contraction's making."""
    module = ContractPass(max_ideals=50).run(branches(7).extend([devices(2)]), PassContext())
    planned = PartitionPass(pins=("a0=d0", "b0=d1")).run(module, PassContext()).first(Plan)
    assert planned is not None
    assert {device for stage in planned.stages for device in stage.devices} == {"d0", "d1"}


def test_contraction_that_does_not_help_warns() -> None:
    context = PassContext()
    done = ContractPass(max_ideals=1).run(branches(4).extend([devices(2)]), context)
    assert dict(done.entry.attributes)["contract.guarantee"].value == "exact"
    assert "the lattice stays above 1 ideals" in str(context.sink.diagnostics[0])


def test_faults_are_named() -> None:
    with pytest.raises(InvalidInput, match="max-ideals is -1"):
        groups(chain([0]), max_ideals=-1)
    with pytest.raises(InvalidInput, match="comm is 'fast', expected one of sum, overlap, duplex"):
        groups(chain([0]), comm="fast")
