"""States: what a model keeps from step to step stays on its devices, and caches are written in place.

The entry comes in with caches as arguments and results, all dimensions bound. It leaves with a ``state`` for each pair
(``pairs``), which is an argument no more. With caches it is a step of a decoder: its arguments are token ids, ``[B, s]``, and
``position``, ``[B]``, that of the first of these tokens in each sequence; the attributes ``decoding.ids``, ``.position``,
``.logits`` and ``.context`` of the function name them.

Invariants:
1. A position of a cache is that of its token: slot j of sequence b holds token j of b.
2. Query i of sequence b sees slot j iff j <= position[b] + i. So what lies behind a sequence's tokens is never seen.
3. ``attention_mask`` and ``position_ids`` are computed from ``position``, under their names: 1 for j < position + s, and
   position + i.

A cache that grows by ``Concat`` is bound to its full length: past = context - s. Where ``position`` is that past, slots and
tokens agree in both programs; ``masks`` states what is changed, and what is refused, so that they agree elsewhere.

``pairs`` finds the states, ``roles`` says what the other inputs are, ``decoder`` rewrites the step with what ``writer`` adds,
``opset`` raises the opset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ir.core.diagnostics import InvalidInput
from ir.core.module import Func, Module, Resource, State
from ir.core.names import unique
from ir.core.ops import Op
from ir.core.types import TensorType, Type
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import renamed as renamed_ops
from passes.graph.symbols import insert_symbols
from passes.prepare.states.decoder import ATTENTION, GROUP_QUERY, RELATIVE, Decoder
from passes.prepare.states.faults import CacheNotInPlace, NoStates
from passes.prepare.states.masks import array_of
from passes.prepare.states.opset import raised
from passes.prepare.states.pairs import Pair, caches, named, recurrent
from passes.prepare.states.roles import Role, roles_of

SCATTER = "onnx.TensorScatter"
CACHES = {GROUP_QUERY: (3, 4), ATTENTION: (4, 5)}
"""The operands that are past keys and values, by operator; results 1 and 2 are what they become."""
IN_PLACE = 24
"""The first opset of ONNX with ``TensorScatter``."""


@dataclass(frozen=True)
class StatesPass(Pass):
    """Keep caches and recurrent states on their devices; write caches in place.

    ``pairs``: states as ``IN=OUT``, beside the caches that are recognised by their names. ``roles``: of other inputs, as
    ``NAME=ROLE``, beside those that ``roles`` tells. ``groups``: of sequences in flight, each with its own buffers.
    """

    name: ClassVar[str] = "states"
    pairs: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    groups: int = 1

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput where no state is found, a named pair is none, or a cache cannot be kept in place."""
        func = without_copies(module.entry)
        module = module.replace(module.entry, func)
        stated = named(func, self.pairs)
        sources = {pair.source for pair in stated}
        pairs = (*stated, *(pair for pair in caches(func) if pair.source not in sources))
        if not pairs:
            raise InvalidInput(NoStates(tuple(arg.name[1:] for arg in func.args)), where=module.name)
        makers = {value.name: op for op in func.ops for value in op.results}
        axes = {pair: cache_axis(pair, makers.get(f"%{pair.result}")) for pair in pairs}
        growing = [pair for pair in pairs if pair.grows is not None]
        if growing:
            module = raised(module, IN_PLACE, context.dialects)
            func = module.entry
        if any(axis is not None for axis in axes.values()):
            decoder = Decoder(module, pairs, {pair: axis for pair, axis in axes.items() if axis is not None}, self.roles)
            module = decoder.rewritten()
            given = tuple(Pair(arg.name[1:], "") for arg in decoder.given)
            pairs, axes = (*pairs, *given), {**axes, **dict.fromkeys(given)}
        module = _with_states(module, pairs, axes, self.groups)
        context.count(self.name, states=len(pairs), in_place=sum(axis is not None for axis in axes.values()))
        return module


