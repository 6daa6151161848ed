"""Which ops must share a stage, before any cost is looked at.

1. *Quantisation*: a DequantizeLinear with its first reader, a QuantizeLinear with the op whose result it quantises (or, on
   a model input, with what dequantises it). What may then travel between stages is the quantised tensor, and a runtime
   finds the pattern it fuses.
2. *Values that cannot travel*: sequences, optionals, maps, strings and tensors whose size neither the types tell nor a run
   measured join the op that makes them with all that read them: what a border costs is not known.
3. *Colours*: ops of one colour (a workload's ``color`` facet) of the same side of a training graph.
4. *Changing state*: all that read a running average of batch normalisation, where one of them moves it in training: two calls
   of one layer in different stages would each move a copy.
5. *Masks* of dropouts with what reads them: a mask is made from a number that every stage has, and is never worth sending.

6. *States* of a decoder: all that read one, with the op that makes what it becomes.
7. *Positions* of a decoder: an op that computes with these alone joins its first reader. Each stage that needs it has its own,
   so a stage of such ops alone would have none.

A weight that several stages read has a copy in each, and memory counts each; in training they add up their gradients once a
step. An If, Loop or Scan is one op. Random ops of ONNX share no state, so nothing joins them.

Invariant: the classes form no cycle. Merging may close one (a path that leaves the class and returns); then everything on
it joins too, since contiguous stages could not separate it anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.core.facets import Color, Direction
from ir.core.module import Module
from ir.core.ops import Value
from ir.core.types import BytesType, DType, TensorType
from ir.ops.grads import DRAWS, written_resources
from passes.graph.graph import DisjointSets, components, reads
from passes.graph.positional import positional
from passes.graph.sizes import sized_results

FORWARD = Direction("fw")
"""Of an op that names no phase."""


def colocation(module: Module) -> tuple[tuple[int, ...], ...]:
    """Classes of ops of the entry function (positions, ascending), ordered by first member; every op is in one."""
    func = module.entry
    classes = DisjointSets(len(func.ops))
    readers: dict[str, list[int]] = {}
    maker: dict[str, int] = {}
    painted: dict[tuple[int, str], int] = {}
    read = [reads(op) for op in func.ops]
    fixed: list[int] = []
    for i, op in enumerate(func.ops):
        for name in read[i]:
            readers.setdefault(name, []).append(i)
        stays = op.name.endswith("uantizeLinear") or op.name in DRAWS
        for value in sized_results(op):
            maker[value.name] = i
            stays = stays or not _can_travel(value)
        if stays:
            fixed.append(i)
        color = op.facet(Color)
        if color is not None:
            first = painted.setdefault((color.color, op.facet(Direction, FORWARD).direction), i)
            if first != i:
                classes.join(first, i)
    for i in fixed:
        op = func.ops[i]
        kind = op.name.rpartition(".")[2]
        first_reader = min((r for value in op.results for r in readers.get(value.name, ())), default=None)
        if kind == "DequantizeLinear" and first_reader is not None:
            classes.join(i, first_reader)
        elif kind == "QuantizeLinear":
            source = maker.get(op.operands[0]) if op.operands else None
            if source is not None and func.ops[source].name.rpartition(".")[2] != "DequantizeLinear":
                classes.join(i, source)
            elif first_reader is not None:
                classes.join(i, first_reader)
        for value in sized_results(op):
            if op.name in DRAWS or not _can_travel(value):
                for reader in readers.get(value.name, ()):
                    classes.join(i, reader)
    for name in sorted(written_resources(func.ops)):
        for user in readers.get(name, ()):
            classes.join(readers[name][0], user)
    for name, state in module.states.items():
        users = [*readers.get(name, ()), *([maker[f"%{state.result}"]] if f"%{state.result}" in maker else [])]
        for user in users:
            classes.join(users[0], user)
    for i in positional(module):
        earliest = min((r for value in func.ops[i].results for r in readers.get(value.name, ())), default=i)
        classes.join(i, earliest)
    if len(classes.listed()) < len(func.ops):
        merge_cycles(classes, _edges(maker, read))
    return classes.listed()


def _can_travel(value: Value) -> bool:
    """Whether a plan may part the value from its readers: a dense tensor of known size, or opaque bytes."""
    type_ = value.type
    if isinstance(type_, BytesType):
        return True
    return isinstance(type_, TensorType) and type_.nbytes is not None and type_.dtype is not DType.STRING and not type_.sparse


def _edges(maker: Mapping[str, int], read: Sequence[Sequence[str]]) -> list[list[int]]:
    """Successors of each op, given who makes what and what each reads."""
    following: list[list[int]] = [[] for _ in read]
    for i, names in enumerate(read):
        for source in {maker[name] for name in names if name in maker}:
            following[source].append(i)
    return following


def merge_cycles(classes: DisjointSets, edges: Sequence[Sequence[int]]) -> None:
    """Joins classes that lie on a common cycle of the quotient."""
    root = [classes.root(i) for i in range(len(edges))]
    after: list[set[int]] = [set() for _ in edges]
    for mine, targets in zip(root, edges, strict=True):
        after[mine].update([root[j] for j in targets if root[j] != mine])
    for component in components(after):
        for node in component[1:]:
            classes.join(component[0], node)
