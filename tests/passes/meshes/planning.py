"""Modules with decisions: random ones, which are right but far from cheap, on meshes of one or more stages."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ir
from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.data.generate import input_demands
from dnnc.onnx import DIALECTS
from dnnc.onnx.model import free_symbols
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module, Plan
from ir.core.shares import Shares
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import DType, TensorType
from passes.costs.network import network
from passes.framework.base import Pass
from passes.meshes.costs.price import price
from passes.meshes.mesh import mesh_of
from passes.meshes.staged import Staged
from passes.partition.layouts import build, decisions_of, truthful
from passes.plan.written import written
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.cost import CostPass
from passes.programs.lower import LowerPass
from tests.passes.meshes.interpreter import run_lowered
from tests.passes.meshes.members import localized
from tests.passes.partition.on_meshes import on_meshes
from tests.passes.running import run

TWO_MESHES = """\
  topology @top {
    type core {rates = {f32 = 1e9}, memory_bandwidth = 1e9}
    host h
    device a {type = core, host = h}
    device b {type = core, host = h}
    device c {type = core, host = h}
    device d {type = core, host = h}
    link bus {ends = [a, b, c, d], bandwidth = 1e9}
  }
  mesh @mesh0 [x = 2] on [a, b]
  mesh @mesh1 [x = 2] on [c, d]
"""
"""Four cores on one bus, and a mesh of each two, as the text of a module."""

Arrays = dict[str, NDArray[Any]]


def topology(count: int, slow: Collection[int] = ()) -> Topology:
    """Devices ``d0``.. two to a host, the link between hosts slower than that within; those that are ``slow`` have a third of
    the speed and half of the memory."""
    efficiency = (("epilogue", 1.0),)
    types = [DeviceType("chip", "gpu", (("f32", 1e9),), 1e9, 2 << 30 if slow else None, 0.0, efficiency=efficiency)]
    if slow:
        types.append(DeviceType("slow", "gpu", (("f32", 1e9 / 3),), 1e9 / 3, 1 << 30, 0.0, efficiency=efficiency))
    hosts = [f"h{i}" for i in range((count + 1) // 2)]
    devices = [Device(f"d{i}", "slow" if i in slow else "chip", hosts[i // 2]) for i in range(count)]
    links = [Link(f"in-{device.name}", (device.name, device.host), 1e10, 1e-9) for device in devices]
    links += [Link(f"out-{host}", (host, "switch"), 3e9, 5e-9) for host in hosts]
    return Topology("@top", tuple(types), tuple(map(Host, hosts)), tuple(devices), (ir.Switch("switch"),), tuple(links))


@lru_cache(maxsize=16)
def prepared(spec: str, batch: int = 4) -> tuple[Module, Path]:
    """A model, its dimensions bound, with costs; and the folder of its weights."""
    free = sorted(free_symbols(load_model(spec, {}, DiagnosticSink()).module.entry))
    sizes = {name: batch if name in (free[-1], "s43") else 8 for name in free}  # s43: bert's batch by its mask
    imported = load_model(spec, sizes, DiagnosticSink())
    return through(imported.module, CanonicalizePass(), CostPass()), imported.files.folder


def through(module: Module, *passes: Pass) -> Module:
    for one in passes:
        module = one.run(module, pass_context(DiagnosticSink()))
    return module


def with_topology(module: Module, count: int) -> Module:
    return module.extend([topology(count)])


def random_plan(
    module: Module,
    shapes: Sequence[tuple[int, ...]],
    generator: np.random.Generator,
    shares: Sequence[Sequence[Shares]] = (),
    slow: Collection[int] = (),
) -> tuple[Module, list[Staged]]:
    """Stages over consecutive ops, each on a mesh of a shape, with ``shares`` along its axes if given, every choice drawn. The
    bills are of the whole function on each mesh: right for one stage."""
    func = module.entry
    top = topology(sum(map(math.prod, shapes)), slow)
    module = module.extend([top])
    ends = sorted(generator.choice(range(1, len(func.ops)), len(shapes) - 1, replace=False)) if len(shapes) > 1 else []
    stages, first = [], 0
    given_shares = shares or [()] * len(shapes)
    for sizes, along, start, end in zip(shapes, given_shares, [0, *ends], [*ends, len(func.ops)], strict=True):
        mesh = mesh_of(top, network(top), sizes, first, along)
        first += math.prod(sizes)
        given = build(module, func, mesh, None)
        problem = given.problem
        choices = [int(generator.integers(len(problem.node(node).labels))) for node in range(problem.size)]
        decisions = decisions_of(given, truthful(given, choices))
        bill = price(module, func, mesh, decisions)
        stages.append(Staged(tuple(range(start, end)), mesh, decisions, bill))
    plan = Plan("@plan", "throughput", "sum", 1.0, 1.0, 0.0, "within-gap", math.inf, ())
    return written(module, stages, plan), stages


def searched(module: Module, mesh: str, devices: int = 0, **options: Any) -> Module:
    """The best plan on ``devices``, or on as many as the mesh has."""
    count = devices or math.prod(map(int, mesh.split("x")))
    return through(with_topology(module, count), on_meshes(mesh=mesh, **options))


def lowered(module: Module) -> Module:
    """Lowered, and right by the verifier, as text too; lowering again changes nothing."""
    result = through(module, LowerPass())
    assert through(result, LowerPass()) == result
    assert ir.verify(result, dialects=DIALECTS) == []
    assert ir.parse_module(ir.print_module(result)) == result
    return result


def inputs_of(module: Module, seed: int = 0) -> Arrays:
    """Random inputs that the model accepts."""
    generator = np.random.default_rng(seed)
    demands = input_demands(module)
    found: Arrays = {}
    for arg in module.entry.args:
        assert isinstance(arg.type, TensorType)
        shape = tuple(dim for dim in arg.type.shape or () if isinstance(dim, int))
        if arg.type.dtype.is_float:
            found[arg.name[1:]] = generator.normal(size=shape).astype(_NUMPY[arg.type.dtype])
            continue
        demand = demands.get(arg.name) or demands.get(arg.name[1:])
        limit = 2 if demand and demand.mask else (demand and demand.limit) or (2 if arg.type.dtype is DType.BOOL else 10)
        found[arg.name[1:]] = generator.integers(0, limit, shape).astype(_NUMPY[arg.type.dtype])
    return found


def check_runs(module: Module, decided: Module, folder: Path, seed: int = 0) -> Module:
    """The members together compute what the entry does. Gives the lowered module with its programs."""
    result = localized(lowered(decided))
    inputs = inputs_of(module, seed)
    expected = run(module, inputs, folder)
    found = {name[1:]: array for name, array in run_lowered(result, inputs, folder).items()}
    assert list(found) == list(expected)
    for name, array in expected.items():
        other = found[name]
        assert (array.shape, array.dtype) == (other.shape, other.dtype), name
        if array.dtype.kind == "f":
            scale = float(np.abs(array[np.isfinite(array)]).max(initial=1e-6))
            np.testing.assert_allclose(other, array, rtol=1e-3, atol=2e-4 * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(other, array, err_msg=name)
    return result


_NUMPY: dict[DType, Any] = {
    DType.F32: np.float32,
    DType.F64: np.float64,
    DType.F16: np.float16,
    DType.I64: np.int64,
    DType.I32: np.int32,
    DType.BOOL: np.bool_,
}

__all__ = ["check_runs", "inputs_of", "lowered", "prepared", "random_plan", "searched", "through", "topology", "with_topology"]
