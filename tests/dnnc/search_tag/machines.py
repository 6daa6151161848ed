"""Machines and models that are small enough to be computed by hand."""

from __future__ import annotations

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.machines.topology.read import read_topology
from dnnc.search_tag.cases import Cases
from dnnc.search_tag.device_groups import Machines
from dnnc.search_tag.op_groups import Workload
from dnnc.search_tag.simulator import Simulator
from ir.core.diagnostics import DiagnosticSink

TEXT = """version = 1
switches = ["network"]
[types.fast]
kind = "gpu"
rates = {{ f32 = "{fast} GFLOP/s" }}
memory_bandwidth = "1 TB/s"
[types.slow]
kind = "gpu"
rates = {{ f32 = "1 GFLOP/s" }}
memory_bandwidth = "1 TB/s"
[[hosts]]
name = "p"
[[hosts]]
name = "q"
[[devices]]
name = "p-{{0..1}}"
type = "fast"
host = "p"
memory = "{memory}"
[[devices]]
name = "q-0"
type = "slow"
host = "q"
memory = "1 GiB"
[[links]]
each = "devices of p"
to = "p"
bandwidth = "10 GB/s"
latency = "1 us"
[[links]]
each = "devices of q"
to = "q"
bandwidth = "10 GB/s"
latency = "1 us"
[[links]]
each = ["p", "q"]
to = "network"
bandwidth = "1 GB/s"
latency = "2 us"
shared = true
"""
"""Two fast devices on one host and a slow one on another: device groups 0 and 1."""


def text(fast: float = 2.0, memory: str = "1 GiB") -> str:
    """Of ``fast`` GFLOP/s, and with so much memory on each fast device."""
    return TEXT.format(fast=fast, memory=memory)


def simulator(model: str, machines: str = "", most: int = 40) -> Simulator:
    """Of a model of the zoo in ``most`` op groups."""
    module = Cases((model,), 1, 0, pass_context(DiagnosticSink()), load_model).module(model)
    topology = read_topology(machines or text())
    return Simulator(Workload(module, topology, most), Machines(topology))
