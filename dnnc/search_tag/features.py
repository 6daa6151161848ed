"""The input of the graph network for a node of the search: op groups and device groups as nodes of a graph with features.

Rows 0 to ``MOST`` - 1 are device groups, the next ``GROUPS`` op groups; rows that a topology or model lacks are zero and have
no edges. An op group has 13 features and a device group 5, beside each other in one row, then one that tells op groups and one
that tells device groups:

- op group: decided, next to decide; its shares of all seconds, trained bytes and saved bytes, times the number of op groups;
  the way of its action, one of four; its share of the devices; the times at which its forward pass ends and its weights are
  updated, over those of the step; the share of its seconds that is split with the batch;
- device group: devices / 8; its speed over that of the fastest; memory / 32 GiB, 1 if unlimited; the share of the step that it
  is busy; the share of its memory that is used.

Edges of five types, ``edges[type, reader, source]``, have a number: from op group to op group, and back, the bytes of their
tensors over the most between two op groups; between device groups, the bandwidth over the greatest; from device groups to the
op groups on them, and back, 1 over the number of these device groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnnc.search_tag.actions import How
from dnnc.search_tag.device_groups import MOST
from dnnc.search_tag.op_groups import GROUPS
from dnnc.search_tag.simulator import Outcome, Simulator
from passes.stages.problem import Floats

OP, DEVICE = 13, 5
WIDTH = OP + DEVICE + 2
NODES = MOST + GROUPS
TYPES = 5
_FLOW, _BACK, _LINK, _PLACED, _HOLDS = range(TYPES)


@dataclass(frozen=True, slots=True)
class Graph:
    """``nodes`` [NODES, WIDTH]; ``edges`` [TYPES, NODES, NODES], 0 for no edge; ``next``: row of the op group to decide;
    ``subsets`` [K, MOST] and ``ways`` [K, 4]: device groups and way of each action; ``groups`` [MOST]: the device groups that
    exist."""

    nodes: Floats
    edges: Floats
    next: int
    subsets: Floats
    ways: Floats
    groups: Floats


class Features:
    """Computes the graphs of the nodes of a search."""

    def __init__(self, simulator: Simulator) -> None:
        workload, machines = simulator.workload, simulator.machines
        self.simulator = simulator
        self.nodes, self.edges = np.zeros((NODES, WIDTH)), np.zeros((TYPES, NODES, NODES))
        self.subsets, self.ways = np.zeros((len(simulator.actions), MOST)), np.zeros((len(simulator.actions), len(How)))
        for number, action in enumerate(simulator.actions):
            self.subsets[number, list(action.groups)] = 1
            self.ways[number, action.how] = 1
        self.groups = np.zeros(MOST)
        self.groups[: len(machines.groups)] = 1
        ops = self.nodes[MOST:, :OP]
        for group, members in enumerate(workload.members):
            seconds = math.fsum(workload.mean[op] for op in members)
            cut = math.fsum(workload.mean[op] for op in members if op in workload.batch.factors)
            trained = sum(gradient.size for op in members for gradient in workload.gradients.get(op, ()))
            ops[group, [2, 3, 4]] = seconds, trained, sum(workload.saved[op] for op in members)
            ops[group, 12] = cut / seconds if seconds else 0.0
            self.nodes[MOST + group, -2] = 1
        for column in (2, 3, 4):
            ops[:, column] *= workload.count / (ops[:, column].sum() or 1.0)
        self._devices()
        for bundle in workload.bundles:
            source = MOST + workload.segments[bundle.source].group
            for reader in {MOST + workload.segments[number].group for number in bundle.readers} - {source}:
                self.edges[_FLOW, reader, source] += bundle.size
                self.edges[_BACK, source, reader] += bundle.size
        self.edges /= np.maximum(self.edges.max(axis=(1, 2), keepdims=True), 1e-30)

    def _devices(self) -> None:
        workload, machines = self.simulator.workload, self.simulator.machines
        columns = self.nodes[:MOST, OP : OP + DEVICE]
        for number, group in enumerate(machines.groups):
            whole = math.fsum(math.fsum(passes) for passes in workload.seconds(group.type, 1))
            memory = 1.0 if group.memory is None else group.memory / (32 << 30)
            columns[number, :3] = len(group.devices) / 8, 1 / whole if whole else 0.0, memory
            self.nodes[number, -1] = 1
            for other in range(len(machines.groups)):
                bandwidth = machines.channel(other, number).bandwidth
                self.edges[_LINK, number, other] = bandwidth if math.isfinite(bandwidth) else 0.0
        columns[:, 1] /= columns[:, 1].max() or 1.0

    def graph(self, strategy: Sequence[int], decided: int, outcome: Outcome) -> Graph:
        """The graph of a strategy, given by numbers of actions, the first ``decided`` of which are decided; and its outcome."""
        nodes, edges = self.nodes.copy(), self.edges.copy()
        machines, total = self.simulator.machines, outcome.seconds or 1.0
        for group, number in enumerate(strategy):
            action, row = self.simulator.actions[number], MOST + group
            nodes[row, 0] = group < decided
            nodes[row, 1] = group == decided
            nodes[row, 5 + action.how] = 1
            nodes[row, 9] = machines.count(action.groups) / len(machines.topology.devices)
            nodes[row, 10], nodes[row, 11] = outcome.forward[group] / total, outcome.done[group] / total
            edges[_PLACED, row, list(action.groups)] = 1 / len(action.groups)
            edges[_HOLDS, list(action.groups), row] = 1 / len(action.groups)
        for number, device_group in enumerate(machines.groups):
            nodes[number, OP + 3] = outcome.busy[number] / total
            nodes[number, OP + 4] = outcome.memory[number] / device_group.memory if device_group.memory else 0.0
        return Graph(nodes, edges, MOST + decided, self.subsets, self.ways, self.groups)
