"""What an op costs more where a stage border parts it from what it would be fused into, as a problem of stages can say it.

An epilogue e (``op_time``) follows a chain that a convolution or product u begins. In a stage with u it costs its fused
seconds, in another one d more. With x[v] = 1 where a stage holds v, that stage pays

    d x[e] (1 - x[u]) = d/2 |x[e] - x[u]| + d/2 x[e] - d/2 x[u],

so the surcharge is a tensor from u to e that costs d/2 on either side, with d/2 moved from the seconds of u to those of e. Such
a tensor has no bytes (``Problem.borders``). It is exact where compute and transfers are added (``comm = sum``) and for stages
without gaps: those that hold u and e hold the chain between them.

What this leaves out is charged when a plan is evaluated (``placement_from_ir``), so bounds hold: the surcharge of a sum of two
chains, what u's seconds are too few for (they stay above 0), and surcharges where compute hides behind transfers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ir.core.module import Module
from ir.core.topology import Topology
from passes.costs.network import Network
from passes.costs.op_time import body_seconds, chain_heads, fuses
from passes.stages.from_ir import problem_of
from passes.stages.problem import Problem
from passes.stages.reduce import permuted


def streamed_problem_of(module: Module, topology: Topology, net: Network) -> Problem:
    """``problem_of`` with the surcharges, of a stream of samples through the stages; ``comm`` is ``sum``."""
    return with_borders(problem_of(module, topology, net), module, topology)


def with_borders(problem: Problem, module: Module, topology: Topology) -> Problem:
    """The problem of the module's entry function (a node per op) with the surcharges; itself where there are none."""
    func = module.entry
    types = {kind.type: topology.type(kind.type) for kind in problem.kinds}
    if problem.comm != "sum" or not any(map(fuses, types.values())):
        return problem
    outputs = [value.name for value in func.results]
    pairs = [(heads[0], e) for e, heads in chain_heads(func.ops, outputs).items() if len(heads) == 1]
    if not pairs:
        return problem
    maker, reader = np.array(pairs, np.int64).T
    half = np.zeros((len(problem.kinds), len(pairs)))
    for name, type_ in types.items():
        rows = [k for k, kind in enumerate(problem.kinds) if kind.type == name]
        fused, alone = (np.array(body_seconds(func.ops, type_, outputs, fused=whether)) for whether in (True, False))
        half[rows] = (alone - fused)[reader] / 2
    taken = np.array([np.bincount(maker, weights=row, minlength=problem.size) for row in half])
    with np.errstate(divide="ignore", invalid="ignore"):
        enough = np.where(taken > problem.seconds, problem.seconds / taken, 1.0)
    half *= enough[:, maker]
    paid = half.any(axis=0)
    return _moved(problem, maker[paid], reader[paid], np.ascontiguousarray(half[:, paid]))


def _moved(problem: Problem, maker: np.ndarray, reader: np.ndarray, half: np.ndarray) -> Problem:
    seconds = problem.seconds.copy()
    for row, own in zip(seconds, half, strict=True):
        np.add.at(row, reader, own)
        np.subtract.at(row, maker, own)
    first, none = len(problem.consumers), np.zeros(len(maker), np.int64)
    return replace(
        problem,
        seconds=np.maximum(seconds, 0.0),  # rounding
        producer=np.concatenate([problem.producer, maker]),
        consumers=(*problem.consumers, *((v,) for v in reader.tolist())),
        transfer=np.hstack([problem.transfer, half]),
        tensor_bytes=np.concatenate([problem.tensor_bytes, none]),
        tensor_names=(*problem.tensor_names, *(f"{problem.names[v]} fused" for v in reader.tolist())),
        borders=tuple(range(first, first + len(maker))),
    )


def without_borders(problem: Problem) -> Problem:
    """The problem, or a quotient of it, without surcharges."""
    if not problem.borders:
        return problem
    seconds = problem.seconds.copy()
    for h in problem.borders:
        seconds[:, problem.producer[h]] += problem.transfer[:, h]
        seconds[:, problem.consumers[h][0]] -= problem.transfer[:, h]
    borders = set(problem.borders)
    consumers = tuple(() if h in borders else readers for h, readers in enumerate(problem.consumers))
    seconds = np.maximum(seconds, 0.0)  # rounding
    return permuted(replace(problem, seconds=seconds, consumers=consumers, borders=()), range(problem.size))
