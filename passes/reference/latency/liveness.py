"""What is alive while a piece runs the ops of its nodes: the workspace of a stage, exactly, as of ``passes.costs.memory``.

A piece runs its ops in the order of the function. A value that it makes lives from the op that makes it to its last reader in
the piece, or dies with its op; an argument from its first reader in the piece to its last; what others make is received and
counts as a buffer. Of a piece of fewer ops no more is alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ir.core.module import Func
from passes.costs.memory.liveness import live_bytes, value_bytes
from passes.graph.graph import reads
from passes.graph.sizes import sized_results
from passes.stages.arrays import Ints


@dataclass(frozen=True, eq=False)
class Liveness:
    """Ops [N] in the order of the function, values [V]: ``node[N]`` that an op is of; ``inner[N]``, bytes alive in its regions
    at most; values that it makes and reads, each once; ``bytes[V]``; ``argument[V]``: nobody makes it."""

    node: Ints
    inner: Ints
    made: tuple[tuple[int, ...], ...]
    read: tuple[tuple[int, ...], ...]
    bytes: Ints
    argument: tuple[bool, ...]

    def workspace(self, nodes: Iterable[int]) -> int:
        """Most bytes alive at once in a piece."""
        inside = set(nodes)
        ops = [o for o, v in enumerate(self.node.tolist()) if v in inside]
        last = {value: o for o in ops for value in (*self.made[o], *self.read[o])}
        ours = {value for o in ops for value in self.made[o]}
        alive, most, living = 0, 0, set[int]()
        for o in ops:
            born = {*self.made[o], *(value for value in self.read[o] if self.argument[value])} - living
            living |= born
            alive += sum(int(self.bytes[value]) for value in born)
            most = max(most, alive + int(self.inner[o]))
            for value in {*self.made[o], *self.read[o]}:
                if last[value] == o and (value in ours or self.argument[value]):
                    alive -= int(self.bytes[value])
        return most


def liveness(func: Func, groups: Sequence[Sequence[int]]) -> Liveness:
    """Of the ops of a function, ``groups[v]`` those of node v."""
    number = {value.name: i for i, value in enumerate(func.args)}
    sizes = [value_bytes(value) for value in func.args]
    for op in func.ops:
        for value in sized_results(op):
            number[value.name] = len(sizes)
            sizes.append(value_bytes(value))
    node = np.zeros(len(func.ops), np.int64)
    for v, ops in enumerate(groups):
        node[list(ops)] = v
    # A function of one op and no arguments: what is alive is what it makes and what its regions hold.
    inner = [
        live_bytes(Func(func.name, (), (), (op,)))[0] - sum(map(value_bytes, sized_results(op))) if op.regions else 0
        for op in func.ops
    ]
    return Liveness(
        node,
        np.array(inner, np.int64),
        tuple(tuple(number[value.name] for value in op.results) for op in func.ops),
        tuple(tuple(number[name] for name in reads(op) if name in number) for op in func.ops),
        np.array(sizes, np.int64),
        tuple(i < len(func.args) for i in range(len(sizes))),
    )
