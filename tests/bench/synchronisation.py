"""How members agree on gradients, on a model of wide layers: ``python -m tests.bench.synchronisation [MODEL] [-t TOPOLOGY]``.

The samples of a step of data parallel training are split over all devices, in equal parts. A row for each way of
``--sync``: seconds of the step as the plan says, bytes that a member passes on for all gradients and for those of the matrices
of the fully connected layers (VGG-19: fc6, fc7, fc8), and how many weights are synchronised in which way.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from dataclasses import dataclass

from dnnc.compile.context import pass_context
from dnnc.machines.topology import load_topology
from dnnc.zoo import catalogue
from ir import Module
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import SYNCS, sync_of
from ir.core.module import Plan
from ir.ops.opdefs import COLLECTIVES
from passes.costs.learning import trained
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.meshes.costs.bill import Bill
from passes.meshes.costs.price import price
from passes.meshes.mesh import DeviceMesh
from passes.meshes.undecided import undecided
from passes.plan.parts import stage_parts

MODEL, TOPOLOGY = "vgg19,batch=96", "preset:tag-testbed"
METHODS = tuple(method for method in SYNCS if method != "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Row:
    """Of one way: ``seconds`` of a step, the bytes ``passed`` on, weights by method."""

    seconds: float
    passed: dict[str, float]
    methods: dict[str, int]


def plan_of(model: str, topology: str, sync: str) -> Module:
    """The plan of data parallel training under ``sync``, in equal parts."""
    module = catalogue.build(model).extend([load_topology(topology, DiagnosticSink())])
    count, loss = len(load_topology(topology, DiagnosticSink()).devices), module.entry.results[0].name[1:]
    shard = f"partition{{objective=training,stages=1,mesh={count},strategy=data,shares=equal}}"
    passes = parse_pipeline(f'training{{loss="cross-entropy:{loss}",sync={sync}}},canonicalize,cost,{shard}')
    return PassManager(passes).run(module, pass_context(DiagnosticSink()))


def row(model: str, topology: str, sync: str) -> Row:
    """What ``sync`` leads to."""
    module = plan_of(model, topology, sync)
    plan = module.first(Plan)
    assert plan is not None
    methods = Counter(sync_of(module.resources[weight].facets).method for weight in trained(module.resources))
    (part,) = stage_parts(module)
    bill = price(undecided(module), part.func, part.mesh, part.decisions, training=True)
    return Row(plan.value, passed(bill, part.mesh), dict(methods))


def passed(bill: Bill, mesh: DeviceMesh) -> dict[str, float]:
    """Bytes that a member passes on for gradients, by what is gathered or summed: a value, a weight, or (``NAME.grad``) the
    gradient of a value."""
    sizes = {axis.name: axis.size for axis in mesh.axes}
    found: dict[str, float] = defaultdict(float)
    for one in bill.collectives:
        if one.factor or one.summed:
            name = f"{one.value[1:]}.grad" if one.factor == "gradient" else one.value[1:]
            found[name] += COLLECTIVES[one.kind].rounds * (sizes[one.axis] - 1) / sizes[one.axis] * one.size
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("-t", "--topology", default=TOPOLOGY)
    given = parser.parse_args()
    print(f"{given.model} on {given.topology}, data parallel\n{'sync':12} {'step':>9} {'gradients':>12}  weights by method")
    for method in METHODS:
        found = row(given.model, given.topology, method)
        methods = ", ".join(f"{count} {name}" for name, count in sorted(found.methods.items()))
        print(f"{method:12} {1e3 * found.seconds:>6.1f} ms {sum(found.passed.values()) / 1e6:>9.1f} MB  {methods}")
        for name, size in sorted(found.passed.items(), key=lambda item: -item[1])[:6]:
            print(f"{'':12} {'':>9} {size / 1e6:>9.1f} MB  {name}")


if __name__ == "__main__":
    main()