def cache_axis(pair: Pair, maker: Op | None) -> int | None:
    """The axis along which a step writes ``pair`` in place; None where the whole state is new. Raises InvalidInput for a cache
    that grows otherwise than by ``Concat`` behind what it was, or in an ``Attention``."""
    if pair.grows is not None:
        if maker is not None and maker.name == ATTENTION and _continues(maker, pair):
            return pair.grows
        if maker is None or maker.name != "onnx.Concat" or len(maker.operands) != 2 or maker.operands[0] != f"%{pair.source}":
            if maker is not None and maker.name == "onnx.Cast":
                reason = "it has another type than what is appended to it: convert the file with inputs and outputs, too"
                raise InvalidInput(CacheNotInPlace(pair.source, reason), where=pair.source)
            how = f"{maker.name.removeprefix('onnx.')} makes it longer" if maker is not None else "no op makes it"
            raise InvalidInput(CacheNotInPlace(pair.source, f"{how}, not one Concat of it and what is new"), where=pair.source)
        return pair.grows
    if maker is not None and f"%{pair.source}" in maker.operands:
        if maker.name == GROUP_QUERY and _continues(maker, pair):
            return 2
        if maker.name == SCATTER:
            axis = maker.get("axis", -2)
            rank = len(shape) if isinstance(type_ := maker.results[0].type, TensorType) and (shape := type_.shape) else 4
            return int(axis) % rank
    return None


def without_copies(func: Func) -> Func:
    """The function without ops that hand on a value unchanged. Kept are copies of arguments and resources that are results, and
    second copies of one value that are; ``canonicalize`` keeps all copies that are results."""
    types = {value.name: value.type for value in (*func.args, *(value for op in func.ops for value in op.results))}
    results = {value.name for value in func.results}
    kept, names, stays = list[Op](), dict[str, str](), results | {arg.name for arg in func.args}
    for op in func.ops:
        given = op.operands[0] if op.operands else ""
        while given in names:
            given = names[given]
        made = op.results[0].name if op.results else ""
        if _hands_on(op, types) and made not in results:
            names[made] = given
        elif _hands_on(op, types) and given not in stays and given[:1] == "%":
            names[given] = made
        else:
            kept.append(op)
    for name in names:
        while names[name] in names:
            names[name] = names[names[name]]
    return replace(func, ops=renamed_ops(kept, names)) if names else func


def _hands_on(op: Op, types: Mapping[str, Type]) -> bool:
    """Whether the one result is the operand: of no change, of one part, of the element type that it has."""
    if op.name == "onnx.Cast":
        given, made = types.get(op.operands[0]), op.results[0].type
        return isinstance(given, TensorType) and isinstance(made, TensorType) and given.dtype is made.dtype
    return op.name == "onnx.Identity" or (op.name == "onnx.Concat" and len(op.operands) == 1)


def _continues(maker: Op, pair: Pair) -> bool:
    """Whether the past keys, or values, of an attention are the source, and its result of these the result of ``pair``. Raises
    InvalidInput where it reads the source otherwise."""
    if f"%{pair.source}" not in maker.operands:
        return False
    results = [value.name for value in maker.results[1:3]]
    read = [maker.operands[place] for place in CACHES[maker.name] if place < len(maker.operands)]
    if (f"%{pair.source}", f"%{pair.result}") not in zip(read, results, strict=False):
        reason = f"{maker.id} ({maker.name.removeprefix('onnx.')}) makes {pair.result} of another input"
        raise InvalidInput(CacheNotInPlace(pair.source, reason), where=pair.source)
    return True


def _with_states(module: Module, pairs: tuple[Pair, ...], axes: dict[Pair, int | None], groups: int) -> Module:
    """``module`` with the arguments of ``pairs`` as states."""
    func, taken = module.entry, {symbol.name for symbol in module.symbols}
    types = {value.name: value.type for value in (*func.results, *func.args)}
    renamed: dict[str, str] = {}
    states = []
    for pair in pairs:
        name = unique(f"@{pair.source}", taken)
        renamed[f"%{pair.source}"] = name
        states.append(Resource(name, types[f"%{pair.result or pair.source}"], State(pair.result, axes[pair], groups)))
    args = tuple(arg for arg in func.args if arg.name not in renamed)
    module = module.replace(func, replace(func, args=args, ops=renamed_ops(func.ops, renamed)))
    return insert_symbols(module, states)


__all__ = [
    "GROUP_QUERY",
    "RELATIVE",
    "Pair",
    "Role",
    "StatesPass",
    "array_of",
    "cache_axis",
    "caches",
    "named",
    "recurrent",
    "roles_of",
    "without_copies",
]
