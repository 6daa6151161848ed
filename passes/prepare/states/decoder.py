"""The step of a decoder: its caches written in place at ``position``, its other inputs computed from ``position``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module, Resource
from ir.core.names import unique
from ir.core.ops import Op, Value, all_reads
from ir.core.types import ONNX_TYPES, DType, TensorType
from passes.graph.graph import live_ops, reads, renamed
from passes.graph.symbols import insert_symbols
from passes.prepare.states.faults import BatchNotTold, CacheNotInPlace, NoTokenIds, NotOneInput, OneForAll, TooFewPositions
from passes.prepare.states.masks import Masks, array_of
from passes.prepare.states.pairs import Pair, passing
from passes.prepare.states.roles import Role, roles_of
from passes.prepare.states.writer import StepWriter

GROUP_QUERY, ATTENTION = "onnx.com.microsoft.GroupQueryAttention", "onnx.Attention"
RELATIVE = "decoding.relative"
"""The attribute of an entry function that lists the constants of a step, one row for its token, which depend on the distances
of keys to that token alone: they are shifted where the past is one longer. A function with it was read at both lengths, and
no other number of it depends on the past, those of slots and looked up positions aside."""
BRANCH = "decoding.branch"
"""The attribute of an entry function that names the input of its file which is true in each step, and no argument any more."""
TABLES = {GROUP_QUERY: (7, 8), "onnx.com.microsoft.RotaryEmbedding": (2, 3)}
"""Operands that have a row for each position: cosines and sines."""
SAME_NUMBERS = frozenset(f"onnx.{name}" for name in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
ELEMENTWISE = frozenset(f"onnx.{name}" for name in ("Add", "Cast", "Cos", "Div", "Identity", "Mul", "Neg", "Sin", "Sub"))
"""Ops that a value of each position may go through, of which the first dimension stays the batch."""
QUERY_LENGTHS = 16
"""The operand of GroupQueryAttention with the number of new tokens of each sequence."""
I64 = DType.I64


class Decoder:
    """One decoder. ``axes``: of the pairs that are caches, the axis of positions; ``roles``: as ``NAME=ROLE``; ``given``: the
    arguments that are given where a sequence begins, once ``rewritten`` has run."""

    def __init__(self, module: Module, pairs: Sequence[Pair], axes: Mapping[Pair, int], roles: Sequence[str] = ()) -> None:
        self.module, self.func, self.axes = module, module.entry, axes
        sources = {f"%{pair.source}" for pair in pairs}
        self.others = [arg for arg in self.func.args if arg.name not in sources]
        self.roles = roles_of(self.func, {pair.source for pair in pairs}, roles)
        self.ids = self._ids()
        self.batch, self.step = _shape(self.ids)
        results = {value.name: value for value in self.func.results}
        lengths = {_shape(results[f"%{pair.result}"])[axis] for pair, axis in axes.items()}
        if len(lengths) > 1:
            first = next(iter(axes))
            raise InvalidInput(
                CacheNotInPlace(first.source, f"caches have several lengths, {sorted(lengths)}"), where=first.source
            )
        self.context = lengths.pop()
        self.writer = StepWriter(module, self.batch, self.step, self.context)
        for pair in pairs:
            shape = _shape(results[f"%{pair.result}"])
            if pair not in axes and self.batch > 1 and shape.count(self.batch) != 1:
                raise InvalidInput(BatchNotTold(pair.source, "x".join(map(str, shape)), self.batch), where=pair.source)
        of_pairs = {f"%{pair.result}" for pair in pairs}
        self.given: list[Value] = []
        others = [value for value in self.func.results if value.name not in of_pairs]
        of_last = [one for one in others if len(_shape(one)) == 2 and _shape(one)[0] == self.batch and _is_float(one)]
        self.logits = next(iter([one for one in others if len(_shape(one)) == 3] or of_last), None)

    def branch(self) -> dict[str, str]:
        """The input that chooses caches, with its role; nothing where the file has none."""
        return {attribute.value: "branch" for key, attribute in self.func.attributes if key == BRANCH}

    def _ids(self) -> Value:
        found = next((arg for arg in self.others if self.roles.get(arg.name[1:]) is Role.IDS), None)
        if found is None:
            raise InvalidInput(NoTokenIds(tuple(arg.name[1:] for arg in self.func.args)), where=self.module.name)
        return found

    def rewritten(self) -> Module:
        """The module as a step of a decoder, with caches still arguments. Raises InvalidInput where it cannot be one."""
        read = {name for op in self.func.ops for name in all_reads(op)} | {value.name for value in self.func.results}
        for arg in self.others:
            if arg.name != self.ids.name and arg.name in read:
                self.compute(arg)
        self.require_positions()
        ops = self.of_whole_numbers([one for op in self.func.ops for one in self.in_place(op)])
        if any(pair.grows is not None for pair in self.axes):
            growing = {pair.result: pair.source for pair in self.axes if pair.grows is not None}
            relative = dict(self.func.attributes).get(RELATIVE)
            masks = Masks(self.writer, self.module.resources, growing, relative.value if relative is not None else ())
            ops = masks.applied(ops)
            if Role.POSITIONS not in self.roles.values():
                ops = self.with_positions(ops, required=relative is None and not masks.by_distance)
        entry = self.func
        facts = {
            "decoding.ids": self.ids.name[1:],
            "decoding.position": self.writer.position.name[1:],
            "decoding.logits": self.logits.name[1:] if self.logits is not None else "",
            "decoding.context": self.context,
            "decoding.inputs": tuple(f"{name}={role}" for name, role in {**self.roles, **self.branch()}.items()),
        }
        sources = {f"%{pair.source}" for pair in self.axes}
        kept = [arg for arg in self.func.args if arg not in self.others or arg.name in sources or arg in self.given]
        ops, results = self.by_token(ops)
        unchanged = passing(self.func)
        read = {name for op in ops for name in reads(op)}
        entry = replace(
            entry,
            args=(replace(self.ids, type=TensorType(I64, _shape(self.ids))), self.writer.position, *kept),
            results=tuple(value for value in results if value.name not in unchanged),
            ops=(*live_ops(self.writer.ahead, read), *ops),
            attributes=attributes(
                {key: value for key, value in {**dict(entry.attributes), **facts}.items() if key != RELATIVE}
            ),
        )
        return insert_symbols(self.module.replace(self.func, entry), self.writer.made)

    def of_whole_numbers(self, ops: list[Op]) -> list[Op]:
        """``ops``, which read token ids of 64 bits, whatever type the model takes."""
        type_ = self.ids.type
        if not isinstance(type_, TensorType) or type_.dtype is I64:
            return ops
        name = unique(f"{self.ids.name}.{type_.dtype.value}", self.writer.names)
        self.writer.add("onnx.Cast", name, (self.ids.name,), type_, to=ONNX_TYPES[type_.dtype])
        return list(renamed(ops, {self.ids.name: name}))

    def by_token(self, ops: list[Op]) -> tuple[list[Op], tuple[Value, ...]]:
        """``ops`` and the results of the step, whose logits are ``[B, 1, V]`` where the model makes ``[B, V]``."""
        logits = self.logits
        if logits is None or not isinstance(logits.type, TensorType) or len(_shape(logits)) != 2:
            return ops, self.func.results
        row = unique(f"{logits.name}.row", self.writer.names)
        batch, words = _shape(logits)
        whole = replace(logits, type=replace(logits.type, shape=(batch, 1, words)))
        axis = self.writer.constant("axis", [1])
        ops = [
            replace(op, results=tuple(replace(one, name=row) if one.name == logits.name else one for one in op.results))
            for op in renamed(ops, {logits.name: row})
        ]
        ops.append(Op("onnx.Unsqueeze", (row, axis), (whole,)))
        return ops, tuple(whole if value == logits else value for value in self.func.results)

    def compute(self, arg: Value) -> None:
        """Makes the input ``arg`` from ``position``, under its name. Raises InvalidInput for one whose role is unknown, or
        whose sizes are not those of its role."""
        type_, shape, writer, role = arg.type, _shape(arg), self.writer, self.roles.get(arg.name[1:])
        assert isinstance(type_, TensorType)
        if role is Role.GIVEN and shape[:1] == (self.batch,):
            self.given.append(arg)
        elif role is Role.MASK and shape == (self.batch, self.context):
            seen = writer.op("onnx.Less", f"{arg.name[1:]}.seen", (writer.slots(2), writer.after()), shape, DType.BOOL)
            writer.add("onnx.Cast", arg.name, (seen,), type_, to=ONNX_TYPES[type_.dtype])
        elif role is Role.POSITIONS and shape == (self.batch, self.step):
            places = self.writer.places()
            writer.add("onnx.Cast", arg.name, (places,), type_, to=ONNX_TYPES[type_.dtype])
        elif role is Role.POSITION and shape == (self.batch,):
            writer.add("onnx.Identity", arg.name, (writer.position.name,), type_)
        elif role is Role.LENGTHS and shape == (self.batch,):
            self.counted_lengths(arg)
            writer.add("onnx.Add", arg.name, (writer.position.name, writer.constant("step", [self.step])), type_)
        elif role is not None and shape[:1] == (1,) and self.batch > 1:
            raise InvalidInput(OneForAll(arg.name[1:], str(type_), str(role), self.batch), where=self.module.name)
        else:
            raise InvalidInput(NotOneInput(arg.name[1:], str(type_)), where=self.module.name)

    def require_positions(self) -> None:
        """Raises InvalidInput where the model looks positions up in a table of fewer rows than the caches have positions: the
        step that comes to its end would fail."""
        places = {f"%{name}" for name, role in self.roles.items() if role is Role.POSITIONS}
        for op in self.func.ops:
            tables = [op.operands[place] for place in TABLES.get(op.name, ()) if place < len(op.operands)]
            if op.name in SAME_NUMBERS and op.operands[0] in places:
                places.update(value.name for value in op.results)
            elif op.name == "onnx.Gather" and op.operands[1] in places and op.get("axis", 0) == 0:
                tables = [op.operands[0]]
            for name in tables:
                self.require_rows(name, op)

    def require_rows(self, name: str, op: Op) -> None:
        """Raises InvalidInput where ``name``, of which ``op`` reads rows by positions, is a table of too few."""
        type_ = self.module.resources[name].type if name in self.module.resources else None
        rows = type_.shape[0] if isinstance(type_, TensorType) and type_.shape else None
        if isinstance(rows, int) and rows < self.context:
            raise InvalidInput(TooFewPositions(name, rows, self.context), where=op.location.node or op.id)

    def counted_lengths(self, arg: Value) -> None:
        """Raises InvalidInput for a step of several tokens that see each other, whatever their order."""
        for op in self.func.ops:
            if arg.name in op.operands and self.step > 1 and not op.get("is_causal", 0) and not any(op.operands[3:4]):
                reason = f"{op.id} (Attention) is not causal, and has no mask"
                raise InvalidInput(CacheNotInPlace(op.operands[1].lstrip("%@"), reason), where=op.location.node or op.id)

    def with_positions(self, ops: Sequence[Op], *, required: bool) -> list[Op]:
        """``ops`` of a model without positions among its inputs: it looks them up by a constant, past .. past + s - 1, or
        counts ones of its mask, or has none. Raises InvalidInput where they are read otherwise, or counted for several tokens
        of a step, and where ``required`` ones are missing: whether the model has none is not known."""
        source, expected = next(iter(self.axes)).source, np.arange(self.context - self.step, self.context)
        constants = {
            name: array.ndim
            for name, one in self.module.resources.items()
            if (array := array_of(one)) is not None
            and array.dtype.kind == "i"
            and array.size in (self.step, self.step * self.batch)
            and array.shape[-1:] in ((), (self.step,))
            and (array == expected).all()
        }
        found, shapes, looked_up = [], dict[str, tuple[int, ...]](), False
        for op in ops:
            read = [name for name in op.operands if name in constants and (constants[name] or op.name == "onnx.Gather")]
            if read:
                if op.name != "onnx.Gather" or op.get("axis", 0) or read != [op.operands[1]] or not constants[read[0]]:
                    raise self.unknown_positions(source)
                self.require_rows(op.operands[0], op)
                looked_up, shape = True, (self.batch, self.step, *_shape(op.results[0])[-1:])
                if shape != _shape(op.results[0]):
                    shapes[op.results[0].name] = shape
                op = _of_shapes(replace(op, operands=(op.operands[0], self.writer.places())), [shape])
            elif shapes.keys() & set(op.operands):
                of_batch = self.of_batch(op, shapes)
                if of_batch is None:
                    raise self.unknown_positions(source)
                op = of_batch
            found.append(op)
        counts = any(op.name == "onnx.CumSum" for op in ops)
        if not looked_up and counts and self.step > 1:
            raise self.unknown_positions(source, "counts those of several tokens by its mask")
        if not looked_up and not counts and required:
            raise self.unknown_positions(source, "which of its numbers follow from the length of its past is not known")
        return found

    def of_batch(self, op: Op, shapes: dict[str, tuple[int, ...]]) -> Op | None:
        """``op``, which reads values that were ``[1, ..]`` and are now ``[B, ..]``: ``shapes`` has them, and gets those of its
        results. None where the first dimension of its results may be another than theirs."""
        read, rank = [shapes.get(name) for name in op.operands], len(_shape(op.results[0]))
        added, axes = 0, tuple[int, ...]()
        if op.name == "onnx.Unsqueeze" and op.operands[1] in self.module.resources:
            array = array_of(self.module.resources[op.operands[1]])
            axes = tuple(int(axis) % rank for axis in array.flat) if array is not None else (0,)
            added = len(axes)
        elif op.name == "onnx.Split" or (op.name == "onnx.Concat" and None not in read):
            axes = (int(op.get("axis", 0)) % rank,)
        elif op.name == "onnx.Transpose":
            axes = (0,) if op.get("perm", (1,))[0] else ()
        elif op.name not in ELEMENTWISE:
            return None
        if 0 in axes or any(shape is not None and len(shape) + added != rank for shape in read):
            return None
        constants = [_shape(self.module.resources[name]) for name in op.operands if name in self.module.resources]
        if op.name in ELEMENTWISE and any(len(shape) == rank and shape[0] != 1 for shape in constants):
            return None  # as many as sequences by chance, such as a row for each head
        made = [(self.batch, *_shape(value)[1:]) for value in op.results]
        shapes.update((one.name, shape) for one, shape in zip(op.results, made, strict=True) if shape != _shape(one))
        return _of_shapes(op, made)

    def unknown_positions(
        self, source: str, how: str = "computes positions from the length of its past in a way unknown to dnnc"
    ) -> InvalidInput:
        reason = f"the model has no input position_ids, and {how}"
        return InvalidInput(CacheNotInPlace(source, reason), where=self.module.name)

    def in_place(self, op: Op) -> list[Op]:
        """``op``, writing in place what it appends to a cache."""
        if op.name == ATTENTION and any(f"%{pair.source}" in op.operands[4:6] for pair in self.axes):
            return self.apart(op)
        return [self.appended(op)]

    def apart(self, op: Op) -> list[Op]:
        """An Attention that appends keys and values to caches, as two updates in place and an Attention that reads them. What
        it calls causal counts from the end of the past, as any step does."""
        found, caches = list[Op](), list[str]()
        for new, past, value in zip(op.operands[1:3], op.operands[4:6], op.results[1:3], strict=True):
            pair = next((pair for pair in self.axes if f"%{pair.source}" == past and f"%{pair.result}" == value.name), None)
            if pair is None or len(_shape(op.results[0])) != 4:
                reason = f"{op.id} (Attention) appends it in a form unknown to dnnc: not [batch, heads, positions, width]"
                raise InvalidInput(CacheNotInPlace(past[1:], reason), where=op.location.node or op.id)
            written = past, new, self.writer.position.name
            found.append(Op("onnx.TensorScatter", written, (value,), attributes(axis=2, mode="linear"), location=op.location))
            caches.append(value.name)
        kept = tuple((key, value) for key, value in op.attributes if key != "is_causal")
        operands = (op.operands[0], *caches, *op.operands[3:4])
        return [*found, replace(op, operands=operands, results=op.results[:1], attributes=kept)]

    def appended(self, op: Op) -> Op:
        """``op``, an update in place where it is the Concat of a cache and what is new."""
        for pair, axis in self.axes.items():
            if pair.grows is not None and op.results and op.results[0].name == f"%{pair.result}":
                if _shape(op.results[0])[0] != self.batch:
                    reason = f"its first dimension is not the batch, {self.batch}"
                    raise InvalidInput(CacheNotInPlace(pair.source, reason), where=pair.source)
                operands = (*op.operands, self.writer.position.name)
                return replace(
                    op, name="onnx.TensorScatter", operands=operands, attributes=attributes(axis=axis, mode="linear")
                )
            if pair.grows is not None and f"%{pair.source}" in all_reads(op):
                reason = f"{op.id} ({op.name.removeprefix('onnx.')}) reads it as it was before the step"
                raise InvalidInput(CacheNotInPlace(pair.source, reason), where=pair.source)
        several = self.step > 1 and self.batch > 1
        if op.name == GROUP_QUERY and several and len(op.operands) <= QUERY_LENGTHS:
            lengths = self.writer.constant("query_seqlens", np.full(self.batch, self.step), DType.I32)
            return replace(op, operands=(*op.operands, *[""] * (QUERY_LENGTHS - len(op.operands)), lengths))
        return op


def _of_shapes(op: Op, shapes: Sequence[tuple[int, ...]]) -> Op:
    """``op`` with results of these shapes."""
    results = []
    for value, shape in zip(op.results, shapes, strict=True):
        assert isinstance(value.type, TensorType)
        results.append(replace(value, type=replace(value.type, shape=shape)))
    return replace(op, results=tuple(results))


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def _shape(value: Value | Resource) -> tuple[int, ...]:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return tuple(dim for dim in shape or () if isinstance(dim, int))
